package feed

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"signalbox.dev/pkg/sse"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Sink is where a stream goes.
type Sink interface {
	// Write sends p, all of it and now, within a deadline of its own. After an
	// error the stream is over. p belongs to the caller again when Write returns.
	Write(p []byte) error
}

// Serve writes opening, then events as they come, until the followed run has
// ended: then it returns nil. Every other end is an error, and the connection is
// to be cut: the context's cause, the sink's error, or one of this package.
func (v *Viewer) Serve(ctx context.Context, w Sink, opening []byte) (err error) {
	defer func() { v.feed.metrics.cut.WithLabelValues(reason(err)).Inc() }()
	if err := w.Write(opening); err != nil {
		return err
	}
	wait := waiting{viewer: v, sink: w, beat: time.NewTimer(v.feed.cfg.Heartbeat), leave: v.feed.draining}
	defer wait.stop()
	var buf []byte
	for {
		var over bool
		buf, over, err = v.collect(ctx, buf[:0])
		if len(buf) > 0 {
			if werr := w.Write(buf); werr != nil {
				return werr
			}
		}
		if err != nil || over {
			return err
		}
		if err := wait.next(ctx, len(buf) > 0); err != nil {
			return err
		}
	}
}

// collect appends what the viewer is to see next, nothing when it has everything;
// over tells that the followed run has ended. What it appended is to be written
// also when there is an error.
func (v *Viewer) collect(ctx context.Context, buf []byte) (_ []byte, over bool, err error) {
	for len(buf) == 0 {
		batch, err := v.pull()
		if errors.Is(err, errFellOff) {
			if err = v.catchUp(ctx); err == nil {
				continue
			}
		}
		if errors.Is(err, ErrSlow) {
			if snap, serr := v.Snapshot(ctx); serr == nil {
				buf = v.AppendSnapshot(buf, snap)
			}
		}
		if err != nil || len(batch) == 0 {
			return buf, false, err
		}
		for i := range batch {
			f := &batch[i]
			if f.kind == hole {
				if v.knows(f) {
					continue
				}
				// Takes the viewer to another place: the rest of the batch is void.
				return v.bridge(ctx, buf, f)
			}
			if !f.synthetic {
				v.last = f.pos
			}
			if !v.wants(f) {
				continue
			}
			buf = append(buf, f.data...)
			if f.kind == runEnd && v.follow.Run != 0 {
				return buf, true, nil
			}
		}
	}
	return buf, false, nil
}

// bridge makes good for a hole with a snapshot.
func (v *Viewer) bridge(ctx context.Context, buf []byte, f *frame) ([]byte, bool, error) {
	snap, err := v.snapshotAfter(ctx, f.time)
	if err != nil {
		return buf, false, err
	}
	return v.AppendSnapshot(buf, snap), false, v.Restart(ctx, snap)
}

// AppendSnapshot appends the event that tells a viewer what the session holds.
func (v *Viewer) AppendSnapshot(buf []byte, snap Snapshot) []byte {
	return v.feed.cfg.Dialect.AppendSnapshot(buf, snap.Data, snap.Contents.Position().String())
}

// End waits for the end of the run that is followed and returns its event. After
// an error the run may have ended or not: its row tells.
func (v *Viewer) End(ctx context.Context) (*runv1.Event, error) {
	for {
		batch, err := v.pull()
		if errors.Is(err, errFellOff) {
			if err = v.catchUp(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		for i := range batch {
			f := &batch[i]
			if f.kind != hole && !f.synthetic {
				v.last = f.pos
			}
			if f.kind == runEnd && f.pos.Run == v.follow.Run {
				return f.end, nil
			}
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-v.wake:
		case <-v.feed.draining:
			return nil, ErrDraining
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// waiting is what a stream does between two writes.
type waiting struct {
	viewer *Viewer
	sink   Sink
	beat   *time.Timer
	leave  <-chan struct{} // closed when streams are to end; nil when that is known
	cut    *time.Timer     // when this one ends; nil before that is known
}

// next returns when there may be something to write, at once when wrote is set.
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

// plan chooses when this stream ends, so that not all come back at once.
func (w *waiting) plan() {
	w.leave = nil
	w.cut = time.NewTimer(rand.N(w.viewer.feed.cfg.DrainWindow))
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

// reason names an end for the metrics.
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
	case errors.Is(err, context.Canceled):
		return "left"
	}
	return "other"
}
