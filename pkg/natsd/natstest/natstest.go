// Package natstest gives tests a real NATS server of their own.
package natstest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/subject"
)

// New returns a server with the default topology and permissions as in production, which also
// listens on a free port. It is shut down with the test.
func New(t testing.TB) *natsd.Server {
	t.Helper()
	top := Topology(t)
	srv := Start(t, natsd.Config{Dir: t.TempDir(), Port: -1, Users: subject.Users(top)})
	Apply(t, srv, top)
	return srv
}

// Topology returns the default topology.
func Topology(t testing.TB) subject.Topology {
	t.Helper()
	top, err := subject.NewTopology(subject.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// Start runs an empty server, which logs to the test. Unless cfg says otherwise, it does not
// sync files, because no test cuts the power, and syncing the streams of all tests' servers
// would slow them down.
func Start(t testing.TB, cfg natsd.Config) *natsd.Server {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = Log(t)
	}
	if cfg.SyncInterval == 0 {
		cfg.SyncInterval = time.Hour
	}
	srv, err := natsd.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}

// Apply creates the streams of top on srv.
func Apply(t testing.TB, srv *natsd.Server, top subject.Topology) {
	t.Helper()
	admin := Bus(t, srv, subject.Admin)
	defer admin.Close()
	if err := bus.Apply(t.Context(), admin, top); err != nil {
		t.Fatal(err)
	}
}

// Bus returns an in-process connection of a service to srv. It is closed with the test.
func Bus(t testing.TB, srv *natsd.Server, service string) *bus.Bus {
	t.Helper()
	return open(t, bus.Config{Service: service, Conn: srv.Options(service), Log: Log(t)})
}

// Dial is Bus over srv's port: it reconnects when a server is started again with
// srv.Config().
func Dial(t testing.TB, srv *natsd.Server, service string) *bus.Bus {
	t.Helper()
	return open(t, bus.Config{Service: service, URL: srv.ClientURL(), Password: srv.Password(service), Log: Log(t)})
}

func open(t testing.TB, cfg bus.Config) *bus.Bus {
	t.Helper()
	b, err := bus.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := b.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return b
}

// Log returns a logger that writes to the test's output, from warnings on.
func Log(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}
