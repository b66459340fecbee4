package archive

// order has the progress of each run seen so far, by ordinal. It decides row by row what
// belongs to the canonical order of the log.
type order map[int64]*progress

// progress is the progress of a run.
type progress struct {
	epoch, number int64 // number is -1 before the first event
	ended         bool
}

// verdict says what to do with a row.
type verdict uint8

const (
	pass    verdict = iota // return its events, or the last of them
	drop                   // ignore it: an older claim wrote it, or it has nothing new
	stop                   // end before it: it does not follow what came before
	unknown                // read the progress of its run first
)

// admit returns the verdict on a row. If it is pass, skip is how many of the row's events
// were seen before.
func (o order) admit(r *row) (v verdict, skip int) {
	p := o[r.RunOrdinal]
	// A claimed run begins after all runs seen so far. The events of a run that was cancelled
	// while queued may have come earlier.
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

// admitFirst is like admit for the first row of a run.
func (o order) admitFirst(r *row) verdict {
	if r.FirstNumber > 0 {
		return stop
	}
	// A run is claimed only after the runs before it have ended. A queued run may be
	// cancelled at any time.
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

// before returns the progress of a row's run.
func (o order) before(r *row) progress {
	if p := o[r.RunOrdinal]; p != nil {
		return *p
	}
	return progress{number: -1}
}

// record updates the progress after a row has passed.
func (o order) record(r *row) {
	o[r.RunOrdinal] = &progress{epoch: r.Epoch, number: r.LastNumber, ended: r.Ends}
}
