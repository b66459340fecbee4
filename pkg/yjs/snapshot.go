package yjs

import "maps"

// Snapshot identifies a state of a document by its structs and deletions. It has no content:
// reading it requires a document with [Options.KeepDeleted].
type Snapshot struct {
	Deletes DeleteSet
	State   StateVector
}

// Snapshot returns the current state.
func (d *Doc) Snapshot() Snapshot {
	return Snapshot{Deletes: d.storeDeletes(), State: d.StateVector()}
}

// Encode returns the snapshot in encoding v1.
func (s Snapshot) Encode() []byte { return s.encode(false) }

// EncodeV2 returns the snapshot in encoding v2.
func (s Snapshot) EncodeV2() []byte { return s.encode(true) }

func (s Snapshot) encode(v2 bool) []byte {
	e := newEncoder(v2, 0)
	e.deleteSet(mergeDeleteSets(s.Deletes))
	return s.State.append(e.rest)
}

// DecodeSnapshot reads a snapshot in encoding v1.
func DecodeSnapshot(b []byte) (Snapshot, error) { return decodeSnapshot(b, false) }

// DecodeSnapshotV2 reads a snapshot in encoding v2.
func DecodeSnapshotV2(b []byte) (Snapshot, error) { return decodeSnapshot(b, true) }

func decodeSnapshot(b []byte, v2 bool) (Snapshot, error) {
	dec := decoder{rest: cursor{b: b}}
	if v2 {
		dec.v2 = &columns{}
	}
	ds, err := dec.deleteSet(&defaultLimits)
	if err != nil {
		return Snapshot{}, err
	}
	sv := dec.rest.stateVector()
	if dec.rest.bad {
		return Snapshot{}, ErrMalformed
	}
	return Snapshot{Deletes: mergeDeleteSets(ds), State: sv}, nil
}

// Equal reports whether two snapshots identify the same state.
func (s Snapshot) Equal(o Snapshot) bool {
	return maps.Equal(s.State, o.State) && mergeDeleteSets(s.Deletes).Equal(mergeDeleteSets(o.Deletes))
}

// Contains reports whether the state includes an update in encoding v1 completely.
func (s Snapshot) Contains(update []byte) (bool, error) {
	var r structReader
	r.init(update, false, &defaultLimits)
	for r.next() {
		if s.State[r.cur.client] < r.cur.end() {
			return false, nil
		}
	}
	if r.err != nil {
		return false, r.err
	}
	ds, err := r.dec.deleteSet(&defaultLimits)
	if err != nil {
		return false, err
	}
	return s.Equal(Snapshot{State: s.State, Deletes: mergeDeleteSets(s.Deletes, ds)}), nil
}

// Restore returns a new document in the state of a snapshot. It returns ErrGone unless this
// document keeps deleted content.
func (d *Doc) Restore(s Snapshot, o Options) (*Doc, error) {
	if !d.opts.KeepDeleted {
		return nil, ErrGone
	}
	e := newEncoder(true, d.sizeHint())
	_, opened := d.begin(nil, true)
	cis := d.order(func(ci uint32) bool { return s.State[d.clients[ci].id] > 0 })
	e.uvarint(uint64(len(cis)))
	for _, ci := range cis {
		end := min(s.State[d.clients[ci].id], d.clients[ci].state)
		if end < d.clients[ci].state {
			d.cleanStart(ci, end)
		}
		d.writeClient(e, ci, 0, end)
	}
	e.deleteSet(mergeDeleteSets(s.Deletes))
	d.end(opened)
	out := New(o)
	if err := out.ApplyUpdateV2(e.finish(), nil); err != nil {
		return nil, err
	}
	return out, nil
}

// visible selects the items of a delta: the current ones, or those of a snapshot.
type visible struct {
	doc     *Doc
	clients []seenClient
}

type seenClient struct {
	clock   uint32
	deletes []Range
}

func (v visible) shows(it *item) bool {
	if v.doc == nil {
		return !it.deleted()
	}
	c := &v.clients[it.client]
	return it.clock < c.clock && !containsClock(c.deletes, it.clock)
}

// DeltaAt returns the text at a snapshot. Content that was deleted since is missing unless the
// document keeps deleted content.
func (t *Text) DeltaAt(s Snapshot) []Op {
	b := (*branch)(t)
	if b.doc == nil {
		return nil
	}
	d := b.doc
	_, opened := d.begin(nil, true)
	v := visible{doc: d, clients: make([]seenClient, len(d.clients))}
	for _, c := range mergeDeleteSets(s.Deletes) {
		if ci := d.lookup(c.Client); ci != none {
			v.clients[ci].deletes = c.Ranges
			for _, r := range c.Ranges {
				d.eachStruct(ci, r.Clock, min(r.end(), d.clients[ci].state), func(ref, *item) {})
			}
		}
	}
	for i := range v.clients {
		c := &d.clients[i]
		v.clients[i].clock = s.State[c.id]
		if clock := s.State[c.id]; clock < c.state {
			d.cleanStart(uint32(i), clock)
		}
	}
	ops := b.delta(v)
	d.end(opened)
	return ops
}

// eachStruct calls f for the structs in a range, split to cover it exactly.
func (d *Doc) eachStruct(ci, clock, end uint32, f func(r ref, it *item)) {
	if clock >= end {
		return
	}
	for i := d.cleanStartIndex(ci, clock); i < len(d.clients[ci].structs); i++ {
		r := d.clients[ci].structs[i]
		it := d.at(r)
		if it.clock >= end {
			return
		}
		if end < it.end() && it.kind != kindGC {
			d.split(ci, i, end-it.clock)
		}
		f(r, it)
	}
}

// delta returns text, formats and embeds.
func (b *branch) delta(v visible) []Op {
	if b.doc == nil {
		return nil
	}
	d := b.doc
	var ops []Op
	var now attrs
	var str []byte
	pack := func() {
		if len(str) > 0 {
			ops = append(ops, Op{Insert: string(str), Attributes: now.object(d)})
			str = str[:0]
		}
	}
	for r := b.start; r != 0; {
		it := d.at(r)
		r = it.right
		if !v.shows(it) {
			continue
		}
		switch it.kind {
		case kindString:
			str = joinWTF8(str, d.textOf(it))
		case kindType, kindEmbed:
			pack()
			ops = append(ops, Op{Insert: d.value(it), Attributes: now.object(d)})
		case kindFormat:
			pack()
			now = now.update(it.b, d.payloads[it.a])
		}
	}
	pack()
	return ops
}
