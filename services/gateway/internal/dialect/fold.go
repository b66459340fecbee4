package dialect

import (
	"bytes"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Fold is a dialect in which an event's encoding depends on the events of its run before it. Values
// are comparable: equal ones encode alike.
type Fold interface {
	// Next encodes the event that follows those that led to s; a run begins with nil. data has
	// count chunks, each ending with an empty line.
	Next(s State, e *runv1.Event) (data []byte, count int, next State)
	// End is what a response ends with.
	End() []byte
}

// State is what a Fold remembers of a run. It is immutable.
type State interface {
	// Pauses returns how often the response was ended because the run waits for a person or a
	// client. The chunks of the next response follow.
	Pauses() int
}

// maxEncodings bounds the encodings of one event that are kept for other readers. Clients choose some
// folds' fields.
const maxEncodings = 16

// Encoding is an event encoded by a Fold. All readers of the event share it.
type Encoding struct {
	fold  Fold
	data  []byte
	count int
	next  State
}

// Reader is a position in the chunks of a run or, if Session is set, in those of all runs of a
// session. It has to begin with a run's first event; later runs begin anew. It belongs to one
// goroutine.
type Reader struct {
	Fold Fold
	// State is the fold's state before the first event; nil at the beginning of a run.
	State State
	// AfterCall begins behind the pause in which this call waits for approval or for its result;
	// empty for the run's beginning.
	AfterCall string
	// Part is the response to read, from 1: it begins behind the pause before it and ends at the
	// next one. 0 reads as Resumed says.
	Part int
	// Skip leaves out this number of chunks.
	Skip int64
	// Resumed is the number of the last event whose pause is known to be over, or -1: pauses
	// after it end the response.
	Resumed int64
	Session bool

	run   int64
	asked int // pauses before the question about AfterCall, plus 1; 0 before it is asked
	count int64
}

// Next appends the chunks of an event, and reports whether they end the response. known are the
// event's encodings so far, to which Next adds, unless there are many or the fold is private.
func (r *Reader) Next(buf []byte, e *runv1.Event, known *[]Encoding) ([]byte, bool) {
	if r.Session && e.GetEpoch() == 0 {
		return buf, false // a run that was cancelled in the queue, in the middle of another one
	}
	if e.GetRunOrdinal() != r.run {
		if r.run != 0 || e.GetNumber() == 0 {
			r.State = nil
		}
		r.run = e.GetRunOrdinal()
	}
	if r.State == nil && e.GetNumber() != 0 && (e.GetEpoch() > 0 || !isEnd(e)) {
		return buf, false // the run began before the reader did
	}
	pauses := 0
	if r.State != nil {
		pauses = r.State.Pauses()
	}
	enc := r.encode(e, known)
	r.State = enc.next
	ends := isEnd(e) || enc.next.Pauses() > pauses && (e.GetNumber() > r.Resumed || r.Part > 0)
	switch {
	case pauses+1 < r.Part && isEnd(e): // it has no such part
	case pauses+1 < r.Part:
		return buf, false
	case r.AfterCall != "" && (r.asked == 0 || pauses < r.asked):
		if e.GetToolApprovalRequest().GetToolCallId() == r.AfterCall || e.GetToolClientRequest().GetToolCallId() == r.AfterCall {
			r.asked = pauses + 1
		}
		if !isEnd(e) {
			return buf, false
		}
		fallthrough
	default:
		buf = append(buf, r.unread(enc)...)
	}
	if !ends || r.Session {
		return buf, false
	}
	return append(buf, r.Fold.End()...), true
}

func isEnd(e *runv1.Event) bool {
	switch e.GetBody().(type) {
	case *runv1.Event_Done, *runv1.Event_Error:
		return true
	}
	return false
}

func (r *Reader) encode(e *runv1.Event, known *[]Encoding) Encoding {
	for _, enc := range *known {
		if enc.fold == r.Fold {
			return enc
		}
	}
	enc := Encoding{fold: r.Fold}
	enc.data, enc.count, enc.next = r.Fold.Next(r.State, e)
	if _, own := r.Fold.(*private); !own && len(*known) < maxEncodings {
		*known = append(*known, enc)
	}
	return enc
}

// unread counts the chunks of an event, and returns those that are not to be skipped.
func (r *Reader) unread(enc Encoding) []byte {
	data := enc.data
	for i := range int64(enc.count) {
		if r.count+i < r.Skip {
			_, data, _ = bytes.Cut(data, []byte("\n\n"))
		}
	}
	r.count += int64(enc.count)
	return data
}

// Count returns the number of chunks that were passed, skipped ones included.
func (r *Reader) Count() int64 { return r.count }
