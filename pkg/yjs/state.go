package yjs

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// StateVector returns the next clock of each client.
func (d *Doc) StateVector() StateVector {
	sv := make(StateVector, len(d.clients))
	for i := range d.clients {
		if c := &d.clients[i]; c.state > 0 {
			sv[c.id] = c.state
		}
	}
	return sv
}

// EncodeStateAsUpdate returns, in encoding v1, everything that a peer with state vector sv
// lacks, or the whole state if sv is nil. It includes pending structs and deletions.
func (d *Doc) EncodeStateAsUpdate(sv StateVector) []byte { return d.encodeState(sv, false) }

// EncodeStateAsUpdateV2 is [Doc.EncodeStateAsUpdate] in encoding v2.
func (d *Doc) EncodeStateAsUpdateV2(sv StateVector) []byte { return d.encodeState(sv, true) }

func (d *Doc) encodeState(sv StateVector, v2 bool) []byte {
	e := newEncoder(v2, d.sizeHint())
	d.writeStructs(e, func(ci uint32) (uint32, bool) {
		c := &d.clients[ci]
		from := sv[c.id]
		return from, c.state > from
	})
	e.deleteSet(d.storeDeletes())
	state := e.finish()
	if d.pending == nil && len(d.pendingDeletes) == 0 {
		return state
	}
	merged, err := d.withPending(state, sv, v2)
	if err != nil {
		// Unexpected: all of it was decoded before. Callers that replace the sources of the
		// state with it compare Contents first.
		return state
	}
	return merged
}

// withPending merges pending structs and deletions into an encoded state.
func (d *Doc) withPending(state []byte, sv StateVector, v2 bool) ([]byte, error) {
	updates := [][]byte{state}
	if len(d.pendingDeletes) > 0 {
		e := newEncoder(v2, 16)
		e.uvarint(0)
		e.deleteSet(mergeDeleteSets(d.pendingDeletes))
		updates = append(updates, e.finish())
	}
	if d.pending != nil {
		update, err := d.pending.join()
		if err == nil {
			update, err = diffUpdate(update, sv, true, &ownLimits)
		}
		if err == nil && !v2 {
			update, err = convert(update, true, &ownLimits)
		}
		if err != nil {
			return nil, err
		}
		updates = append(updates, update)
	}
	return mergeUpdates(updates, v2, &ownLimits)
}

// Contents returns the structs and deletions of the document, including pending ones. A
// document made from this one's encoded state has the same structs, and at least the same
// deletions: structs that are pending here may be integrated there, where all came at once.
func (d *Doc) Contents() (structs, deletions DeleteSet) {
	for i := range d.clients {
		if c := &d.clients[i]; c.state > 0 {
			structs = append(structs, ClientRanges{c.id, []Range{{0, c.state}}})
		}
	}
	if d.pending != nil {
		for _, part := range d.pending.parts {
			var r structReader
			r.init(part, true, &ownLimits)
			for r.next() {
				if r.cur.kind != kindSkip {
					structs = append(structs, ClientRanges{r.cur.client, []Range{{r.cur.clock, r.cur.length}}})
				}
			}
		}
	}
	return mergeDeleteSets(structs), mergeDeleteSets(d.storeDeletes(), d.pendingDeletes)
}

func (d *Doc) sizeHint() int {
	n := len(d.text) - d.garbage + 64
	for i := range d.clients {
		n += 14 * len(d.clients[i].structs)
	}
	return n
}

// order returns the clients selected by want, in descending order of id.
func (d *Doc) order(want func(ci uint32) bool) []uint32 {
	var cis []uint32
	for i := range d.clients {
		if len(d.clients[i].structs) > 0 && want(uint32(i)) {
			cis = append(cis, uint32(i))
		}
	}
	slices.SortFunc(cis, func(a, b uint32) int { return cmp.Compare(d.clients[b].id, d.clients[a].id) })
	return cis
}

// writeStructs writes the structs of the clients selected by from, starting at the returned
// clock.
func (d *Doc) writeStructs(e *encoder, from func(ci uint32) (uint32, bool)) {
	cis := d.order(func(ci uint32) bool { _, ok := from(ci); return ok })
	e.uvarint(uint64(len(cis)))
	for _, ci := range cis {
		clock, _ := from(ci)
		d.writeClient(e, ci, clock, d.clients[ci].state)
	}
}

func (d *Doc) writeClient(e *encoder, ci, clock, end uint32) {
	c := &d.clients[ci]
	first, last := d.find(ci, clock), d.find(ci, end-1)
	e.uvarint(uint64(last - first + 1))
	e.client(c.id)
	e.uvarint(uint64(clock))
	offset := clock - d.at(c.structs[first]).clock
	if e.v2 == nil {
		e.rest = d.appendItems(e.rest, c.structs[first:last+1], offset)
		return
	}
	for _, r := range c.structs[first : last+1] {
		d.writeItem(e, d.at(r), offset)
		offset = 0
	}
}

// appendItems writes many items in encoding v1. It has a fast path for the most common
// items and leaves the others to writeItem.
func (d *Doc) appendItems(b []byte, rs []ref, offset uint32) []byte {
	chunks, clients, text := d.chunks, d.clients, d.text
	for _, r := range rs {
		it := &chunks[r>>chunkBits][r&(chunkSize-1)]
		plain := it.kind == kindString && it.flags&itASCII != 0 || it.kind == kindDeleted
		if !plain || offset > 0 || it.oClient == none && it.rClient == none {
			e := encoder{rest: b}
			d.writeItem(&e, it, offset)
			b = e.rest
			offset = 0
			continue
		}
		at := len(b)
		b = append(b, it.kind)
		if it.oClient != none {
			b[at] |= infoOrigin
			b = binary.AppendUvarint(binary.AppendUvarint(b, clients[it.oClient].id), uint64(it.oClock))
		}
		if it.rClient != none {
			b[at] |= infoRight
			b = binary.AppendUvarint(binary.AppendUvarint(b, clients[it.rClient].id), uint64(it.rClock))
		}
		if it.sub != 0 {
			b[at] |= infoSub
		}
		if it.kind == kindDeleted {
			b = binary.AppendUvarint(b, uint64(it.length))
		} else {
			b = binary.AppendUvarint(b, uint64(it.b))
			b = append(b, text[it.a:it.a+it.b]...)
		}
	}
	return b
}

// writeItem writes an item without its first offset units.
func (d *Doc) writeItem(e *encoder, it *item, offset uint32) {
	s := wireStruct{client: d.clients[it.client].id, clock: it.clock, length: it.length, kind: it.kind}
	if it.oClient != none {
		s.flags |= flagOrigin
		s.oc, s.ok = d.clients[it.oClient].id, it.oClock
	}
	if it.rClient != none {
		s.flags |= flagRight
		s.rc, s.rk = d.clients[it.rClient].id, it.rClock
	}
	if it.sub != 0 {
		s.flags |= flagSub
	}
	if s.flags&(flagOrigin|flagRight) == 0 && it.kind != kindGC { // written only without origins
		s.sub = []byte(d.keys[it.sub])
		if b := d.branches[it.parent]; b.item == 0 {
			s.flags |= flagRoot
			s.root = []byte(d.keys[b.name])
		} else {
			p := d.at(b.item)
			s.flags |= flagParent
			s.oc, s.ok = d.clients[p.client].id, p.clock
		}
	}
	switch it.kind {
	case kindString:
		s.body = d.textOf(it)
		if it.flags&itASCII != 0 {
			s.flags |= flagASCII
		}
	case kindBinary:
		s.body, _ = d.payloads[it.a].([]byte)
	case kindAny, kindJSON, kindEmbed:
		s.val = d.payloads[it.a]
	case kindFormat:
		s.body, s.val = []byte(d.keys[it.b]), d.payloads[it.a]
	case kindType:
		b := d.branchOf(it)
		s.ref = b.kind
		if b.kind == refXMLElement || b.kind == refXMLHook {
			s.body = []byte(d.keys[b.name])
		}
	case kindDoc:
		sub, _ := d.payloads[it.a].(*Subdoc)
		s.body, s.val = []byte(sub.guid), sub.wireOptions()
	}
	e.wire(&s, offset)
}

// storeDeletes returns the deleted ranges, in descending order of client.
func (d *Doc) storeDeletes() DeleteSet {
	var ds DeleteSet
	for _, ci := range d.order(func(uint32) bool { return true }) {
		if rs := d.clientDeletes(ci, make([]Range, 0, len(d.clients[ci].structs)/2+1)); len(rs) > 0 {
			ds = append(ds, ClientRanges{d.clients[ci].id, rs})
		}
	}
	return ds
}

func (d *Doc) clientDeletes(ci uint32, rs []Range) []Range {
	open, chunks := false, d.chunks
	for _, r := range d.clients[ci].structs {
		it := &chunks[r>>chunkBits][r&(chunkSize-1)]
		switch {
		case !it.deleted():
			open = false
		case open:
			rs[len(rs)-1].Len += it.length
		default:
			rs = append(rs, Range{it.clock, it.length})
			open = true
		}
	}
	return rs
}

// sendUpdate passes the transaction's update to the listeners.
func (d *Doc) sendUpdate(t *Txn) {
	changed := len(t.deleted) > 0
	for _, s := range t.touched {
		changed = changed || s.before != s.after
	}
	if !changed {
		return
	}
	u := Update{Origin: t.origin, Local: t.local, txn: t}
	for _, f := range d.updateFns {
		f.f(&u)
	}
}

func (d *Doc) encodeTxn(t *Txn, v2 bool) []byte {
	e := newEncoder(v2, 32)
	var buf [4]span
	cis := buf[:0]
	for _, s := range t.touched {
		if s.before != s.after {
			cis = append(cis, s)
		}
	}
	slices.SortFunc(cis, func(a, b span) int { return cmp.Compare(d.clients[b.client].id, d.clients[a.client].id) })
	e.uvarint(uint64(len(cis)))
	for _, s := range cis {
		d.writeClient(e, s.client, s.before, d.clients[s.client].state)
	}
	e.deleteSet(t.deleteSet())
	return e.finish()
}

// deleteSet returns the ranges deleted by the transaction, in descending order of client.
func (t *Txn) deleteSet() DeleteSet {
	var ds DeleteSet
	for i := 0; i < len(t.deleted); {
		j := i
		for j < len(t.deleted) && t.deleted[j].client == t.deleted[i].client {
			j++
		}
		rs := make([]Range, 0, j-i)
		for _, x := range t.deleted[i:j] {
			rs = append(rs, Range{x.clock, x.length})
		}
		ds = append(ds, ClientRanges{t.doc.clients[t.deleted[i].client].id, rs})
		i = j
	}
	slices.SortFunc(ds, func(a, b ClientRanges) int { return cmp.Compare(b.Client, a.Client) })
	return ds
}
