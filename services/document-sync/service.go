// Package documentsync is the service that keeps documents: what other services
// see is DocumentService, Markdown in and out.
//
// Postgres holds content, history and the answers to past operations; a change
// is one transaction there, so that an operation key is good for exactly one
// change whatever dies (internal/store). After the commit the change is announced
// on the bus, and every instance tells its subscribers (internal/watch). What an
// operation makes of the text is decided by pure functions (internal/edit).
//
// Any instance serves any document; none keeps state that another one needs. If
// it dies here, calls in hand fail as Unavailable and are repeated under the same
// key, and subscribers subscribe elsewhere.
package documentsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/watch"
	"signalbox.dev/services/document-sync/migrations"
)

// Schema and Role are the service's place in Postgres.
const (
	Schema = "documents"
	Role   = "signalbox_documents"
)

// Migrations returns what the service brings to the database.
func Migrations() pg.Migrations {
	return pg.Migrations{Schema: Schema, Role: Role, FS: migrations.FS}
}

// Deps is what the service works with. Whoever opened these closes them, after
// Run; the listener is closed by Run.
type Deps struct {
	Log *slog.Logger
	DB  *pg.DB   // as Role, in Schema
	Bus *bus.Bus // as subject.DocumentSync
	// Listener takes calls of other services and the pages for operators.
	Listener net.Listener
	// Verifier knows who may call: gateway and tool-executor.
	Verifier   *identity.Verifier
	Registerer prometheus.Registerer // nil: no metrics
	Gatherer   prometheus.Gatherer   // nil: no /metrics page
}

// Service is document-sync.
type Service struct {
	cfg     Config
	deps    Deps
	store   *store.Store
	hub     *watch.Hub
	handler http.Handler
}

// New wires the service; it serves nothing before Run.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Log == nil || deps.DB == nil || deps.Bus == nil || deps.Listener == nil || deps.Verifier == nil {
		return nil, errors.New("document-sync: log, database, bus, listener and verifier are needed")
	}
	cfg = cfg.withDefaults()
	s := &Service{cfg: cfg, deps: deps}
	s.store = store.New(deps.DB, store.Limits{Versions: cfg.Versions, VersionBytes: int64(cfg.HistoryMB) << 20})
	s.hub = watch.New(watch.Config{
		Bus: deps.Bus, Source: s.store, Log: deps.Log, Resync: cfg.Resync, Watchers: cfg.Streams, Queue: cfg.Queue,
	})
	m, err := newMetrics(deps.Registerer, s.hub.Count)
	if err != nil {
		return nil, fmt.Errorf("document-sync: register metrics: %w", err)
	}
	options, err := rpc.Server{Verifier: deps.Verifier, Log: deps.Log}.HandlerOptions()
	if err != nil {
		return nil, fmt.Errorf("document-sync: %w", err)
	}
	mux := http.NewServeMux()
	path, calls := documentv1connect.NewDocumentServiceHandler(&documents{store: s.store, hub: s.hub, metrics: m}, options...)
	mux.Handle(path, calls)
	httpserver.Ops{
		Checks:   map[string]httpserver.Check{"postgres": deps.DB.Ping, "nats": deps.Bus.Ready},
		Gatherer: deps.Gatherer,
	}.Mount(mux)
	s.handler = httpserver.BoundWrites(mux, cfg.WriteWait)
	return s, nil
}

// Run serves until ctx is done; then streams end, calls in hand finish within
// Config.Drain, and it returns nil. It is called once.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.hub.Run(ctx) })
	g.Go(func() error {
		return httpserver.Serve(ctx, httpserver.Config{Listener: s.deps.Listener, Handler: s.handler, Log: s.deps.Log, Drain: s.cfg.Drain})
	})
	g.Go(func() error { return s.housekeep(ctx) })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("document-sync: %w", err)
	}
	return nil
}

// housekeepEvery is how often old operation keys and tombstones are looked for.
const housekeepEvery = time.Hour

func (s *Service) housekeep(ctx context.Context) error {
	t := time.NewTicker(housekeepEvery)
	defer t.Stop()
	for {
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
