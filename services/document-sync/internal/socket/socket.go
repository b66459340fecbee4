// Package socket serves the editors' connections. They are streams of package mux, at the other
// end of which the gateway has the editors' WebSockets.
//
//	GET /trunk               a mux connection of the gateway
//	/ws/documents/{id}       a stream with y-protocols: y-websocket, TipTap
//	/ws/hocuspocus           a stream with many documents: @hocuspocus/provider 2, 3, 4
//
// A mux connection starts with a signed context of package identity, or is refused (401). Each
// stream starts with the signed context of the authenticated user, one of the two paths, and the
// expiry of the user's token. Later errors are close codes of package room with a reason.
//
// # A connection
//
// The stream's goroutine joins, assembles messages and passes them to its seats. It blocks when
// the room falls behind, when the editor exceeds its rate limit, or when too much is in transit to
// the gateway: the stream's window fills, and the gateway stops reading from that editor. It
// leaves its seats when the stream ends. Everybody else only queues frames (room.Peer.Send). A
// frame is encoded once per envelope, as the editor's WebSocket frame, and shared by all
// recipients.
//
//	opened ──verified, joined──▶ live ──end, or the gateway──▶ over
//
// Anybody may call end, and the first reason counts. Run closes connections whose token has
// expired (4401), once a second. Slow readers and dead connections are the gateway's concern.
//
// # Hocuspocus
//
// A document is joined with an Auth message with its id as the name. The token is ignored, but
// version 2 sends Auth only if it was given one. A document that is closed for its members (4403,
// 4404), or for a member whose update was refused (4413), is closed alone, with PermissionDenied,
// which each version understands, and CLOSE: no provider rejoins it on the same connection. All
// other closings end the connection.
//
// Each update or step 2 is answered with one SyncStatus when it is stored. The server's first step
// 1 also answers the client's first; each later one (forceSync) is answered with the same state
// vector, so that lost updates are resent. A viewer's step 2 without structs counts as stored.
//
// # Failure
//
// A connection has no state that is not in the room or at the client. After a crash clients
// reconnect to any instance and sync.
package socket

import (
	"cmp"
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

// Rooms admits connections to documents.
type Rooms interface {
	// Join adds p to a document. p is sent the server's step 1 and everybody's awareness,
	// before Join returns or soon after. Errors are NotFound, Forbidden or Unavailable faults.
	Join(ctx context.Context, ref store.Ref, actor identity.Actor, p room.Peer) (Seat, error)
}

// Seat is a connection's membership in a document, used by one goroutine. It copies the slices
// that it keeps.
type Seat interface {
	// Sync requests everything that the owner of a state vector lacks, as KindStep2.
	Sync(stateVector []byte) error
	// Update passes on an update and blocks while the room is behind. KindStored follows
	// for each.
	Update(ctx context.Context, update []byte) error
	// Awareness passes on an awareness update.
	Awareness(update []byte) error
	// QueryAwareness requests everybody's awareness, as KindAwareness.
	QueryAwareness()
	// Leave leaves the document. It may be called after the room has closed the peer.
	Leave()
}

// Verifier verifies signed contexts; *identity.Verifier is one.
type Verifier interface {
	Verify(token string) (identity.Actor, error)
}

// Limits limits connections. New fills in those that are zero.
type Limits struct {
	Connections int           // concurrently; 10,000
	Message     int           // bytes of a received message; 8 MiB
	Partial     int           // bytes of all large incomplete messages; 256 MiB
	Documents   int           // per Hocuspocus connection; 100
	Messages    int           // per second and connection; 2,000
	Bytes       int           // per second and connection; 4 MiB
	Drain       time.Duration // for closing all connections; 10 s
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, 10_000)
	l.Message = cmp.Or(l.Message, 8<<20)
	l.Partial = cmp.Or(l.Partial, 256<<20)
	l.Documents = cmp.Or(l.Documents, 100)
	l.Messages = cmp.Or(l.Messages, 2000)
	l.Bytes = cmp.Or(l.Bytes, 4<<20)
	l.Drain = cmp.Or(l.Drain, 10*time.Second)
	return l
}

// Config configures New.
type Config struct {
	Rooms      Rooms
	Verifier   Verifier
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	Limits     Limits
}

// Handler serves the connections. It requires Run.
type Handler struct {
	rooms    Rooms
	verifier Verifier
	log      *slog.Logger
	limits   Limits
	metrics  *metrics
	muxes    mux.Server

	start   time.Time
	tick    atomic.Int64 // whole seconds since start, updated by Run
	partial atomic.Int64 // bytes of large incomplete messages

	mu       sync.Mutex // guards what follows
	conns    map[*conn]struct{}
	draining bool
	empty    chan struct{} // closed when no connections are left while draining
}

// New returns a handler without connections.
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
	h.muxes.Accept = h.accept
	return h, nil
}

// Mount adds the handler to m.
func (h *Handler) Mount(m *http.ServeMux) { m.HandleFunc("GET /trunk", h.serve) }

// serve accepts a mux connection.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request) {
	peer, err := h.verifier.Verify(r.Header.Get(identity.Header))
	if err != nil {
		h.log.WarnContext(r.Context(), "mux connection refused", "error", err)
		http.Error(w, "This endpoint is for other services of the platform: connect through the gateway.", http.StatusUnauthorized)
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
	if err != nil { // mux.Hijack has written the response
		h.log.DebugContext(r.Context(), "mux connection not accepted", "error", err)
		return
	}
	go func() { //nolint:contextcheck // the mux connection outlives the request
		err := panics.Try(func() error { return h.muxes.Serve(conn, first) })
		h.log.Debug("mux connection ended", "service", peer.Service, "error", err) //nolint:sloglint // as above
	}()
}

const restarting = "This server is about to restart: connect again."

func (h *Handler) accept(s *mux.ServerStream, o mux.OpenRequest) mux.Session {
	return &conn{h: h, stream: s, opening: &o, life: life{done: make(chan struct{})}}
}

// register counts c. Refused connections count too, until they are closed.
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
		return &closing{code: room.CloseToken, reason: "The expiry of the token is unknown: connect again."}
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

// checkEmpty wakes drain when none are left. h.mu is held.
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
