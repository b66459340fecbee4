// Package socket is the door for editors: WebSocket connections that carry Yjs.
//
//	GET /ws/documents/{id}   y-protocols: y-websocket, TipTap
//	GET /ws/hocuspocus       many documents on one connection: @hocuspocus/provider 2, 3, 4
//
// The gateway has authenticated whoever connects. It says so in two headers: the
// signed context of package identity, without which nobody is upgraded (401), and
// ExpiresHeader, the second in which the user's token runs out. Everything else that
// goes wrong is told after the upgrade, where a browser can see it, with a close code
// of package room and a reason. What a document is, and who sits in it, is behind
// Rooms.
//
// # A connection
//
// One goroutine reads: it joins, hands each message to its seat, and blocks there when
// the room is behind, so that the peer's own TCP window is the queue. It leaves its
// seats however it ends; nobody else does.
//
// Everybody else only appends frames to the connection's queue (room.Peer.Send) and
// returns. A frame is encoded once for each envelope and shared by all who get it: to
// a server's frame nothing of its recipient is added. A goroutine that writes exists
// while the queue is not empty; what has gathered meanwhile goes out in one write. The
// queue is bounded in bytes behind what is being written (Limits.Queue), and each
// write of 64 KiB has ten seconds: who reads too slowly is closed with 1013, and a
// client that connects again gets what it lacks. One frame may be larger than the
// bound, or a large document could never be sent.
//
// Gorilla's part is the handshake and reading. It writes nothing after the handshake
// (see wire), so that close frames, too, go through the queue.
//
// # Its end
//
//	live ──end(code)──▶ ending ──the peer closes, or 5 s──▶ closed
//
// end may be called by anybody, and the first one counts. It queues the close frame
// behind what waits (a slow reader's queue is thrown away first), cancels the context
// of the read goroutine and wakes it. That one leaves, and reads and forgets what
// still arrives until the peer closes: who closes a socket with unread bytes in it
// resets the connection, and the peer may never see why. After the close frame our
// half of the connection is shut, so that a peer does not wait for us either.
//
// # Time
//
// There are no timers and no goroutines for time in a connection. Run looks at all of
// them once a second: it ends those whose token ran out (4401), pings who was silent,
// or was told nothing, for 20 s, and drops who has sent no byte for 60 s. Along with a
// ping goes an awareness update about nobody, because the clients are JavaScript, which
// sees no pings: without a message for 30 s they take the server for dead.
//
// # Hocuspocus
//
// A document is joined by its Auth message, with the document's id as its name, and
// refused there. The token in it is not looked at. The provider of version 2 sends
// Auth only when it was given a token: any will do. A document that is closed for its
// members (4403, 4404 and the like) is closed alone, with PermissionDenied, which each
// version understands, and CLOSE; all other ends are of the connection.
//
// Each update or step 2 is answered with one SyncStatus, when it is stored. The
// step 1 of the server that a join brings counts as the answer to the client's
// first; each later one (forceSync) is answered with that state vector again, so that
// what was lost since comes in. A viewer's step 2 without structs is taken for stored:
// it is what a client without changes says.
//
// # If it dies here
//
// A connection keeps nothing that is not in the room or at the client. Clients connect
// again, to any instance, and both sides tell each other what they lack.
package socket

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// ExpiresHeader has the Unix second at which the user's token runs out. It is absent
// where there is no such second, as with an API key.
const ExpiresHeader = "Signalbox-Token-Expires"

// Rooms lets connections into documents.
type Rooms interface {
	// Join adds p to a document. Before it returns, or soon after, p is sent the
	// server's step 1 and the awareness of all who are there. Its errors have a kind:
	// NotFound, Forbidden, Unavailable.
	Join(ctx context.Context, ref store.Ref, actor identity.Actor, p room.Peer) (Seat, error)
}

// Seat is a connection's place in a document. One goroutine uses it. The slices that
// it is given are lent: it copies what it keeps.
type Seat interface {
	// Sync asks for what the owner of a state vector lacks, which is sent as KindStep2.
	Sync(stateVector []byte) error
	// Update hands over an update; it blocks while the room is behind. KindStored
	// follows, once for each.
	Update(ctx context.Context, update []byte) error
	// Awareness hands over an awareness update.
	Awareness(update []byte) error
	// QueryAwareness asks for everybody's, which is sent as KindAwareness.
	QueryAwareness()
	// Leave gives the seat up. It may come after the room closed the peer.
	Leave()
}

// Verifier tells who signed a context; *identity.Verifier is one.
type Verifier interface {
	Verify(token string) (identity.Actor, error)
}

// Limits bound connections; New fills in those that are zero.
type Limits struct {
	Connections int           // at a time; 10,000
	Message     int           // bytes of a message that is read; 8 MiB
	Queue       int           // bytes that wait for a peer that reads slowly; 4 MiB
	Partial     int           // bytes of all large messages that are being read; 256 MiB
	Documents   int           // of one Hocuspocus connection; 100
	Messages    int           // a second that one connection may send for long; 2,000
	Bytes       int           // a second that one connection may send for long; 4 MiB
	Drain       time.Duration // in which Run closes all connections at its end; 10 s
}

func (l Limits) withDefaults() Limits {
	for _, d := range []struct {
		v    *int
		zero int
	}{
		{&l.Connections, 10_000},
		{&l.Message, 8 << 20},
		{&l.Queue, 4 << 20},
		{&l.Partial, 256 << 20},
		{&l.Documents, 100},
		{&l.Messages, 2000},
		{&l.Bytes, 4 << 20},
	} {
		if *d.v == 0 {
			*d.v = d.zero
		}
	}
	if l.Drain == 0 {
		l.Drain = 10 * time.Second
	}
	return l
}

// Config is what New needs.
type Config struct {
	Rooms      Rooms
	Verifier   Verifier
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	Limits     Limits
}

// Handler serves the connections. It is made by New and needs Run.
type Handler struct {
	rooms    Rooms
	verifier Verifier
	log      *slog.Logger
	limits   Limits
	metrics  *metrics
	upgrader websocket.Upgrader

	start   time.Time
	tick    atomic.Int64 // whole seconds since start, kept by Run
	partial atomic.Int64 // bytes of large messages that are being read

	mu       sync.Mutex // guards what follows
	conns    map[*conn]struct{}
	draining bool
	live     sync.WaitGroup // the read goroutines
}

// New returns a handler that has no connections.
func New(cfg Config) (*Handler, error) {
	if cfg.Rooms == nil || cfg.Verifier == nil || cfg.Log == nil {
		return nil, errors.New("socket: rooms, verifier and log are needed")
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	h := &Handler{
		rooms: cfg.Rooms, verifier: cfg.Verifier, log: cfg.Log, limits: cfg.Limits.withDefaults(), metrics: m,
		start: time.Now(), conns: map[*conn]struct{}{},
	}
	h.upgrader = websocket.Upgrader{
		HandshakeTimeout: writeWait,
		// Messages are short; what is longer is read past the buffer.
		ReadBufferSize: 256,
		// Without a pool each connection would have a buffer that is never used.
		WriteBufferPool: &sync.Pool{},
		WriteBufferSize: 256,
		CheckOrigin:     func(*http.Request) bool { return true }, // the gateway did
	}
	return h, nil
}

// Mount adds the doors to mux.
func (h *Handler) Mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /ws/documents/{id}", func(w http.ResponseWriter, r *http.Request) {
		doc, err := id.Parse[id.Document](r.PathValue("id"))
		h.serve(w, r, func(c *conn) session {
			if err != nil {
				c.refuse = &closing{code: room.CloseGone, reason: "There is no such document."}
			}
			return &plain{c: c, ref: store.Ref{Workspace: c.actor.Workspace, Document: doc}}
		})
	})
	mux.HandleFunc("GET /ws/hocuspocus", func(w http.ResponseWriter, r *http.Request) {
		h.serve(w, r, func(c *conn) session { return &hocuspocus{c: c} })
	})
}

// Count returns how many connections there are.
func (h *Handler) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.conns)
}

// serve upgrades a request and returns: net/http's buffers and its goroutine are
// larger than all that a connection needs.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, newSession func(*conn) session) {
	actor, err := h.verifier.Verify(r.Header.Get(identity.Header))
	if err != nil {
		h.log.WarnContext(r.Context(), "socket refused", "error", err)
		http.Error(w, "This door is for other services of the platform: connect through the gateway.", http.StatusUnauthorized)
		return
	}
	if !h.enter() {
		http.Error(w, restarting, http.StatusServiceUnavailable)
		return
	}
	c := &conn{h: h, life: life{done: make(chan struct{})}, actor: actor}
	c.run = c.write
	c.expires, err = expiry(r.Header.Get(ExpiresHeader))
	if err != nil {
		c.refuse = &closing{code: room.CloseToken, reason: "The end of the token is not known: connect again."}
	}
	ws, err := h.upgrader.Upgrade(&hijacker{w, c}, r, nil)
	if err != nil { // the answer is written
		h.live.Done()
		h.log.DebugContext(r.Context(), "socket not upgraded", "error", err)
		return
	}
	c.wire.upgraded = true
	ws.SetReadLimit(int64(h.limits.Message))
	ws.SetCloseHandler(func(int, string) error { return nil }) // see closingOf
	ws.SetPongHandler(func(data string) error { return c.pay(1, len(data)) })
	ws.SetPingHandler(func(data string) error {
		c.enqueue(pongFrame(data))
		return c.pay(1, len(data))
	})
	c.ws = ws
	c.session = newSession(c)
	h.register(c)
	go func() { //nolint:contextcheck // the request ends here, and the connection has a life of its own
		defer h.live.Done()
		c.serve()
	}()
}

const restarting = "This server is about to restart: connect again."

// enter reports whether somebody may still come in; Run waits for who does.
func (h *Handler) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.draining {
		h.live.Add(1)
	}
	return !h.draining
}

// register counts c in. Who is refused is counted too, until they have been told.
func (h *Handler) register(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.draining:
		c.refuse = &closing{code: room.CloseRestart, reason: restarting}
	case len(h.conns) >= h.limits.Connections:
		c.refuse = &closing{code: room.CloseBusy, reason: "There are too many connections: try again later."}
	}
	now := h.tick.Load()
	c.seen.Store(now)
	c.sent.Store(now)
	c.credit = credit{at: now, messages: h.limits.Messages * burst, bytes: h.limits.Bytes * burst}
	h.conns[c] = struct{}{}
	h.metrics.open(c.session).Inc()
}

func (h *Handler) unregister(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
	h.metrics.open(c.session).Dec()
}

func expiry(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err == nil && v <= 0 {
		err = strconv.ErrRange
	}
	return v, err
}

// hijacker gives gorilla the connection's wire in place of what is under it.
type hijacker struct {
	http.ResponseWriter
	c *conn
}

// Hijack implements http.Hijacker, also below writers that only unwrap.
func (w *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	under, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.c.wire = wire{Conn: under, c: w.c}
	return &w.c.wire, buffered, nil
}

// wire is what gorilla reads from. It notes that the peer lives, and after the
// handshake it swallows what gorilla writes, which is close frames only: those are
// ours to write, in the right place of the queue.
type wire struct {
	net.Conn
	c        *conn
	upgraded bool
}

// Read implements net.Conn.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.c.seen.Store(w.c.h.tick.Load())
		w.c.h.metrics.bytesIn.Add(float64(n))
	}
	return n, err
}

// Write implements net.Conn.
func (w *wire) Write(p []byte) (int, error) {
	if w.upgraded {
		return len(p), nil
	}
	return w.Conn.Write(p)
}
