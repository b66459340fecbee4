package runlog_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/runlog"
)

// unreachable is an empty log that is disconnected for the first few requests.
type unreachable struct {
	runlog.Bus
	questions int
}

// Last implements runlog.Bus.
func (l *unreachable) Last(context.Context, string, string) (*bus.Stored, error) {
	if l.questions > 0 {
		l.questions--
		return nil, fmt.Errorf("read the last message: %w", bus.ErrDisconnected)
	}
	return nil, bus.ErrNotFound
}

// PublishFenced implements runlog.Bus.
func (l *unreachable) PublishFenced(context.Context, string, string, uint64, proto.Message) (uint64, error) {
	return 1, nil
}

// Open waits for an unavailable log, at most for Config.Patience.
func TestOpenWaits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		questions int
		opens     bool
	}{
		{"for a moment", 5, true},
		{"for long", 1000, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRun(t).run
				r.Epoch = 2
				w, err := runlog.Open(t.Context(), runlog.Config{
					Bus: &unreachable{questions: c.questions}, Log: slog.New(slog.DiscardHandler), Stream: "EV_00", Subject: "ev.00.w.s",
					Claim: &run.Claim{Run: r}, Patience: 3 * time.Second,
				}, begin)
				switch {
				case c.opens && err != nil:
					t.Errorf("Open = %v, want it to wait", err)
				case !c.opens && fault.KindOf(err) != fault.Unavailable:
					t.Errorf("Open = %v, want an unavailable fault", err)
				}
				if w != nil {
					w.Close()
				}
			})
		})
	}
}

// Publish implements runlog.Bus.
func (l *unreachable) Publish(context.Context, string, string, proto.Message) (uint64, error) {
	if l.questions > 0 {
		l.questions--
		return 0, fmt.Errorf("publish: %w", bus.ErrDisconnected)
	}
	return 1, nil
}

// The first claim of a run does not wait for the log, unless the claim is so old that another
// one may have followed it.
func TestOpenFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRun(t).run
		r.Epoch = 1
		for age, waits := range map[time.Duration]bool{0: false, time.Minute: true} {
			begun := time.Now()
			w, err := runlog.Open(t.Context(), runlog.Config{
				Bus: &unreachable{questions: 5}, Log: slog.New(slog.DiscardHandler), Stream: "EV_00", Subject: "ev.00.w.s",
				Claim: &run.Claim{Run: r, First: true, RequestedAt: begun.Add(-age)}, Patience: 3 * time.Second,
			}, begin)
			if err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(begun) > 0; waited != waits {
				t.Errorf("Open of a claim that is %s old waits: %v, want %v", age, waited, waits)
			}
			if err := w.Flush(t.Context()); err != nil {
				t.Errorf("Flush = %v, want the log to have come back", err)
			}
			w.Close()
		}
	})
}
