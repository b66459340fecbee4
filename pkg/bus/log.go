package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Stored is a message as its stream keeps it.
type Stored struct {
	Message
	Seq  uint64    // in the stream
	Prev uint64    // of the message before it on its subject; only Republished knows it
	Time time.Time // when it was stored
}

// One request of Read or ReadAll asks for this much. Publishers of the stream wait
// while the server answers one; ReadAll, which reads for as long as they write,
// asks for less at a time.
const (
	readBatch    = 256
	readAllBatch = 128
	readBytes    = 1 << 20
)

// numPendingHeader is on the end of a batch: how many more there are.
const numPendingHeader = "Nats-Num-Pending"

// directGet is the server's request for stored messages without a consumer.
type directGet struct {
	Seq      uint64 `json:"seq,omitempty"`
	LastFor  string `json:"last_by_subj,omitempty"`
	NextFor  string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// Last returns the last message of a stream on subj, or ErrNotFound.
func (b *Bus) Last(ctx context.Context, stream, subj string) (*Stored, error) {
	ctx, cancel := atMost(ctx, requestTimeout)
	defer cancel()
	req, err := json.Marshal(directGet{LastFor: subj})
	if err != nil {
		return nil, fmt.Errorf("read the last message on %s: %w", subj, err)
	}
	asking, forget := b.onLine(ctx)
	defer forget()
	m, err := b.nc.RequestWithContext(asking, directGetSubject(stream), req)
	if err == nil {
		var s *Stored
		if s, err = answer(m); err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("read the last message on %s: %w", subj, translate(unanswered(asking, err)))
}

// Read yields the messages of a stream on subj with after < sequence ≤ through,
// in order, as far as they are still there. It ends with the first error, and
// before the end of the log no later than at through; to read what there is,
// pass math.MaxUint64. The stream is read in bounded pieces while the loop
// runs. JetStream has no index by subject: this scans, so it is for repairing a
// gap and not for reading a session from its beginning.
func (b *Bus) Read(ctx context.Context, stream, subj string, after, through uint64) iter.Seq2[*Stored, error] {
	return func(yield func(*Stored, error) bool) {
		err := b.read(ctx, stream, directGet{Seq: after + 1, NextFor: subj, Batch: readBatch, MaxBytes: readBytes}, through, yield)
		if err != nil {
			yield(nil, fmt.Errorf("read %s after %d: %w", subj, after, translate(err)))
		}
	}
}

// ReadAll is Read of all subjects of a stream, for what copies it: every message
// is one that is wanted, so nothing is scanned.
func (b *Bus) ReadAll(ctx context.Context, stream string, after, through uint64) iter.Seq2[*Stored, error] {
	return func(yield func(*Stored, error) bool) {
		err := b.read(ctx, stream, directGet{Seq: after + 1, Batch: readAllBatch, MaxBytes: readBytes}, through, yield)
		if err != nil {
			yield(nil, fmt.Errorf("read stream %s after %d: %w", stream, after, translate(err)))
		}
	}
}

// StreamState says where a stream stands.
type StreamState struct {
	// Created tells the stream from another one of its name, which took its place
	// when it was lost and counts from one again.
	Created time.Time
	// First and Last are the sequences of the oldest and the newest message. In an
	// empty stream Last is that of the last one there was, and First is Last + 1; both
	// are 0 where there never was any.
	First, Last uint64
}

// Stream returns where a stream stands, or ErrNoStream.
func (b *Bus) Stream(ctx context.Context, stream string) (StreamState, error) {
	if err := b.awaitFirst(ctx); err != nil {
		return StreamState{}, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	asking, forget := b.onLine(ctx)
	defer forget()
	s, err := b.js.Stream(asking, stream)
	if err != nil {
		return StreamState{}, fmt.Errorf("look at stream %s: %w", stream, translate(unanswered(asking, err)))
	}
	info := s.CachedInfo()
	return StreamState{Created: info.Created, First: info.State.FirstSeq, Last: info.State.LastSeq}, nil
}

// read asks with request, as often as it takes to reach through or the end.
func (b *Bus) read(ctx context.Context, stream string, request directGet, through uint64, yield func(*Stored, error) bool) error {
	after := request.Seq - 1
	if after >= through {
		return nil
	}
	ctx, forget := b.onLine(ctx)
	defer forget()
	inbox, answers := b.nc.NewInbox(), make(chan *nats.Msg, 2*readBatch) // SubscribeSync takes half a megabyte
	sub, err := b.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone, and so is the interest
	for {
		request.Seq = after + 1
		req, err := json.Marshal(request)
		if err != nil {
			return err
		}
		if err := b.nc.PublishRequest(directGetSubject(stream), inbox, req); err != nil {
			return err
		}
		last, more, err := b.readAnswers(ctx, answers, through, yield)
		if err != nil || !more {
			return unanswered(ctx, err)
		}
		if last <= after {
			return fmt.Errorf("the server answers %d after %d", last, after)
		}
		after = last
	}
}

// readAnswers yields the messages of one request. more tells whether another
// one, after last, is due.
func (b *Bus) readAnswers(ctx context.Context, answers <-chan *nats.Msg, through uint64, yield func(*Stored, error) bool) (last uint64, more bool, err error) {
	for {
		m, err := b.nextAnswer(ctx, answers)
		if err != nil {
			return 0, false, err
		}
		if m.Header.Get("Status") == "204" { // end of this batch
			pending, err := strconv.ParseUint(m.Header.Get(numPendingHeader), 10, 64)
			return last, err == nil && pending > 0 && last < through, nil
		}
		s, err := answer(m)
		if errors.Is(err, ErrNotFound) {
			return last, false, nil
		}
		if err != nil {
			return 0, false, err
		}
		if s.Seq > through || !yield(s, nil) || s.Seq == through {
			return last, false, nil
		}
		last = s.Seq
	}
}

func (b *Bus) nextAnswer(ctx context.Context, answers <-chan *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	select {
	case m := <-answers:
		return m, nil
	case <-b.closed:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func directGetSubject(stream string) string {
	return jetstream.DefaultAPIPrefix + "DIRECT.GET." + stream
}

// answer reads one answer to a direct get.
func answer(m *nats.Msg) (*Stored, error) {
	switch status := m.Header.Get("Status"); status {
	case "":
		return stored(m)
	case "404":
		return nil, ErrNotFound
	case "503":
		return nil, nats.ErrNoResponders
	default:
		return nil, fmt.Errorf("the server answers %s %s", status, m.Header.Get("Description"))
	}
}
