package pool

import "time"

const (
	// maxDrift is how far the wall clock may move away from the monotonic one before that
	// is taken for a jump.
	maxDrift = time.Second
	// maxSkew is how far ahead of ours another instance's clock may be for its word to
	// count: a clock that is wrong by days must not park an account for days.
	maxSkew = 10 * time.Minute
)

// clock counts a pool's time, which never goes back: monotonic, plus the time that the
// machine slept.
type clock struct {
	zero   time.Time     // of the monotonic clock
	wall   time.Time     // the same on the wall clock, in whole microseconds
	latest time.Duration // the latest observed time
	back   time.Duration // by how much the wall clock was set back, in all
}

func newClock(now time.Time) clock {
	return clock{zero: now, wall: now.Round(0).Truncate(time.Microsecond)}
}

// since returns the pool's time. When the wall clock jumps ahead, that time has passed: the
// machine slept, or its clock was behind. When it is set back, no time has passed; limits
// last as long as before and are dated by the new clock.
func (c *clock) since(now time.Time) time.Duration {
	t := now.Sub(c.zero).Truncate(time.Microsecond)
	if t <= c.latest { // a caller that waited for the mutex says nothing of a jump
		return c.latest
	}
	switch off := now.Round(0).Sub(c.wall).Truncate(time.Microsecond) - t; {
	case off > maxDrift:
		c.zero = c.zero.Add(-off)
		t += off
	case off < -maxDrift:
		c.wall = c.wall.Add(off)
		c.back -= off
	}
	c.latest = t
	return t
}

// date returns a pool's time by the wall clock, and at the reverse.
func (c *clock) date(t time.Duration) time.Time  { return c.wall.Add(t) }
func (c *clock) at(date time.Time) time.Duration { return date.Sub(c.wall) }
