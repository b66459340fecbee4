package oauth

import "time"

const (
	// minTokenAge is the age below which a token that is rejected is not renewed again: the
	// rejection must have another cause.
	minTokenAge     = 30 * time.Second
	maxRejectedStep = 6 // doublings of minTokenAge
)

// rejectionBackoff is the backoff of renewals that followed a rejection. A provider may
// reject each token of an account whose subscription is over, and every renewal is a rotation
// and a row of the audit.
type rejectionBackoff struct {
	step  int
	until time.Time
}

// next returns the backoff after another renewal.
func (b rejectionBackoff) next(now time.Time) rejectionBackoff {
	if now.After(b.until.Add(minTokenAge << maxRejectedStep)) {
		b.step = 0 // the last one has helped
	}
	step := min(b.step+1, maxRejectedStep)
	return rejectionBackoff{step, now.Add(minTokenAge << step)}
}

// backsOff reports whether a renewal because of a rejection would come too soon after others.
func (k *Keeper) backsOff(ref Ref) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Now().Before(k.rejected[ref].until)
}

func (k *Keeper) renewedAfterRejection(ref Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.rejected) >= maxCached {
		clear(k.rejected)
	}
	k.rejected[ref] = k.rejected[ref].next(time.Now())
}
