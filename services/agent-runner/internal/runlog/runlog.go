// Package runlog writes a run's events to the session's subject in the run log.
//
// # Numbers and fences
//
// Events of a run are numbered from 0 without holes over all its claims. A claim begins
// with Open: it reads the log, asks the caller for the claim's first events, and publishes
// the first of them on condition that nothing was written in between. If the condition
// fails, because an older claim is still writing, Open reads the log and asks the caller
// again. Once the first event is stored, readers ignore what the older claim may still
// write. The first claim of a run follows no other claim, and for a second no other runner can have
// claimed the run after it. In that time its first event is published like any other, so
// that the model call need not wait for the log.
//
// # Order and loss
//
// One goroutine, owned by the Writer, sends one event at a time and retries it until the
// log acknowledges it or Config.Patience is over (a change of leader takes seconds). The
// message id makes repetitions harmless. While an event is in flight, the deltas that follow
// merge. When the buffer is full, the methods that add events block, and so the model's
// stream is not read any further. A crash loses only events of a step that is not committed,
// because Flush comes before every commit.
//
// Deltas are merged when they are written, never when they are served: the first one is sent
// at once, then at most one every 20 ms.
package runlog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/run"
)

const (
	deltaInterval = 20 * time.Millisecond
	maxDelta      = 32 << 10 // of text in one event
	maxBuffered   = 1 << 20  // bytes, about ten seconds of a fast model
	maxEntries    = 4096
	retryWait     = 100 * time.Millisecond
	attemptLimit  = 5 * time.Second
	freshClaim    = time.Second // less than a lease; if it were more, readers would still drop late events
)

// Tail is what the log holds of a run.
type Tail struct {
	// Number is the number of the last event, or -1 if the log holds none.
	Number int64
	// Events are the events that a reader accepts, in order. The log may have dropped the
	// oldest ones.
	Events []*runv1.Event
}

// Bus is the part of *bus.Bus that the run log needs.
type Bus interface {
	Publish(ctx context.Context, subj, id string, m proto.Message) (uint64, error)
	PublishFenced(ctx context.Context, subj, id string, last uint64, m proto.Message) (uint64, error)
	Last(ctx context.Context, stream, subj string) (*bus.Stored, error)
	Read(ctx context.Context, stream, subj string, after, through uint64) iter.Seq2[*bus.Stored, error]
}

// Config configures a Writer.
type Config struct {
	Bus    Bus
	Log    *slog.Logger
	Stream string
	// Subject is the session's.
	Subject string
	Claim   *run.Claim
	// Patience is how long the writer retries an event before it fails with an Unavailable
	// fault: perhaps only this process cannot reach the log, and another runner can. 0 means
	// for ever.
	Patience time.Duration
}

// outOfPatience returns an Unavailable fault if the log has not answered for Patience since
// begun, otherwise nil.
func (c *Config) outOfPatience(begun time.Time, err error) error {
	if c.Patience <= 0 || time.Since(begun) < c.Patience {
		return nil
	}
	return fault.Wrap(fmt.Errorf("write the run log: %w", err), fault.Unavailable, "the run log is not available at the moment; try again")
}

// waitRetry waits before the next try, or returns an error if there must be none.
func (c *Config) waitRetry(ctx context.Context, begun time.Time, err error) error {
	c.Log.WarnContext(ctx, "run log does not answer", "run", c.Claim.Run.ID, "error", err)
	if err := c.outOfPatience(begun, err); err != nil {
		return err
	}
	return pause(ctx, retryWait)
}

// isUnavailable reports whether the log may answer soon. To wait for it delays viewers less
// than to release the claim.
func isUnavailable(err error) bool {
	return errors.Is(err, bus.ErrDisconnected) || errors.Is(err, bus.ErrNoStream) || errors.Is(err, context.DeadlineExceeded)
}

// Opening has the first events of a claim, to be numbered from From.
type Opening struct {
	From   int64
	Events []*runv1.Event
}

// Writer writes the events of one claim. Only one goroutine at a time may use it. Close stops
// the Writer's own goroutine.
type Writer struct {
	cfg  Config
	stop context.CancelFunc
	done chan struct{}

	mu       sync.Mutex // guards what follows
	queue    []*entry
	sending  bool // the head of the queue is in flight
	size     int
	next     int64 // the number of the next entry
	flushing bool  // Flush waits: send deltas at once
	err      error // why the writer ended
	changed  chan struct{}
}

type entry struct {
	event *runv1.Event
	delta *string // the event's text if it may grow while the entry waits
	grown []byte  // the text after it has grown; copied to delta when the entry is sent
	size  int
}

// Open opens the log for a claim and fences off older claims. opening returns the claim's
// first events, at least one, given what the log holds; it may be called several times. The
// writer lives until Close or until ctx is done.
func Open(ctx context.Context, cfg Config, opening func(Tail) Opening) (*Writer, error) {
	t := tailReader{cfg: cfg, tail: Tail{Number: -1}}
	begun := time.Now()
	if cfg.Claim.First && time.Since(cfg.Claim.RequestedAt) < freshClaim {
		o, err := t.firstEvents(opening)
		if err != nil {
			return nil, err
		}
		return start(ctx, cfg, o, o.Events), nil
	}
	for {
		last, err := t.read(ctx)
		if errors.Is(err, errBehind) && t.behind < maxBehind {
			t.behind++
			if err := pause(ctx, retryWait); err != nil {
				return nil, err
			}
			continue
		}
		if isUnavailable(err) && ctx.Err() == nil {
			if err := cfg.waitRetry(ctx, begun, err); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		o, err := t.firstEvents(opening)
		if err != nil {
			return nil, err
		}
		first := o.Events[0]
		_, err = cfg.Bus.PublishFenced(ctx, cfg.Subject, run.EventID(first), last, first)
		if err != nil && !wasStored(ctx, cfg, first) {
			if errors.Is(err, bus.ErrFenced) {
				continue // an older claim has written: read again
			}
			if ctx.Err() != nil {
				return nil, fmt.Errorf("open the run log: %w", errors.Join(context.Cause(ctx), err))
			}
			if errors.Is(err, bus.ErrTooLarge) {
				return nil, fmt.Errorf("open the run log: %w", err)
			}
			if err := cfg.waitRetry(ctx, begun, err); err != nil {
				return nil, err
			}
			continue
		}
		return start(ctx, cfg, o, o.Events[1:]), nil
	}
}

// firstEvents returns the claim's first events, numbered.
func (t *tailReader) firstEvents(opening func(Tail) Opening) (Opening, error) {
	o := opening(t.tail)
	if len(o.Events) == 0 {
		return o, errors.New("open the run log: the claim has no first event")
	}
	for i, ev := range o.Events {
		stamp(t.cfg.Claim, ev, o.From+int64(i))
	}
	return o, nil
}

// wasStored reports whether an event is the last of its subject, so that only its
// acknowledgement was lost.
func wasStored(ctx context.Context, cfg Config, ev *runv1.Event) bool {
	last, err := cfg.Bus.Last(ctx, cfg.Stream, cfg.Subject)
	return err == nil && last.ID == run.EventID(ev)
}

// start returns a writer that sends the given events first.
func start(ctx context.Context, cfg Config, o Opening, events []*runv1.Event) *Writer {
	ctx, stop := context.WithCancel(ctx)
	w := &Writer{
		cfg: cfg, stop: stop, done: make(chan struct{}), changed: make(chan struct{}),
		next: o.From + int64(len(o.Events)),
	}
	for _, ev := range events {
		w.queue = append(w.queue, &entry{event: ev})
	}
	go w.send(ctx)
	return w
}

// tailReader reads what the log holds of the claim's run. Each read continues where the
// previous one ended, so that it catches up with an older claim that still writes.
type tailReader struct {
	cfg   Config
	tail  Tail
	epoch int64  // of the newest accepted event
	after uint64 // the sequence up to which the subject was read

	behind int // how often the log lacked its own last message
}

// errBehind means that the log was read from a replica that is not up to date. It may lack
// events of this run, whose numbers must not be used again.
var errBehind = errors.New("open the run log: a replica is behind")

// maxBehind is how often the log is read again before Open fails.
const maxBehind = 50

// read updates the tail and returns the sequence of the subject's last message. The log holds
// nothing of a run at its first claim.
func (t *tailReader) read(ctx context.Context) (uint64, error) {
	last, err := t.cfg.Bus.Last(ctx, t.cfg.Stream, t.cfg.Subject)
	if errors.Is(err, bus.ErrNotFound) {
		t.after = 0
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open the run log: %w", err)
	}
	if t.cfg.Claim.First {
		ev, err := bus.Decode[*runv1.Event](&last.Message)
		if err == nil && t.isNewer(ev) {
			return 0, errNewer
		}
		return last.Seq, nil
	}
	if last.Seq < t.after {
		t.after = 0 // the stream was created again
	}
	reached := t.after
	for m, err := range t.cfg.Bus.Read(ctx, t.cfg.Stream, t.cfg.Subject, t.after, last.Seq) {
		if err != nil {
			return 0, fmt.Errorf("open the run log: %w", err)
		}
		reached = m.Seq
		ev := new(runv1.Event)
		if err := bus.DecodeInto(&m.Message, ev); err != nil {
			continue // not an event; readers skip it too
		}
		if t.isNewer(ev) {
			return 0, errNewer
		}
		if ev.GetRunId() != t.cfg.Claim.Run.ID.String() || ev.GetEpoch() < t.epoch || ev.GetNumber() <= t.tail.Number {
			continue
		}
		t.epoch, t.tail.Number = ev.GetEpoch(), ev.GetNumber()
		t.tail.Events = append(t.tail.Events, ev)
	}
	if reached != last.Seq {
		return 0, errBehind
	}
	t.after = last.Seq
	return last.Seq, nil
}

// errNewer means that a newer claim of the run has written, so that this claim is lost.
var errNewer = fmt.Errorf("open the run log: a newer claim has it: %w", run.ErrFenced)

func (t *tailReader) isNewer(ev *runv1.Event) bool {
	return ev.GetEpoch() > t.cfg.Claim.Run.Epoch && ev.GetRunId() == t.cfg.Claim.Run.ID.String()
}

func stamp(c *run.Claim, ev *runv1.Event, number int64) {
	ev.RunId, ev.RunOrdinal, ev.Epoch, ev.Number = c.Run.ID.String(), c.Run.Ordinal, c.Run.Epoch, number
	ev.Time = timestamppb.Now()
}

// Stamp numbers events after all that were appended, without sending them: the outbox
// publishes the end of a run. Call it after Flush.
func (w *Writer) Stamp(events ...*runv1.Event) []*runv1.Event {
	return Stamp(w.cfg.Claim, w.Next(), events...)
}

// Stamp numbers events of a claim, starting with from.
func Stamp(c *run.Claim, from int64, events ...*runv1.Event) []*runv1.Event {
	for i, ev := range events {
		stamp(c, ev, from+int64(i))
	}
	return events
}

// Append adds an event. It blocks while the buffer is full, and returns the error that
// stopped the writer, if there is one.
func (w *Writer) Append(ctx context.Context, ev *runv1.Event) error {
	return w.add(ctx, &entry{event: ev, size: proto.Size(ev)})
}

// Text adds a piece of the answer's text.
func (w *Writer) Text(ctx context.Context, step int, block int32, text string) error {
	return w.delta(ctx, step, text, func(ev *runv1.Event, piece string) *string {
		d := &runv1.TextDelta{Delta: piece, Block: block}
		ev.Body = &runv1.Event_TextDelta{TextDelta: d}
		return &d.Delta
	})
}

// delta adds text as one event or, when it is long, as several.
func (w *Writer) delta(ctx context.Context, step int, text string, body func(ev *runv1.Event, piece string) *string) error {
	for {
		piece, rest := cut(text)
		ev := &runv1.Event{StepIndex: int32(step)}
		if err := w.add(ctx, &entry{event: ev, delta: body(ev, piece), size: len(piece)}); err != nil || rest == "" {
			return err
		}
		text = rest
	}
}

// cut splits text after at most maxDelta bytes, between runes.
func cut(text string) (piece, rest string) {
	if len(text) <= maxDelta {
		return text, ""
	}
	at := maxDelta
	for at > maxDelta-utf8.UTFMax && !utf8.RuneStart(text[at]) {
		at--
	}
	return text[:at], text[at:]
}

// Reasoning adds a piece of the model's reasoning.
func (w *Writer) Reasoning(ctx context.Context, step int, block int32, text string) error {
	return w.delta(ctx, step, text, func(ev *runv1.Event, piece string) *string {
		d := &runv1.ReasoningDelta{Delta: piece, Block: block}
		ev.Body = &runv1.Event_ReasoningDelta{ReasoningDelta: d}
		return &d.Delta
	})
}

// ToolDelta adds a piece of a tool call's arguments.
func (w *Writer) ToolDelta(ctx context.Context, step int, callID, name, text string) error {
	return w.delta(ctx, step, text, func(ev *runv1.Event, piece string) *string {
		d := &runv1.ToolCallDelta{ToolCallId: callID, ToolName: name, Delta: piece}
		ev.Body = &runv1.Event_ToolCallDelta{ToolCallDelta: d}
		return &d.Delta
	})
}

func (w *Writer) add(ctx context.Context, e *entry) error {
	w.mu.Lock()
	for w.err == nil && (w.size >= maxBuffered || len(w.queue) >= maxEntries) {
		if err := w.wait(ctx); err != nil {
			w.mu.Unlock()
			return err
		}
	}
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.size += e.size
	if w.coalesce(e) {
		return nil
	}
	stamp(w.cfg.Claim, e.event, w.next)
	w.next++
	w.queue = append(w.queue, e)
	w.signal()
	return nil
}

// coalesce appends a delta to the last waiting one of its block, if there is one and only
// deltas of other blocks are between the two. w.mu is held.
func (w *Writer) coalesce(e *entry) bool {
	first := 0
	if w.sending {
		first = 1 // an entry in flight must not grow
	}
	for i := len(w.queue) - 1; i >= first && e.delta != nil && w.queue[i].delta != nil; i-- {
		if sameBlock(w.queue[i].event, e.event) {
			return merge(w.queue[i], e)
		}
	}
	return false
}

// merge appends the text of b to a, if there is room.
func merge(a, b *entry) bool {
	if a.size+b.size > maxDelta {
		return false
	}
	if a.grown == nil {
		a.grown = append(a.grown, *a.delta...)
	}
	a.grown = append(a.grown, *b.delta...)
	a.size += b.size
	return true
}

func sameBlock(a, b *runv1.Event) bool {
	if a.GetStepIndex() != b.GetStepIndex() {
		return false
	}
	switch x := a.GetBody().(type) {
	case *runv1.Event_TextDelta:
		y, ok := b.GetBody().(*runv1.Event_TextDelta)
		return ok && x.TextDelta.GetBlock() == y.TextDelta.GetBlock()
	case *runv1.Event_ReasoningDelta:
		y, ok := b.GetBody().(*runv1.Event_ReasoningDelta)
		return ok && x.ReasoningDelta.GetBlock() == y.ReasoningDelta.GetBlock()
	case *runv1.Event_ToolCallDelta:
		y, ok := b.GetBody().(*runv1.Event_ToolCallDelta)
		return ok && x.ToolCallDelta.GetToolCallId() == y.ToolCallDelta.GetToolCallId()
	}
	return false
}

// Flush returns when the log has acknowledged all events.
func (w *Writer) Flush(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushing = true
	defer func() { w.flushing = false }()
	w.signal()
	for w.err == nil && len(w.queue) > 0 {
		if err := w.wait(ctx); err != nil {
			return err
		}
	}
	return w.err
}

// Next returns the number of the next event.
func (w *Writer) Next() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next
}

// Close stops the writer and waits for its goroutine. Events that are not flushed are lost.
func (w *Writer) Close() {
	w.stop()
	<-w.done
}

// signal wakes all waiting goroutines. w.mu is held.
func (w *Writer) signal() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// wait waits for signal, with w.mu released meanwhile.
func (w *Writer) wait(ctx context.Context) error {
	changed := w.changed
	w.mu.Unlock()
	defer w.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("write the run log: %w", context.Cause(ctx))
	}
}

func (w *Writer) send(ctx context.Context) {
	defer close(w.done)
	lastDelta := time.Now().Add(-deltaInterval)
	for {
		var e *entry
		err := panics.Try(func() (err error) {
			if e, err = w.head(ctx, lastDelta); err != nil {
				return err
			}
			return w.publish(ctx, e)
		})
		w.mu.Lock()
		if err != nil {
			w.err = err
		} else {
			w.queue = w.queue[1:]
			w.size -= e.size
		}
		w.sending = false
		w.signal()
		w.mu.Unlock()
		if err != nil {
			return
		}
		if e.delta != nil {
			lastDelta = time.Now()
		}
	}
}

// head returns the next entry when it is due. A delta waits for more text until
// deltaInterval is over, unless it must be sent.
func (w *Writer) head(ctx context.Context, lastDelta time.Time) (*entry, error) {
	due := time.NewTimer(time.Until(lastDelta.Add(deltaInterval)))
	defer due.Stop()
	for {
		e, changed := w.takeHead(time.Since(lastDelta) >= deltaInterval)
		if e != nil {
			return e, nil
		}
		select {
		case <-changed:
		case <-due.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("write the run log: %w", context.Cause(ctx))
		}
	}
}

// takeHead returns the head and marks it as in flight, or nil if no entry is due. changed is
// closed when the queue changes.
func (w *Writer) takeHead(due bool) (head *entry, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return nil, w.changed
	}
	e := w.queue[0]
	if e.delta != nil && !w.flushing && !due && !w.mustSend() {
		return nil, w.changed
	}
	w.sending = true
	if e.grown != nil {
		*e.delta = string(e.grown)
	}
	return e, w.changed
}

// mustSend reports whether the head must be sent at once: behind it is an event that is not a
// delta, or a delta of the same block for which it had no room. w.mu is held.
func (w *Writer) mustSend() bool {
	for _, e := range w.queue[1:] {
		if e.delta == nil || sameBlock(w.queue[0].event, e.event) {
			return true
		}
	}
	return false
}

// publish sends one event until the log acknowledges it.
func (w *Writer) publish(ctx context.Context, e *entry) error {
	begun := time.Now()
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptLimit)
		_, err := w.cfg.Bus.Publish(attempt, w.cfg.Subject, run.EventID(e.event), e.event)
		cancel()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, bus.ErrTooLarge):
			return fmt.Errorf("write the run log: %w", err)
		case ctx.Err() != nil:
			return fmt.Errorf("write the run log: %w", context.Cause(ctx))
		}
		w.cfg.Log.WarnContext(ctx, "run log does not acknowledge", "run", w.cfg.Claim.Run.ID, "number", e.event.GetNumber(), "error", err)
		if err := w.cfg.outOfPatience(begun, err); err != nil {
			return err
		}
		if err := pause(ctx, retryWait); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("write the run log: %w", context.Cause(ctx))
	}
}
