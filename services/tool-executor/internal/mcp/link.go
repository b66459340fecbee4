package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/netguard"
	"signalbox.dev/pkg/panics"
)

const (
	// keepIdle is how long a kept session outlives its last operation.
	keepIdle = 5 * time.Minute
	// maxLinks and maxWorkspaceLinks bound the kept sessions, of all workspaces and of one.
	maxLinks          = 512
	maxWorkspaceLinks = 64
	// changesEvery is how often one session may announce that its server's tools have changed.
	changesEvery = time.Second
)

// linkKey says which operations share a session: those of one conversation with one server.
type linkKey struct {
	workspace id.Workspace
	server    ServerID
	session   id.Session
}

// link is a protocol session with a server. A kept one is shared by operations of the same key,
// also at the same time, so that a server can remember what it did before.
type link struct {
	key  linkKey
	kept bool
	// base bounds what belongs to no operation: the handshake, answers to the server's pings,
	// its announcements.
	// Its end ends the operations too.
	base *operation

	ready   chan struct{} // closed when session or err is set
	session *mcp.ClientSession
	err     error

	changed atomic.Int64 // when a change was last announced, in Unix nanoseconds

	// Guarded by links.mu.
	users   int
	idle    *time.Timer // while there are no users
	since   time.Time   // when the last user left
	dropped bool        // no operation may take it any more
}

// links are the kept sessions of a process.
type links struct {
	mu   sync.Mutex // guards open, done, and fields of each link
	open map[linkKey]*link
	done bool
}

// errBusy means that all sessions are in use.
var errBusy = errors.New("too many sessions with MCP servers are in use: try again later")

// take returns the link for an operation, which the caller releases. opened reports that it is
// new and has to be opened.
func (c *client) take(s Server, key linkKey) (l *link, opened bool, err error) {
	c.links.mu.Lock()
	defer c.links.mu.Unlock()
	if l := c.links.open[key]; l != nil {
		if l.idle != nil {
			l.idle.Stop()
		}
		l.users++
		return l, false, nil
	}
	kept := !id.IsZero(key.session) && !c.links.done
	if kept {
		if err := c.makeRoom(key.workspace); err != nil {
			return nil, false, err
		}
	}
	ctx, end := context.WithCancel(context.Background())
	_, next := c.transport(s)
	l = &link{key: key, kept: kept, base: &operation{next: next, ctx: ctx, end: end}, ready: make(chan struct{}), users: 1}
	if kept {
		if c.links.open == nil {
			c.links.open = map[linkKey]*link{}
		}
		c.links.open[key] = l
	}
	return l, true, nil
}

// makeRoom closes the link that was idle for longest if there are too many. c.links.mu is held.
func (c *client) makeRoom(ws id.Workspace) error {
	own, oldest, ownOldest := 0, (*link)(nil), (*link)(nil)
	for _, l := range c.links.open {
		if l.key.workspace == ws {
			own++
		}
		if l.users > 0 {
			continue
		}
		if oldest == nil || l.since.Before(oldest.since) {
			oldest = l
		}
		if l.key.workspace == ws && (ownOldest == nil || l.since.Before(ownOldest.since)) {
			ownOldest = l
		}
	}
	switch {
	case own >= maxWorkspaceLinks && ownOldest == nil, len(c.links.open) >= maxLinks && oldest == nil:
		return errBusy
	case own >= maxWorkspaceLinks:
		c.drop(ownOldest)
	case len(c.links.open) >= maxLinks:
		c.drop(oldest)
	}
	return nil
}

// drop keeps further operations away from a link, and closes it if it has no users. c.links.mu is
// held.
func (c *client) drop(l *link) {
	if l.dropped {
		return
	}
	l.dropped = true
	if c.links.open[l.key] == l {
		delete(c.links.open, l.key)
	}
	if l.users == 0 {
		c.hangUp(l)
	}
}

// retire keeps further operations away from a link.
func (c *client) retire(l *link) {
	c.links.mu.Lock()
	defer c.links.mu.Unlock()
	c.drop(l)
}

// hangUp closes a link that is not used any more, in the background.
func (c *client) hangUp(l *link) {
	if l.idle != nil {
		l.idle.Stop()
	}
	select {
	case <-l.ready:
	default: // nobody waits for it any more
		l.base.end()
		return
	}
	c.running.Go(func() {
		defer l.base.end()
		if l.session != nil {
			defer time.AfterFunc(farewell, l.base.end).Stop()
			_ = l.session.Close() // the server may be gone
		}
	})
}

// release ends an operation's use of a link.
func (c *client) release(l *link) {
	c.links.mu.Lock()
	defer c.links.mu.Unlock()
	l.users--
	switch {
	case l.users > 0:
	case l.dropped:
		c.hangUp(l)
	case !l.kept || c.links.done:
		c.drop(l)
	default:
		l.since = time.Now()
		l.idle = time.AfterFunc(keepIdle, func() { c.expire(l) })
	}
}

// expire drops a link that is idle.
func (c *client) expire(l *link) {
	c.links.mu.Lock()
	defer c.links.mu.Unlock()
	if l.users == 0 {
		c.drop(l)
	}
}

// dropWhere drops the links that a function selects.
func (c *client) dropWhere(selected func(linkKey) bool) {
	c.links.mu.Lock()
	defer c.links.mu.Unlock()
	for key, l := range c.links.open {
		if selected(key) {
			c.drop(l)
		}
	}
}

// close closes all links, and keeps no further ones.
func (c *client) close() {
	c.links.mu.Lock()
	c.links.done = true
	c.links.mu.Unlock()
	c.dropWhere(func(linkKey) bool { return true })
	c.running.Wait()
}

// join returns a link that is ready, which the caller releases.
func (c *client) join(ctx context.Context, s Server, key linkKey) (*link, error) {
	l, opened, err := c.take(s, key)
	if err != nil {
		return nil, err
	}
	if opened {
		c.running.Go(func() { c.connect(s, l) }) //nolint:contextcheck // others may need it too
	}
	select {
	case <-l.ready:
		err = l.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		c.release(l)
		return nil, err
	}
	return l, nil
}

// connect opens a link. Its life does not depend on the operation that needs it first.
func (c *client) connect(s Server, l *link) {
	ctx, cancel := context.WithTimeout(l.base.ctx, listTimeout)
	defer cancel()
	late := context.AfterFunc(ctx, l.base.end) // the SDK may not return on time
	err := panics.Try(func() (err error) {
		l.session, err = c.protocol(s, l).Connect(ctx, c.dial(s, l), nil)
		return err
	})
	if !late() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.err = fmt.Errorf("open a session: %w", l.base.explain(ctx, err))
		c.retire(l)
		l.base.end()
		if l.session != nil {
			c.running.Go(func() { _ = l.session.Close() })
		}
	} else {
		l.base.forgive()
		c.running.Go(func() {
			_ = l.session.Wait() // operations have the error
			c.retire(l)
		})
	}
	close(l.ready)
}

// forgotten reports whether an operation failed because the server does not know its session any
// more. The SDK's error does not always say so.
func (l *link) forgotten(op *operation, err error) bool {
	if err == nil || l.session.ID() == "" {
		return false
	}
	status, ok := errors.AsType[statusError](op.cause())
	return errors.Is(err, mcp.ErrSessionMissing) || ok && status == http.StatusNotFound
}

func (c *client) protocol(s Server, l *link) *mcp.Client {
	options := &mcp.ClientOptions{
		Logger: slog.New(slog.DiscardHandler), Capabilities: &mcp.ClientCapabilities{}, MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
	}
	if l.kept && c.changed != nil {
		options.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) {
			now := time.Now().UnixNano()
			if last := l.changed.Load(); now-last > int64(changesEvery) && l.changed.CompareAndSwap(last, now) {
				c.changed(s)
			}
		}
	}
	return mcp.NewClient(&mcp.Implementation{Name: "signalbox", Version: "1"}, options)
}

// dial returns the SDK's transport of a link.
func (c *client) dial(s Server, l *link) mcp.Transport {
	endpoint, _ := c.transport(s)
	return &mcp.StreamableClientTransport{
		Endpoint: endpoint, HTTPClient: &http.Client{Transport: &requests{c, l}, CheckRedirect: netguard.CheckRedirect},
		MaxRetries: -1, DisableStandaloneSSE: !l.kept, MaxEventSize: maxBytes,
	}
}

// requests is the http.RoundTripper of a link.
type requests struct {
	client *client
	link   *link
}

type operationKey struct{}

// RoundTrip sends a request within the bounds of the operation that it belongs to.
func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		return r.listen(req), nil //nolint:contextcheck // it lasts as long as the session
	}
	op, ok := req.Context().Value(operationKey{}).(*operation)
	if !ok {
		op = r.link.base
	}
	res, err := op.RoundTrip(req)
	if !ok && errors.Is(err, errLimit) {
		op.end()
	}
	return res, err
}

// listen answers the SDK's request for announcements of the server at once, and sends it in the
// background. Announcements are optional: a server that has none, or sends too many, loses only
// those, while the SDK would wait for it or give the session up.
func (r *requests) listen(req *http.Request) *http.Response {
	out, in := io.Pipe()
	base := r.link.base
	r.client.running.Go(func() {
		ctx, cancel := context.WithCancel(base.ctx)
		defer cancel()
		defer context.AfterFunc(req.Context(), cancel)()
		defer in.Close()                                                 //nolint:errcheck // never fails
		if res, err := base.next.RoundTrip(req.Clone(ctx)); err == nil { //nolint:bodyclose // bounded closes it
			stream := base.bounded(res, func() {})
			if res.StatusCode == http.StatusOK && stream.scanner.sse {
				_, _ = io.Copy(in, stream) // whatever ends it
			}
			_ = stream.Close()
		}
		<-ctx.Done() // an end would make the SDK ask again
	})
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1,
		Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: out, Request: req,
	}
}
