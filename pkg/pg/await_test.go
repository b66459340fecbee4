package pg_test

import (
	"context"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/pgtest"
)

// Await waits for a server that starts while it waits.
func TestAwaitStartingServer(t *testing.T) {
	t.Parallel()
	cfg := pgd.Config{Dir: filepath.Join(pgtest.Folder(t), "a")}
	server, err := pgd.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	url := server.URL("postgres")
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- pg.Await(t.Context(), url, time.Minute, quiet) }()
	select {
	case err := <-done:
		t.Fatalf("Await() = %v while the server is down", err)
	case <-time.After(time.Second):
	}
	if server, err = pgd.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Stop(context.WithoutCancel(t.Context())) }() // the test is over
	if err := <-done; err != nil {
		t.Errorf("Await() = %v, want nil: the server has started", err)
	}
}

func TestAwaitFails(t *testing.T) {
	t.Parallel()
	nobody, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(pgtest.New(t, notes()).AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	server.Path = "/nowhere_at_all"
	for _, tt := range []struct {
		name, url, want string
		limit           time.Duration
	}{
		{"nobody listens", "postgres://someone@" + nobody + "/x?sslmode=disable", "waited 1s: connect to PostgreSQL at " + nobody, time.Second},
		{"no waiting", "postgres://someone@" + nobody + "/x?sslmode=disable", "connect to PostgreSQL at " + nobody, 0},
		{"no such database", server.String(), `database "nowhere_at_all" does not exist`, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			err := pg.Await(t.Context(), tt.url, tt.limit, quiet)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Await() = %v, want an error with %q", err, tt.want)
			}
			if waited := time.Since(begun); waited > 30*time.Second {
				t.Errorf("Await() waited %s", waited)
			}
		})
	}
}
