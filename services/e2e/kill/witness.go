package kill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"signalbox.dev/services/e2e/world"
)

// beginning is the cursor before a session's first event.
const beginning = "0-0"

// watcher watches a session for one witness.
type watcher struct {
	*harness
	*view
	t      *transcript
	who    world.Member
	rnd    *rand.Rand
	cuts   bool                // cut the connection at random moments
	pauses *pauses             // counts its pauses; may be nil
	open   func()              // called when the first connection is open
	last   map[int64]time.Time // when an event of each run was last seen here
	waits  map[int64]bool      // the runs whose last event says that they wait
}

// pause waits, and returns false if ctx is done first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// between returns a duration from least to most.
func between(rnd *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rnd.Int64N(int64(most-least)+1))
}

// watch watches until ctx is done. After every break it resumes at a random gateway.
func (w *watcher) watch(ctx context.Context) {
	after := beginning
	for first := true; ctx.Err() == nil; {
		err := w.connection(ctx, &first, &after)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errCut): // its own cut
		case errors.Is(err, io.EOF) && !errors.Is(err, errNotOpen):
			w.t.complain(unclean, "%s was told that the session's stream is over, after %s", w.name, after)
		case err != nil:
			w.refusal(w.t, err)
		}
		w.resumed++
		wait := 50 * time.Millisecond
		if w.cuts {
			wait = between(w.rnd, 0, 300*time.Millisecond)
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// connection watches until its connection ends.
func (w *watcher) connection(ctx context.Context, first *bool, after *string) error {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	c := w.client(w.rnd, w.who)
	s, err := c.Watch(ctx, world.SessionEvents(w.t.session), *after)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotOpen, err)
	}
	defer func() { _ = s.Close() }() // nothing was written
	if *first {
		*first = false
		w.open()
	}
	if w.cuts {
		timer := time.AfterFunc(between(w.rnd, 200*time.Millisecond, 2*time.Second), func() { cut(errCut) })
		defer timer.Stop()
	}
	for {
		ev, err := s.Next()
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, errCut) {
				return cause
			}
			return err
		}
		id := string(ev.ID)
		p, ok := w.t.note(w.view, ev.Type, id, ev.Data, *after)
		if ok {
			*after = id
			w.atEvent(ev.Type)
		}
		if ok && w.pauses != nil && ev.Type != "snapshot" {
			w.measure(p, ev.Type)
		}
	}
}

// measure records the pause before an event of a run, if a part was killed in it.
func (w *watcher) measure(p place, kind string) {
	now := time.Now()
	since := w.last[p.run]
	if since.IsZero() { // its first event, which could follow once the previous run had ended
		since = w.last[p.run-1]
	}
	if submitted := w.t.acceptedAt(p.run); submitted.After(since) {
		since = submitted
	}
	w.last[p.run] = now
	waited := w.waits[p.run]
	w.waits[p.run] = kind == "waiting"
	if since.IsZero() || waited {
		return
	}
	length := w.pauses.add(Pause{Session: w.t.session, Run: w.t.runOf(p.run), From: since, To: now, Next: kind})
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	w.t.slowest = max(w.t.slowest, length)
}

// acceptedAt returns when a run's message was accepted or, before that is known, when its sending
// began; zero for a run without a message of this talker.
func (t *transcript) acceptedAt(ordinal int64) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.asks {
		switch {
		case a.ordinal == ordinal && a.mode == "":
			return a.to
		case a.ordinal == 0: // the last message: they are sent one after the other
			return a.from
		}
	}
	return time.Time{}
}

// runOf returns a run's id, "" if it is not known yet.
func (t *transcript) runOf(ordinal int64) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.asks {
		if a.ordinal == ordinal {
			return a.run
		}
	}
	return ""
}

// sender watches one run for the sender of its message until its end: from an open stream or, if
// there is none, from the run's beginning.
type sender struct {
	watcher
	ask *ask
}

func (w *sender) follow(ctx context.Context, s *world.Stream) {
	after := ""
	for ctx.Err() == nil {
		err := w.read(ctx, s, &after)
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case errors.Is(err, io.EOF):
			w.t.complain(unclean, "%s of run %d was told that its stream is over, after %q", w.name, w.ask.ordinal, after)
			return
		}
		w.refusal(w.t, err)
		if !pause(ctx, 50*time.Millisecond) {
			return
		}
		w.resumed++
		if s, err = w.client(w.rnd, w.who).Watch(ctx, world.RunEvents(w.ask.run), after); err != nil {
			s = nil
			if errors.Is(err, world.ErrNothingMore) {
				w.t.complain(unclean, "%s of run %d was told that no event follows %q", w.name, w.ask.ordinal, after)
				return
			}
			w.refusal(w.t, err)
		}
	}
}

// read reads a stream until the run's end, and then returns nil.
func (w *sender) read(ctx context.Context, s *world.Stream, after *string) error {
	if s == nil {
		return errNotOpen
	}
	defer func() { _ = s.Close() }() // nothing was written
	ended := false
	for {
		ev, err := s.Next()
		if err != nil {
			if ended && errors.Is(err, io.EOF) {
				return nil
			}
			if ended && ctx.Err() == nil {
				return nil // cut after the end
			}
			return err
		}
		id := string(ev.ID)
		if _, ok := w.t.note(w.view, ev.Type, id, ev.Data, *after); ok {
			*after = id
		}
		ended = ended || ev.Type == "done" || ev.Type == "error"
	}
}

var (
	errNotOpen = errors.New("no connection")
	errCut     = errors.New("the viewer cut its connection")
)
