package yjs

import (
	"bytes"
	"encoding/binary"
)

// The functions in this file work on updates without a document, with the default [Limits],
// and need memory for the updates and the result only.

// MergeUpdates merges updates in encoding v1. They may overlap, leave gaps and be in any
// order. It takes O(n log k) steps for n structs in k updates.
func MergeUpdates(updates [][]byte) ([]byte, error) {
	return mergeUpdates(updates, false, &defaultLimits)
}

// MergeUpdatesV2 is [MergeUpdates] for encoding v2.
func MergeUpdatesV2(updates [][]byte) ([]byte, error) {
	return mergeUpdates(updates, true, &defaultLimits)
}

// DiffUpdate returns the part of an update in encoding v1 that a peer with state vector sv lacks.
func DiffUpdate(update []byte, sv StateVector) ([]byte, error) {
	return diffUpdate(update, sv, false, &defaultLimits)
}

// DiffUpdateV2 is [DiffUpdate] for encoding v2.
func DiffUpdateV2(update []byte, sv StateVector) ([]byte, error) {
	return diffUpdate(update, sv, true, &defaultLimits)
}

// ConvertV1ToV2 converts an update from encoding v1 to v2.
func ConvertV1ToV2(update []byte) ([]byte, error) { return convert(update, false, &defaultLimits) }

// ConvertV2ToV1 converts an update from encoding v2 to v1.
func ConvertV2ToV1(update []byte) ([]byte, error) { return convert(update, true, &defaultLimits) }

// StateVectorFromUpdate returns the state vector of a document that has applied only this
// update in encoding v1.
func StateVectorFromUpdate(update []byte) (StateVector, error) {
	return stateVectorFrom(update, false)
}

// StateVectorFromUpdateV2 is [StateVectorFromUpdate] for encoding v2.
func StateVectorFromUpdateV2(update []byte) (StateVector, error) {
	return stateVectorFrom(update, true)
}

// UpdateSpan returns, for each client with structs in an update in encoding v1, the clock of
// the first one and the clock after the last one. There may be gaps in between.
func UpdateSpan(update []byte) (from, to StateVector, err error) { return spanOf(update, false) }

// UpdateSpanV2 is [UpdateSpan] for encoding v2.
func UpdateSpanV2(update []byte) (from, to StateVector, err error) { return spanOf(update, true) }

var (
	defaultLimits = Limits{}.withDefaults()
	ownLimits     = Unlimited() // for data encoded by a document itself
)

// structWriter writes structs; finish inserts the number of structs per client.
type structWriter struct {
	e     *encoder
	open  bool
	cur   uint64
	parts []part
}

type part struct {
	at    int // the start of the part in encoder.rest
	count uint64
}

func (w *structWriter) write(s *wireStruct, offset uint32) {
	if !w.open || w.cur != s.client {
		w.parts = append(w.parts, part{at: len(w.e.rest)})
		w.open, w.cur = true, s.client
		w.e.client(s.client)
		w.e.uvarint(uint64(s.clock + offset))
	}
	w.e.wire(s, offset)
	w.parts[len(w.parts)-1].count++
}

func (w *structWriter) finish() {
	body := w.e.rest
	out := make([]byte, 0, len(body)+10*len(w.parts)+16)
	out = binary.AppendUvarint(out, uint64(len(w.parts)))
	for i, p := range w.parts {
		end := len(body)
		if i+1 < len(w.parts) {
			end = w.parts[i+1].at
		}
		out = append(binary.AppendUvarint(out, p.count), body[p.at:end]...)
	}
	w.e.rest = out
}

// source is an update in a merge.
type source struct {
	structReader
	turn int64 // among sources at the same struct, the one that moved last goes first
}

// forward advances to the next struct that is not a Skip: the merge finds gaps itself.
func (s *source) forward() {
	for s.next() && s.cur.kind == kindSkip {
	}
}

func sourceBefore(a, b *source) bool {
	if a.cur.client != b.cur.client {
		return a.cur.client > b.cur.client
	}
	if a.cur.clock != b.cur.clock {
		return a.cur.clock < b.cur.clock
	}
	return a.turn > b.turn
}

// sourceHeap is a heap with the source of the next struct on top.
type sourceHeap []*source

func (h sourceHeap) down(i int) {
	s := h[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && sourceBefore(h[c+1], h[c]) {
			c++
		}
		if !sourceBefore(h[c], s) {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = s
}

func mergeUpdates(updates [][]byte, v2 bool, limits *Limits) ([]byte, error) {
	if len(updates) == 1 {
		return bytes.Clone(updates[0]), nil
	}
	sources := make([]source, len(updates))
	heap := make(sourceHeap, 0, len(updates))
	size := 16
	for i := range sources {
		s := &sources[i]
		s.init(updates[i], v2, limits)
		s.turn = -int64(i)
		s.forward()
		if s.err != nil {
			return nil, s.err
		}
		if !s.done {
			heap = append(heap, s)
		}
		size += len(updates[i])
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		heap.down(i)
	}
	m := merger{w: structWriter{e: newEncoder(v2, size)}}
	for turn := int64(1); len(heap) > 0; turn++ {
		s := heap[0]
		m.step(s)
		if s.err != nil {
			return nil, s.err
		}
		s.turn = turn
		if s.done {
			heap[0] = heap[len(heap)-1]
			heap = heap[:len(heap)-1]
		}
		if len(heap) > 1 {
			heap.down(0)
		}
	}
	m.flush()
	m.w.finish()
	sets := make([]DeleteSet, len(sources))
	for i := range sources {
		ds, err := sources[i].dec.deleteSet(limits)
		if err != nil {
			return nil, err
		}
		sets[i] = ds
	}
	m.w.e.deleteSet(mergeDeleteSets(sets...))
	return m.w.e.finish(), nil
}

// merger holds back the last struct, since a gap or an overlap may follow.
type merger struct {
	w    structWriter
	last wireStruct
	have bool
}

func (m *merger) flush() {
	if m.have {
		m.w.write(&m.last, 0)
		m.have = false
	}
}

// take makes s the last struct.
func (m *merger) take(s *wireStruct) {
	m.flush()
	m.last, m.have = *s, true
}

// step writes structs of a source until another source may be next.
func (m *merger) step(s *source) {
	client := s.cur.client
	if !m.have {
		m.take(&s.cur)
		s.forward()
	} else if !m.join(s, client) {
		return
	}
	for !s.done && s.cur.client == client && s.cur.clock == m.last.end() {
		m.take(&s.cur)
		s.forward()
	}
}

// join appends the source's struct to the one held back. It returns false if the source moved
// and must be reordered.
func (m *merger) join(s *source, client uint64) bool {
	moved := false
	for !s.done && s.cur.client >= m.last.client && s.cur.end() <= m.last.end() {
		s.forward()
		moved = true
	}
	if s.done || s.cur.client != client || (moved && s.cur.clock > m.last.end()) {
		return false
	}
	switch {
	case client != m.last.client:
		m.take(&s.cur)
		s.forward()
	case m.last.end() < s.cur.clock:
		m.take(&wireStruct{client: client, clock: m.last.end(), length: s.cur.clock - m.last.end(), kind: kindSkip})
	default:
		cur := s.cur
		if diff := m.last.end() - cur.clock; diff > 0 {
			cur.cut(diff)
		}
		if m.last.kind == kindGC && cur.kind == kindGC {
			m.last.length += cur.length
			return true // the source stays: its struct will turn out to be known
		}
		m.take(&cur)
		s.forward()
	}
	return true
}

// cut drops the first diff units.
func (s *wireStruct) cut(diff uint32) {
	switch s.kind {
	case kindString:
		s.body = cutText(s.body, diff, s.flags&flagASCII != 0)
	case kindAny, kindJSON:
		vs, _ := s.val.([]any)
		s.val = vs[diff:]
	}
	s.clock += diff
	s.length -= diff
	if s.kind != kindGC && s.kind != kindSkip {
		s.oc, s.ok = s.client, s.clock-1
		s.flags = s.flags&^(flagParent|flagRoot) | flagOrigin
	}
}

func diffUpdate(update []byte, sv StateVector, v2 bool, limits *Limits) ([]byte, error) {
	var r structReader
	r.init(update, v2, limits)
	w := structWriter{e: newEncoder(v2, len(update))}
	for r.next(); !r.done; {
		if r.cur.kind == kindSkip { // never begin with a gap
			r.next()
			continue
		}
		client, known := r.cur.client, sv[r.cur.client]
		if r.cur.end() <= known {
			for !r.done && r.cur.client == client && r.cur.end() <= known {
				r.next()
			}
			continue
		}
		var offset uint32
		if known > r.cur.clock {
			offset = known - r.cur.clock
		}
		w.write(&r.cur, offset)
		for r.next() && r.cur.client == client {
			w.write(&r.cur, 0)
		}
	}
	return finish(&w, &r)
}

// finish copies the delete set of an update whose structs were read, and returns the result.
func finish(w *structWriter, r *structReader) ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	ds, err := r.dec.deleteSet(r.limits)
	if err != nil {
		return nil, err
	}
	w.finish()
	w.e.deleteSet(ds.descending())
	return w.e.finish(), nil
}

// descending sorts the clients, which may occur repeatedly, as in the encoding. It keeps the
// order of ranges, which encoding v1 does not require to be sorted.
func (ds DeleteSet) descending() DeleteSet {
	for i := range ds {
		if i > 0 && ds[i-1].Client <= ds[i].Client {
			return mergeDeleteSets(ds)
		}
		rs := ds[i].Ranges
		for j := 1; j < len(rs); j++ {
			if rs[j].Clock < rs[j-1].end() {
				return mergeDeleteSets(ds)
			}
		}
	}
	return ds
}

func convert(update []byte, fromV2 bool, limits *Limits) ([]byte, error) {
	var r structReader
	r.init(update, fromV2, limits)
	w := structWriter{e: newEncoder(!fromV2, len(update))}
	for r.next() {
		w.write(&r.cur, 0)
	}
	return finish(&w, &r)
}

func stateVectorFrom(update []byte, v2 bool) (StateVector, error) {
	var r structReader
	r.init(update, v2, &defaultLimits)
	sv := StateVector{}
	var client uint64
	first, counting := true, false
	for r.next() {
		if first || r.cur.client != client {
			client, first = r.cur.client, false
			counting = r.cur.clock == 0
		}
		if r.cur.kind == kindSkip {
			counting = false
		}
		if counting {
			sv[client] = r.cur.end()
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	return sv, nil
}

func spanOf(update []byte, v2 bool) (from, to StateVector, err error) {
	var r structReader
	r.init(update, v2, &defaultLimits)
	from, to = StateVector{}, StateVector{}
	for r.next() {
		if _, ok := from[r.cur.client]; !ok {
			from[r.cur.client] = r.cur.clock
		}
		to[r.cur.client] = r.cur.end()
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	return from, to, nil
}
