package archive

// order is how far each run is that was met, by its ordinal: with it, the canonical
// order of the log can be told row by row.
type order map[int64]*progress

// progress is how far a run is.
type progress struct {
	epoch, number int64 // number is -1 before the first event
	ended         bool
}

// verdict is what becomes of a row.
type verdict uint8

const (
	pass    verdict = iota // its events, or the last of them, are next
	drop                   // an older claim's, or nothing new
	stop                   // it does not follow what came before
	unknown                // nothing is known of its run
)

// admit says what becomes of a row and, when it passes, how many of its events were
// seen before.
func (o order) admit(r *row) (v verdict, skip int) {
	p := o[r.RunOrdinal]
	// A run that has a runner begins after all that was met here. One that was
	// cancelled before may have been said already.
	begins := r.FirstNumber == 0 && r.Epoch > 0 && o.newest(r.RunOrdinal)
	switch {
	case p == nil && !begins:
		return unknown, 0
	case p == nil || p.number < 0:
		return o.admitFirst(r), 0
	case r.Epoch < p.epoch, r.Epoch == p.epoch && r.LastNumber <= p.number:
		return drop, 0
	case r.Epoch > p.epoch && r.FirstNumber <= p.number, r.FirstNumber > p.number+1:
		return stop, 0
	}
	return pass, int(p.number + 1 - r.FirstNumber)
}

// admitFirst is admit for the first row of a run.
func (o order) admitFirst(r *row) verdict {
	if r.FirstNumber > 0 {
		return stop
	}
	// A run has a runner when those before it have ended; one that never had one may
	// be cancelled at any time.
	for run, p := range o {
		if r.Epoch > 0 && run < r.RunOrdinal && p.epoch > 0 && !p.ended {
			return stop
		}
	}
	return pass
}

func (o order) newest(run int64) bool {
	for known := range o {
		if known >= run {
			return false
		}
	}
	return true
}

// before returns how far a row's run is.
func (o order) before(r *row) progress {
	if p := o[r.RunOrdinal]; p != nil {
		return *p
	}
	return progress{number: -1}
}

// record remembers that a row has passed.
func (o order) record(r *row) {
	o[r.RunOrdinal] = &progress{epoch: r.Epoch, number: r.LastNumber, ended: r.Ends}
}
