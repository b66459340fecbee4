package yjs

import (
	"fmt"
	"slices"
)

// Check returns how a document outside a transaction violates the invariants in doc.go, or nil.
func Check(d *Doc) (err error) {
	c := checker{d: d, listed: make(map[ref]bool), held: make(map[uint32]bool)}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("check: %v (after %w)", p, c.err)
		}
	}()
	c.branches()
	c.clients()
	c.payloads()
	return c.err
}

type checker struct {
	d      *Doc
	err    error // the first
	listed map[ref]bool
	held   map[uint32]bool // payloads
	units  int
}

func (c *checker) failf(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *checker) want(ok bool, format string, args ...any) {
	if !ok {
		c.failf(format, args...)
	}
}

// named is an item that is formatted only if a message needs it.
type named struct {
	d  *Doc
	it *item
}

func (c *checker) name(it *item) named { return named{c.d, it} }

func (n named) String() string {
	return fmt.Sprintf("%d:%d+%d kind %d", n.d.clients[n.it.client].id, n.it.clock, n.it.length, n.it.kind)
}

// branches walks the lists of all types.
func (c *checker) branches() {
	d := c.d
	for i, b := range d.branches {
		if b == nil {
			c.want(i == 0 || slices.Contains(d.freeBranches, uint32(i)), "branch %d is nil and not free", i)
			continue
		}
		c.want(int(b.index) == i && b.doc == d && b.flags&brDead == 0, "branch %d: index %d, flags %d", i, b.index, b.flags)
		if b.item == 0 {
			c.want(d.roots[d.keys[b.name]] == b, "branch %d has no item and is no root", i)
		} else {
			c.want(d.branchOf(d.at(b.item)) == b, "branch %d is not what its item holds", i)
		}
		gone := b.deletedItem()
		var length uint32
		for r, last := b.start, ref(0); r != 0; r, last = d.at(r).right, r {
			c.member(b, r, last, 0, gone)
			if it := d.at(r); it.shown() {
				length += it.length
			}
		}
		c.tree(b.start)
		c.want(length == b.length, "branch %d: length %d, counted %d", i, b.length, length)
		for _, e := range b.entries {
			last := ref(0)
			for r := e.item; r != 0; r, last = d.at(r).left, r {
				it := d.at(r)
				c.want(it.right == last, "%s: right is not what it is left of", c.name(it))
				c.want(last == 0 || it.deleted(), "%s is live and not the value of %q", c.name(it), d.keys[e.key])
			}
			first, _ := d.firstOf(e.item)
			for r, left := first, ref(0); r != 0; r, left = d.at(r).right, r {
				c.member(b, r, left, e.key, gone)
			}
			c.tree(first)
		}
		c.markers(b)
	}
}

// tree checks that items follow their origins, without items in between whose origins are further
// left.
func (c *checker) tree(r ref) {
	d := c.d
	at := make(map[ref]int)
	var origins []int
	for ; r != 0; r = d.at(r).right {
		it, from := d.at(r), -1
		if it.oClient != none {
			var ok bool
			from, ok = at[d.itemAt(it.oClient, it.oClock)]
			c.want(ok, "%s does not follow its origin", c.name(it))
		}
		for k := from + 1; k < len(origins); k++ {
			c.want(origins[k] >= from, "%s: something of further left is between it and its origin", c.name(it))
		}
		at[r] = len(origins)
		origins = append(origins, from)
	}
}

// member checks a list item and its left neighbour.
func (c *checker) member(b *branch, r, left ref, sub uint32, gone bool) {
	d := c.d
	it := d.at(r)
	c.want(!c.listed[r], "%s is listed twice", c.name(it))
	c.listed[r] = true
	c.want(it.left == left, "%s: left is not what it is right of", c.name(it))
	c.want(it.parent == b.index && it.sub == sub, "%s is in a list of another type or key", c.name(it))
	c.want(it.kind != kindGC, "%s is collected and in a list", c.name(it))
	c.want(!gone || it.deleted(), "%s is live in a deleted type", c.name(it))
	if it.rClient != none {
		o := d.at(d.itemAt(it.rClient, it.rClock))
		c.want(o.kind == kindGC || o.parent == it.parent && o.sub == it.sub, "%s: right origin is in another list", c.name(it))
	}
}

func (c *checker) markers(b *branch) {
	if b.markers == nil || b.deletedItem() {
		return
	}
	for _, m := range b.markers.list {
		it := c.d.at(m.item)
		c.want(it.parent == b.index && it.sub == 0 && it.kind != kindGC && it.length > 0, "a marker is not in its list")
		if it.parent != b.index {
			continue
		}
		at := 0
		for r := it.left; r != 0; r = c.d.at(r).left {
			if l := c.d.at(r); l.shown() {
				at += int(l.length)
			}
		}
		c.want(at == m.index, "a marker is at %d, its item at %d", m.index, at)
	}
}

func (c *checker) clients() {
	d := c.d
	items := 0
	for ci := range d.clients {
		cl := &d.clients[ci]
		var clock uint32
		for _, r := range cl.structs {
			it := d.at(r)
			items++
			c.want(int(it.client) == ci && it.clock == clock && it.length > 0, "%s is not at %d:%d", c.name(it), cl.id, clock)
			clock = it.end()
			c.item(r, it)
		}
		c.want(clock == cl.state, "client %d: state %d, structs up to %d", cl.id, cl.state, clock)
	}
	c.want(items == int(d.used)-1-d.freeItems, "%d items in lists, %d in use", items, int(d.used)-1-d.freeItems)
}

func (c *checker) item(r ref, it *item) {
	d := c.d
	if it.kind == kindGC {
		c.want(it.deleted() && it.left == 0 && it.right == 0 && it.parent == 0 && it.sub == 0, "%s has something left", c.name(it))
		return
	}
	c.want(c.listed[r], "%s is in no list", c.name(it))
	undo := len(d.txnFns) > 0 // items that it kept stay when it is cleared
	c.want(d.opts.KeepDeleted || undo || !it.deleted() || it.kind == kindDeleted, "%s is deleted and not collected", c.name(it))
	switch it.kind {
	case kindString:
		n, ascii := len16(d.textOf(it))
		c.units += int(textRoom(it))
		c.want(n == it.length && (ascii || it.flags&itASCII == 0), "%s: its text has %d units", c.name(it), n)
	case kindAny, kindJSON:
		vs, _ := d.payloads[it.a].([]any)
		c.want(len(vs) == int(it.length), "%s has %d values", c.name(it), len(vs))
		c.hold(it)
	case kindType:
		b := d.branchOf(it)
		c.want(b != nil && b.item == r && d.branches[b.index] == b, "%s holds no type", c.name(it))
		c.hold(it)
	case kindBinary, kindEmbed, kindFormat, kindDoc:
		c.want(it.length == 1, "%s is longer than its content", c.name(it))
		c.hold(it)
	}
}

func (c *checker) hold(it *item) {
	c.want(!c.held[it.a], "%s shares its payload", c.name(it))
	c.held[it.a] = true
}

func (c *checker) payloads() {
	d := c.d
	c.want(len(c.held) == len(d.payloads)-len(d.freePayloads), "%d payloads are held, %d in use", len(c.held), len(d.payloads)-len(d.freePayloads))
	c.want(c.units == len(d.text)-d.garbage, "texts take %d bytes, %d are in use", c.units, len(d.text)-d.garbage)
	weight := 0
	for i := range d.payloads {
		weight += int(d.weights[i])
	}
	c.want(weight == d.weight, "payloads weigh %d, noted %d", weight, d.weight)
}
