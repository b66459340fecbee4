package feed

import (
	"context"
	"errors"
	"slices"
	"time"

	"signalbox.dev/pkg/sse"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Sink receives a stream.
type Sink interface {
	// Write sends all of p at once, within its own deadline. After an error the stream
	// is over. Write does not retain p.
	Write(p []byte) error
}

// Serve writes opening and then events as they arrive, until the followed run has ended:
// then it returns nil. Otherwise it returns the context's cause, the sink's error or an
// error of this package, and the caller cuts the connection. Attach does the same without
// a goroutine, for connections that can be hijacked.
func (v *Viewer) Serve(ctx context.Context, w Sink, opening []byte) (err error) {
	defer func() { v.feed.metrics.cut.WithLabelValues(reason(err)).Inc() }()
	if err := w.Write(opening); err != nil {
		return err
	}
	wait := waiting{viewer: v, sink: w, beat: time.NewTimer(v.feed.cfg.Heartbeat), leave: v.feed.draining}
	defer wait.stop()
	var buf []byte
	for {
		var isOver bool
		buf, isOver, err = v.collect(ctx, buf[:0])
		if len(buf) > 0 {
			if werr := w.Write(buf); werr != nil {
				return werr
			}
		}
		if err != nil || isOver {
			return err
		}
		if err := wait.next(ctx, len(buf) > 0); err != nil {
			return err
		}
	}
}

// End waits for the end of the followed run and returns its event. After an error the run
// may or may not have ended; its row in Postgres tells.
func (v *Viewer) End(ctx context.Context) (*runv1.Event, error) {
	w := waiter{viewer: v, leave: v.feed.draining}
	for {
		frames, err := v.pull()
		if errors.Is(err, errFellOff) {
			if err = v.loadTail(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		for _, f := range frames {
			if f.kind != hole && !f.synthetic {
				v.last = f.pos
			}
			if f.kind == runEnd && f.pos.Run == v.follow.Run {
				return f.event, nil
			}
		}
		if len(frames) > 0 {
			continue
		}
		if err := w.next(ctx); err != nil {
			return nil, err
		}
	}
}

// All returns what the viewer's Reader encodes up to the end of the response. Without wait it
// returns what there is, and whether that is all.
func (v *Viewer) All(ctx context.Context, wait bool) (data []byte, isOver bool, err error) {
	w := waiter{viewer: v, leave: v.feed.draining}
	for {
		before := len(data)
		if data, isOver, err = v.collect(ctx, data); err != nil || isOver {
			return data, isOver, err
		}
		if len(data) > before {
			continue // there may be more
		}
		if !wait {
			return data, false, nil
		}
		if err := w.next(ctx); err != nil {
			return nil, false, err
		}
	}
}

// waiter is the state of a caller that gets everything at the end. A drain leaves it the whole drain
// window, in which most answers end.
type waiter struct {
	viewer *Viewer
	leave  <-chan struct{}  // closed when the feed drains; nil once cut is set
	cut    <-chan time.Time // when the drain window ends
}

// next returns when there may be something to read.
func (w *waiter) next(ctx context.Context) error {
	for {
		select {
		case <-w.viewer.wake:
			return nil
		case <-w.leave:
			w.leave, w.cut = nil, time.After(w.viewer.feed.cfg.DrainWindow)
		case <-w.cut:
			return ErrDraining
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pull returns the next frames, none if the viewer has everything.
func (v *Viewer) pull() ([]*frame, error) {
	t := v.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.ring
	var frames []*frame
	switch {
	case t.err != nil:
		return nil, t.err
	case len(v.backlog) > 0:
		frames = slices.Clone(v.backlog)
		v.spend(len(v.backlog))
	case v.next < r.first:
		return nil, errFellOff
	default:
		frames = append(frames, r.frames[v.next-r.first:]...)
		v.next, v.consumed = r.end(), r.pushed
	}
	return frames, nil
}

// waiting is the state of a stream between two writes.
type waiting struct {
	viewer *Viewer
	sink   Sink
	beat   *time.Timer
	leave  <-chan struct{} // closed when the feed drains; nil once cut is set
	cut    *time.Timer     // fires when this stream is to end
}

// next returns when there may be something to write, at once if wrote is set.
func (w *waiting) next(ctx context.Context, wrote bool) error {
	if wrote {
		w.beat.Reset(w.viewer.feed.cfg.Heartbeat)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.cutTime():
			return ErrDraining
		case <-w.leave:
			w.plan()
		default:
		}
		return nil
	}
	for {
		select {
		case <-w.viewer.wake:
			return nil
		case <-w.beat.C:
			if err := w.sink.Write(sse.AppendHeartbeat(nil)); err != nil {
				return err
			}
			w.beat.Reset(w.viewer.feed.cfg.Heartbeat)
		case <-w.leave:
			w.plan()
		case <-w.cutTime():
			return ErrDraining
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// plan picks the time to end this stream.
func (w *waiting) plan() {
	w.leave = nil
	w.cut = time.NewTimer(w.viewer.stay())
}

func (w *waiting) cutTime() <-chan time.Time {
	if w.cut == nil {
		return nil
	}
	return w.cut.C
}

func (w *waiting) stop() {
	w.beat.Stop()
	if w.cut != nil {
		w.cut.Stop()
	}
}

// reason returns the metric label for the end of a stream.
func reason(err error) string {
	switch {
	case err == nil:
		return "end"
	case errors.Is(err, ErrDraining):
		return "drain"
	case errors.Is(err, ErrSlow):
		return "slow"
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, ErrGone):
		return "gone"
	case errors.Is(err, ErrLeft), errors.Is(err, context.Canceled):
		return "left"
	}
	return "other"
}
