package yjs

import (
	"cmp"
	"slices"
	"sort"
)

// Cut lists the sorted indexes, in units, at which a text will be edited.
type Cut struct {
	Text *Text
	At   []int
}

// Cut prepares many edits by splitting the items of texts at their boundaries. Each edit would
// do so itself, but would then move the list entries after it, which is slow for many edits
// in a document with a million items. The result is the same: items that are not edited in
// the same transaction are merged again.
func (t *Txn) Cut(cuts []Cut) {
	d := t.doc
	var at []itemPos
	for _, c := range cuts {
		if b := (*branch)(c.Text); b.doc == d && b.flags&brDead == 0 {
			at = b.places(at, c.At)
		}
	}
	slices.SortFunc(at, func(a, b itemPos) int { return cmp.Or(cmp.Compare(a.client, b.client), cmp.Compare(a.clock, b.clock)) })
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

// places appends the positions of indexes inside items, except those inside a surrogate pair,
// which must not be split.
func (b *branch) places(out []itemPos, at []int) []itemPos {
	from := 0
	for r := b.start; r != 0 && len(at) > 0; r = b.doc.at(r).right {
		it := b.doc.at(r)
		if !it.shown() {
			continue
		}
		var body []byte // the text from unit done, unless it is ASCII
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
			out = append(out, itemPos{it.client, it.clock + uint32(n)})
		}
		from += int(it.length)
	}
	return out
}

// splitAll splits the items of a client at sorted clocks.
func (d *Doc) splitAll(at []itemPos) {
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
