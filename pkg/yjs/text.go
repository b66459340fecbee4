package yjs

import "slices"

// Text is text with formats and embeds. Indexes and lengths count UTF-16 units, like all
// peers. An index inside a grapheme moves to its boundary, so that local edits never split
// one; an index after the end means the end.
type Text branch

// Op is a step of a delta: an insert (a string, a value or a shared type), a delete or a
// retain, with the formats of an insert or the changed formats of a retain.
type Op struct {
	Insert     any
	Delete     int
	Retain     int
	Attributes Object
}

// NewText returns a text to be inserted into a type. It keeps edits made before.
func NewText(s string) *Text {
	t := (*Text)(&branch{kind: refText})
	if s != "" {
		t.Insert(0, s)
	}
	return t
}

// Len returns the number of units. An embed counts as one.
func (t *Text) Len() int { return int(t.length) }

// String returns the text without formats and embeds.
func (t *Text) String() string {
	if t.doc == nil {
		return ""
	}
	d := t.doc
	n := 0
	for r := t.start; r != 0; r = d.at(r).right {
		if it := d.at(r); it.kind == kindString && !it.deleted() {
			n += int(it.b)
		}
	}
	out := make([]byte, 0, n)
	for r := t.start; r != 0; r = d.at(r).right {
		if it := d.at(r); it.kind == kindString && !it.deleted() {
			out = joinWTF8(out, d.textOf(it))
		}
	}
	replaceSurrogates(out)
	return string(out)
}

// edit runs f in a transaction, or keeps it until the type is inserted.
func (b *branch) edit(f func()) {
	switch {
	case b.flags&brDead != 0:
	case b.doc == nil:
		b.prelim = append(b.prelim, f)
	default:
		d := b.doc
		_, opened := d.begin(nil, true)
		f()
		d.end(opened)
	}
}

// Insert inserts text with the formats of the text before it.
func (t *Text) Insert(index int, s string) {
	s = validText(s)
	if s == "" {
		return
	}
	b := (*branch)(t)
	if b.doc != nil && b.flags&brDead == 0 { // the fast path for typing: no closure
		d := b.doc
		_, opened := d.begin(nil, true)
		b.insert(index, s)
		d.end(opened)
		return
	}
	b.edit(func() { b.insert(index, s) })
}

func (b *branch) insert(index int, s string) {
	pos := b.position(b.snap(index, false), true)
	attrs := pos.attrs.object(b.doc)
	d := b.doc
	p := append(d.scratch[:0], s...)
	n, ascii := len16(p)
	b.insertAtPos(&pos, inserted{text: p, length: n, ascii: ascii}, attrs)
	if d.scratch = p; cap(p) > 1024 {
		d.scratch = nil
	}
}

// InsertFormatted inserts text with exactly these formats.
func (t *Text) InsertFormatted(index int, s string, attrs Object) error {
	attrs, err := cleanAttrs(attrs)
	if err != nil || s == "" {
		return err
	}
	b := (*branch)(t)
	p := []byte(validText(s))
	b.edit(func() {
		pos := b.position(b.snap(index, false), false)
		n, ascii := len16(p)
		b.insertAtPos(&pos, inserted{text: p, length: n, ascii: ascii}, attrs)
	})
	return nil
}

// InsertEmbed inserts a value or a shared type, which counts as one unit.
func (t *Text) InsertEmbed(index int, v any, attrs Object) error {
	b := (*branch)(t)
	attrs, err := cleanAttrs(attrs)
	if err != nil {
		return err
	}
	in, err := b.embed(v)
	if err != nil {
		return err
	}
	b.edit(func() {
		pos := b.position(b.snap(index, false), len(attrs) == 0)
		b.insertAtPos(&pos, in, attrs)
	})
	return nil
}

func (b *branch) embed(v any) (inserted, error) {
	if x, ok := branchValue(v); ok {
		if x == nil || x.doc != nil {
			return inserted{}, ErrDetached
		}
		return inserted{kind: kindType, value: x, length: 1}, nil
	}
	n, err := normalize(v)
	return inserted{kind: kindEmbed, value: n, length: 1}, err
}

// Delete deletes n units.
func (t *Text) Delete(index, n int) {
	b := (*branch)(t)
	if n <= 0 {
		return
	}
	b.edit(func() { b.remove(index, n) })
}

func (b *branch) remove(index, n int) {
	end := b.snap(index+n, true)
	index = b.snap(index, false)
	if end > index {
		pos := b.position(index, true)
		b.deleteText(&pos, end-index)
	}
}

// Format sets formats on n units. A nil value removes a format.
func (t *Text) Format(index, n int, attrs Object) error {
	attrs, err := cleanAttrs(attrs)
	if err != nil || n <= 0 {
		return err
	}
	b := (*branch)(t)
	b.edit(func() {
		end := b.snap(index+n, true)
		from := b.snap(index, false)
		pos := b.position(from, false)
		if pos.right != 0 && end > from {
			b.formatText(&pos, end-from, attrs)
		}
	})
	return nil
}

// ApplyDelta applies a delta.
func (t *Text) ApplyDelta(delta []Op) error {
	b := (*branch)(t)
	type step struct {
		Op
		in inserted
	}
	steps := make([]step, 0, len(delta))
	for _, op := range delta {
		s := step{Op: op}
		var err error
		if s.Attributes, err = cleanAttrs(op.Attributes); err != nil {
			return err
		}
		switch v := op.Insert.(type) {
		case nil:
		case string:
			p := []byte(validText(v))
			n, ascii := len16(p)
			s.in = inserted{text: p, length: n, ascii: ascii}
		default:
			if s.in, err = b.embed(v); err != nil {
				return err
			}
		}
		steps = append(steps, s)
	}
	b.edit(func() {
		pos := textPos{right: b.start}
		for _, s := range steps {
			switch {
			case s.Insert != nil:
				if s.in.length > 0 {
					b.insertAtPos(&pos, s.in, slices.Clone(s.Attributes))
				}
			case s.Delete > 0:
				b.deleteText(&pos, s.Delete)
			case s.Retain > 0:
				b.formatText(&pos, min(s.Retain, int(b.length)+1), s.Attributes)
			}
		}
	})
	return nil
}

func cleanAttrs(attrs Object) (Object, error) {
	if len(attrs) == 0 {
		return nil, nil
	}
	v, err := normalize(attrs)
	if err != nil {
		return nil, err
	}
	o, _ := v.(Object)
	return o, nil
}

// Attribute returns an attribute of the text as a whole.
func (t *Text) Attribute(name string) (any, bool) { return (*branch)(t).getKey(name) }

// Attributes returns all attributes of the text as a whole.
func (t *Text) Attributes() Object { return (*branch)(t).attributes() }

// SetAttribute sets an attribute of the text as a whole.
func (t *Text) SetAttribute(name string, v any) error { return (*branch)(t).setKey(name, v) }

// RemoveAttribute removes an attribute of the text as a whole.
func (t *Text) RemoveAttribute(name string) { (*branch)(t).deleteKey(name) }

// Delta returns text, formats and embeds.
func (t *Text) Delta() []Op { return (*branch)(t).delta(visible{}) }

// inserted is the argument of insertAtPos.
type inserted struct {
	kind   uint8 // 0 for text
	text   []byte
	length uint32
	ascii  bool
	value  any
}

// attr is a format in effect.
type attr struct {
	key   uint32
	value any
}

type attrs []attr

func (as attrs) get(key uint32) any {
	for i := range as {
		if as[i].key == key {
			return as[i].value
		}
	}
	return nil
}

func (as attrs) has(key uint32) bool {
	return slices.ContainsFunc(as, func(a attr) bool { return a.key == key })
}

func (as attrs) set(key uint32, v any) attrs {
	for i := range as {
		if as[i].key == key {
			as[i].value = v
			return as
		}
	}
	return append(as, attr{key, v})
}

func (as attrs) without(key uint32) attrs {
	return slices.DeleteFunc(as, func(a attr) bool { return a.key == key })
}

// object returns the formats by name.
func (as attrs) object(d *Doc) Object {
	var o Object
	for _, a := range as {
		o = o.Set(d.keys[a.key], a.value)
	}
	return o
}

// update applies a format: nil ends one.
func (as attrs) update(key uint32, v any) attrs {
	if v == nil {
		return as.without(key)
	}
	return as.set(key, v)
}

// textPos is a position between two items with the formats in effect.
type textPos struct {
	left, right ref
	index       int
	attrs       attrs
}

// forward moves past the item on the right.
func (b *branch) forward(p *textPos) {
	it := b.doc.at(p.right)
	if !it.deleted() {
		if it.kind == kindFormat {
			p.attrs = p.attrs.update(it.b, b.doc.payloads[it.a])
		} else {
			p.index += int(it.length)
		}
	}
	p.left, p.right = p.right, it.right
}

// position finds an index. Positions from markers lack formats.
func (b *branch) position(index int, useMarkers bool) textPos {
	d := b.doc
	pos := textPos{right: b.start}
	n := index
	if useMarkers {
		if m := b.marker(index); m != nil {
			pos = textPos{left: d.at(m.item).left, right: m.item, index: m.index}
			n -= m.index
		}
	}
	for pos.right != 0 && n > 0 {
		it := d.at(pos.right)
		if it.shown() {
			if n < int(it.length) {
				d.cleanStart(it.client, it.clock+uint32(n))
			}
			n -= int(it.length)
		}
		b.forward(&pos)
	}
	return pos
}

func (b *branch) insertFormat(pos *textPos, key uint32, v any) {
	d := b.doc
	pos.right = d.insertItem(b, pos.left, pos.right, 0, kindFormat, 1, func(it *item) {
		it.a, it.b = d.newPayload(v), key
	})
	b.forward(pos)
}

// minimize moves past formats that are wanted anyway.
func (b *branch) minimize(pos *textPos, want Object) {
	d := b.doc
	for pos.right != 0 {
		it := d.at(pos.right)
		if !it.deleted() {
			if it.kind != kindFormat {
				return
			}
			v, ok := want.Get(d.keys[it.b])
			if !ok || v == Undefined {
				v = nil
			}
			if !equalValues(v, d.payloads[it.a]) {
				return
			}
		}
		b.forward(pos)
	}
}

// insertFormats starts formats and returns the formats that end them.
func (b *branch) insertFormats(pos *textPos, want Object) (negated attrs) {
	for _, m := range want {
		key := b.doc.keyOf(m.Key)
		cur := pos.attrs.get(key)
		if cur == Undefined {
			cur = nil
		}
		if !equalValues(cur, m.Value) {
			negated = negated.set(key, cur)
			b.insertFormat(pos, key, m.Value)
		}
	}
	return negated
}

func (b *branch) endFormats(pos *textPos, negated attrs) {
	d := b.doc
	for pos.right != 0 {
		it := d.at(pos.right)
		if !it.deleted() {
			if it.kind != kindFormat || !negated.has(it.b) || !equalValues(negated.get(it.b), d.payloads[it.a]) {
				break
			}
			negated = negated.without(it.b)
		}
		b.forward(pos)
	}
	for _, n := range negated {
		b.insertFormat(pos, n.key, n.value)
	}
}

func (b *branch) insertAtPos(pos *textPos, in inserted, want Object) {
	d := b.doc
	for _, a := range pos.attrs {
		if v, ok := want.Get(d.keys[a.key]); !ok || v == Undefined {
			want = want.Set(d.keys[a.key], nil)
		}
	}
	b.minimize(pos, want)
	var negated attrs
	if len(want) > 0 {
		negated = b.insertFormats(pos, want)
	}
	b.shiftMarkers(pos.index, int(in.length))
	if in.kind == 0 {
		r := d.insertString(b, pos.left, pos.right, in.text, in.length, in.ascii)
		if r == pos.left {
			pos.index += int(in.length)
		} else {
			pos.right = r
			b.forward(pos)
		}
	} else {
		d.placeBranch(in.value)
		pos.right = d.insertItem(b, pos.left, pos.right, 0, in.kind, 1, d.payload(in.value))
		b.forward(pos)
	}
	b.endFormats(pos, negated)
}

func (b *branch) formatText(pos *textPos, n int, want Object) {
	d := b.doc
	b.minimize(pos, want)
	negated := b.insertFormats(pos, want)
	for pos.right != 0 {
		it := d.at(pos.right)
		if n <= 0 && (len(negated) == 0 || (!it.deleted() && it.kind != kindFormat)) {
			break
		}
		if !it.deleted() {
			if it.kind != kindFormat {
				if n < int(it.length) {
					d.cleanStart(it.client, it.clock+uint32(n))
				}
				n -= int(it.length)
			} else if v, ok := want.Get(d.keys[it.b]); ok && v != Undefined {
				have := d.payloads[it.a]
				if equalValues(v, have) {
					negated = negated.without(it.b)
				} else {
					if n == 0 {
						break
					}
					negated = negated.set(it.b, have)
				}
				d.deleteItem(pos.right)
			} else {
				pos.attrs = pos.attrs.set(it.b, d.payloads[it.a])
			}
		}
		b.forward(pos)
	}
	b.endFormats(pos, negated)
}

func (b *branch) deleteText(pos *textPos, n int) {
	d := b.doc
	length := n
	at, start, startAttrs := pos.index, pos.right, slices.Clone(pos.attrs)
	for n > 0 && pos.right != 0 {
		it := d.at(pos.right)
		if it.shown() && (it.kind == kindString || it.kind == kindType || it.kind == kindEmbed) {
			if n < int(it.length) {
				d.cleanStart(it.client, it.clock+uint32(n))
			}
			n -= int(it.length)
			d.deleteItem(pos.right)
		}
		b.forward(pos)
	}
	if start != 0 && b.flags&brFormatted != 0 {
		pos.attrs = b.cleanGap(start, pos.right, startAttrs, pos.attrs)
	}
	if b.shiftMarkers(at, -length+n); pos.index != at { // it passed over values of another kind
		b.forgetMarkers()
	}
}

// cleanGap deletes formats without effect between start and the next visible item, and returns
// the formats in effect at cur.
func (b *branch) cleanGap(start, cur ref, before, now attrs) attrs {
	d := b.doc
	end := start
	var last attrs // the last item that sets each key
	for end != 0 {
		it := d.at(end)
		if it.shown() {
			break
		}
		if !it.deleted() {
			last = last.set(it.b, end)
		}
		end = it.right
	}
	reached := false
	for r := start; r != end; {
		it := d.at(r)
		if r == cur {
			reached = true
		}
		if !it.deleted() && it.kind == kindFormat {
			key, v := it.b, d.payloads[it.a]
			was := before.get(key)
			if last.get(key) != r || equalValues(was, v) {
				d.deleteItem(r)
				if !reached && equalValues(now.get(key), v) && !equalValues(was, v) {
					now = now.update(key, was)
				}
			}
			if !reached && !it.deleted() {
				now = now.update(key, v)
			}
		}
		r = it.right
	}
	return now
}
