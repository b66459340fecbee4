package pg_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
)

// present holds a presence until the returned function is called.
func present(t *testing.T, db *pg.DB, name string) (p *pg.Presence, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p = pg.NewPresence(db, name, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	}
	return p, stop
}

func absent(t *testing.T, db *pg.DB, names ...string) []string {
	t.Helper()
	var got []string
	err := db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		got, err = pg.Absent(ctx, tx, names)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// until polls, bounded by the test's own deadline of 30 s.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(context.Cause(t.Context()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestPresence(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	db := d.Open(t, notes())
	if diff := cmp.Diff([]string{"one", "two"}, absent(t, db, "one", "two")); diff != "" {
		t.Fatalf("absent before any process came (-want +got):\n%s", diff)
	}
	one, stopOne := present(t, db, "one")
	_, stopTwo := present(t, db, "two")
	defer stopTwo()
	until(t, "presence of both", func() bool { return len(absent(t, db, "one", "two")) == 0 })
	until(t, "steadiness", func() bool { return one.Steady() > 0 })

	// It reconnects by itself.
	admin, err := pgx.Connect(t.Context(), d.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	if _, err := admin.Exec(t.Context(), `
		select pg_terminate_backend(pid) from pg_locks
		where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`); err != nil {
		t.Fatal(err)
	}
	until(t, "return of both", func() bool { return one.Steady() > 0 && len(absent(t, db, "one", "two")) == 0 })

	stopOne()
	until(t, "absence of one", func() bool { return cmp.Equal(absent(t, db, "one", "two", "three"), []string{"one", "three"}) })
}
