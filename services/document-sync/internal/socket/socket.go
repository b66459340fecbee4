// Package socket is the door for editors: connections that carry Yjs. They are streams
// of package trunk, whose other end, the gateway, has the editors' WebSockets.
//
//	GET /trunk               a trunk
//	/ws/documents/{id}       y-protocols: y-websocket, TipTap
//	/ws/hocuspocus           many documents on one connection: @hocuspocus/provider 2, 3, 4
//
// A trunk is a service's own: it begins with a signed context of package identity, or is
// refused (401). Each stream on it begins with one more, of the person whom the gateway has
// authenticated; with what is asked for, one of the two paths; and with the second in which the user's
// token runs out. Everything that goes wrong then is told with a close code of package
// room and a reason. What a document is, and who sits in it, is behind Rooms.
//
// # A connection
//
// It has no goroutine of its own while nothing comes. The stream's goroutine joins, puts
// messages together, hands each to its seat, and waits there when the room is behind, or
// when the editor sends, asks or joins faster than it may, or before a question when much is
// under way to the gateway: the stream's window fills, and the gateway
// reads that editor no further. It leaves its seats however the stream ends; nobody else
// does.
//
// Everybody else only queues frames (room.Peer.Send) and returns. A frame is encoded
// once for each envelope, as the WebSocket frame that editors get, and shared by all who get
// it: to a server's frame nothing of its recipient is added. To those of one gateway it
// crosses once. Who reads too slowly is the gateway's matter.
//
//	opened ──verified, joined──▶ live ──end, or the gateway──▶ over
//
// end may be called by anybody, and the first one counts. It ends the stream behind what
// was sent, which stops the stream's goroutine where it waits.
//
// # Time
//
// There are no timers and no goroutines for time in a connection. Run looks at all of
// them once a second, and ends those whose token ran out (4401). Whether an editor is
// still there the gateway finds out.
//
// # Hocuspocus
//
// A document is joined by its Auth message, with the document's id as its name, and
// refused there. The token in it is not looked at. The provider of version 2 sends
// Auth only when it was given a token: any will do. A document that is closed for its
// members (4403, 4404), or for one whose update it does not take (4413), is closed alone,
// with PermissionDenied, which each version understands, and CLOSE: no provider joins it
// again by itself as long as the connection lasts. All other ends are of the connection.
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
// again, to any instance, and both sides tell each other what they lack. A gateway of a
// version that knows no trunks asks for WebSockets here, and is answered 404: its editors
// wait until it is replaced, and lose nothing.
package socket

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mux"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

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
	trunks   mux.Server

	start   time.Time
	tick    atomic.Int64 // whole seconds since start, kept by Run
	partial atomic.Int64 // bytes of large messages that are being read

	mu       sync.Mutex // guards what follows
	conns    map[*conn]struct{}
	draining bool
	empty    chan struct{} // closed when none are left while it drains
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
		start: time.Now(), conns: map[*conn]struct{}{}, empty: make(chan struct{}),
	}
	h.trunks.Accept = h.accept
	return h, nil
}

// Mount adds the door to mux.
func (h *Handler) Mount(m *http.ServeMux) { m.HandleFunc("GET /trunk", h.serve) }

// Count returns how many connections there are.
func (h *Handler) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.conns)
}

// serve takes a trunk.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request) {
	peer, err := h.verifier.Verify(r.Header.Get(identity.Header))
	if err != nil {
		h.log.WarnContext(r.Context(), "trunk refused", "error", err)
		http.Error(w, "This door is for other services of the platform: connect through the gateway.", http.StatusUnauthorized)
		return
	}
	h.mu.Lock()
	draining := h.draining
	h.mu.Unlock()
	if draining {
		http.Error(w, restarting, http.StatusServiceUnavailable)
		return
	}
	conn, first, err := mux.Hijack(w, r)
	if err != nil { // the answer is written
		h.log.DebugContext(r.Context(), "trunk not taken", "error", err)
		return
	}
	go func() { //nolint:contextcheck // the request ends here, and the trunk has a life of its own
		err := panics.Try(func() error { return h.trunks.Serve(conn, first) })
		h.log.Debug("trunk ended", "service", peer.Service, "error", err) //nolint:sloglint // as above
	}()
}

const restarting = "This server is about to restart: connect again."

func (h *Handler) accept(s *mux.ServerStream, o mux.OpenRequest) mux.Session {
	return &conn{h: h, stream: s, opening: &o, life: life{done: make(chan struct{})}}
}

// register counts c in. Who is refused is counted too, until they have been told.
func (h *Handler) register(c *conn, expires int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.conns)
	c.expires = expires
	c.credit = credit{at: h.tick.Load(), messages: h.limits.Messages * burst, bytes: h.limits.Bytes * burst}
	h.conns[c] = struct{}{}
	h.metrics.open(c.session).Inc()
	switch {
	case expires < 0:
		return &closing{code: room.CloseToken, reason: "The end of the token is not known: connect again."}
	case h.draining:
		return &closing{code: room.CloseRestart, reason: restarting}
	case n >= h.limits.Connections:
		return &closing{code: room.CloseBusy, reason: "There are too many connections: try again later."}
	}
	return nil
}

func (h *Handler) unregister(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
	h.metrics.open(c.session).Dec()
	h.checkEmpty()
}

// checkEmpty tells drain that none are left. The lock is held.
func (h *Handler) checkEmpty() {
	if !h.draining || len(h.conns) > 0 {
		return
	}
	select {
	case <-h.empty:
	default:
		close(h.empty)
	}
}
