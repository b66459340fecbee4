// Package runorder is the canonical order of a session's run log: which of the events
// on the log count, in what order, and where some are missing. Whoever reads the
// log, or a copy of it, must come to the same answer, so the rule is here and nowhere
// else. It is a pure function of what it has been shown, and knows no event but by
// its numbers.
//
// # The rule
//
// The order is that of the stream, without second deliveries and without what an
// older claim of a run says after a newer one has spoken (a zombie's). Within a run
// numbers are dense, over its claims. A run that has a runner (epoch 1 or more)
// begins with number 0, when all runs before it have been said to their end; one
// that never had a runner (epoch 0: it was cancelled while it waited) may be said
// between the events of another. What does not fit is told:
//
//	a number is skipped                              events of the run are gone
//	a claim begins at or before what was seen        the log lost its end
//	a run begins, and one before it has no end       that end is gone
//	a run begins, and one before it was never seen   that run is gone
//	an unknown run speaks after a later one began    a zombie's
//
// A reader who began in the middle cannot tell a run that is gone from one that was
// cancelled, and said, before.
package runorder

import (
	"iter"
	"math"
)

// Span is a row of events of one run under one claim whose numbers follow each
// other. One event is a span of one.
type Span struct {
	ID          string // of the run; it is kept for the caller
	Run, Epoch  int64  // the run's ordinal, and its claim
	First, Last int64  // numbers
	Ends        bool   // the last one is the run's end
}

// Progress is how far a run has come.
type Progress struct {
	ID            string
	Epoch, Number int64 // Number is -1 before the first event
	Ended         bool
	// Tentative: known from one event in the middle, which may be a zombie's.
	Tentative bool
}

// Verdict is what becomes of a span.
type Verdict uint8

// The verdicts.
const (
	Drop    Verdict = iota // nothing new, or a zombie's
	Pass                   // its events, or the last of them, are next
	Gap                    // they are, and some before them are gone
	Unknown                // nothing is known of its run: what came before the span is for the caller to say
)

// maxRuns bounds the runs that are remembered; a session's runs follow each other.
const maxRuns = 128

// Order is how far the runs of a session are, for one reader of its log. It is for
// one goroutine.
type Order struct {
	runs map[int64]*Progress
	// from is the oldest run whose end must have been seen when the next one begins.
	from int64
	// whole: the log was seen from its beginning.
	whole bool
	// begun is the newest run with a runner that was met.
	begun int64
	// forgotten is the newest run whose progress was given up to stay small.
	forgotten int64
}

// New returns an order that has seen nothing.
func New() *Order { return &Order{runs: map[int64]*Progress{}} }

// Progress returns how far a run is; false when it was not met.
func (o *Order) Progress(run int64) (Progress, bool) {
	if p := o.runs[run]; p != nil {
		return *p, true
	}
	return Progress{Number: -1}, false
}

// Open yields the runs that were met and have not ended.
func (o *Order) Open() iter.Seq2[int64, Progress] {
	return func(yield func(int64, Progress) bool) {
		for n, p := range o.runs {
			if !p.Ended && !yield(n, *p) {
				return
			}
		}
	}
}

// Begin learns of a run from one span whose predecessors were not seen.
func (o *Order) Begin(s Span) {
	o.meet(s.Run, s.Epoch)
	o.runs[s.Run] = &Progress{ID: s.ID, Epoch: s.Epoch, Number: s.Last, Ended: s.Ends, Tentative: true}
}

// Expect learns that there is a run of which nothing has been seen.
func (o *Order) Expect(run int64, id string) {
	if o.runs[run] == nil {
		o.meet(run, 0)
		o.runs[run] = &Progress{ID: id, Number: -1}
	}
}

// Judge says what becomes of s, the next span of the stream, and when it passes how
// many of its events were seen before. It remembers nothing.
func (o *Order) Judge(s Span) (v Verdict, skip int64) {
	p := o.runs[s.Run]
	switch {
	case p == nil:
		return o.judgeNew(s), 0
	case p.Number < 0 && s.First == 0:
		return o.judgeFirst(s), 0
	}
	newer := s.Epoch > p.Epoch
	// After a start in the middle a newer claim corrects what a zombie made us believe.
	corrected := newer && p.Tentative
	// The log lost events that were seen, and the next claim went on before them.
	lost := newer && !p.Tentative && s.First <= p.Number
	switch {
	case corrected:
		return Pass, 0
	case s.Epoch < p.Epoch, p.Ended, s.Last <= p.Number && !lost:
		return Drop, 0
	case lost, s.First > p.Number+1:
		return Gap, 0
	}
	return Pass, p.Number + 1 - s.First
}

func (o *Order) judgeNew(s Span) Verdict {
	switch {
	case s.Run <= o.forgotten, s.Run < o.begun:
		return Drop
	case s.First > 0 && o.from > 0 && s.Run > o.from && (s.Epoch > 0 || o.whole):
		return Gap // its beginning is gone
	case s.First > 0, s.Epoch == 0:
		return Unknown
	}
	return o.judgeFirst(s)
}

// judgeFirst is Judge for a run's beginning.
func (o *Order) judgeFirst(s Span) Verdict {
	if s.Epoch == 0 || o.from == 0 {
		return Pass
	}
	for n := o.from; n < s.Run; n++ {
		if p := o.runs[n]; p == nil && o.whole || p != nil && !p.Ended {
			return Gap
		}
	}
	return Pass
}

// Admit is Judge for a reader that goes on whatever is missing: it remembers a span
// that is not dropped.
func (o *Order) Admit(s Span) (v Verdict, skip int64) {
	if v, skip = o.Judge(s); v != Drop {
		o.Take(s)
	}
	return v, skip
}

// Take remembers that a span has passed.
func (o *Order) Take(s Span) {
	if o.from == 0 {
		o.whole = s.Run == 1 && s.First == 0
	}
	if p := o.runs[s.Run]; s.Epoch > 0 && s.Run > o.begun && (p == nil || p.Number < 0) && o.from > 0 {
		o.from = max(o.from, s.Run) // what is missing before it has been told
	}
	o.meet(s.Run, s.Epoch)
	o.runs[s.Run] = &Progress{ID: s.ID, Epoch: s.Epoch, Number: s.Last, Ended: s.Ends}
	o.prune()
}

func (o *Order) meet(run, epoch int64) {
	if o.from == 0 || run < o.from && run > o.begun {
		o.from = run
	}
	if epoch > 0 {
		o.begun = max(o.begun, run)
	}
}

// Seen reports whether a span brings nothing new.
func (o *Order) Seen(s Span) bool {
	p := o.runs[s.Run]
	if p == nil {
		return s.Run <= o.forgotten || s.Run < o.begun
	}
	return s.Epoch < p.Epoch || s.Epoch == p.Epoch && s.Last <= p.Number
}

// Learn takes over what another order, one that has read more of the same log, knows
// better.
func (o *Order) Learn(other *Order) {
	for n, theirs := range other.runs {
		ours := o.runs[n]
		if ours == nil || ours.Tentative && theirs.Epoch >= ours.Epoch {
			c := *theirs
			o.runs[n] = &c
		}
	}
	if o.from == 0 {
		o.from, o.whole = other.from, other.whole
	}
	o.begun = max(o.begun, other.begun)
	o.prune()
}

func (o *Order) prune() {
	for len(o.runs) > maxRuns {
		oldest := int64(math.MaxInt64)
		for n := range o.runs {
			oldest = min(oldest, n)
		}
		o.forgotten = max(o.forgotten, oldest)
		o.from = max(o.from, o.forgotten+1)
		delete(o.runs, oldest)
	}
}
