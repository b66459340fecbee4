package yjs

import (
	"cmp"
	"slices"
)

// watchers are the observers of a type.
type watchers struct {
	shallow []*listener[func(*Event)]
	deep    []*listener[func([]*Event)]
}

// Event describes the changes of a type in a transaction. It is valid until the observer
// returns.
type Event struct {
	target *branch
	txn    *Txn
	subs   []uint32 // changed keys
	seq    bool     // the sequence changed
}

// Action is the kind of a key's change.
type Action uint8

// The actions.
const (
	Added Action = iota + 1
	Updated
	Deleted
)

// KeyChange is the change of a key. Old is the previous value, unless the key was added.
type KeyChange struct {
	Key    string
	Action Action
	Old    any
}

// Target returns the changed type: a *Text, *Map, *Array or one of the XML types.
func (e *Event) Target() any { return e.target.public() }

// Txn returns the transaction.
func (e *Event) Txn() *Txn { return e.txn }

// Path returns the path to the type: the name of its root, then keys (string) and indexes
// (int).
func (e *Event) Path() []any { return e.target.path() }

func (b *branch) path() []any {
	var out []any
	d := b.doc
	for b.item != 0 {
		it := d.at(b.item)
		p := d.branches[it.parent]
		if it.sub != 0 {
			out = append(out, d.keys[it.sub])
		} else {
			n := 0
			for r := p.start; r != 0 && r != b.item; {
				c := d.at(r)
				if c.shown() {
					n += int(c.length)
				}
				r = c.right
			}
			out = append(out, n)
		}
		b = p
	}
	out = append(out, d.keys[b.name])
	slices.Reverse(out)
	return out
}

// Keys returns the changes of keys.
func (e *Event) Keys() []KeyChange {
	var out []KeyChange
	d, t := e.txn.doc, e.txn
	for _, sub := range e.subs {
		r := e.target.entry(sub)
		if r == 0 {
			continue
		}
		it := d.at(r)
		c := KeyChange{Key: d.keys[sub]}
		if !t.adds(it.client, it.clock) {
			if !t.deletes(it.client, it.clock) {
				continue
			}
			c.Action, c.Old = Deleted, d.value(it)
			out = append(out, c)
			continue
		}
		prev := it.left
		for prev != 0 && t.adds(d.at(prev).client, d.at(prev).clock) {
			prev = d.at(prev).left
		}
		had := prev != 0 && t.deletes(d.at(prev).client, d.at(prev).clock)
		gone := t.deletes(it.client, it.clock)
		switch {
		case gone && !had:
			continue
		case gone:
			c.Action = Deleted
		case had:
			c.Action = Updated
		default:
			c.Action = Added
		}
		if had {
			c.Old = d.value(d.at(prev))
		}
		out = append(out, c)
	}
	return out
}

// Delta returns the changes of the sequence. Inserts are strings and embeds for a text, and
// []any for other sequences.
func (e *Event) Delta() []Op {
	if !e.seq {
		return nil
	}
	if e.target.kind == refText || e.target.kind == refXMLText {
		w := deltaWriter{e: e, d: e.txn.doc}
		return w.run()
	}
	var ops []Op
	d := e.txn.doc
	e.parts(func(it *item, from, to uint32, added, deleted bool) {
		n := int(to - from)
		if !it.countable() {
			return
		}
		last := len(ops) - 1
		switch {
		case deleted:
			if last < 0 || ops[last].Delete == 0 {
				ops = append(ops, Op{Delete: n})
			} else {
				ops[last].Delete += n
			}
		case added:
			var vs []any
			d.eachValue(it, func(v any) bool {
				vs = append(vs, v)
				return true
			})
			vs = vs[from:to]
			if last >= 0 && ops[last].Insert != nil {
				have, _ := ops[last].Insert.([]any)
				ops[last].Insert = append(have, vs...)
			} else {
				ops = append(ops, Op{Insert: vs})
			}
		default:
			if last < 0 || ops[last].Retain == 0 {
				ops = append(ops, Op{Retain: n})
			} else {
				ops[last].Retain += n
			}
		}
	})
	if n := len(ops); n > 0 && ops[n-1].Retain > 0 {
		ops = ops[:n-1]
	}
	return ops
}

// parts visits the items of the sequence that exist before or after the transaction. An item
// that grew in place is visited in two parts.
func (e *Event) parts(f func(it *item, from, to uint32, added, deleted bool)) {
	d, t := e.txn.doc, e.txn
	for r := e.target.start; r != 0; {
		it := d.at(r)
		r = it.right
		before := t.before(it.client)
		deleted := it.deleted()
		gone := deleted && t.deletes(it.client, it.clock)
		if deleted && !gone {
			continue
		}
		old := it.length
		if before <= it.clock {
			old = 0
		} else if before < it.end() {
			old = before - it.clock
		}
		if old > 0 {
			f(it, 0, old, false, gone)
		}
		if old < it.length && !gone {
			f(it, old, it.length, true, false)
		}
	}
}

// deltaWriter builds the delta of a text.
type deltaWriter struct {
	e       *Event
	d       *Doc
	ops     []Op
	now     attrs  // the current formats
	was     attrs  // the formats before the transaction
	changed Object // the formats that a retain changes
	insert  []byte
	action  byte // the kind of the open op: i, r, d or 0
	n       int
}

func (w *deltaWriter) run() []Op {
	w.e.parts(w.part)
	w.close()
	for n := len(w.ops); n > 0 && w.ops[n-1].Retain > 0 && w.ops[n-1].Attributes == nil; n-- {
		w.ops = w.ops[:n-1]
	}
	return w.ops
}

func (w *deltaWriter) open(action byte) {
	if w.action != action {
		w.close()
		w.action = action
	}
}

func (w *deltaWriter) close() {
	switch w.action {
	case 'd':
		w.ops = append(w.ops, Op{Delete: w.n})
	case 'i':
		w.ops = append(w.ops, Op{Insert: string(w.insert), Attributes: w.now.object(w.d)})
		w.insert = nil
	case 'r':
		w.ops = append(w.ops, Op{Retain: w.n, Attributes: slices.Clone(w.changed)})
	}
	w.action, w.n = 0, 0
}

func (w *deltaWriter) part(it *item, from, to uint32, added, deleted bool) {
	switch {
	case it.kind == kindFormat:
		w.format(it, added, deleted)
	case !it.countable():
	case deleted:
		w.open('d')
		w.n += int(to - from)
	case !added:
		w.open('r')
		w.n += int(to - from)
	case it.kind == kindString:
		w.open('i')
		p := w.d.textOf(it)
		a, _ := wtf8Offset(p, uint64(from))
		w.insert = append(w.insert, p[a:]...)
	default:
		w.close()
		w.ops = append(w.ops, Op{Insert: w.d.value(it), Attributes: w.now.object(w.d)})
	}
}

func (w *deltaWriter) format(it *item, added, deleted bool) {
	key, v := it.b, w.d.payloads[it.a]
	name := w.d.keys[key]
	cur := w.now.get(key)
	retained := func() {
		if w.action == 'r' {
			w.close()
		}
	}
	switch {
	case added:
		if !equalValues(cur, v) {
			retained()
			if equalValues(v, w.was.get(key)) {
				w.changed = w.changed.Without(name)
			} else {
				w.changed = w.changed.Set(name, v)
			}
		}
	case deleted:
		w.was = w.was.set(key, v)
		if !equalValues(cur, v) {
			retained()
			w.changed = w.changed.Set(name, cur)
		}
	default:
		w.was = w.was.set(key, v)
		if c, ok := w.changed.Get(name); ok && !equalValues(c, v) {
			retained()
			if v == nil {
				w.changed = w.changed.Without(name)
			} else {
				w.changed = w.changed.Set(name, v)
			}
		}
	}
	if !deleted {
		if w.action == 'i' {
			w.close()
		}
		w.now = w.now.update(key, v)
	}
	if len(w.changed) == 0 {
		w.changed = nil
	}
}

func (b *branch) observe(f func(*Event)) (stop func()) {
	if b.watch == nil {
		b.watch = &watchers{}
	}
	return b.countObserver(listen(&b.watch.shallow, f))
}

func (b *branch) observeDeep(f func([]*Event)) (stop func()) {
	if b.watch == nil {
		b.watch = &watchers{}
	}
	return b.countObserver(listen(&b.watch.deep, f))
}

// countObserver registers an observer with the document until stop is called.
func (b *branch) countObserver(stop func()) func() {
	if b.doc == nil {
		return stop
	}
	b.doc.watched++
	done := false
	return func() {
		if !done {
			done = true
			b.doc.watched--
			stop()
		}
	}
}

// Observe calls f after every transaction that changed the text, until stop is called. The
// type must be part of a document.
func (t *Text) Observe(f func(*Event)) (stop func()) { return (*branch)(t).observe(f) }

// ObserveDeep calls f after every transaction that changed the text or a type inside it.
func (t *Text) ObserveDeep(f func([]*Event)) (stop func()) { return (*branch)(t).observeDeep(f) }

// Observe is like [Text.Observe].
func (a *Array) Observe(f func(*Event)) (stop func()) { return (*branch)(a).observe(f) }

// ObserveDeep is like [Text.ObserveDeep].
func (a *Array) ObserveDeep(f func([]*Event)) (stop func()) { return (*branch)(a).observeDeep(f) }

// Observe is like [Text.Observe].
func (m *Map) Observe(f func(*Event)) (stop func()) { return (*branch)(m).observe(f) }

// ObserveDeep is like [Text.ObserveDeep].
func (m *Map) ObserveDeep(f func([]*Event)) (stop func()) { return (*branch)(m).observeDeep(f) }

// Observe is like [Text.Observe].
func (f *XMLFragment) Observe(fn func(*Event)) (stop func()) { return (*branch)(f).observe(fn) }

// ObserveDeep is like [Text.ObserveDeep].
func (f *XMLFragment) ObserveDeep(fn func([]*Event)) (stop func()) {
	return (*branch)(f).observeDeep(fn)
}

// Observe is like [Text.Observe].
func (e *XMLElement) Observe(f func(*Event)) (stop func()) { return (*branch)(e).observe(f) }

// ObserveDeep is like [Text.ObserveDeep].
func (e *XMLElement) ObserveDeep(f func([]*Event)) (stop func()) {
	return (*branch)(e).observeDeep(f)
}

// Events returns the changes of the transaction, one event per type. It may be called from
// [Doc.OnTransaction].
func (t *Txn) Events() []*Event {
	var es []*Event
	at := make(map[*branch]*Event, len(t.changes))
	for _, c := range t.changes {
		if c.b.deletedItem() {
			continue
		}
		e := at[c.b]
		if e == nil {
			e = &Event{target: c.b, txn: t}
			at[c.b] = e
			es = append(es, e)
		}
		if c.sub == 0 {
			e.seq = true
		} else if !slices.Contains(e.subs, c.sub) {
			e.subs = append(e.subs, c.sub)
		}
	}
	return es
}

// ChangedRoots returns the names of the root types that changed or contain a change.
func (t *Txn) ChangedRoots() []string {
	var names []string
	for _, c := range t.changes {
		if c.b.flags&brDead != 0 {
			continue
		}
		b := c.b
		for p := b.parent(); p != nil; p = b.parent() {
			b = p
		}
		if name := t.doc.keys[b.name]; b.item == 0 && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// observe calls the observers of the changed types, of the types around them and of the
// document.
func (d *Doc) observe(t *Txn) {
	if d.watched > 0 && len(t.changes) > 0 {
		d.observeTypes(t)
	}
	for _, f := range d.txnFns {
		f.f(t)
	}
}

func (d *Doc) observeTypes(t *Txn) {
	es := t.Events()
	for _, e := range es {
		if e.target.watch != nil && !e.target.deletedItem() {
			for _, f := range e.target.watch.shallow {
				f.f(e)
			}
		}
	}
	deep := make(map[*branch][]*Event)
	var order []*branch
	for _, e := range es {
		for b := e.target; b != nil; b = b.parent() {
			if b.watch == nil || len(b.watch.deep) == 0 {
				continue
			}
			if deep[b] == nil {
				order = append(order, b)
			}
			deep[b] = append(deep[b], e)
		}
	}
	for _, b := range order {
		es := slices.DeleteFunc(deep[b], func(e *Event) bool { return e.target.deletedItem() })
		if b.deletedItem() || len(es) == 0 {
			continue
		}
		slices.SortStableFunc(es, func(x, y *Event) int { return cmp.Compare(x.target.depth(), y.target.depth()) })
		for _, f := range b.watch.deep {
			f.f(es)
		}
	}
}

func (b *branch) depth() int {
	n := 0
	for p := b.parent(); p != nil; p = p.parent() {
		n++
	}
	return n
}
