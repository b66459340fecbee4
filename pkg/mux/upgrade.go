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

// Protocol is what a connection is upgraded to. What is not compatible gets another name.
const Protocol = "signalbox-trunk-1"

// Upgrade makes a trunk of a connection to a Server, with a request that has a URL and
// the headers that prove who asks. It returns what came behind the answer. The caller sets
// deadlines, and closes conn after an error.
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
		return nil, fmt.Errorf("%s answers an upgrade with %s", req.Host, res.Status)
	}
	first, err = br.Peek(br.Buffered())
	return bytes.Clone(first), err
}

// Take makes a trunk of the connection that a request came on, for Server.Serve. After
// an error the request was answered, or its connection is gone. Whether the one who
// asks may, the caller has found out before.
func Hijack(w http.ResponseWriter, r *http.Request) (conn net.Conn, first []byte, err error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), Protocol) {
		w.Header().Set("Upgrade", Protocol)
		w.Header().Set("Connection", "Upgrade")
		http.Error(w, "This door is for trunks of sockets: connect through the gateway.", http.StatusUpgradeRequired)
		return nil, nil, errors.New("mux: not asked for")
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "A trunk needs HTTP/1.1.", http.StatusInternalServerError)
		return nil, nil, fmt.Errorf("mux: take a connection over: %w", err)
	}
	first, err = rw.Peek(rw.Reader.Buffered())
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(writeWait))
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
