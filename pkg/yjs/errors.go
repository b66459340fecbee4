package yjs

import (
	"errors"
	"fmt"
	"math"
)

var (
	// ErrMalformed is returned for bytes that are no update, state vector, snapshot or
	// position. The document is as it was before.
	ErrMalformed = errors.New("malformed yjs data")
	// ErrBudget is returned, wrapped, for data that asks for more than [Limits] allow.
	ErrBudget = errors.New("over the budget")
	// ErrRange is returned by edits outside a sequence.
	ErrRange = errors.New("position out of range")
	// ErrValue is returned for Go values that have no counterpart in JavaScript.
	ErrValue = errors.New("unsupported value")
	// ErrDetached is returned by edits of a type that was deleted, and where a type is
	// inserted a second time.
	ErrDetached = errors.New("shared type is not part of a document")
	// ErrGone is returned where something needs content that garbage collection removed.
	ErrGone = errors.New("content was garbage collected")
)

// Limits bound what one update may cost. The zero value of a field means its default.
type Limits struct {
	// MaxStructs is how many structs an update may have (1,048,576). Encoding v2 packs
	// thousands into a few bytes, so that the size of an update bounds nothing; an update
	// may besides have no more than 16 structs for each of its bytes, plus 10,000, unless
	// Dense is set: that is for states that one has encoded oneself.
	MaxStructs int
	Dense      bool
	// MaxClients is how many clients an update or a delete set may name (65,536).
	MaxClients int
	// MaxValues is how many values an update's arrays, maps and embeds may hold (4,194,304).
	MaxValues int
	// MaxPending is how many bytes of structs may wait for others to arrive (64 MiB).
	MaxPending int
	// MaxScan is how many steps looking for the places of an update's structs among
	// concurrent ones may take, and how many splitting in long documents (200,000,000). A
	// step is one item passed, some 35 ns once caches no longer help, or 256 entries moved
	// in a list of structs, so that the default bounds runaways and no more: it is up to 8
	// seconds, and 20 KB can ask for that. A server sets less for strangers. People need
	// few: two who wrote 6,000 characters each at one index 6,000, two who changed 2,000
	// places each of the same megabyte 90,000, and 20,000 places 7,000,000; a trace of
	// 260,000 keystrokes as one update 53,000.
	MaxScan int
}

// Unlimited returns limits that nothing exceeds, for what was accepted before: a state or
// an update that one has kept oneself and would lose by refusing it.
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

func budget(what string, got, limit uint64) error {
	return fmt.Errorf("%w: %s: %d, at most %d", ErrBudget, what, got, limit)
}
