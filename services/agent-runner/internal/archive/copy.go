package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"signalbox.dev/pkg/bus"
)

const (
	stateTimeout  = 2 * time.Second  // reading the state of a stream, which a server that shuts down leaves unanswered
	readTimeout   = 10 * time.Second // reading a batch
	lastTimeout   = 5 * time.Second  // copying the rest when Run ends
	idleDelays    = 4                // the longest pause of the active copier, in delays
	standbyDelays = 8                // the longest pause of the others, in delays
)

// position is a place in a stream.
type position struct {
	Created  int64  // when the stream was made, in nanoseconds; 0 before the first copy
	Sequence uint64 // of the last copied message
}

// copier copies one stream, or checks that another replica does.
type copier struct {
	*Archive
	stream string
	log    *slog.Logger

	at      position      // the last known position of the copy
	known   bool          // the position was read since the last failure
	active  bool          // the last batch was written here
	seenAt  position      // the position at the last check
	pending bool          // the stream had more than the copy at the last check
	shorter bool          // the stream was shorter than the copy at the last check
	failing bool          // since the last successful pass
	pause   time.Duration // the last pause
}

func (c *copier) run(ctx context.Context) {
	// The random wait keeps replicas that start together apart.
	wait := rand.N(c.cfg.Delay)
	for {
		select {
		case <-ctx.Done():
			c.finish(ctx)
			return
		case <-time.After(wait):
		}
		wait = c.pass(ctx)
	}
}

// pass copies a batch, or checks the position, and returns the wait before the next pass.
func (c *copier) pass(ctx context.Context) time.Duration {
	b, err := c.next(ctx)
	if ctx.Err() != nil {
		return 0
	}
	if err != nil {
		if !c.failing {
			c.log.WarnContext(ctx, "run log not copied, trying again", "error", err)
		}
		// The batch may have been written or not: read the position first.
		c.failing, c.active, c.pending, c.known = true, false, false, false
	} else if b != nil && c.failing {
		c.failing = false
		c.log.InfoContext(ctx, "run log is copied again")
	}
	switch {
	case !c.active:
		c.pause = standbyDelays*c.cfg.Delay/2 + rand.N(standbyDelays*c.cfg.Delay/2)
	case b == nil:
		c.pause = min(max(2*c.pause, c.cfg.Delay), idleDelays*c.cfg.Delay)
	case b.full():
		c.pause = 0
	default:
		c.pause = c.cfg.Delay
	}
	return c.pause
}

// finish copies the rest if this copier is the active one.
func (c *copier) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
	defer cancel()
	if !c.active {
		return
	}
	// The batch that ctx ended may have been written or not.
	at, err := c.readPosition(ctx)
	c.at = at
	for more := true; more && err == nil && c.active; {
		var b *batch
		b, err = c.next(ctx)
		more = b != nil && b.full()
	}
	if err != nil {
		c.log.WarnContext(ctx, "the end of the run log is left to another replica", "error", err)
	}
}

// next copies the next batch and returns it, or nil if there is nothing to copy or another
// replica copies.
func (c *copier) next(ctx context.Context) (*batch, error) {
	state, err := c.state(ctx)
	if err != nil {
		return nil, err
	}
	if !c.active && !c.complete(state) {
		if c.at, err = c.readPosition(ctx); err != nil {
			return nil, err
		}
		c.known = true
	}
	from, lost, uncertain := c.begin(state)
	if uncertain || from.Sequence >= state.Last && from == c.at {
		c.pending = false
		return nil, nil //nolint:nilnil // nothing to copy
	}
	if !c.active && !c.stalled() {
		return nil, nil //nolint:nilnil // another replica copies
	}
	b, err := c.read(ctx, from, state)
	if err != nil {
		return nil, err
	}
	if b.read == 0 && from == c.at {
		return nil, nil //nolint:nilnil // the server that answered is behind
	}
	if from.Sequence < c.at.Sequence {
		c.log.WarnContext(ctx, "the stream was created anew or lost its newest messages: it is copied from its beginning",
			"copied", c.at.Sequence, "last", state.Last)
	}
	if err := c.write(ctx, b, position{state.Created.UnixNano(), max(b.last, from.Sequence)}); err != nil {
		return nil, err
	}
	if c.active && lost > 0 {
		c.log.ErrorContext(ctx, "the stream dropped messages before they were copied", "messages", lost)
		c.metrics.lost.Add(float64(lost))
	}
	return b, nil
}

// complete reports whether the copy was complete at the last check and the stream has not changed
// since then, so that replicas that do not copy leave Postgres alone while nothing happens.
func (c *copier) complete(state bus.StreamState) bool {
	return c.known && !c.shorter && c.at == position{state.Created.UnixNano(), state.Last}
}

// state returns the stream's state.
func (c *copier) state(ctx context.Context) (bus.StreamState, error) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	return c.cfg.Bus.Stream(ctx, c.stream)
}

// begin returns where to copy from, given the stream's state, and how many messages the copy
// has lost. That a stream is shorter than its copy is uncertain until the next check confirms
// it: a new leader may still be catching up.
func (c *copier) begin(state bus.StreamState) (from position, lost uint64, uncertain bool) {
	created := state.Created.UnixNano()
	if c.at.Created != created {
		c.shorter = false
		return position{Created: created}, 0, false
	}
	wasShorter := c.shorter
	c.shorter = state.Last < c.at.Sequence
	switch {
	case c.shorter:
		return position{Created: created}, 0, !wasShorter
	case state.First > c.at.Sequence+1:
		return position{created, state.First - 1}, state.First - 1 - c.at.Sequence, false
	}
	return c.at, 0, false
}

// stalled reports whether the position has not advanced since the last check although the
// stream had more.
func (c *copier) stalled() bool {
	stalled := c.pending && c.seenAt == c.at
	c.pending, c.seenAt = true, c.at
	return stalled
}

// read reads a batch. It fails if the stream is no longer the one that state describes.
func (c *copier) read(ctx context.Context, from position, state bus.StreamState) (*batch, error) {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	b := newBatch()
	for m, err := range c.cfg.Bus.ReadAll(limited, c.stream, from.Sequence, state.Last) {
		if err != nil {
			return nil, err
		}
		if err := b.add(m); err != nil {
			c.log.WarnContext(ctx, "message on the run log is not an event and is not copied", "subject", m.Subject, "sequence", m.Seq, "error", err)
		}
		if b.full() {
			break
		}
	}
	after, err := c.state(ctx)
	if err != nil {
		return nil, err
	}
	if !after.Created.Equal(state.Created) {
		return nil, fmt.Errorf("stream %s was created anew while it was read", c.stream)
	}
	return b, nil
}

// errOvertaken means that another replica has advanced the position.
var errOvertaken = errors.New("another replica copied this")

// write writes a batch and advances the position.
func (c *copier) write(ctx context.Context, b *batch, to position) error {
	select {
	case c.writeSlots <- struct{}{}:
		defer func() { <-c.writeSlots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	begun := time.Now()
	err := c.commit(ctx, b, to)
	if errors.Is(err, errOvertaken) {
		c.active, c.pending = false, false
		return nil
	}
	if err != nil {
		return err
	}
	c.at, c.active = to, true
	c.metrics.batches.Observe(time.Since(begun).Seconds())
	c.metrics.events.Add(float64(b.events))
	if b.read > 0 {
		c.metrics.lag.Observe(time.Since(b.oldest).Seconds())
	}
	return nil
}
