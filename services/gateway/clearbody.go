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

// The body of a request for an account may contain a secret, which must not stay in memory.
// The API reads it into one buffer and clears that. The buffer through which net/http reads a
// connection is cleared here after the request. The connection is closed then, because the
// buffer may contain the beginning of another request. The public listener does not speak
// HTTP/2, whose bodies pass through buffers of net/http that cannot be cleared; a proxy in
// front of the gateway can.

// clearBodies clears the read buffer after a request for an account, and after an attempt to
// speak HTTP/2.
func clearBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(clearingKey{}).(*clearingConn)
		accounts := r.Body != http.NoBody && strings.HasPrefix(path.Clean(r.URL.Path)+"/", api.AccountsPath+"/")
		if !ok || r.ProtoMajor == 1 && !accounts {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		defer func() {
			drain(r.Body)
			conn.clear()
		}()
		if r.ProtoMajor != 1 {
			http.Error(w, "the gateway speaks HTTP/1.1", http.StatusHTTPVersionNotSupported)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// drain reads the rest of a body, up to a bound, as net/http would do through a buffer that is
// not cleared.
func drain(body io.Reader) {
	buffer := make([]byte, 4<<10)
	defer clear(buffer)
	for range 64 {
		if _, err := body.Read(buffer); err != nil {
			return
		}
	}
}

// clearingListener accepts connections whose read buffer can be cleared.
type clearingListener struct{ net.Listener }

// Accept implements net.Listener.
func (l clearingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		return &clearingConn{TCPConn: tcp}, nil
	}
	return c, err
}

type clearingKey struct{}

// withClearing is for http.Server.ConnContext.
func withClearing(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*clearingConn); ok {
		return context.WithValue(ctx, clearingKey{}, c)
	}
	return ctx
}

// clearingConn knows the first buffer that it was read into, which is that of net/http's
// bufio.Reader. The pointer is weak: a hijacked connection does not need the buffer.
type clearingConn struct {
	*net.TCPConn
	buffer weak.Pointer[byte]
	size   int
}

// Read implements net.Conn.
func (c *clearingConn) Read(b []byte) (int, error) {
	if c.size == 0 { // the first read, to detect HTTP/2, is short but into the whole buffer
		c.buffer, c.size = weak.Make(unsafe.SliceData(b)), cap(b)
	}
	return c.TCPConn.Read(b)
}

// clear clears the buffer. The connection must not be read meanwhile.
func (c *clearingConn) clear() {
	if p := c.buffer.Value(); p != nil {
		clear(unsafe.Slice(p, c.size))
	}
}
