package yjs

import (
	"cmp"
	"slices"
	"sort"
)

// Cut says where a text is going to be edited: indexes in order, in units.
type Cut struct {
	Text *Text
	At   []int
}

// Cut prepares many edits: it divides the items of texts where they begin and end. An
// edit does that by itself, but then the list of all items of a client makes room for each,
// which takes long where there are many edits in a document of a million items. Nobody sees
// a difference: what is not edited in the same transaction is joined again.
func (t *Txn) Cut(cuts []Cut) {
	d := t.doc
	var at []place
	for _, c := range cuts {
		if b := (*branch)(c.Text); b.doc == d && b.flags&brDead == 0 {
			at = b.places(at, c.At)
		}
	}
	slices.SortFunc(at, func(a, b place) int { return cmp.Or(cmp.Compare(a.client, b.client), cmp.Compare(a.clock, b.clock)) })
	at = slices.Compact(at)
	for len(at) > 0 {
		n := 1
		for n < len(at) && at[n].client == at[0].client {
			n++
		}
		d.splitAll(at[:n])
		at = at[n:]
	}
}

// places appends which units within items are at indexes, but for those within a
// surrogate pair, which would be torn.
func (b *branch) places(out []place, at []int) []place {
	from := 0
	for r := b.start; r != 0 && len(at) > 0; r = b.doc.at(r).right {
		it := b.doc.at(r)
		if !it.shown() {
			continue
		}
		var body []byte // from unit done on, where units are not bytes
		done := 0
		if it.kind == kindString && it.flags&itASCII == 0 {
			body = b.doc.textOf(it)
		}
		for ; len(at) > 0 && at[0] < from+int(it.length); at = at[1:] {
			n := at[0] - from
			if n <= done {
				continue
			}
			if body != nil {
				bytes, rest := wtf8Offset(body, uint64(n-done))
				if rest != 0 {
					continue
				}
				body, done = body[bytes:], n
			}
			out = append(out, place{it.client, it.clock + uint32(n)})
		}
		from += int(it.length)
	}
	return out
}

// splitAll divides the items of a client at clocks, which are in order.
func (d *Doc) splitAll(at []place) {
	c := &d.clients[at[0].client]
	s := c.structs
	out := make([]ref, 0, len(s)+len(at))
	from := 0 // s[:from] is in out
	for _, p := range at {
		next := from + sort.Search(len(s)-from, func(i int) bool { return d.at(s[from+i]).clock > p.clock })
		out = append(out, s[from:next]...)
		from = next
		last := out[len(out)-1]
		if diff := p.clock - d.at(last).clock; diff > 0 {
			out = append(out, d.splitItem(last, diff))
		}
	}
	c.structs = append(out, s[from:]...)
}
