package feed

import (
	"strconv"
	"strings"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/dialect"
)

// Position identifies an event by its run's ordinal in the session and its number in the run.
// Positions do not order events of different runs; the log does.
type Position struct{ Run, Number int64 }

// String returns the event's id on the wire.
func (p Position) String() string { return dialect.ID(p.Run, p.Number) }

// ParsePosition parses an event's id. It returns false for any other text.
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

// Contents describes the events that a session's state in Postgres contains.
type Contents struct {
	// last is the newest event that it contains; zero if the session had no run.
	last Position
	// active is the active run, 0 for none, and committed its newest contained event, -1 for
	// none.
	active, committed int64
}

// ContentsOf returns the contents of a response about a session.
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

// Position returns the position to continue after, zero before all events.
func (c Contents) Position() Position {
	if c.active != 0 && c.committed >= 0 {
		return Position{c.active, c.committed}
	}
	return c.last
}

// maxWaited bounds the number of queued runs, after the newest run that began, whose events are
// looked for because they may have been cancelled.
const maxWaited = 64

// MayKnow reports whether a client may have received an event at p before the state was read: a run
// has no events before its row says that it began, and none after the last event in its row. A run
// that was cancelled in the queue has two events, which its row does not show.
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

// HasBegun reports whether the session's first run has just begun, with no events yet except perhaps
// its message.
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
		return run < c.active // runs end in order, apart from cancelled ones
	}
	return run < c.last.Run
}
