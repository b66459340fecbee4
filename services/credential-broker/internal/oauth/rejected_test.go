package oauth

import (
	"testing"
	"time"
)

// Renewals that do not help become rare, until one helps.
func TestRejectionBackoff(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	now, v, renewals := begin, rejectionBackoff{}, 0
	for now.Sub(begin) < 24*time.Hour {
		v = v.next(now)
		now = v.until
		renewals++
	}
	if renewals < 45 || renewals > 55 {
		t.Errorf("%d renewals in a day of rejections, want about one in half an hour", renewals)
	}
	if wait := v.next(now.Add(2 * time.Hour)).until.Sub(now.Add(2 * time.Hour)); wait != time.Minute {
		t.Errorf("after two good hours a renewal is followed by a pause of %s, want 1m", wait)
	}
}
