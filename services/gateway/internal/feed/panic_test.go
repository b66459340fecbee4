package feed_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway/internal/dialect"
	"signalbox.dev/services/gateway/internal/feed"
)

// poison is the text at which brittle panics.
const poison = "poison"

// brittle is a dialect with a bug.
type brittle struct {
	dialect.Plain
	fixed *atomic.Bool
}

func (d brittle) Append(dst []byte, e *runv1.Event) []byte {
	if e.GetTextDelta().GetDelta() == poison && !d.fixed.Load() {
		panic("an event that cannot be encoded")
	}
	return d.Plain.Append(dst, e)
}

// sibling returns a session whose topic has the same worker as the world's.
func (w *world) sibling(workers int) (session id.Session, subj string) {
	for {
		session = id.New[id.Session]()
		if subject.Partition(session, workers) == subject.Partition(w.session, workers) {
			actor, _ := identity.From(w.ctx)
			return session, subject.Events(subject.Partition(session, partitions), actor.Workspace, session)
		}
	}
}

// TestPanicCostsOneSession checks that a panic disconnects the viewers of the session that caused it,
// who can resume, and does not affect another session on the same worker.
func TestPanicCostsOneSession(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(w *world, v *feed.Viewer) func() error{
		"with a goroutine":    serveInGoroutine,
		"with the connection": serveByFeed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var fixed atomic.Bool
			w := newWorld(t, nil, func(c *feed.Config) { c.Dialect = brittle{fixed: &fixed} })
			session, subj := w.sibling(min(runtime.GOMAXPROCS(0), 16))
			other, err := w.feed.Open(w.ctx, session)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			run := id.New[id.Run]()
			other.FollowRun(&agentv1.Run{Id: run.String(), Ordinal: 1}, feed.Follow{})

			w.say("one")
			v, err := w.feed.Open(w.ctx, w.session)
			if err != nil {
				t.Fatal(err)
			}
			ended := serve(w, v)
			w.say(poison)
			if err := ended(); !errors.Is(err, feed.ErrLost) {
				t.Errorf("the stream ended with %v, want ErrLost", err)
			}

			if _, err := w.writer.Publish(w.ctx, subj, "end", &runv1.Event{
				RunId: run.String(), RunOrdinal: 1, Epoch: 1, Body: &runv1.Event_Done{Done: &runv1.Done{FinishReason: "stop"}},
			}); err != nil {
				t.Fatal(err)
			}
			if e, err := other.End(w.ctx); err != nil || e.GetDone() == nil {
				t.Errorf("the other session's end = %v, %v", e, err)
			}

			// After the fix, a resuming viewer gets everything.
			fixed.Store(true)
			var b buffer
			wait := w.watch(&b)
			w.end()
			if err := wait(); err != nil {
				t.Errorf("after the repair the stream ended with %v", err)
			}
		})
	}
}

func serveInGoroutine(w *world, v *feed.Viewer) func() error {
	done := make(chan error, 1)
	go func() {
		defer v.Close()
		done <- v.Serve(w.ctx, &buffer{}, nil)
	}()
	return func() error { return <-done }
}

func serveByFeed(w *world, v *feed.Viewer) func() error {
	v.Close()
	d := w.open(w.t, timeout, nil)
	body := d.get(w.t, "?all=1").answer()
	if _, err := io.ReadFull(body, make([]byte, 2)); err != nil {
		w.t.Fatal(err)
	}
	return func() error { return d.end(w.t) }
}

// TestPanicOfASource checks that no viewer waits forever after a panic during a read of the log,
// Postgres or a snapshot.
func TestPanicOfASource(t *testing.T) {
	t.Parallel()
	t.Run("snapshot", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, nil, func(c *feed.Config) { c.Source = panicking{c.Source} })
		v, err := w.feed.Open(w.ctx, w.session)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		if snap, err := v.Snapshot(w.ctx); err == nil || !strings.Contains(err.Error(), "no rows") {
			t.Errorf("Snapshot = %q, %v, want the panic as an error", snap.Data, err)
		}
	})
	t.Run("events", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, nil, func(c *feed.Config) { c.RingFrames = 2; c.Source = panicking{c.Source} })
		for i := range 20 {
			w.say(fmt.Sprint(i))
		}
		v, err := w.feed.Open(w.ctx, w.session)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		if found, err := v.After(w.ctx, feed.Position{Run: 1, Number: 3}); err == nil {
			t.Errorf("After = %v, nil, want an error", found)
		}
	})
}

// panicking is a source with a bug.
type panicking struct{ feed.Source }

func (panicking) Snapshot(context.Context, id.Session) (feed.Snapshot, error) { panic("no rows") }

func (panicking) Events(context.Context, id.Session, feed.Position, string) ([]*agentv1.LoggedEvent, string, error) {
	panic("no rows")
}
