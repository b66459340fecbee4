package mcp

import (
	"cmp"
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
	// maxRetries is how often an operation fetches the rest of an answer that the server has
	// put off, or that broke off.
	maxRetries = 2
	// changesEvery is how often one session may announce that its server's tools have changed.
	changesEvery = time.Second
)

// linkKey says which operations share a session: those of one conversation with one server.
type linkKey struct {
	workspace id.Workspace
	server    ServerID
	session   id.Session
	// credential tells apart the ways to reach the server.
	credential bool
}

// link is a protocol session with a server. A kept one is shared by operations of the same key,
// also at the same time, so that a server can remember what it did before.
type link struct {
	key     linkKey
	kept    bool
	process bool // it has a process of its own
	made    time.Time
	// base bounds what belongs to no operation: the handshake, answers to the server's pings,
	// its announcements.
	// Its end ends the operations too.
	base *operation

	ready   chan struct{} // closed when session or err is set
	session *mcp.ClientSession
	err     error

	changed atomic.Int64 // when a change was last announced, in Unix nanoseconds
	watched watched

	// Guarded by links.mu.
	users   int
	idle    *time.Timer // while there are no users
	since   time.Time   // when the last user left
	dropped bool        // no operation may take it any more
}

// links are the kept sessions of a process.
type links struct {
	mu      sync.Mutex // guards the fields below, and fields of each link
	open    map[linkKey]*link
	crashes map[linkKey]crash
	done    bool
}

// crash says how often a process has failed in a row, and when it may be started again.
type crash struct {
	err   error
	count int
	until time.Time
}

const (
	// steady is how long a process has to run for its failures to be forgotten.
	steady       = time.Minute
	longestPause = time.Minute
	maxCrashes   = 1024
)

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
	if crash := c.links.crashes[key]; time.Now().Before(crash.until) {
		return nil, false, processError(fmt.Sprintf("%s, %d times in a row; it is started again in %s",
			why(crash.err), crash.count, time.Until(crash.until).Round(time.Second)+time.Second))
	}
	ctx, end := context.WithCancel(context.Background())
	l = &link{key: key, base: &operation{ctx: ctx, end: end}, ready: make(chan struct{}), users: 1, made: time.Now(), process: s.command != nil}
	l.kept = (l.process || !id.IsZero(key.session)) && !c.links.done
	if !l.process {
		_, l.base.next = c.transport(s)
	}
	if l.kept {
		if err := c.makeRoom(l); err != nil {
			end()
			return nil, false, err
		}
		if c.links.open == nil {
			c.links.open = map[linkKey]*link{}
		}
		c.links.open[key] = l
	}
	return l, true, nil
}

// makeRoom closes links that were idle for longest, if there are too many beside a new one.
// c.links.mu is held.
func (c *client) makeRoom(next *link) error {
	for _, limit := range []struct {
		most   int
		counts func(l *link) bool
	}{
		{maxWorkspaceLinks, func(l *link) bool { return l.key.workspace == next.key.workspace }},
		{c.processes, func(l *link) bool { return l.process && next.process }},
		{maxLinks, func(*link) bool { return true }},
	} {
		n, oldest := 0, (*link)(nil)
		for _, l := range c.links.open {
			if !limit.counts(l) {
				continue
			}
			n++
			if l.users == 0 && (oldest == nil || l.since.Before(oldest.since)) {
				oldest = l
			}
		}
		if n < limit.most {
			continue
		}
		if oldest == nil {
			return errBusy
		}
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

// retire keeps further operations away from a link that has ended with err. A process that ends
// again and again is started less and less often.
func (c *client) retire(l *link, err error) {
	c.links.mu.Lock()
	defer c.links.mu.Unlock()
	if l.process && !l.dropped {
		c.crashed(l, err)
	}
	c.drop(l)
}

// crashed takes down that a process has failed. c.links.mu is held.
func (c *client) crashed(l *link, err error) {
	now := time.Now()
	if c.links.crashes == nil {
		c.links.crashes = map[linkKey]crash{}
	}
	if len(c.links.crashes) >= maxCrashes {
		clear(c.links.crashes)
	}
	last := c.links.crashes[l.key]
	if now.Sub(l.made) > steady {
		last.count = 0
	}
	next := crash{err: err, count: last.count + 1}
	if next.count > 1 { // the first time may be an accident
		next.until = now.Add(min(longestPause, time.Second<<min(next.count-2, 10)))
	}
	c.links.crashes[l.key] = next
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
		transport, err := c.dial(s, l)
		if err != nil {
			return err
		}
		l.session, err = c.protocol(s, l).Connect(ctx, transport, nil)
		return err
	})
	if !late() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.err = fmt.Errorf("open a session: %w", l.base.explain(ctx, err))
		c.retire(l, l.err)
		l.base.end()
		if l.session != nil {
			c.running.Go(func() { _ = l.session.Close() })
		}
	} else {
		l.base.forgive()
		c.running.Go(func() {
			err := l.session.Wait()
			c.retire(l, cmp.Or(l.base.cause(), err))
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
	options.ProgressNotificationHandler = func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { l.progress(r.Params) }
	return mcp.NewClient(&mcp.Implementation{Name: "signalbox", Version: "1"}, options)
}

// dial returns the SDK's transport of a link.
func (c *client) dial(s Server, l *link) (mcp.Transport, error) {
	if s.command != nil {
		p, err := startProcess(s.command, s.Workspace, l.base, c.log, &c.running)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(l.base.ctx, func() { _ = p.Close() }) // it never fails
		transport := &mcp.IOTransport{Reader: io.NopCloser(p), Writer: p, MaxLineLength: maxBytes + 1}
		if hide := hide(s.command.secrets(s.Workspace, false)); hide != nil {
			return redacting{transport, hide}, nil
		}
		return transport, nil
	}
	endpoint, _ := c.transport(s)
	return &mcp.StreamableClientTransport{
		Endpoint: endpoint, HTTPClient: &http.Client{Transport: &requests{c, l}, CheckRedirect: checkRedirect},
		MaxRetries: maxRetries, DisableStandaloneSSE: !l.kept, MaxEventSize: maxBytes,
	}, nil
}

// errRedirect means that a redirect would turn a message into a request for a page.
var errRedirect = errors.New("it redirects messages (301, 302 or 303), which loses them: use the URL that it redirects to, or have it answer 307 or 308")

// checkRedirect follows redirects that keep the message.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if err := netguard.CheckRedirect(req, via); err != nil {
		return err
	}
	if req.Method != via[0].Method {
		return errRedirect
	}
	return nil
}

// requests is the http.RoundTripper of a link.
type requests struct {
	client *client
	link   *link
}

type operationKey struct{}

// RoundTrip sends a request within the bounds of the operation that it belongs to.
func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet && req.Response == nil {
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
