package yjs

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"sort"
)

// Range is a range of a client's clocks.
type Range struct {
	Clock uint32
	Len   uint32
}

func (r Range) end() uint32 { return r.Clock + r.Len }

// ClientRanges holds ranges of one client.
type ClientRanges struct {
	Client uint64
	Ranges []Range
}

// DeleteSet holds ranges of deleted structs. In sets returned by this package, each client
// occurs once, and its ranges are sorted and disjoint.
type DeleteSet []ClientRanges

// Contains reports whether the set contains a clock of a client.
func (ds DeleteSet) Contains(client uint64, clock uint32) bool {
	for i := range ds {
		if ds[i].Client == client {
			return containsClock(ds[i].Ranges, clock)
		}
	}
	return false
}

// Equal reports whether two sets returned by this package are equal.
func (ds DeleteSet) Equal(o DeleteSet) bool {
	return slices.EqualFunc(ds, o, func(a, b ClientRanges) bool {
		return a.Client == b.Client && slices.Equal(a.Ranges, b.Ranges)
	})
}

// Includes reports whether the set includes another; both are returned by this package.
func (ds DeleteSet) Includes(o DeleteSet) bool { return mergeDeleteSets(ds, o).Equal(ds) }

func containsClock(rs []Range, clock uint32) bool {
	i := sort.Search(len(rs), func(i int) bool { return rs[i].end() > clock })
	return i < len(rs) && rs[i].Clock <= clock
}

// sortRanges sorts and merges ranges in place.
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

// mergeDeleteSets merges sets, in descending order of client as in the encoding.
func mergeDeleteSets(sets ...DeleteSet) DeleteSet {
	all := slices.Concat(sets...)
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

// deleteSet writes a set in descending order of client.
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

// StateVector holds the next clock of each client.
type StateVector map[uint64]uint32

// Encode returns the vector in the format of peers.
func (sv StateVector) Encode() []byte {
	return sv.append(make([]byte, 0, 1+8*len(sv)))
}

func (sv StateVector) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(sv)))
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(sv))) {
		b = binary.AppendUvarint(binary.AppendUvarint(b, id), uint64(sv[id]))
	}
	return b
}

// DecodeStateVector decodes a state vector of [StateVector.Encode] or of a peer.
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
