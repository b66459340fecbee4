package yjs

import "fmt"

// ownClient returns the index of the document's own client. It takes a new client id when half of
// the clocks are used up, which only another writer can cause.
func (d *Doc) ownClient() uint32 {
	ci := d.clientOf(d.clientID)
	for d.clients[ci].state > maxClock/2 {
		d.clientID = newClientID()
		ci = d.clientOf(d.clientID)
	}
	return ci
}

// insertItem creates a local item between two adjacent items.
func (d *Doc) insertItem(b *branch, left, right ref, sub uint32, kind uint8, length uint32, fill func(*item)) ref {
	ci := d.ownClient()
	r, it := d.newItem()
	*it = item{
		clock: d.clients[ci].state, length: length, client: ci, left: left, right: right,
		oClient: none, rClient: none, parent: b.index, sub: sub, kind: kind,
	}
	if left != 0 {
		l := d.at(left)
		it.oClient, it.oClock = l.client, l.end()-1
	}
	if right != 0 {
		n := d.at(right)
		it.rClient, it.rClock = n.client, n.clock
	}
	fill(it)
	scan := d.txn.scan
	d.txn.scan = 1 << 62 // local items need no search
	d.integrate(r, it)
	d.txn.scan = scan
	return r
}

// payload returns a function that sets the payload of an item.
func (d *Doc) payload(v any) func(*item) {
	return func(it *item) { it.a = d.newPayload(v) }
}

// insertString creates a local text between left and right, or extends left.
func (d *Doc) insertString(b *branch, left, right ref, p []byte, n uint32, ascii bool) ref {
	ci := d.ownClient()
	if s := d.clients[ci].structs; left != 0 && len(s) > 0 && s[len(s)-1] == left {
		var rc, rk uint32 = none, 0
		if right != 0 {
			r := d.at(right)
			rc, rk = r.client, r.clock
		}
		if d.extendLast(ci, rc, rk, p, n, ascii) {
			return left
		}
	}
	return d.insertItem(b, left, right, 0, kindString, n, func(it *item) { d.setText(it, p, ascii) })
}

// content is an inserted value with its kind.
type content struct {
	kind uint8
	v    any
}

func (d *Doc) contentOf(v any) (content, error) {
	if b, ok := branchValue(v); ok {
		if b == nil || b.doc != nil || b.flags&brDead != 0 {
			return content{}, ErrDetached
		}
		return content{kindType, b}, nil
	}
	switch v := v.(type) {
	case []byte:
		n, err := normalize(v)
		return content{kindBinary, n}, err
	case *Subdoc:
		if v == nil || v.parent != nil {
			return content{}, ErrDetached
		}
		o, err := normalize(v.options)
		v.options, _ = o.(Object)
		return content{kindDoc, v}, err
	default:
		n, err := normalize(v)
		return content{kindAny, n}, err
	}
}

func (d *Doc) contentsOf(vs []any) ([]content, error) {
	cs := make([]content, 0, len(vs))
	for _, v := range vs {
		c, err := d.contentOf(v)
		if err != nil {
			return nil, err
		}
		cs = append(cs, c)
	}
	return cs, nil
}

// placeBranch prepares a type for the item that will contain it.
func (d *Doc) placeBranch(v any) {
	if b, ok := v.(*branch); ok {
		d.register(b)
		if b.nodeName != "" || b.kind == refXMLElement || b.kind == refXMLHook {
			b.name = d.keyOf(b.nodeName)
			b.nodeName = ""
		}
	}
}

// insertValues inserts values after left.
func (d *Doc) insertValues(b *branch, left ref, cs []content) {
	right := b.start
	if left != 0 {
		right = d.at(left).right
	}
	var run []any
	pack := func() {
		if len(run) > 0 {
			left = d.insertItem(b, left, right, 0, kindAny, uint32(len(run)), d.payload(run))
			run = nil
		}
	}
	for _, c := range cs {
		if c.kind == kindAny {
			run = append(run, c.v)
			continue
		}
		pack()
		d.placeBranch(c.v)
		left = d.insertItem(b, left, right, 0, c.kind, 1, d.payload(c.v))
	}
	pack()
}

// insertAt inserts values at an index.
func (b *branch) insertAt(index int, vs []any) error {
	if b.flags&brDead != 0 {
		return ErrDetached
	}
	if index < 0 || b.doc != nil && index > int(b.length) {
		return fmt.Errorf("%w: insert at %d of %d", ErrRange, index, b.length)
	}
	cs, err := b.doc.contentsOf(vs)
	if err != nil {
		return err
	}
	if b.doc == nil {
		b.prelim = append(b.prelim, func() { b.insertContents(min(index, int(b.length)), cs) })
		return nil
	}
	if len(cs) > 0 {
		_, opened := b.doc.begin(nil, true)
		b.insertContents(index, cs)
		b.doc.end(opened)
	}
	return nil
}

func (b *branch) insertContents(index int, cs []content) {
	d := b.doc
	if index == 0 {
		b.shiftMarkers(0, len(cs))
		d.insertValues(b, 0, cs)
		return
	}
	at := index
	n := b.start
	if m := b.marker(index); m != nil {
		n = m.item
		at -= m.index
		if at == 0 {
			// Start one item to the left: the loop looks for the item before the position.
			for n = d.at(n).left; n != 0 && d.at(n).deleted(); {
				n = d.at(n).left
			}
			if n != 0 && d.at(n).shown() {
				at += int(d.at(n).length)
			}
		}
	}
	for ; n != 0; n = d.at(n).right {
		it := d.at(n)
		if it.shown() {
			if at <= int(it.length) {
				if at < int(it.length) {
					d.cleanStart(it.client, it.clock+uint32(at))
				}
				break
			}
			at -= int(it.length)
		}
	}
	b.shiftMarkers(index, len(cs))
	d.insertValues(b, n, cs)
}

// push inserts after the last item, deleted or not.
func (b *branch) push(vs []any) error {
	if b.doc == nil || b.flags&brDead != 0 {
		return b.insertAt(b.tail(), vs)
	}
	cs, err := b.doc.contentsOf(vs)
	if err != nil {
		return err
	}
	if len(cs) == 0 {
		return nil
	}
	d := b.doc
	_, opened := d.begin(nil, true)
	n := b.start
	if b.markers != nil {
		most := 0
		for _, m := range b.markers.list {
			if m.index > most {
				n, most = m.item, m.index
			}
		}
	}
	for n != 0 && d.at(n).right != 0 {
		n = d.at(n).right
	}
	d.insertValues(b, n, cs)
	d.end(opened)
	return nil
}

// deleteAt deletes n units from index.
func (b *branch) deleteAt(index, n int) error {
	if b.flags&brDead != 0 {
		return ErrDetached
	}
	if n == 0 {
		return nil
	}
	if index < 0 || n < 0 || b.doc != nil && (index > int(b.length) || n > int(b.length)-index) {
		return fmt.Errorf("%w: delete %d at %d of %d", ErrRange, n, index, b.length)
	}
	if b.doc == nil {
		b.prelim = append(b.prelim, func() { _ = b.deleteAt(index, min(n, max(0, int(b.length)-index))) })
		return nil
	}
	d := b.doc
	_, opened := d.begin(nil, true)
	at, left := index, n
	r := b.start
	if m := b.marker(index); m != nil {
		r = m.item
		at -= m.index
	}
	for ; r != 0 && at > 0; r = d.at(r).right {
		if it := d.at(r); it.shown() {
			if at < int(it.length) {
				d.cleanStart(it.client, it.clock+uint32(at))
			}
			at -= int(it.length)
		}
	}
	for left > 0 && r != 0 {
		it := d.at(r)
		if !it.deleted() && it.countable() {
			if left < int(it.length) {
				d.cleanStart(it.client, it.clock+uint32(left))
			}
			left -= int(it.length)
			d.deleteItem(r)
		}
		r = it.right
	}
	b.shiftMarkers(index, -n+left)
	d.end(opened)
	return nil
}

// each calls f for the values of the sequence until f returns false.
func (b *branch) each(f func(v any) bool) {
	if b.doc == nil || b.flags&brDead != 0 {
		return
	}
	d := b.doc
	for r := b.start; r != 0; {
		it := d.at(r)
		r = it.right
		if !it.shown() {
			continue
		}
		if !d.eachValue(it, f) {
			return
		}
	}
}

func (d *Doc) eachValue(it *item, f func(v any) bool) bool {
	switch it.kind {
	case kindAny, kindJSON:
		vs, _ := d.payloads[it.a].([]any)
		for _, v := range vs {
			if !f(v) {
				return false
			}
		}
		return true
	case kindString:
		for _, u := range units16(string(d.textOf(it))) {
			if !f(unitString(u)) {
				return false
			}
		}
		return true
	default:
		return f(d.value(it))
	}
}

// value returns the last value of an item.
func (d *Doc) value(it *item) any {
	switch it.kind {
	case kindAny, kindJSON:
		vs, _ := d.payloads[it.a].([]any)
		return vs[len(vs)-1]
	case kindType:
		return d.branchOf(it).public()
	case kindBinary, kindEmbed, kindDoc:
		return d.payloads[it.a]
	case kindString:
		us := units16(string(d.textOf(it)))
		return unitString(us[len(us)-1])
	}
	return Undefined
}

// get returns the value at an index.
func (b *branch) get(index int) (any, bool) {
	if b.doc == nil || index < 0 || index >= int(b.length) {
		return nil, false
	}
	d := b.doc
	r := b.start
	if m := b.marker(index); m != nil {
		r = m.item
		index -= m.index
	}
	for ; r != 0; r = d.at(r).right {
		it := d.at(r)
		if !it.shown() {
			continue
		}
		if index >= int(it.length) {
			index -= int(it.length)
			continue
		}
		switch it.kind {
		case kindAny, kindJSON:
			vs, _ := d.payloads[it.a].([]any)
			return vs[index], true
		case kindString:
			return unitString(units16(string(d.textOf(it)))[index]), true
		}
		return d.value(it), true
	}
	return nil, false
}

// setKey sets a key.
func (b *branch) setKey(key string, v any) error {
	if b.flags&brDead != 0 {
		return ErrDetached
	}
	c, err := b.doc.contentOf(v)
	if err != nil {
		return err
	}
	key = validText(key)
	if b.doc == nil {
		b.prelim = append(b.prelim, func() { b.setContent(key, c) })
		return nil
	}
	_, opened := b.doc.begin(nil, true)
	b.setContent(key, c)
	b.doc.end(opened)
	return nil
}

func (b *branch) setContent(key string, c content) {
	d := b.doc
	sub := d.keyOf(key)
	v := c.v
	if c.kind == kindAny {
		v = []any{v}
	}
	d.placeBranch(v)
	d.insertItem(b, b.entry(sub), 0, sub, c.kind, 1, d.payload(v))
}

// deleteKey deletes a key.
func (b *branch) deleteKey(key string) {
	if b.doc == nil {
		b.prelim = append(b.prelim, func() { b.deleteKey(key) })
		return
	}
	sub, ok := b.doc.keyIndex[key]
	if !ok {
		return
	}
	if r := b.entry(sub); r != 0 {
		_, opened := b.doc.begin(nil, true)
		b.doc.deleteItem(r)
		b.doc.end(opened)
	}
}

// getKey returns the value of a key.
func (b *branch) getKey(key string) (any, bool) {
	if b.doc == nil {
		return nil, false
	}
	sub, ok := b.doc.keyIndex[key]
	if !ok {
		return nil, false
	}
	r := b.entry(sub)
	if r == 0 {
		return nil, false
	}
	it := b.doc.at(r)
	if it.deleted() {
		return nil, false
	}
	return b.doc.value(it), true
}

// eachKey calls f for the keys in the order in which they were first set.
func (b *branch) eachKey(f func(key string, v any) bool) {
	if b.doc == nil {
		return
	}
	for _, e := range b.entries {
		if it := b.doc.at(e.item); !it.deleted() && !f(b.doc.keys[e.key], b.doc.value(it)) {
			return
		}
	}
}

// flush performs the edits that were made before insertion.
func (b *branch) flush() {
	fs := b.prelim
	b.prelim = nil
	for _, f := range fs {
		f()
	}
}
