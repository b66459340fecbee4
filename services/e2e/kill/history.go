package kill

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// The histories of a session and of a document, as clients saw them, must be linearizable as those
// of one queue and one list: with each operation at one moment between its call and its return, a
// single sequential model must give the same results.

// queueOp is an operation on a session's queue of runs.
type queueOp struct {
	kind      opKind
	run       string
	cancelled bool // of an end
}

type opKind uint8

const (
	submitted opKind = iota // a message was accepted: its run is queued last
	started                 // its run began: it was the first in the queue, and none was active
	ended                   // its run ended
	stopped                 // all queued runs may end before their turn
)

// queueModel is a queue of runs, written as their ids in order, followed by + for the active one
// and by * for a stopped one.
var queueModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		queue := strings.Fields(state.(string))
		op := input.(queueOp)
		at := slices.IndexFunc(queue, func(s string) bool { return strings.TrimRight(s, "+*") == op.run })
		switch op.kind {
		case submitted:
			return at < 0, strings.Join(append(queue, op.run), " ")
		case started:
			if at != 0 || strings.Contains(queue[0], "+") {
				return false, state
			}
			queue[0] += "+"
		case ended:
			inTurn := at == 0 && strings.Contains(queue[0], "+")
			if allowed := inTurn || op.cancelled && at >= 0 && strings.Contains(queue[at], "*"); !allowed {
				return false, state
			}
			queue = slices.Delete(queue, at, at+1)
		case stopped:
			for i := range queue {
				queue[i] += "*"
			}
		}
		return true, strings.Join(queue, " ")
	},
}

// listOp is an operation on a document: a marker is added or, with none, the
// markers are read.
type listOp struct{ marker string }

// listModel is the list of markers that a document holds, in order.
var listModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		if m := input.(listOp).marker; m != "" {
			return true, strings.TrimSpace(state.(string) + " " + m)
		}
		return state == output, state
	},
}

// checkTime is the time limit for a history, a thousand times the usual duration.
const checkTime = 10 * time.Second

func (c *checker) histories() {
	ops := c.queueHistory()
	c.history(queueModel, ops, checkTime, func() string { return "this history of the session's runs:\n" + formatQueue(ops) })
	for _, a := range c.asks {
		if a.kind != doc || a.run == "" {
			continue
		}
		ops := c.listHistory(a)
		c.history(listModel, ops, checkTime, func() string {
			return fmt.Sprintf("this history of document %q:\n%s", a.document(), formatList(ops))
		})
	}
}

// history checks one history within a time. A timeout is a problem too, since the result is
// unknown.
func (c *checker) history(model porcupine.Model, ops []porcupine.Operation, limit time.Duration, describe func() string) {
	switch porcupine.CheckOperationsTimeout(model, ops, limit) {
	case porcupine.Ok:
	case porcupine.Illegal:
		c.wrong(unordered, "no order of the operations explains %s", describe())
	default:
		c.wrong(undecided, "not decided within %s: %s", limit, describe())
	}
}

func nanos(t time.Time) int64 { return t.UnixNano() }

// queueHistory returns the operations on the session's runs. Their starts and ends are between the
// time recorded in the database and the one at which the first witness saw them.
func (c *checker) queueHistory() []porcupine.Operation {
	var ops []porcupine.Operation
	for _, a := range c.asks {
		run, known := c.runs[a.run]
		if !known || !run.Ended() || a.mode != "" && c.joined(a) {
			continue
		}
		ops = append(ops, porcupine.Operation{Input: queueOp{kind: submitted, run: run.ID}, Call: nanos(a.from), Return: nanos(a.to)})
		end := c.noticed(c.transcript.ends[run.Ordinal], math.MaxInt64)
		if run.StartedAt != nil {
			begun := c.noticed(place{run.Ordinal, 0}, end)
			ops = append(ops, porcupine.Operation{Input: queueOp{kind: started, run: run.ID}, Call: nanos(*run.StartedAt), Return: begun})
		}
		if run.EndedAt != nil {
			in := queueOp{kind: ended, run: run.ID, cancelled: run.State == "cancelled"}
			ops = append(ops, porcupine.Operation{Input: in, Call: nanos(*run.EndedAt), Return: end})
		}
	}
	for _, s := range c.stops {
		ops = append(ops, porcupine.Operation{Input: queueOp{kind: stopped}, Call: nanos(s.from), Return: nanos(s.to)})
	}
	return ops
}

// noticed returns when a witness first saw an event, or otherwise if none did.
func (c *checker) noticed(p place, otherwise int64) int64 {
	if e := c.events[p]; e != nil {
		return nanos(e.at)
	}
	return otherwise
}

// joined reports whether a message joined another message's run.
func (c *checker) joined(a *ask) bool {
	return slices.ContainsFunc(c.asks, func(b *ask) bool { return b != a && b.run == a.run })
}

// listHistory returns the operations on a document. A call whose outcome is not ok may have taken
// effect at any time, even after all others.
func (c *checker) listHistory(a *ask) []porcupine.Operation {
	var ops []porcupine.Operation
	outcomes := c.outcomes(a)
	for _, m := range a.markers() {
		state, called := outcomes[m]
		if !called {
			continue
		}
		op := porcupine.Operation{Input: listOp{m}, Call: nanos(a.from), Return: math.MaxInt64}
		if end, ok := c.transcript.ends[a.ordinal]; ok && state == "ok" {
			op.Return = nanos(c.events[end].at)
		}
		ops = append(ops, op)
	}
	for _, r := range c.readings {
		if r.name == a.document() {
			ops = append(ops, porcupine.Operation{Input: listOp{}, Output: markersIn(r.content, a), Call: nanos(r.from), Return: nanos(r.to)})
		}
	}
	return ops
}

// markersIn lists the markers in a text, in order.
func markersIn(content string, a *ask) string {
	var found []string
	for field := range strings.FieldsSeq(content) {
		if slices.Contains(a.markers(), field) {
			found = append(found, field)
		}
	}
	return strings.Join(found, " ")
}

func formatQueue(ops []porcupine.Operation) string {
	var b strings.Builder
	names := []string{"submitted", "started", "ended", "stopped"}
	for _, o := range inOrder(ops) {
		in := o.Input.(queueOp)
		b.WriteString(interval(o) + names[in.kind] + " " + in.run)
		if in.cancelled {
			b.WriteString(" cancelled")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func formatList(ops []porcupine.Operation) string {
	var b strings.Builder
	for _, o := range inOrder(ops) {
		if m := o.Input.(listOp).marker; m != "" {
			b.WriteString(interval(o) + "added " + m + "\n")
		} else {
			b.WriteString(interval(o) + "read " + o.Output.(string) + "\n")
		}
	}
	return b.String()
}

func inOrder(ops []porcupine.Operation) []porcupine.Operation {
	return slices.SortedFunc(slices.Values(ops), func(a, b porcupine.Operation) int { return int(min(1, max(-1, a.Call-b.Call))) })
}

func interval(o porcupine.Operation) string {
	const clock = "15:04:05.000"
	to := "?"
	if o.Return != math.MaxInt64 {
		to = time.Unix(0, o.Return).Format(clock)
	}
	return time.Unix(0, o.Call).Format(clock) + " … " + to + "  "
}
