package feed

import (
	"math"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// order is the canonical order of a session's events: the order of the stream,
// without those of an older claim of the run (a zombie's) and without second
// deliveries. It is a pure function of the events it has been shown.
type order struct {
	runs map[int64]*progress
	// through is the newest run that was followed here, not just heard of.
	through int64
	// forgotten is the newest run whose progress was given up to stay small.
	forgotten int64
}

// progress is how far a run has come.
type progress struct {
	id            string
	epoch, number int64
	// tentative: known from one event in the middle, which may be a zombie's.
	tentative bool
	ended     bool
}

// verdict is what becomes of an event.
type verdict uint8

const (
	drop verdict = iota
	pass
	passAfterHole // events between it and the one before it are gone
)

// maxRuns bounds the runs that are remembered; a session's runs follow each other.
const maxRuns = 128

func newOrder() *order { return &order{runs: map[int64]*progress{}} }

// begin learns of a run from one event whose predecessors were not seen.
func (o *order) begin(e *runv1.Event) {
	o.runs[e.GetRunOrdinal()] = &progress{
		id: e.GetRunId(), epoch: e.GetEpoch(), number: e.GetNumber(), tentative: true, ended: isEnd(e),
	}
}

// admit says what becomes of e, the next event of the stream, and remembers it.
func (o *order) admit(e *runv1.Event) verdict {
	p := o.runs[e.GetRunOrdinal()]
	if p == nil {
		return o.admitNew(e)
	}
	// After a start in the middle a higher claim corrects what a zombie made us believe.
	corrected := p.tentative && e.GetEpoch() > p.epoch
	// The log lost events that were seen here, and the next claim went on before them.
	lost := !p.tentative && e.GetEpoch() > p.epoch && e.GetNumber() <= p.number
	switch {
	case e.GetEpoch() < p.epoch, e.GetNumber() <= p.number && !corrected && !lost, p.ended && !corrected:
		return drop
	}
	v := pass
	if lost || e.GetNumber() > p.number+1 && !corrected {
		v = passAfterHole
	}
	p.epoch, p.number, p.tentative, p.ended = e.GetEpoch(), e.GetNumber(), false, isEnd(e)
	o.through = max(o.through, e.GetRunOrdinal())
	return v
}

func (o *order) admitNew(e *runv1.Event) verdict {
	n := e.GetRunOrdinal()
	if n <= o.forgotten {
		return drop
	}
	v := pass
	// A run that begins after one that was followed is seen from its beginning,
	// unless that is gone.
	if e.GetNumber() > 0 && o.through > 0 && n > o.through {
		v = passAfterHole
	}
	o.runs[n] = &progress{id: e.GetRunId(), epoch: e.GetEpoch(), number: e.GetNumber(), ended: isEnd(e)}
	if e.GetNumber() == 0 || v == passAfterHole {
		o.through = max(o.through, n)
	}
	o.prune()
	return v
}

// seen reports whether e brings nothing new.
func (o *order) seen(e *runv1.Event) bool {
	p := o.runs[e.GetRunOrdinal()]
	if p == nil {
		return e.GetRunOrdinal() <= o.forgotten
	}
	return e.GetEpoch() < p.epoch || e.GetEpoch() == p.epoch && e.GetNumber() <= p.number
}

// learn takes over what another order, one that has read more, knows better.
func (o *order) learn(from *order) {
	for n, theirs := range from.runs {
		ours := o.runs[n]
		if ours == nil || ours.tentative && theirs.epoch >= ours.epoch {
			c := *theirs
			o.runs[n] = &c
		}
	}
	o.through = max(o.through, from.through)
	o.prune()
}

func (o *order) prune() {
	for len(o.runs) > maxRuns {
		oldest := int64(math.MaxInt64)
		for n := range o.runs {
			oldest = min(oldest, n)
		}
		o.forgotten = max(o.forgotten, oldest)
		delete(o.runs, oldest)
	}
}

func isEnd(e *runv1.Event) bool {
	switch e.GetBody().(type) {
	case *runv1.Event_Done, *runv1.Event_Error:
		return true
	}
	return false
}
