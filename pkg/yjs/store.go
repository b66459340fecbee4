package yjs

import (
	"math/bits"
	"slices"
)

// ref is the index of an item in the document's chunks; 0 is none.
type ref uint32

const none = ^uint32(0)

const (
	itDeleted = 1 << iota
	itKeep    // not to be collected: an undo manager may restore it
	itMarker  // a search marker points here
	itASCII   // text: bytes are units
	itRoomy   // text: sizeClass(b) bytes are reserved
	itRedone  // see Doc.redone
)

// item is a struct of the store: an item, or a GC range (kindGC). It has no pointers, so that
// Go's garbage collector ignores the chunks.
type item struct {
	clock, length   uint32
	client          uint32 // index into Doc.clients
	left, right     ref
	oClient, oClock uint32 // origin; oClient is none without one
	rClient, rClock uint32 // right origin
	parent          uint32 // index into Doc.branches; 0 is none
	sub             uint32 // index into Doc.keys; 0 is none
	a, b            uint32 // text: offset and size; format: payload and key; others: payload
	kind, flags     uint8
	_               uint16
}

func (it *item) deleted() bool { return it.flags&itDeleted != 0 }

func (it *item) countable() bool {
	return it.kind != kindFormat && it.kind != kindDeleted && it.kind != kindGC
}

// shown reports whether the item counts in its sequence.
func (it *item) shown() bool { return it.flags&itDeleted == 0 && it.kind != kindFormat }

func (it *item) end() uint32 { return it.clock + it.length }

const (
	chunkBits = 6
	chunkSize = 1 << chunkBits
)

type chunk [chunkSize]item

// client is an author with all its structs, in the order of its clock and without gaps.
type client struct {
	id      uint64
	structs []ref
	state   uint32 // the next clock
	hint    uint32 // the result of the last search
	txn     uint64 // the last transaction that touched it
	touched uint32 // its index in that Txn.touched
}

func (d *Doc) at(r ref) *item {
	return &d.chunks[r>>chunkBits][r&(chunkSize-1)]
}

// newItem returns a cleared item.
func (d *Doc) newItem() (ref, *item) {
	if r := d.free; r != 0 {
		it := d.at(r)
		d.free = it.right
		d.freeItems--
		*it = item{}
		return r, it
	}
	if int(d.used)>>chunkBits >= len(d.chunks) {
		d.chunks = append(d.chunks, new(chunk))
	}
	r := ref(d.used)
	d.used++
	return r, d.at(r)
}

func (d *Doc) freeItem(r ref) {
	it := d.at(r)
	if it.flags&itRedone != 0 {
		delete(d.redone, r)
	}
	*it = item{right: d.free}
	d.free = r
	d.freeItems++
}

// lookup returns the index of a client, or none.
func (d *Doc) lookup(id uint64) uint32 {
	if i := d.lastClient; int(i) < len(d.clients) && d.clients[i].id == id {
		return i
	}
	if len(d.clients) <= 4 {
		for i := range d.clients {
			if d.clients[i].id == id {
				d.lastClient = uint32(i)
				return uint32(i)
			}
		}
		return none
	}
	i, ok := d.byID[id]
	if !ok {
		return none
	}
	d.lastClient = i
	return i
}

// clientOf returns the index of a client and adds a new one.
func (d *Doc) clientOf(id uint64) uint32 {
	if i := d.lookup(id); i != none {
		return i
	}
	i := uint32(len(d.clients))
	d.clients = append(d.clients, client{id: id})
	if d.byID == nil {
		d.byID = make(map[uint64]uint32)
	}
	d.byID[id] = i
	d.lastClient = i
	return i
}

// stateOf returns the next clock of a client.
func (d *Doc) stateOf(id uint64) uint32 {
	if i := d.lookup(id); i != none {
		return d.clients[i].state
	}
	return 0
}

// find returns the index of the struct that contains clock, which must exist.
func (d *Doc) find(ci, clock uint32) int {
	c := &d.clients[ci]
	s := c.structs
	lo, hi := 0, len(s)-1
	if it := d.at(s[hi]); it.clock <= clock {
		return hi
	}
	if h := int(c.hint); h < hi {
		it := d.at(s[h])
		switch {
		case clock < it.clock:
			hi = h - 1
		case clock < it.end():
			return h
		default:
			lo = h + 1
			if clock < d.at(s[lo]).end() {
				c.hint = uint32(lo)
				return lo
			}
		}
	}
	for lo < hi {
		mid := int(uint(lo+hi+1) >> 1)
		if d.at(s[mid]).clock <= clock {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	c.hint = uint32(lo)
	return lo
}

func (d *Doc) itemAt(ci, clock uint32) ref { return d.clients[ci].structs[d.find(ci, clock)] }

// cleanStart returns the item that starts at clock, and splits an item for it if necessary.
func (d *Doc) cleanStart(ci, clock uint32) ref {
	return d.clients[ci].structs[d.cleanStartIndex(ci, clock)]
}

func (d *Doc) cleanStartIndex(ci, clock uint32) int {
	i := d.find(ci, clock)
	it := d.at(d.clients[ci].structs[i])
	if it.clock < clock && it.kind != kindGC {
		d.split(ci, i, clock-it.clock)
		return i + 1
	}
	return i
}

// cleanEnd returns the item that ends with clock, and splits an item for it if necessary.
func (d *Doc) cleanEnd(ci, clock uint32) ref {
	i := d.find(ci, clock)
	r := d.clients[ci].structs[i]
	it := d.at(r)
	if clock != it.end()-1 && it.kind != kindGC {
		d.split(ci, i, clock-it.clock+1)
	}
	return r
}

// split splits the i-th item of a client.
func (d *Doc) split(ci uint32, i int, diff uint32) {
	c := &d.clients[ci]
	right := d.splitItem(c.structs[i], diff)
	d.txn.moved += len(c.structs) - i
	c.structs = slices.Insert(c.structs, i+1, right)
}

// splitItem splits an item and returns the right part, which the caller adds to the client.
func (d *Doc) splitItem(lr ref, diff uint32) ref {
	ci := d.at(lr).client
	rr, r := d.newItem()
	l := d.at(lr)
	*r = item{
		clock: l.clock + diff, length: l.length - diff, client: ci,
		left: lr, right: l.right,
		oClient: ci, oClock: l.clock + diff - 1,
		rClient: l.rClient, rClock: l.rClock,
		parent: l.parent, sub: l.sub,
		kind: l.kind, flags: l.flags & (itDeleted | itKeep | itRedone),
	}
	if r.flags&itRedone != 0 {
		id := d.redone[lr]
		id.Clock += diff
		d.redone[rr] = id
	}
	d.splitContent(l, r, diff)
	l.right = rr
	if r.right != 0 {
		d.at(r.right).left = rr
	} else if r.sub != 0 {
		d.branches[r.parent].setEntry(r.sub, rr)
	}
	l.length = diff
	d.txn.merge = append(d.txn.merge, itemPos{ci, r.clock})
	return rr
}

func (d *Doc) splitContent(l, r *item, diff uint32) {
	switch l.kind {
	case kindString:
		d.splitText(l, r, diff)
	case kindAny, kindJSON:
		vs, _ := d.payloads[l.a].([]any)
		left, right := splitWeight(d.weights[l.a], vs[:diff], vs[diff:])
		d.payloads[l.a], d.weights[l.a] = vs[:diff:diff], left
		d.weight -= int(right)
		r.a = d.store(vs[diff:], right)
	}
}

// newPayload stores the value of an item.
func (d *Doc) newPayload(v any) uint32 { return d.store(v, uint32(weigh(v))) }

// store is newPayload with a known weight.
func (d *Doc) store(v any, weight uint32) uint32 {
	d.weight += int(weight)
	if n := len(d.freePayloads); n > 0 {
		i := d.freePayloads[n-1]
		d.freePayloads = d.freePayloads[:n-1]
		d.payloads[i], d.weights[i] = v, weight
		return i
	}
	d.payloads, d.weights = append(d.payloads, v), append(d.weights, weight)
	return uint32(len(d.payloads) - 1)
}

func (d *Doc) freePayload(i uint32) {
	d.weight -= int(d.weights[i])
	d.payloads[i], d.weights[i] = nil, 0
	d.freePayloads = append(d.freePayloads, i)
}

// dropContent frees the content of an item.
func (d *Doc) dropContent(it *item) {
	switch it.kind {
	case kindString:
		d.garbage += int(textRoom(it))
	case kindAny, kindJSON, kindBinary, kindEmbed, kindFormat, kindType, kindDoc:
		d.freePayload(it.a)
	}
	it.a, it.b = 0, 0
	it.flags &^= itASCII | itRoomy
}

// key interns a string.
func (d *Doc) key(s []byte) uint32 {
	if i, ok := d.keyIndex[string(s)]; ok {
		return i
	}
	return d.newKey(string(s))
}

func (d *Doc) keyOf(s string) uint32 {
	if i, ok := d.keyIndex[s]; ok {
		return i
	}
	return d.newKey(s)
}

func (d *Doc) newKey(s string) uint32 {
	if d.keyIndex == nil {
		d.keyIndex = make(map[string]uint32)
		d.keys = append(d.keys, "") // 0 is none
	}
	i := uint32(len(d.keys))
	d.keys = append(d.keys, s)
	d.keyBytes += len(s)
	d.keyIndex[s] = i
	return i
}

// Text is in one byte arena. An item that grows and is not at the end of the arena moves
// there, with reserved space to grow; its old bytes are garbage until compaction.

func textRoom(it *item) uint32 {
	if it.flags&itRoomy != 0 {
		return sizeClass(it.b)
	}
	return it.b
}

// sizeClass rounds up so that at most a fifth is unused.
func sizeClass(n uint32) uint32 {
	if n <= 16 {
		return 16
	}
	step := uint32(1) << (bits.Len32(n-1) - 3)
	return (n + step - 1) &^ (step - 1)
}

func (d *Doc) textOf(it *item) []byte { return d.text[it.a : it.a+it.b] }

// setText sets the text of a new item.
func (d *Doc) setText(it *item, p []byte, ascii bool) {
	d.wide = d.wide || !ascii
	it.a, it.b = uint32(len(d.text)), uint32(len(p))
	it.flags &^= itRoomy | itASCII
	if ascii {
		it.flags |= itASCII
	}
	d.text = append(d.text, p...)
}

// appendText extends the text of an item with p, which may be part of the arena.
func (d *Doc) appendText(it *item, p []byte, ascii bool) {
	if !ascii {
		d.wide = true
		if endsHigh(d.textOf(it)) && startsLow(p) {
			joined := joinWTF8(slices.Clone(d.textOf(it)), p)
			d.garbage += int(textRoom(it))
			d.setText(it, joined, false)
			return
		}
		it.flags &^= itASCII
	}
	end, n := it.a+it.b, uint32(len(p))
	switch {
	case int(end) == len(d.text):
		d.text = append(d.text, p...)
		it.flags &^= itRoomy
	case it.flags&itRoomy != 0 && it.b+n <= sizeClass(it.b):
		copy(d.text[end:], p)
	default:
		d.garbage += int(textRoom(it))
		at := len(d.text)
		room := int(sizeClass(it.b + n))
		d.text = append(d.text, d.textOf(it)...)
		d.text = append(d.text, p...)
		d.text = slices.Grow(d.text, room)[:at+room]
		it.a = uint32(at)
		it.flags |= itRoomy
	}
	it.b += n
}

func (d *Doc) splitText(l, r *item, diff uint32) {
	if l.flags&itASCII != 0 {
		if l.flags&itRoomy != 0 {
			d.garbage += int(sizeClass(l.b) - l.b)
		}
		r.a, r.b = l.a+diff, l.b-diff
		l.b = diff
		r.flags |= itASCII
		l.flags &^= itRoomy
		return
	}
	p := d.textOf(l)
	at, rest := wtf8Offset(p, uint64(diff))
	if rest != 0 {
		left := append(slices.Clone(p[:at]), replacement...)
		right := append([]byte(replacement), p[at+4:]...)
		d.garbage += int(textRoom(l))
		d.setText(l, left, false)
		d.setText(r, right, false)
		return
	}
	if l.flags&itRoomy != 0 {
		d.garbage += int(sizeClass(l.b) - l.b)
	}
	l.flags &^= itRoomy
	r.a, r.b = l.a+uint32(at), l.b-uint32(at)
	l.b = uint32(at)
	if l.b == diff {
		l.flags |= itASCII
	}
	if r.b == r.length {
		r.flags |= itASCII
	}
}

// compact rewrites the arena without garbage.
func (d *Doc) compact() {
	text := make([]byte, 0, len(d.text)-d.garbage)
	for i := range d.clients {
		for _, r := range d.clients[i].structs {
			if it := d.at(r); it.kind == kindString {
				p := d.textOf(it)
				it.a = uint32(len(text))
				it.flags &^= itRoomy
				text = append(text, p...)
			}
		}
	}
	d.text, d.garbage = text, 0
}
