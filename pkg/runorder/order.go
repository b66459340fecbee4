// Package runorder defines the canonical order of a session's run log: which events count, in
// what order, and where some are missing. All readers of the log and of its copies have to
// agree, so the rule is only here. It is a pure function of the numbers of the events seen.
//
// # The rule
//
// The order is that of the stream, without duplicates and without events that an older claim
// of a run published after a newer one had (a zombie's). The numbers of a run are consecutive
// across its claims. A run with a runner (epoch 1 or more) begins with number 0, after all
// earlier runs have ended. A run that never had a runner (epoch 0: cancelled while it waited)
// may come between the events of another. Deviations mean:
//
//	a number is skipped                              events of the run are missing
//	a claim begins at or before what was seen        the log lost its newest events
//	a run begins, and an earlier one has no end      that end is missing
//	a run begins, and an earlier one was never seen  that run is missing
//	an unknown run appears after a later one began   it is a zombie's
//
// A reader that began in the middle cannot tell a missing run from one that was cancelled
// before.
package runorder

import (
	"iter"
	"math"
)

// Span is a sequence of events of one run and claim with consecutive numbers. A single event
// is a span, too.
type Span struct {
	ID          string // of the run; kept for the caller
	Run, Epoch  int64  // the run's ordinal, and its claim
	First, Last int64  // numbers
	Ends        bool   // the last event is the run's end
}

// Progress is the progress of a run.
type Progress struct {
	ID            string
	Epoch, Number int64 // Number is -1 before the first event
	Ended         bool
	// Tentative means that it is known from an event in the middle, which may be a zombie's.
	Tentative bool
}

// Verdict is the decision about a span.
type Verdict uint8

// The verdicts.
const (
	Drop    Verdict = iota // a duplicate, or a zombie's
	Pass                   // its events, or the last of them, are next
	Gap                    // they are next, and events before them are missing
	Unknown                // its run is unknown: the caller has to find out what came before
)

// maxRuns bounds the runs that are remembered.
const maxRuns = 128

// Order has the progress of a session's runs, for one reader of its log. It is not safe for
// concurrent use.
type Order struct {
	runs map[int64]*Progress
	// from is the oldest run whose end must be seen before the next one begins.
	from int64
	// whole means that the log was seen from its beginning.
	whole bool
	// begun is the newest run with a runner that was seen.
	begun int64
	// forgotten is the newest run whose progress was evicted.
	forgotten int64
}

// New returns an order that has seen nothing.
func New() *Order { return &Order{runs: map[int64]*Progress{}} }

// Progress returns the progress of a run, and whether the run was seen.
func (o *Order) Progress(run int64) (Progress, bool) {
	if p := o.runs[run]; p != nil {
		return *p, true
	}
	return Progress{Number: -1}, false
}

// Open yields the runs that were seen and have not ended.
func (o *Order) Open() iter.Seq2[int64, Progress] {
	return func(yield func(int64, Progress) bool) {
		for n, p := range o.runs {
			if !p.Ended && !yield(n, *p) {
				return
			}
		}
	}
}

// Begin records a run from a span whose predecessors were not seen.
func (o *Order) Begin(s Span) {
	o.meet(s.Run, s.Epoch)
	o.runs[s.Run] = &Progress{ID: s.ID, Epoch: s.Epoch, Number: s.Last, Ended: s.Ends, Tentative: true}
}

// Expect records that a run exists of which nothing has been seen.
func (o *Order) Expect(run int64, id string) {
	if o.runs[run] == nil {
		o.meet(run, 0)
		o.runs[run] = &Progress{ID: id, Number: -1}
	}
}

// Judge returns the verdict on s, the next span of the stream, and for Pass how many of its
// events were seen before. It records nothing.
func (o *Order) Judge(s Span) (v Verdict, skip int64) {
	p := o.runs[s.Run]
	switch {
	case p == nil:
		return o.judgeNew(s), 0
	case p.Number < 0 && s.First == 0:
		return o.judgeFirst(s), 0
	}
	newer := s.Epoch > p.Epoch
	// After a start in the middle, a newer claim corrects what a zombie's event suggested.
	corrected := newer && p.Tentative
	// The log lost events that were seen, and the next claim repeats their numbers.
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
		return Gap // its beginning is missing
	case s.First > 0, s.Epoch == 0:
		return Unknown
	}
	return o.judgeFirst(s)
}

// judgeFirst judges the beginning of a run.
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

// Admit judges a span for a reader that continues after gaps: it records a span unless the
// verdict is Drop.
func (o *Order) Admit(s Span) (v Verdict, skip int64) {
	if v, skip = o.Judge(s); v != Drop {
		o.Take(s)
	}
	return v, skip
}

// Take records a span.
func (o *Order) Take(s Span) {
	if o.from == 0 {
		o.whole = s.Run == 1 && s.First == 0
	}
	if p := o.runs[s.Run]; s.Epoch > 0 && s.Run > o.begun && (p == nil || p.Number < 0) && o.from > 0 {
		o.from = max(o.from, s.Run) // gaps before it have been reported
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

// Seen reports whether a span has nothing new.
func (o *Order) Seen(s Span) bool {
	p := o.runs[s.Run]
	if p == nil {
		return s.Run <= o.forgotten || s.Run < o.begun
	}
	return s.Epoch < p.Epoch || s.Epoch == p.Epoch && s.Last <= p.Number
}

// Learn merges another order that has read more of the same log.
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
