package yjs

import (
	"math/rand/v2"
	"slices"
)

// Forger writes updates that look valid but that no editor writes: into deleted and foreign
// types, under keys in lists, with parents that are not types, with GC and Skip anywhere, late,
// repeated and lost; deletions of unknown structs.
//
// A wild one uses any id as an origin; structs of the others have a defined place in every
// implementation. One that reuses ids also gives them to other structs.
type Forger struct {
	*rand.Rand
	doc     *Doc
	wild    bool
	reuse   bool
	clients []uint64
	next    map[uint64]uint32
	spots   []wireStruct // earlier structs
	late    [][]byte
}

// NewForger returns a forger that finds places in a document.
func NewForger(d *Doc, seed uint64, wild, reuse bool) *Forger {
	f := &Forger{Rand: rand.New(rand.NewPCG(seed, 7)), doc: d, wild: wild, reuse: reuse, next: make(map[uint64]uint32)}
	f.clients = []uint64{1, 2, 3, 40, 1 << 33}[:2+f.IntN(4)]
	if reuse && f.IntN(10) == 0 {
		f.clients = append(f.clients, d.clientID)
	}
	return f
}

func (f *Forger) chance(percent int) bool { return f.IntN(100) < percent }

// Update returns an update in encoding v1.
func (f *Forger) Update() []byte {
	switch n := len(f.late); {
	case n > 0 && f.chance(15):
		i := f.IntN(n)
		u := f.late[i]
		if f.chance(70) { // otherwise it is repeated
			f.late = slices.Delete(f.late, i, i+1)
		}
		return u
	case n > 1 && f.chance(5):
		u, err := MergeUpdates(f.late)
		if err != nil {
			panic(err)
		}
		return u
	}
	u := f.write()
	if f.chance(20) {
		f.late = append(f.late, u)
		if f.chance(60) {
			return f.Update()
		}
	}
	return u
}

func (f *Forger) write() []byte {
	var groups [][]wireStruct
	for _, i := range f.Perm(len(f.clients))[:1+f.IntN(2)] {
		if g := f.group(f.clients[i]); len(g) > 0 {
			groups = append(groups, g)
		}
	}
	if f.chance(10) {
		groups = nil
	}
	e := newEncoder(false, 64)
	e.uvarint(uint64(len(groups)))
	for _, g := range groups {
		e.uvarint(uint64(len(g)))
		e.client(g[0].client)
		e.uvarint(uint64(g[0].clock))
		for i := range g {
			e.wire(&g[i], 0)
		}
	}
	e.deleteSet(f.deletions())
	return e.finish()
}

func (f *Forger) group(client uint64) (g []wireStruct) {
	clock := max(f.next[client], f.doc.stateOf(client))
	switch n := f.IntN(10); {
	case f.reuse && n < 2:
		clock = uint32(f.IntN(int(clock) + 1))
	case f.wild && n == 2:
		clock += uint32(f.IntN(3))
	}
	for range 1 + f.IntN(4) {
		s := f.content(client, clock)
		if s.kind != kindGC && s.kind != kindSkip {
			f.place(&s)
			if s.kind == kindString && len(g) > 0 && f.chance(30) { // continues it
				last := &g[len(g)-1]
				s.flags = s.flags&flagASCII | flagOrigin | last.flags&flagRight
				s.oc, s.ok, s.rc, s.rk = client, clock-1, last.rc, last.rk
			}
			if (s.flags&(flagOrigin|flagParent) != 0 && s.oc == client && s.ok >= clock) ||
				(s.flags&flagRight != 0 && s.rc == client && s.rk >= clock) {
				continue // malformed
			}
		}
		g = append(g, s)
		clock = s.end()
		if s.kind != kindSkip {
			f.next[client] = max(f.next[client], clock)
		}
	}
	if len(g) > 0 && g[0].kind == kindSkip {
		g = g[1:]
	}
	return g
}

func (f *Forger) content(client uint64, clock uint32) wireStruct {
	s := wireStruct{client: client, clock: clock, length: 1}
	n := 1 + f.IntN(4)
	values := func() (vs []any) {
		for range n {
			vs = append(vs, float64(f.IntN(100)))
		}
		return vs
	}
	kinds := []uint8{
		kindString, kindString, kindString, kindString, kindString, kindAny, kindAny, kindAny, kindAny,
		kindType, kindType, kindType, kindType, kindFormat, kindEmbed, kindBinary, kindJSON, kindDoc, kindDeleted, kindGC, kindSkip,
	}
	s.kind = kinds[f.IntN(len(kinds))]
	if s.kind == kindSkip && !f.wild && f.chance(80) {
		s.kind = kindString
	}
	switch s.kind {
	case kindGC, kindSkip, kindDeleted:
		s.length = uint32(n)
	case kindString:
		s.body = []byte("abcd"[:n])
		s.flags = flagASCII
		if f.chance(20) {
			s.body, s.flags = []byte("ä😀"), 0
		}
		s.length, _ = len16(s.body)
	case kindAny, kindJSON:
		s.val, s.length = values(), uint32(n)
	case kindBinary:
		s.body = []byte{1, 2}
	case kindEmbed:
		s.val = Object{{"e", float64(n)}}
	case kindFormat:
		s.body, s.val = []byte([]string{"b", "i"}[f.IntN(2)]), []any{true, nil, "red"}[f.IntN(3)]
	case kindType:
		s.ref = uint8(f.IntN(int(refXMLText) + 1))
		if s.ref == refXMLElement || s.ref == refXMLHook {
			s.body = []byte("p")
		}
	case kindDoc:
		s.body, s.val = []byte("guid"), Object{}
	}
	return s
}

// place sets the origins or the parent of a struct.
func (f *Forger) place(s *wireStruct) {
	if f.wild && f.chance(25) {
		f.anywhere(s)
		return
	}
	if len(f.spots) > 0 && f.chance(40) {
		p := f.spots[f.IntN(len(f.spots))]
		s.flags |= p.flags
		s.oc, s.ok, s.rc, s.rk, s.root, s.sub = p.oc, p.ok, p.rc, p.rk, p.root, p.sub
		return
	}
	before := s.flags
	f.somewhere(s)
	p := *s
	p.flags &^= before & flagASCII
	f.spots = append(f.spots, p)
}

func (f *Forger) id() (client uint64, clock uint32) {
	client = f.clients[f.IntN(len(f.clients))]
	return client, uint32(f.IntN(int(f.next[client]) + 1 + f.IntN(2)))
}

func (f *Forger) anywhere(s *wireStruct) {
	if f.chance(70) {
		s.flags |= flagOrigin
		s.oc, s.ok = f.id()
	}
	if f.chance(60) {
		s.flags |= flagRight
		s.rc, s.rk = f.id()
	}
	if s.flags&(flagOrigin|flagRight) == 0 {
		f.parent(s)
	}
}

func (f *Forger) parent(s *wireStruct) {
	if f.chance(60) {
		s.flags |= flagRoot
		s.root = []byte([]string{"t", "m", "a", "x"}[f.IntN(4)])
	} else {
		s.flags |= flagParent
		s.oc, s.ok = f.id()
	}
	if f.chance(40) {
		s.flags |= flagSub
		s.sub = []byte([]string{"k", "l", ""}[f.IntN(3)])
	}
}

// somewhere chooses a place in a list of the document.
func (f *Forger) somewhere(s *wireStruct) {
	d := f.doc
	b := d.branches[1+f.IntN(len(d.branches)-1)]
	if b == nil {
		f.parent(s)
		return
	}
	first := b.start
	if n := len(b.entries); n > 0 && f.chance(50) {
		e := b.entries[f.IntN(n)]
		first, _ = d.firstOf(e.item)
	}
	var items []ref
	for r := first; r != 0; r = d.at(r).right {
		items = append(items, r)
	}
	if len(items) == 0 || f.chance(5) {
		f.parent(s)
		return
	}
	at := f.IntN(len(items) + 1)
	if at > 0 {
		l := d.at(items[at-1])
		s.flags |= flagOrigin
		s.oc, s.ok = d.clients[l.client].id, l.end()-1
		if n := uint32(f.IntN(int(l.length))); n > 0 && f.chance(30) {
			s.ok -= n
			s.flags |= flagRight
			s.rc, s.rk = s.oc, s.ok+1
			return
		}
	}
	if f.wild && f.chance(20) {
		at += f.IntN(len(items) - at + 1)
	}
	if at < len(items) && (s.flags&flagOrigin == 0 || f.chance(80)) {
		r := d.at(items[at])
		s.flags |= flagRight
		s.rc, s.rk = d.clients[r.client].id, r.clock
	}
	if s.flags&(flagOrigin|flagRight) == 0 {
		f.parent(s)
	}
}

func (f *Forger) deletions() (ds DeleteSet) {
	for f.chance(30) {
		client := f.clients[f.IntN(len(f.clients))]
		clock := uint32(f.IntN(int(f.next[client]) + 2))
		ds = append(ds, ClientRanges{client, []Range{{clock, uint32(1 + f.IntN(4))}}})
	}
	return mergeDeleteSets(ds)
}
