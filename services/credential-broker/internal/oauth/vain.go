package oauth

import "time"

// vain is what is remembered of renewals that followed a rejection: until when there is
// none again. A provider may reject each token of an account whose subscription is over,
// and every renewal is a rotation and a row of the audit.
type vain struct {
	n     int
	until time.Time
}

const mostVain = 6 // doublings of youth

// next returns what is remembered after another renewal.
func (v vain) next(now time.Time) vain {
	if now.After(v.until.Add(youth << mostVain)) {
		v.n = 0 // it has helped
	}
	n := min(v.n+1, mostVain)
	return vain{n, now.Add(youth << n)}
}

// inVain reports whether a renewal because of a rejection would come too soon after others.
func (k *Keeper) inVain(ref Ref) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Now().Before(k.vain[ref].until)
}

func (k *Keeper) afterRejection(ref Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.vain) >= maxHeld {
		clear(k.vain)
	}
	k.vain[ref] = k.vain[ref].next(time.Now())
}
