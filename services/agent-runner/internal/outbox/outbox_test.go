package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// table is rows in memory.
type table struct {
	mu   sync.Mutex // guards rows
	rows []outbox.Row
}

func (t *table) add(id int64, subject string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, outbox.Row{ID: id, Subject: subject, MessageID: subject, Schema: "signalbox.run.v1.Work"})
}

// Page implements outbox.Rows.
func (t *table) Page(ctx context.Context, after int64, limit int, say func(context.Context, []outbox.Row) []int64) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var page []outbox.Row
	for _, r := range t.rows {
		if r.ID > after && len(page) < limit {
			page = append(page, r)
		}
	}
	said := say(ctx, page)
	t.rows = slices.DeleteFunc(t.rows, func(r outbox.Row) bool { return slices.Contains(said, r.ID) })
	return len(page), nil
}

// line publishes, but on the subjects of one stream nobody answers.
type line struct {
	silent string

	mu   sync.Mutex // guards said
	said []string
}

// Publish implements outbox.Publisher.
func (l *line) Publish(ctx context.Context, subj, _ string, m proto.Message) (uint64, error) {
	if _, ok := m.(*runv1.Work); !ok {
		return 0, errors.New("not what was written")
	}
	if len(subj) > 5 && subj[:5] == l.silent {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, subj)
	return 1, nil
}

// A stream that does not answer holds up its own rows, and not for long the others'.
func TestSilentStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows, bus := &table{}, &line{silent: "ev.02"}
		for i, subj := range []string{"ev.02.w.a", "ev.02.w.b", "ev.02.w.c", "ev.02.w.d", "ev.02.w.e", "work.run.1", "ev.01.w.a", "ev.02.w.f", "ev.01.w.b"} {
			rows.add(int64(i+1), subj)
		}
		out := outbox.Over(rows, bus, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- out.Run(ctx) }()
		out.Poke()
		<-time.After(5 * time.Second)
		bus.mu.Lock()
		said := slices.Clone(bus.said)
		bus.mu.Unlock()
		if diff := cmp.Diff([]string{"work.run.1", "ev.01.w.a", "ev.01.w.b"}, said); diff != "" {
			t.Errorf("said within 5 s, while ev.02 is silent:\n%s", diff)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}
