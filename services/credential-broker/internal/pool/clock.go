package pool

import "time"

// maxDrift is how far the clock on the wall may go away from the monotonic one before
// that is taken for a jump.
const maxDrift = time.Second

// since returns a time as the pool's own, which is never before one that was heard of:
// monotonic, but for what the machine slept.
func (p *Pool) since(now time.Time) time.Duration {
	t := now.Sub(p.zero).Truncate(time.Microsecond)
	if t <= p.latest { // who waited for the mutex says nothing of a jump
		return p.latest
	}
	if off := now.Round(0).Sub(p.wall) - t; off > maxDrift || off < -maxDrift {
		t = p.jumped(t, off.Truncate(time.Microsecond))
	}
	p.latest = t
	return t
}

// dated is the date of a time of a limit's by the clock on the wall as it is now: the one
// that it was told to others with, which may have been ahead.
func (p *Pool) dated(l *limit, t time.Duration) time.Duration { return t + p.back - l.back }

// jumped follows a clock on the wall that has jumped. Forward, that time has passed: the
// machine slept, or its clock was behind. Back, none has: what was learned here lasts as
// long as it did, and is dated by the new clock.
func (p *Pool) jumped(t, by time.Duration) time.Duration {
	if by > 0 {
		p.zero = p.zero.Add(-by)
		return t + by
	}
	p.wall = p.wall.Add(by)
	p.back -= by
	return t
}
