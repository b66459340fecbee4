package socket_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/gorilla/websocket"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mux"
)

// front stands in for the gateway: it has the WebSockets and the mux connections. The role and the token's
// expiry come from the query. It has no limits.
type front struct {
	w      *world
	signer *identity.Signer
	pool   *mux.Pool
	dial   func(context.Context) (net.Conn, error)
}

func newFront(w *world, signer *identity.Signer) *front {
	f := &front{w: w, signer: signer}
	f.pool = mux.NewPool(mux.Config{Dial: f.upgrade})
	return f
}

// run runs the pool until the test ends.
func (f *front) run(t testing.TB) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.pool.Run(ctx) // returns nil
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func (f *front) sign(role identity.Role) string {
	return must(f.signer.Sign(identity.Actor{Workspace: f.w.workspace, Member: id.New[id.Member](), Role: role}, "document-sync"))
}

func (f *front) upgrade(ctx context.Context) (net.Conn, []byte, error) {
	c, err := f.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	req := must(http.NewRequestWithContext(ctx, http.MethodGet, "http://document-sync/trunk", nil))
	req.Header.Set(identity.Header, f.sign(identity.Viewer))
	first, err := mux.Upgrade(c, req)
	if err != nil {
		c.Close()
	}
	return c, first, err
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	role, err := identity.ParseRole(r.URL.Query().Get("as"))
	if err != nil {
		role = identity.Editor
	}
	o := mux.OpenRequest{Path: r.URL.Path, Context: f.sign(role)}
	if s := r.URL.Query().Get("expires"); s != "" {
		if o.Expires, err = strconv.ParseInt(s, 10, 64); err != nil {
			o.Expires = -1
		}
	}
	up := websocket.Upgrader{ReadBufferSize: 256, WriteBufferSize: 256, CheckOrigin: func(*http.Request) bool { return true }}
	ws, err := up.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	e := &frontEditor{ws: ws, over: make(chan struct{})}
	e.more = sync.NewCond(&e.mu)
	var written sync.WaitGroup
	written.Go(e.write)
	link, err := f.pool.Open(r.Context(), r.URL.Path, o, e)
	if err != nil {
		e.Closed(1013, "document-sync is away")
		written.Wait()
		return
	}
	code := e.read(link)
	link.Close(code, "")
	written.Wait()
}

// frontEditor is an editor's WebSocket at the front.
type frontEditor struct {
	ws   *websocket.Conn
	over chan struct{}

	mu    sync.Mutex // guards the rest
	more  *sync.Cond
	queue bytes.Buffer
	done  bool
}

func (e *frontEditor) Deliver(piece []byte, _ bool, _ int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.done {
		e.queue.Write(piece)
	}
}

func (e *frontEditor) Flush() { e.more.Signal() }

func (e *frontEditor) Closed(code int, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done {
		return
	}
	if code != mux.CodeLost {
		msg := websocket.FormatCloseMessage(code, reason)
		e.queue.Write(append([]byte{0x88, byte(len(msg))}, msg...))
	}
	e.done = true
	close(e.over)
	e.more.Signal()
}

func (e *frontEditor) Broken(error) { e.Closed(mux.CodeLost, "") }

func (e *frontEditor) write() {
	for {
		e.mu.Lock()
		for e.queue.Len() == 0 && !e.done {
			e.more.Wait()
		}
		b := bytes.Clone(e.queue.Bytes())
		e.queue.Reset()
		e.mu.Unlock()
		if len(b) == 0 {
			if half, ok := e.ws.NetConn().(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
			return
		}
		if _, err := e.ws.NetConn().Write(b); err != nil {
			e.Closed(mux.CodeLost, "")
			return
		}
	}
}

// read passes messages on, and returns the editor's close code.
func (e *frontEditor) read(link *mux.ClientStream) int {
	part := make([]byte, mux.MaxPart)
	for {
		_, r, err := e.ws.NextReader()
		if err != nil {
			code := mux.CodeLost
			if c, ok := err.(*websocket.CloseError); ok { //nolint:errorlint // gorilla returns it so
				code = c.Code
			}
			e.Closed(mux.CodeLost, "")
			return code
		}
		for more := true; more; {
			n, err := io.ReadFull(r, part)
			if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
				e.Closed(mux.CodeLost, "")
				return mux.CodeLost
			}
			more = err == nil
			if link.Send(part[:n], more, e.over) != nil {
				more = false
			}
		}
	}
}
