package docproxy

import (
	"bufio"
	"errors"
	"net"
	"net/http"
)

// hijacker takes the connection over with a tape in it.
type hijacker struct {
	http.ResponseWriter
	tape *tape
}

// Hijack implements http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.tape = &tape{Conn: c}
	return h.tape, rw, nil
}

// tape is a connection that keeps what was read of it.
type tape struct {
	net.Conn
	kept []byte
}

var errTooMuch = errors.New("too much to be kept")

// Read implements io.Reader.
func (t *tape) Read(p []byte) (int, error) {
	if len(t.kept) > 2*maxFirstBytes {
		return 0, errTooMuch
	}
	n, err := t.Conn.Read(p)
	t.kept = append(t.kept, p[:n]...)
	return n, err
}
