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

// Stored is a message of a stream.
type Stored struct {
	Message
	Seq  uint64    // in the stream
	Prev uint64    // of the previous message on its subject; set by Republished only
	Time time.Time // when it was stored
}

// Limits of one request of Read or ReadAll. Publishers of the stream wait while the server
// answers it; ReadAll asks for less because it reads while they write.
const (
	readBatch    = 256
	readAllBatch = 128
	readBytes    = 1 << 20
)

// numPendingHeader is in the last reply of a batch and counts the remaining messages.
const numPendingHeader = "Nats-Num-Pending"

// directGet is a request for stored messages without a consumer.
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
	request, release := b.inSession(ctx)
	defer release()
	m, err := b.nc.RequestWithContext(request, directGetSubject(stream), req)
	if err == nil {
		var s *Stored
		if s, err = answer(m); err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("read the last message on %s: %w", subj, translate(sessionErr(request, err)))
}

// Read yields the messages of a stream on subj with after < sequence ≤ through that are
// still stored, in order, and ends with the first error. With math.MaxUint64 it reads to the
// end. The stream is read in bounded batches while the loop runs. JetStream has no index by
// subject, so this scans: it is for repairing a gap, not for reading a session from its
// beginning.
func (b *Bus) Read(ctx context.Context, stream, subj string, after, through uint64) iter.Seq2[*Stored, error] {
	return func(yield func(*Stored, error) bool) {
		err := b.read(ctx, stream, directGet{Seq: after + 1, NextFor: subj, Batch: readBatch, MaxBytes: readBytes}, through, yield)
		if err != nil {
			yield(nil, fmt.Errorf("read %s after %d: %w", subj, after, translate(err)))
		}
	}
}

// ReadAll is Read for all subjects of a stream. It scans nothing, because it wants every
// message.
func (b *Bus) ReadAll(ctx context.Context, stream string, after, through uint64) iter.Seq2[*Stored, error] {
	return func(yield func(*Stored, error) bool) {
		err := b.read(ctx, stream, directGet{Seq: after + 1, Batch: readAllBatch, MaxBytes: readBytes}, through, yield)
		if err != nil {
			yield(nil, fmt.Errorf("read stream %s after %d: %w", stream, after, translate(err)))
		}
	}
}

// StreamState is the state of a stream.
type StreamState struct {
	// Created differs for a stream that replaced a lost one of the same name, and whose
	// sequences start again.
	Created time.Time
	// First and Last are the sequences of the oldest and the newest message. In an empty
	// stream, Last is that of the newest deleted message and First is Last + 1; both are 0
	// if there has never been a message.
	First, Last uint64
}

// Stream returns the state of a stream, or ErrNoStream.
func (b *Bus) Stream(ctx context.Context, stream string) (StreamState, error) {
	if err := b.awaitFirst(ctx); err != nil {
		return StreamState{}, fmt.Errorf("get stream %s: %w", stream, err)
	}
	request, release := b.inSession(ctx)
	defer release()
	s, err := b.js.Stream(request, stream)
	if err != nil {
		return StreamState{}, fmt.Errorf("get stream %s: %w", stream, translate(sessionErr(request, err)))
	}
	info := s.CachedInfo()
	return StreamState{Created: info.Created, First: info.State.FirstSeq, Last: info.State.LastSeq}, nil
}

// read repeats a request until it reaches through or the end.
func (b *Bus) read(ctx context.Context, stream string, get directGet, through uint64, yield func(*Stored, error) bool) error {
	after := get.Seq - 1
	if after >= through {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err // an answer could come before it is noticed
	}
	ctx, release := b.inSession(ctx)
	defer release()
	inbox, answers := b.nc.NewInbox(), make(chan *nats.Msg, 2*readBatch) // SubscribeSync takes half a megabyte
	sub, err := b.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only without a connection
	for {
		get.Seq = after + 1
		req, err := json.Marshal(get)
		if err != nil {
			return err
		}
		if err := b.nc.PublishRequest(directGetSubject(stream), inbox, req); err != nil {
			return err
		}
		last, more, err := b.readAnswers(ctx, answers, through, yield)
		if err != nil || !more {
			return sessionErr(ctx, err)
		}
		if last <= after {
			return fmt.Errorf("the server returned message %d after %d", last, after)
		}
		after = last
	}
}

// readAnswers yields the messages of one request. more reports whether to ask for those
// after last.
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

// answer decodes a reply to a direct get.
func answer(m *nats.Msg) (*Stored, error) {
	switch status := m.Header.Get("Status"); status {
	case "":
		return stored(m)
	case "404":
		return nil, ErrNotFound
	case "503":
		return nil, nats.ErrNoResponders
	default:
		return nil, fmt.Errorf("the server replied %s %s", status, m.Header.Get("Description"))
	}
}
