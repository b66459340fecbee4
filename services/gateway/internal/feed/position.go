package feed

import (
	"strconv"
	"strings"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/dialect"
)

// Position names an event: its run's ordinal in the session and its number in
// the run. It says nothing about the order of two events of different runs: that
// is the log's.
type Position struct{ Run, Number int64 }

// String returns the event's id on the wire.
func (p Position) String() string { return dialect.ID(p.Run, p.Number) }

// ParsePosition reads an event's id; false for what none of ours looks like.
func ParsePosition(s string) (Position, bool) {
	run, number, ok := strings.Cut(s, "-")
	if !ok {
		return Position{}, false
	}
	r, ok1 := parseDigits(run)
	n, ok2 := parseDigits(number)
	return Position{r, n}, ok1 && ok2
}

// parseDigits is stricter than strconv: no sign, no leading zero.
func parseDigits(s string) (int64, bool) {
	if s == "" || len(s) > 18 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// Contents says which events a state of a session, as Postgres holds it, contains.
type Contents struct {
	// last is the newest event that it contains; the zero Position when the session had no run.
	last Position
	// active is the run that goes on, 0 for none, and committed its newest event
	// that is contained, -1 for none.
	active, committed int64
}

// ContentsOf reads what a session's answer contains.
func ContentsOf(last *agentv1.EventPosition, active *agentv1.Run) Contents {
	c := Contents{last: Position{last.GetRunOrdinal(), last.GetNumber()}, committed: -1}
	if active != nil {
		c.active = active.GetOrdinal()
		if active.LastEvent != nil {
			c.committed = active.GetLastEvent()
		}
	}
	return c
}

// Position returns where to go on: an event's id or, before any, "0-0".
func (c Contents) Position() Position {
	if c.active != 0 && c.committed >= 0 {
		return Position{c.active, c.committed}
	}
	return c.last
}

// maxWaited is how many runs behind the newest one that began may have been cancelled
// while they waited, for their events to be looked for.
const maxWaited = 64

// MayKnow reports whether there may be an event at p, for somebody who had it before
// the state was read: a run says nothing before its row tells that it began, and
// nothing after the event that its row calls the last. One that was cancelled while
// it waited has two events, and its row is none of those.
func (c Contents) MayKnow(p Position) bool {
	newest := max(c.last.Run, c.active)
	switch {
	case p.Run == c.last.Run && p.Run != c.active:
		return p.Number <= c.last.Number
	case p.Run <= newest:
		return true
	}
	return p.Run <= newest+maxWaited && p.Number <= 1
}

// HasBegun reports whether the session's first run has just begun: it has said
// nothing yet but, at most, what it was asked.
func (c Contents) HasBegun() bool { return c.active == 1 && c.last.Number <= 1 }

// covers reports whether the state contains the frame's event.
func (c Contents) covers(f *frame) bool {
	run, number := f.pos.Run, f.pos.Number
	switch {
	case f.kind == hole:
		return false
	case run == c.last.Run && number <= c.last.Number:
		return true
	case c.active != 0 && run == c.active:
		return number <= c.committed
	case c.active != 0:
		return run < c.active // runs end in their order, apart from cancelled ones
	}
	return run < c.last.Run
}
