package mux

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Protocol is what a connection is upgraded to. An incompatible version gets another name.
const Protocol = "signalbox-trunk-1"

// Upgrade upgrades a connection to a Server. req has a URL and the headers that authenticate
// the caller. It returns the bytes read after the response. The caller sets deadlines, and
// closes conn after an error.
func Upgrade(conn net.Conn, req *http.Request) (first []byte, err error) {
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", Protocol)
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, req)
	if err != nil {
		return nil, err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(res.Header.Get("Upgrade"), Protocol) {
		return nil, fmt.Errorf("%s answers the upgrade with %s", req.Host, res.Status)
	}
	first, err = br.Peek(br.Buffered())
	return bytes.Clone(first), err
}

// Hijack takes over the connection of a request that asks for Protocol, for Server.Serve.
// The caller has authenticated the request. After an error the request has been answered, or
// its connection is gone.
func Hijack(w http.ResponseWriter, r *http.Request) (conn net.Conn, first []byte, err error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), Protocol) {
		w.Header().Set("Upgrade", Protocol)
		w.Header().Set("Connection", "Upgrade")
		http.Error(w, "This endpoint is for the gateway: connect to it instead.", http.StatusUpgradeRequired)
		return nil, nil, errors.New("mux: the request does not ask for an upgrade")
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "The upgrade needs HTTP/1.1.", http.StatusInternalServerError)
		return nil, nil, fmt.Errorf("mux: take over the connection: %w", err)
	}
	first, err = rw.Peek(rw.Reader.Buffered())
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(writeTimeout))
	}
	if err == nil {
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+Protocol+"\r\n\r\n")
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("mux: answer an upgrade: %w", err)
	}
	return conn, bytes.Clone(first), nil
}
