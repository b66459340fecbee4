package yjs

import (
	"errors"
	"fmt"
	"math"
)

var (
	// ErrMalformed is returned for bytes that are not a valid update, state vector, snapshot
	// or position. The document is unchanged.
	ErrMalformed = errors.New("malformed yjs data")
	// ErrBudget is returned, wrapped, for data that exceeds [Limits].
	ErrBudget = errors.New("over the budget")
	// ErrRange is returned for indexes outside a sequence.
	ErrRange = errors.New("position out of range")
	// ErrValue is returned for Go values without a counterpart in JavaScript.
	ErrValue = errors.New("unsupported value")
	// ErrDetached is returned for edits of a deleted type, and when a type is inserted a
	// second time.
	ErrDetached = errors.New("shared type is not part of a document")
	// ErrGone is returned when required content was garbage collected.
	ErrGone = errors.New("content was garbage collected")
)

// Limits bound the cost of an update. A zero field means its default.
type Limits struct {
	// MaxStructs is the maximum number of structs in an update (1,048,576). Encoding v2
	// packs thousands into a few bytes. An update may therefore also have at most 16
	// structs per byte plus 10,000, unless Dense is set: use that for states that were
	// encoded locally.
	MaxStructs int
	Dense      bool
	// MaxClients is the maximum number of clients in an update or delete set (65,536).
	MaxClients int
	// MaxValues is the maximum number of values in an update's arrays, maps and embeds (4,194,304).
	MaxValues int
	// MaxPending is the maximum size of all pending structs in bytes (64 MiB).
	MaxPending int
	// MaxScan is the maximum number of steps to find the positions of an update's structs
	// among concurrent ones, and separately to split structs in long lists (200,000,000). A
	// step passes one item, in up to 35 ns, or moves 256 list entries. The default, up to 8
	// seconds, only stops runaway updates, which may be as small as 20 KB: servers should
	// set less. Real edits need little: two authors with 6,000 concurrent characters at one
	// index need 6,000 steps, two with 20,000 concurrent changes in one megabyte 7,000,000,
	// and a trace of 260,000 keystrokes in one update 53,000.
	MaxScan int
}

// Unlimited returns limits that nothing exceeds, for states and updates that were accepted
// before and would be lost if they were refused now.
func Unlimited() Limits {
	return Limits{
		MaxStructs: math.MaxInt, Dense: true, MaxClients: math.MaxInt, MaxValues: math.MaxInt,
		MaxPending: math.MaxInt, MaxScan: math.MaxInt,
	}
}

func (l Limits) withDefaults() Limits {
	set := func(n *int, to int) {
		if *n <= 0 {
			*n = to
		}
	}
	set(&l.MaxStructs, 1<<20)
	set(&l.MaxClients, 1<<16)
	set(&l.MaxValues, 1<<22)
	set(&l.MaxPending, 64<<20)
	set(&l.MaxScan, 200_000_000)
	return l
}

func (l *Limits) structs(size int) uint64 {
	if l.Dense {
		return uint64(l.MaxStructs)
	}
	return min(uint64(l.MaxStructs), 10_000+16*uint64(size))
}

func budgetError(what string, got, limit uint64) error {
	return fmt.Errorf("%w: %s: %d, at most %d", ErrBudget, what, got, limit)
}
