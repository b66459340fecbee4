package prosemirror

import (
	"fmt"
	"slices"

	"signalbox.dev/pkg/yjs"
)

// edit changes a run of text. Most runs are a single shared text; others are divided at text
// boundaries.
func (w *sharedWriter) edit(t *sharedNode, delta []Splice) error {
	e, err := w.s.edits(t, delta)
	if err != nil {
		return err
	}
	for i := range e.texts {
		p := &e.texts[i]
		if len(p.ops) == 0 {
			continue
		}
		if err := p.text.ApplyDelta(p.ops); err != nil {
			return err
		}
	}
	if e.last >= 0 && w.wantsCaret(true) {
		p := e.texts[e.last]
		w.putCaretIn(p.text, p.now)
	}
	return nil
}

// edits collects the changes of a delta for each text of a run.
func (s *Schema) edits(t *sharedNode, delta []Splice) (*runEdit, error) {
	e := &runEdit{s: s, run: t.run, last: -1}
	for _, sp := range delta {
		var err error
		switch {
		case sp.Insert != "":
			e.insert(sp.Insert, sp.Format)
		case sp.Delete > 0:
			err = e.each(sp.Delete, func(n int) yjs.Op { return yjs.Op{Delete: n} })
		default:
			err = e.retain(sp)
		}
		if err != nil {
			return nil, err
		}
	}
	return e, nil
}

// manySplices is the number of changes from which texts are cut for all of them at once.
const manySplices = 500

// cut prepares many text changes. Their paths refer to the document before the first change.
func (w *sharedWriter) cut(txn *yjs.Txn, root *sharedNode) error {
	splices := 0
	for _, op := range w.ops {
		if op, ok := op.(EditText); ok {
			splices += len(op.Delta)
		}
	}
	if splices < manySplices {
		return nil
	}
	var cuts []yjs.Cut
	for _, op := range w.ops {
		op, ok := op.(EditText)
		if !ok {
			continue
		}
		t, err := root.at(op.Path)
		if err != nil {
			return err
		}
		e, err := w.s.edits(t, op.Delta)
		if err != nil {
			return err
		}
		for _, p := range e.texts {
			cuts = append(cuts, yjs.Cut{Text: p.text, At: p.cuts()})
		}
	}
	txn.Cut(cuts)
	return nil
}

// cuts returns the offsets at which the changes of a text begin and end.
func (p *textEdit) cuts() []int {
	var out []int
	at := 0
	for _, op := range p.ops {
		n := op.Delete + op.Retain
		if op.Insert != nil || op.Delete > 0 || len(op.Attributes) > 0 {
			out = append(out, at, at+n)
		}
		at += n
	}
	return out
}

// runEdit collects the changes of the texts of a run.
type runEdit struct {
	s     *Schema
	run   []segment
	i, in int // the current segment and the offset in it
	texts []textEdit
	last  int // the index of the text with the last change, -1 for none
}

// textEdit is the delta of one text.
type textEdit struct {
	text *yjs.Text
	ops  []yjs.Op
	was  int // the length of the old text that ops cover
	now  int // the same in the new text
}

// at returns the edit of text, retained up to offset.
func (e *runEdit) at(text *yjs.Text, offset int) *textEdit {
	k := slices.IndexFunc(e.texts, func(p textEdit) bool { return p.text == text })
	if k < 0 {
		k = len(e.texts)
		e.texts = append(e.texts, textEdit{text: text})
	}
	e.last = k
	p := &e.texts[k]
	if n := offset - p.was; n > 0 {
		p.ops = append(p.ops, yjs.Op{Retain: n})
		p.was, p.now = p.was+n, p.now+n
	}
	return p
}

// insert inserts text after the segment on the left.
func (e *runEdit) insert(text string, marks []Mark) {
	left, right := e.neighbours()
	var p *textEdit
	switch {
	case e.in > 0:
		p = e.at(left.text, left.at+e.in)
	case left.text != nil:
		p = e.at(left.text, left.at+left.n)
	default:
		p = e.at(right.text, right.at)
	}
	p.ops = append(p.ops, yjs.Op{Insert: text, Attributes: e.format(marks, left, right)})
	p.now += Len16(text)
}

// neighbours returns the segments on both sides, the zero value if there is none.
func (e *runEdit) neighbours() (left, right segment) {
	if e.i < len(e.run) {
		right = e.run[e.i]
	}
	switch {
	case e.in > 0:
		left = right
	case e.i > 0:
		left = e.run[e.i-1]
	}
	return left, right
}

// format returns marks as they are stored next to the text: a mark equal to one of a
// neighbour takes its stored form, so that it continues.
func (e *runEdit) format(marks []Mark, beside ...segment) yjs.Object {
	var out yjs.Object
	for _, m := range marks {
		var v any
		for _, seg := range beside {
			if seg.node != nil && v == nil && hasMark(seg.node.Marks, m) {
				v, _ = seg.raw.Get(m.Type)
			}
		}
		if v == nil {
			v = e.s.stored(m.Name(), true, m.Attrs)
		}
		out = out.Set(m.Type, v)
	}
	return out
}

// retain keeps text and changes its marks if sp does.
func (e *runEdit) retain(sp Splice) error {
	if len(sp.Format) == 0 && len(sp.Unformat) == 0 {
		return e.skip(sp.Retain)
	}
	attrs := e.s.format(sp.Format)
	for _, name := range sp.Unformat {
		attrs = attrs.Set(name, nil)
	}
	return e.each(sp.Retain, func(n int) yjs.Op { return yjs.Op{Retain: n, Attributes: attrs} })
}

func (e *runEdit) skip(n int) error {
	for n > 0 {
		if e.i == len(e.run) {
			return fmt.Errorf("the text ends %d units too early", n)
		}
		k := min(n, e.run[e.i].n-e.in)
		e.step(k)
		n -= k
	}
	return nil
}

// each adds a change of the next n units, one per text, unless others are in between.
func (e *runEdit) each(n int, op func(n int) yjs.Op) error {
	text, ops := -1, 0 // identify the last one added
	for n > 0 {
		if e.i == len(e.run) {
			return fmt.Errorf("the text ends %d units too early", n)
		}
		seg := e.run[e.i]
		k := min(n, seg.n-e.in)
		p := e.at(seg.text, seg.at+e.in)
		if text == e.last && ops == len(p.ops) {
			o := &p.ops[ops-1]
			*o = op(o.Delete + o.Retain + k)
		} else {
			p.ops = append(p.ops, op(k))
		}
		text, ops = e.last, len(p.ops)
		p.was += k
		if p.ops[ops-1].Retain > 0 {
			p.now += k
		}
		e.step(k)
		n -= k
	}
	return nil
}

func (e *runEdit) step(n int) {
	if e.in += n; e.in == e.run[e.i].n {
		e.i, e.in = e.i+1, 0
	}
}
