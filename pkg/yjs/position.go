package yjs

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// RelativePosition is a position in a sequence that moves with its neighbour: a cursor, the
// end of a comment. It names a unit of content, or else the end (with Assoc below 0, the
// start) of a type, given by its root name or by the item that contains it.
type RelativePosition struct {
	Item *ID
	Root *string
	Type *ID
	// Assoc below 0 binds the position to the unit before it, otherwise to the unit after it.
	Assoc int
}

// RelativePosition returns the position of index in a shared type of this document.
func (d *Doc) RelativePosition(t any, index, assoc int) (RelativePosition, error) {
	b, ok := branchValue(t)
	if !ok || b.doc != d || b.flags&brDead != 0 {
		return RelativePosition{}, ErrDetached
	}
	if index < 0 || index > int(b.length) {
		return RelativePosition{}, fmt.Errorf("%w: position %d of %d", ErrRange, index, b.length)
	}
	at := func(r ref, n uint32) *ID {
		it := d.at(r)
		return &ID{d.clients[it.client].id, it.clock + n}
	}
	p := RelativePosition{Assoc: assoc}
	if b.item == 0 {
		name := d.keys[b.name]
		p.Root = &name
	} else {
		p.Type = at(b.item, 0)
	}
	if assoc < 0 {
		if index == 0 {
			return p, nil
		}
		index--
	}
	for r := b.start; r != 0; {
		it := d.at(r)
		if it.shown() {
			if int(it.length) > index {
				p.Item = at(r, uint32(index))
				return p, nil
			}
			index -= int(it.length)
		}
		if it.right == 0 && assoc < 0 {
			p.Item = at(r, it.length-1)
		}
		r = it.right
	}
	return p, nil
}

// AbsolutePosition returns the type and index of a position. ok is false if the position is
// unknown or was collected.
func (d *Doc) AbsolutePosition(p RelativePosition) (t any, index int, ok bool) {
	if p.Item != nil {
		r, diff, ok := d.followRedone(*p.Item)
		if !ok {
			return nil, 0, false
		}
		it := d.at(r)
		if it.kind == kindGC {
			return nil, 0, false
		}
		b := d.branches[it.parent]
		if !b.deletedItem() {
			if it.shown() && it.countable() {
				index = int(diff)
				if p.Assoc < 0 {
					index++
				}
			}
			for l := it.left; l != 0; l = d.at(l).left {
				if n := d.at(l); n.shown() {
					index += int(n.length)
				}
			}
		}
		return b.public(), index, true
	}
	var b *branch
	switch {
	case p.Root != nil:
		b = d.roots[*p.Root]
	case p.Type != nil:
		r, _, ok := d.followRedone(*p.Type)
		if ok {
			b = d.branchOf(d.at(r))
		}
	}
	if b == nil {
		return nil, 0, false
	}
	if p.Assoc >= 0 {
		index = int(b.length)
	}
	return b.public(), index, true
}

// followRedone returns the item with a unit, or the one that an undo created in its place.
func (d *Doc) followRedone(id ID) (r ref, diff uint32, ok bool) {
	for {
		ci := d.lookup(id.Client)
		if ci == none || d.clients[ci].state <= id.Clock {
			return 0, 0, false
		}
		r = d.itemAt(ci, id.Clock)
		it := d.at(r)
		diff = id.Clock - it.clock
		if it.flags&itRedone == 0 {
			return r, diff, true
		}
		id = d.redone[r]
		id.Clock += diff
	}
}

// Encode returns the position in the format of encodeRelativePosition in Yjs.
func (p RelativePosition) Encode() []byte {
	var b []byte
	switch {
	case p.Item != nil:
		b = binary.AppendUvarint(binary.AppendUvarint(append(b, 0), p.Item.Client), uint64(p.Item.Clock))
	case p.Root != nil:
		b = appendString(append(b, 1), *p.Root)
	case p.Type != nil:
		b = binary.AppendUvarint(binary.AppendUvarint(append(b, 2), p.Type.Client), uint64(p.Type.Clock))
	}
	if p.Assoc < 0 {
		return appendVarint(b, uint64(-p.Assoc), true)
	}
	return appendVarint(b, uint64(p.Assoc), false)
}

// DecodeRelativePosition decodes a position of [RelativePosition.Encode] or Yjs.
func DecodeRelativePosition(b []byte) (RelativePosition, error) {
	c := cursor{b: b}
	var p RelativePosition
	switch c.uvarint() {
	case 0:
		p.Item = &ID{Client: c.uvarint(), Clock: c.clock()}
	case 1:
		s := string(c.str())
		p.Root = &s
	case 2:
		p.Type = &ID{Client: c.uvarint(), Clock: c.clock()}
	default:
		return RelativePosition{}, ErrMalformed
	}
	if c.more() {
		n, negative := c.varint()
		p.Assoc = int(n)
		if negative {
			p.Assoc = -p.Assoc
		}
	}
	if c.bad {
		return RelativePosition{}, ErrMalformed
	}
	return p, nil
}

// jsonPosition is the form of cursors in the awareness states of editors.
type jsonPosition struct {
	Type  *jsonID `json:"type"`
	Root  *string `json:"tname"`
	Item  *jsonID `json:"item"`
	Assoc int     `json:"assoc"`
}

type jsonID struct {
	Client uint64 `json:"client"`
	Clock  uint32 `json:"clock"`
}

// MarshalJSON writes the form of JavaScript peers.
func (p RelativePosition) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonPosition{(*jsonID)(p.Type), p.Root, (*jsonID)(p.Item), p.Assoc})
}

// UnmarshalJSON reads the form of JavaScript peers.
func (p *RelativePosition) UnmarshalJSON(b []byte) error {
	var j jsonPosition
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	*p = RelativePosition{Type: (*ID)(j.Type), Root: j.Root, Item: (*ID)(j.Item), Assoc: j.Assoc}
	return nil
}
