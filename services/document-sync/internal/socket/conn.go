package socket

import (
	"context"
	"strings"
	"sync"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mux"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

const joinWait = 30 * time.Second // for a document to be loaded

// session is the protocol of a connection. Only the stream's goroutine calls it.
type session interface {
	// open is called before the first message.
	open() error
	// handle handles a message, which it must not keep. An error ends the connection.
	handle(msg []byte) error
	// leave leaves all seats.
	leave()
}

// conn is a connection, the mux.Session of a stream. See the package comment for its states.
type conn struct {
	h       *Handler
	stream  *mux.ServerStream
	opening *mux.OpenRequest // nil after Begin
	session session          // nil until the request is known
	actor   identity.Actor
	expires int64  // Unix seconds; 0: never
	message []byte // an incomplete message
	credit  credit
	share   room.Share // rate limit of answers, for all documents

	life life // the context of calls; cancelled when the connection ends

	mu     sync.Mutex // guards what follows
	ending bool       // nothing is sent any more
	label  string     // the reason, for the metrics
}

// Begin implements mux.Session.
func (c *conn) Begin() {
	if err := panics.Try(c.begin); err != nil {
		c.fail(err)
	}
}

func (c *conn) begin() error {
	o := c.opening
	c.opening = nil
	var err error
	if c.actor, err = c.h.verifier.Verify(o.Context); err != nil {
		c.h.log.WarnContext(&c.life, "socket refused", "error", err)
		return &closing{code: room.CloseBusy, reason: "The gateway did not prove who you are: try again later."}
	}
	refused := c.newSession(o.Path)
	if err := c.h.register(c, o.Expires); err != nil {
		return err
	}
	if refused != nil {
		return refused
	}
	return c.session.open()
}

// newSession creates the requested session.
func (c *conn) newSession(path string) error {
	if path == "/ws/hocuspocus" {
		c.session = &hocuspocus{c: c}
		return nil
	}
	name, ok := strings.CutPrefix(path, "/ws/documents/")
	doc, err := id.Parse[id.Document](name)
	c.session = &plain{c: c, ref: store.Ref{Workspace: c.actor.Workspace, Document: doc}}
	if !ok || err != nil {
		return &closing{code: room.CloseGone, reason: "There is no such document."}
	}
	return nil
}

// fail ends the connection because of an error.
func (c *conn) fail(err error) {
	why := closingOf(err)
	c.logFault(why, err)
	c.end(why)
}

// logFault logs a closing that is our fault.
func (c *conn) logFault(why closing, err error) {
	if why.log {
		c.h.log.WarnContext(&c.life, "document not open", "workspace", c.actor.Workspace.String(), "error", err)
	}
}

// enqueue sends frames, which are shared and never changed. It returns at once.
func (c *conn) enqueue(frames ...[]byte) {
	c.mu.Lock()
	ending := c.ending
	c.mu.Unlock()
	if ending {
		return
	}
	m := c.h.metrics
	m.messagesOut.Add(float64(len(frames)))
	for _, f := range frames {
		m.bytesOut.Add(float64(len(f)))
		if c.stream.Send(f) != nil {
			c.end(closing{code: room.CloseBusy, reason: "Too many large documents are in transit: try again later."})
			return
		}
	}
}

// end closes the connection with the first reason given.
func (c *conn) end(why closing) {
	c.mu.Lock()
	first := !c.ending
	if first {
		c.ending, c.label = true, why.metric()
	}
	c.mu.Unlock()
	if !first {
		return
	}
	code := why.code
	if code == 0 {
		code = mux.CodeLost
	}
	c.stream.Close(code, clip(why.reason, maxReason))
}

// Stop implements mux.Session.
func (c *conn) Stop() { c.life.cancel() }

// Closed implements mux.Session.
func (c *conn) Closed(code int, _ string) {
	c.mu.Lock()
	if !c.ending {
		c.ending, c.label = true, gatewayLabel(code)
	}
	label := c.label
	c.mu.Unlock()
	c.dropMessage()
	if c.session != nil {
		panics.Contain(&c.life, c.h.log, "end of a connection", c.session.leave)
		c.h.unregister(c)
	}
	c.h.metrics.closed.WithLabelValues(label).Inc()
}

// life is the context of a connection. One of package context would need 700 bytes after the
// first deadline derived from it, more than the rest of the connection.
type life struct {
	once sync.Once
	done chan struct{}
}

func (l *life) cancel() { l.once.Do(func() { close(l.done) }) }

// Deadline implements context.Context.
func (l *life) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (l *life) Done() <-chan struct{} { return l.done }

// Err implements context.Context.
func (l *life) Err() error {
	select {
	case <-l.done:
		return context.Canceled
	default:
		return nil
	}
}

// Value implements context.Context.
func (l *life) Value(any) any { return nil }
