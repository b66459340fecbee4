package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"unsafe"
	"weak"

	"signalbox.dev/services/gateway/internal/api"
)

// The body of a request for an account may hold a secret. What keeps it out of this process'
// memory: the API reads it into one buffer and clears that, and the buffer through which
// net/http reads a connection is cleared here when the request has been served, or refused.
// The connection ends with the answer, since that buffer could hold the beginning of a next
// request. The public listener does not speak HTTP/2, whose bodies pass through buffers of
// net/http that cannot be reached: a proxy in front of the gateway speaks it to clients.

// forgetBodies clears what a request for an account has left behind, and the beginning of
// a connection that tries HTTP/2.
func forgetBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(forgetfulKey{}).(*forgetfulConn)
		accounts := r.Body != http.NoBody && strings.HasPrefix(path.Clean(r.URL.Path)+"/", api.AccountsPath+"/")
		if !ok || r.ProtoMajor == 1 && !accounts {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		defer func() {
			drain(r.Body)
			conn.forget()
		}()
		if r.ProtoMajor != 1 {
			http.Error(w, "the gateway speaks HTTP/1.1", http.StatusHTTPVersionNotSupported)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// drain reads what nobody has read of a body, as net/http would through a buffer that it
// keeps. What is longer it does not read either.
func drain(body io.Reader) {
	buffer := make([]byte, 4<<10)
	defer clear(buffer)
	for range 64 {
		if _, err := body.Read(buffer); err != nil {
			return
		}
	}
}

// forgetful accepts connections that can clear the buffer through which they are read.
type forgetful struct{ net.Listener }

// Accept implements net.Listener.
func (l forgetful) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		return &forgetfulConn{TCPConn: tcp}, nil
	}
	return c, err
}

type forgetfulKey struct{}

// withForgetting is for http.Server.ConnContext.
func withForgetting(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*forgetfulConn); ok {
		return context.WithValue(ctx, forgetfulKey{}, c)
	}
	return ctx
}

// forgetfulConn remembers the buffer that it was read into first, which is the one of
// net/http's bufio.Reader. It does not keep it: who takes the connection over does without.
type forgetfulConn struct {
	*net.TCPConn
	buffer weak.Pointer[byte]
	size   int
}

// Read implements net.Conn.
func (c *forgetfulConn) Read(b []byte) (int, error) {
	if c.size == 0 { // at first net/http asks for as little as tells HTTP/2, of its whole buffer
		c.buffer, c.size = weak.Make(unsafe.SliceData(b)), cap(b)
	}
	return c.TCPConn.Read(b)
}

// forget clears the buffer. Nobody reads the connection meanwhile.
func (c *forgetfulConn) forget() {
	if p := c.buffer.Value(); p != nil {
		clear(unsafe.Slice(p, c.size))
	}
}
