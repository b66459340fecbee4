package yjs

import (
	"cmp"
	"slices"
	"sort"
)

// Range is a run of a client's clocks.
type Range struct {
	Clock uint32
	Len   uint32
}

func (r Range) end() uint32 { return r.Clock + r.Len }

// ClientRanges are the ranges of one client.
type ClientRanges struct {
	Client uint64
	Ranges []Range
}

// DeleteSet says which structs are deleted. In those that the package returns every
// client stands once, and its ranges are sorted and apart from each other.
type DeleteSet []ClientRanges

// Contains says whether a clock of a client is in the set.
func (ds DeleteSet) Contains(client uint64, clock uint32) bool {
	for i := range ds {
		if ds[i].Client == client {
			return containsClock(ds[i].Ranges, clock)
		}
	}
	return false
}

// Equal says whether two sets of this package's are the same.
func (ds DeleteSet) Equal(o DeleteSet) bool {
	return slices.EqualFunc(ds, o, func(a, b ClientRanges) bool {
		return a.Client == b.Client && slices.Equal(a.Ranges, b.Ranges)
	})
}

// Includes says whether all of another set of this package's is in the set.
func (ds DeleteSet) Includes(o DeleteSet) bool { return mergeDeleteSets(ds, o).Equal(ds) }

func containsClock(rs []Range, clock uint32) bool {
	i := sort.Search(len(rs), func(i int) bool { return rs[i].end() > clock })
	return i < len(rs) && rs[i].Clock <= clock
}

// sortRanges sorts and joins ranges in place.
func sortRanges(rs []Range) []Range {
	if len(rs) < 2 {
		return rs
	}
	slices.SortStableFunc(rs, func(a, b Range) int { return cmp.Compare(a.Clock, b.Clock) })
	j := 1
	for _, r := range rs[1:] {
		if l := &rs[j-1]; l.end() >= r.Clock {
			l.Len = max(l.Len, r.end()-l.Clock)
		} else {
			rs[j] = r
			j++
		}
	}
	return rs[:j]
}

// mergeDeleteSets joins sets into one, clients descending as they are written.
func mergeDeleteSets(sets ...DeleteSet) DeleteSet {
	n := 0
	for _, ds := range sets {
		n += len(ds)
	}
	all := make(DeleteSet, 0, n)
	for _, ds := range sets {
		all = append(all, ds...)
	}
	slices.SortStableFunc(all, func(a, b ClientRanges) int { return cmp.Compare(b.Client, a.Client) })
	out := all[:0]
	for i := 0; i < len(all); {
		j := i + 1
		total := len(all[i].Ranges)
		for j < len(all) && all[j].Client == all[i].Client {
			total += len(all[j].Ranges)
			j++
		}
		rs := make([]Range, 0, total)
		for _, c := range all[i:j] {
			rs = append(rs, c.Ranges...)
		}
		out = append(out, ClientRanges{all[i].Client, sortRanges(rs)})
		i = j
	}
	return slices.Clip(out)
}

// deleteSet writes a set whose clients are descending.
func (e *encoder) deleteSet(ds DeleteSet) {
	e.uvarint(uint64(len(ds)))
	for _, c := range ds {
		e.dsReset()
		e.uvarint(c.Client)
		e.uvarint(uint64(len(c.Ranges)))
		for _, r := range c.Ranges {
			e.dsRange(r)
		}
	}
}

// StateVector says how much of each client's work is known: its next clock.
type StateVector map[uint64]uint32

// Encode returns the vector as peers send it, clients descending.
func (sv StateVector) Encode() []byte {
	return sv.append(make([]byte, 0, 1+8*len(sv)))
}

func (sv StateVector) append(b []byte) []byte {
	b = appendUvarint(b, uint64(len(sv)))
	for _, id := range sv.clients() {
		b = appendUvarint(appendUvarint(b, id), uint64(sv[id]))
	}
	return b
}

// clients returns the clients descending.
func (sv StateVector) clients() []uint64 {
	ids := make([]uint64, 0, len(sv))
	for id := range sv {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b uint64) int { return cmp.Compare(b, a) })
	return ids
}

// DecodeStateVector reads what [StateVector.Encode] or a peer wrote.
func DecodeStateVector(b []byte) (StateVector, error) {
	c := cursor{b: b}
	sv := c.stateVector()
	if c.bad {
		return nil, ErrMalformed
	}
	return sv, nil
}

func (c *cursor) stateVector() StateVector {
	n := c.uvarint()
	if n > uint64(len(c.b)-c.pos)/2 {
		c.fail()
		return nil
	}
	sv := make(StateVector, min(n, 1024))
	for range n {
		client := c.uvarint()
		sv[client] = c.clock()
	}
	return sv
}
