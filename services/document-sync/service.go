// Package documentsync is the document service. People edit over WebSockets
// (internal/socket); other services call DocumentService, with Markdown in and out.
//
// A document is a Yjs document. Postgres has its updates, its history and the answers to past
// operations (internal/store). An open document has a room (internal/room), which commits
// edits before anybody else sees them and informs the other instances over the bus. Pure
// functions compute the edits (internal/edit). RPC subscribers receive changes
// (internal/watch).
//
// Any instance serves any document, and none has state that another one needs. If an instance
// dies, calls in flight fail as Unavailable and are repeated with the same key, editors
// connect elsewhere and resend what was not stored, and subscribers resubscribe.
package documentsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	"signalbox.dev/services/document-sync/internal/edit"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/socket"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/watch"
	"signalbox.dev/services/document-sync/migrations"
)

// Schema and Role identify the service in Postgres.
const (
	Schema = "documents"
	Role   = "signalbox_documents"
)

// Migrations returns the service's database migrations.
func Migrations() pg.Migrations {
	return pg.Migrations{Schema: Schema, Role: Role, FS: migrations.FS}
}

// Deps are the dependencies of the service. Their owner closes them after Run, except for the
// listener, which Run closes.
type Deps struct {
	Log *slog.Logger
	DB  *pg.DB   // as Role, in Schema
	Bus *bus.Bus // as subject.DocumentSync
	// Listener accepts calls of other services and serves the operators' pages.
	Listener net.Listener
	// Verifier authenticates the callers: gateway and tool-executor.
	Verifier   *identity.Verifier
	Registerer prometheus.Registerer // nil: no metrics
	Gatherer   prometheus.Gatherer   // nil: no /metrics page
}

// Service is document-sync.
type Service struct {
	cfg     Config
	deps    Deps
	store   *store.Store
	roomBus *bus.Bus // the rooms' connection, without echo; closed by Run
	rooms   *room.Hub
	sockets *socket.Handler
	hub     *watch.Hub
	handler http.Handler
}

// New wires the service, which serves nothing before Run. ctx is used for logging by its bus
// connection and may end before Run.
func New(ctx context.Context, cfg Config, deps Deps) (s *Service, err error) {
	if deps.Log == nil || deps.DB == nil || deps.Bus == nil || deps.Listener == nil || deps.Verifier == nil {
		return nil, errors.New("document-sync: log, database, bus, listener and verifier are needed")
	}
	if err := conf.SetDefaults(&cfg); err != nil {
		return nil, fmt.Errorf("document-sync: %w", err)
	}
	roomBus, err := deps.Bus.WithoutEcho(ctx)
	if err != nil {
		return nil, fmt.Errorf("document-sync: %w", err)
	}
	defer func() {
		if err != nil {
			roomBus.Close()
		}
	}()
	s = &Service{cfg: cfg, deps: deps, roomBus: roomBus}
	s.store = store.New(deps.DB, store.Limits{Versions: cfg.Versions, VersionBytes: int64(cfg.HistoryMB) << 20})
	s.hub = watch.New(watch.Config{
		Bus: deps.Bus, Source: s.store, Log: deps.Log, Resync: cfg.Resync, Watchers: cfg.Streams, Queue: cfg.Queue,
	})
	editor := edit.New(prosemirror.TipTap())
	s.rooms = room.New(room.Config{
		Store: s.store, Log: deps.Log, Bus: room.NewNATS(roomBus, deps.Log), Metrics: deps.Registerer,
		Render:    editor.Render,
		ApplySeed: func(doc *yjs.Doc, seed store.Seed) error { return editor.ApplySeed(doc, seed.Before, seed.After) },
		Rooms:     cfg.Rooms, MemoryBytes: cfg.MemoryMB << 20, DocumentBytes: cfg.DocumentMB << 20,
	})
	s.sockets, err = socket.New(socket.Config{
		Rooms: rooms{s.rooms}, Verifier: deps.Verifier, Log: deps.Log, Registerer: deps.Registerer,
		Limits: socket.Limits{Connections: cfg.Connections},
	})
	if err != nil {
		return nil, fmt.Errorf("document-sync: %w", err)
	}
	m, err := newMetrics(deps.Registerer, s.hub.Count)
	if err != nil {
		return nil, fmt.Errorf("document-sync: register metrics: %w", err)
	}
	options, err := rpc.Server{Verifier: deps.Verifier, Log: deps.Log}.HandlerOptions()
	if err != nil {
		return nil, fmt.Errorf("document-sync: %w", err)
	}
	mux := http.NewServeMux()
	path, calls := documentv1connect.NewDocumentServiceHandler(&documents{
		store: s.store, rooms: s.rooms, editor: editor, hub: s.hub, log: deps.Log, metrics: m,
		replicas: make(chan struct{}, maxReplicas),
	}, options...)
	mux.Handle(path, calls)
	httpserver.Ops{
		Checks:   map[string]httpserver.Check{"postgres": deps.DB.Ping, "nats": deps.Bus.Ready},
		Gatherer: deps.Gatherer, Log: deps.Log,
	}.Mount(mux)
	all := http.NewServeMux()
	all.Handle("/", httpserver.BoundWrites(mux, cfg.WriteWait))
	s.sockets.Mount(all) // limits its writes itself
	s.handler = all
	return s, nil
}

// rooms adapts the hub to socket.Rooms.
type rooms struct{ *room.Hub }

// Join implements socket.Rooms.
func (r rooms) Join(ctx context.Context, ref store.Ref, actor identity.Actor, p room.Peer) (socket.Seat, error) {
	seat, err := r.Hub.Join(ctx, ref, actor, p)
	if err != nil {
		return nil, err // a nil *room.Seat would not be a nil interface
	}
	return seat, nil
}

// Run serves until ctx is done. Then it ends streams, closes connections gradually, and lets
// calls in flight finish within Config.Drain; edits are stored. It returns nil and is called
// once.
func (s *Service) Run(ctx context.Context) error {
	defer s.roomBus.Close()
	defer s.store.Close()
	g, ctx := errgroup.WithContext(ctx)
	// The rooms stay open while connections or calls can reach them.
	open, closeRooms := context.WithCancel(context.WithoutCancel(ctx))
	defer closeRooms()
	var doors sync.WaitGroup
	doors.Add(2)
	g.Go(func() error {
		defer doors.Done()
		return s.sockets.Run(ctx)
	})
	g.Go(func() error {
		defer doors.Done()
		return httpserver.Serve(ctx, httpserver.Config{Listener: s.deps.Listener, Handler: s.handler, Log: s.deps.Log, Drain: s.cfg.Drain})
	})
	g.Go(func() error {
		doors.Wait()
		closeRooms()
		return nil
	})
	g.Go(func() error { return s.rooms.Run(open) })
	g.Go(func() error { return s.hub.Run(ctx) })
	g.Go(func() error { return panics.Supervise(ctx, s.deps.Log, "housekeeping", s.housekeep) })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("document-sync: %w", err)
	}
	return nil
}

// housekeepEvery is the interval at which old operation keys and tombstones are removed.
const housekeepEvery = time.Hour

// housekeep removes old rows, and applies seeds to documents that nobody opens: opening a
// document applies its seed too.
func (s *Service) housekeep(ctx context.Context) error {
	t := time.NewTicker(housekeepEvery)
	defer t.Stop()
	for {
		s.applySeeds(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		n, err := s.store.Housekeep(ctx, s.cfg.KeepKeys)
		if err != nil && ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "old operation keys not removed", "error", err)
		}
		if n > 0 {
			s.deps.Log.InfoContext(ctx, "old operation keys removed", "rows", n)
		}
	}
}

// applySeeds works in pages with pauses, since loaded documents use memory for a while.
const (
	seedPage  = 50
	seedPause = 5 * time.Second
)

func (s *Service) applySeeds(ctx context.Context) {
	applied := 0
	for {
		refs, err := s.store.Seeded(ctx, seedPage)
		before := applied
		for _, ref := range refs {
			if e := s.rooms.Read(ctx, ref, func(*yjs.Doc, int64) error { return nil }); e != nil {
				err = e
				continue
			}
			applied++
		}
		if err != nil && ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "seeds not applied yet", "error", err)
		}
		if applied == before {
			break // none are left, or none can be applied now
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(seedPause):
		}
	}
	if applied > 0 {
		s.deps.Log.InfoContext(ctx, "seeds applied", "documents", applied)
	}
}
