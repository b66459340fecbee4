package prosemirror

import (
	"maps"
	"slices"
	"unicode/utf8"
)

// Merge returns doc with the changes from base to next applied, both valid documents: a
// three-way merge. Everything that doc has and base lacks stays. Blocks, list items and cells
// are matched as in Diff, text is merged word by word, and a change on both sides is made
// once. A node that one side deleted or replaced and the other changed is kept, so that no
// edit is lost.
func (s *Schema) Merge(doc, base, next *Node) (*Node, error) {
	cur := doc
	if s.Check(doc) != nil {
		// Base was parsed from Markdown: what Markdown does not show must not count as changed.
		var err error
		if cur, err = s.ParseLarge(s.Render(doc)); err != nil {
			return nil, err
		}
	}
	m := &merger{d: newDiffer(s)}
	return s.compose(doc, s.keep(doc.Content, m.element(base, next, cur).Content)), nil
}

type merger struct{ d *differ }

// element merges three elements of the same type.
func (m *merger) element(base, next, cur *Node) *Node {
	switch {
	case next.Equal(base):
		return cur
	case cur.Equal(base), cur.Equal(next):
		return next
	}
	attrs := Attrs{}
	maps.Copy(attrs, cur.Attrs)
	for _, spec := range m.d.s.attrSpecs(cur.Type, false) {
		if v := next.Attrs[spec.Name]; !equalValue(v, base.Attrs[spec.Name]) {
			attrs[spec.Name] = v
		}
	}
	return &Node{Type: cur.Type, Attrs: attrs, Content: m.children(childrenOf(base.Content), childrenOf(next.Content), childrenOf(cur.Content))}
}

// children merges the children of an element.
func (m *merger) children(base, next, cur []child) []*Node {
	var out []*Node
	merge3[child]{
		same: m.d.same,
		both: func(b, n, c child) {
			if b.node != nil {
				out = append(out, m.element(b.node, n.node, c.node))
			} else {
				out = append(out, m.texts(b.texts, n.texts, c.texts)...)
			}
		},
		one: func(k child) { out = append(out, flatten([]child{k})...) },
		inserted: func(first, second []child) {
			out = append(out, flatten(first)...)
			for _, k := range m.without(first, second) {
				out = appendApart(out, flatten([]child{k}))
			}
		},
	}.merge(base, next, cur, m.d.align(base, next), m.d.align(base, cur))
	return join(out)
}

// without returns the children of second that first does not have. Each child of first
// matches one equal child of second. Children are looked up by hash, and at most maxRepeats
// with the same hash are compared, so that the time does not grow with the product of both
// lengths.
func (m *merger) without(first, second []child) []child {
	if len(first) == 0 {
		return second
	}
	left := map[uint64][]child{} // the unmatched children of first, by hash
	for _, k := range first {
		h := m.d.hash(k)
		left[h] = append(left[h], k)
	}
	var out []child
	for _, k := range second {
		h := m.d.hash(k)
		found := left[h]
		i := slices.IndexFunc(found[:min(len(found), maxRepeats)], func(f child) bool { return m.d.same(f, k) })
		if i < 0 {
			out = append(out, k)
			continue
		}
		found[i] = found[0]
		left[h] = found[1:]
	}
	return out
}

// merge3 merges lists. What a side inserted follows the element that it follows on that side.
type merge3[T any] struct {
	same func(a, b T) bool
	// both is called for an element of all three lists, one for an element that only one side
	// kept and changed, and inserted for the new elements between two of these.
	both     func(base, next, cur T)
	one      func(T)
	inserted func(first, second []T)
}

// merge walks base, which is paired with next and with cur in order.
func (m merge3[T]) merge(base, next, cur []T, toNext, toCur []pairing) {
	j, k := 0, 0
	for i := -1; i < len(base); i++ {
		if i >= 0 {
			isNext := len(toNext) > 0 && toNext[0].old == i
			isCur := len(toCur) > 0 && toCur[0].old == i
			switch {
			case isNext && isCur:
				m.both(base[i], next[toNext[0].next], cur[toCur[0].next])
			case isNext && !m.same(base[i], next[toNext[0].next]):
				m.one(next[toNext[0].next])
			case isCur && !m.same(base[i], cur[toCur[0].next]):
				m.one(cur[toCur[0].next])
			}
			if isNext {
				j, toNext = toNext[0].next+1, toNext[1:]
			}
			if isCur {
				k, toCur = toCur[0].next+1, toCur[1:]
			}
		}
		toJ, toK := len(next), len(cur)
		if len(toNext) > 0 {
			toJ = toNext[0].next
		}
		if len(toCur) > 0 {
			toK = toCur[0].next
		}
		replaces := func(to []pairing) bool { return i+1 < len(base) && (len(to) == 0 || to[0].old > i+1) }
		if replaces(toNext) && !replaces(toCur) { // a replacement takes the place of what it replaces
			m.inserted(cur[k:toK], next[j:toJ])
		} else {
			m.inserted(next[j:toJ], cur[k:toK])
		}
		j, k = toJ, toK
	}
}

// mergedWord is a word with the whitespace before it. The last one of a text has no word, only
// the trailing whitespace.
type mergedWord struct {
	blanks, text []*Node
	plain        string
}

// texts merges three runs of text, word by word.
func (m *merger) texts(base, next, cur []*Node) []*Node {
	b, n, c := mergedWords(base), mergedWords(next), mergedWords(cur)
	var out []*Node
	first := true
	add := func(blanks, text []*Node) {
		if first { // the leading whitespace is merged by itself
			blanks, first = m.pieces(b[0].blanks, n[0].blanks, c[0].blanks), false
		}
		if len(blanks) == 0 {
			out = appendApart(out, text)
		} else {
			out = append(append(out, blanks...), text...)
		}
	}
	all := func(ws []mergedWord) {
		for _, w := range ws {
			add(w.blanks, w.text)
		}
	}
	merge3[mergedWord]{
		same: func(a, b mergedWord) bool { return true }, // changed marks do not keep a deleted word
		both: func(b, n, c mergedWord) {
			add(m.pieces(b.blanks, n.blanks, c.blanks), m.pieces(b.text, n.text, c.text))
		},
		inserted: func(first, second []mergedWord) {
			n := min(len(first), len(second)) // the words that both sides inserted, if one list is a prefix of the other
			if !slices.EqualFunc(first[:n], second[:n], func(a, b mergedWord) bool { return a.plain == b.plain }) {
				n = 0
			}
			all(first)
			all(second[n:])
		},
	}.merge(b, n, c, pairWords(b, n), pairWords(b, c))
	return join(out)
}

func mergedWords(texts []*Node) []mergedWord {
	all := concat(texts)
	words, at := nonSpaceWords(all)
	out := make([]mergedWord, 0, len(words)+1)
	from := 0
	rest := slices.Clone(texts)
	cut := func(to int) (nodes []*Node) {
		for n := to - from; n > 0; {
			t := rest[0]
			if len(t.Text) <= n {
				nodes, rest = append(nodes, t), rest[1:]
			} else {
				nodes, rest[0] = append(nodes, Text(t.Text[:n], t.Marks...)), Text(t.Text[n:], t.Marks...)
			}
			n -= len(t.Text)
		}
		from = to
		return nodes
	}
	for i, w := range words {
		out = append(out, mergedWord{cut(at[i]), cut(at[i] + len(w)), w})
	}
	return append(out, mergedWord{blanks: cut(len(all))})
}

// pairWords pairs the words that stay. The ends are a pair.
func pairWords(a, b []mergedWord) []pairing {
	plain := func(ws []mergedWord) []string {
		out := make([]string, len(ws)-1)
		for i := range out {
			out[i] = ws[i].plain
		}
		return out
	}
	w := &wordDiff{a: plain(a), b: plain(b)}
	w.steps = leastSteps + stepsPerWord*(len(w.a)+len(w.b))
	w.diff(0, len(w.a), 0, len(w.b))
	return append(w.pairs, pairing{len(w.a), len(w.b)})
}

// pieces merges the marks of a word or of whitespace. Of different whitespace, one side wins.
func (m *merger) pieces(base, next, cur []*Node) []*Node {
	same := func(a, b []*Node) bool { return slices.EqualFunc(a, b, (*Node).Equal) }
	switch {
	case same(next, base):
		return cur
	case same(cur, base) || same(cur, next) || concat(next) != concat(base):
		return next
	case concat(cur) != concat(base):
		return cur
	}
	var out []*Node
	text := concat(base)
	b, n, c := texts{all: base}, texts{all: next}, texts{all: cur}
	for at := 0; at < len(text); {
		bm, bTo := b.marksAt(at)
		nm, nTo := n.marksAt(at)
		cm, cTo := c.marksAt(at)
		to := min(bTo, nTo, cTo)
		out = append(out, Text(text[at:to], m.marks(bm, nm, cm)...))
		at = to
	}
	return out
}

// marks merges three sets of marks.
func (m *merger) marks(base, next, cur []Mark) []Mark {
	var out []Mark
	for _, x := range next {
		if !hasMark(base, x) || hasMark(cur, x) {
			out = append(out, x)
		}
	}
	for _, x := range cur {
		if !hasType(out, x.Type) && !hasMark(base, x) {
			out = append(out, x)
		}
	}
	m.d.s.sortMarks(out)
	return out
}

// appendApart appends nodes, with a space between two words that would otherwise merge.
func appendApart(out, nodes []*Node) []*Node {
	if len(out) > 0 && len(nodes) > 0 {
		last, _ := utf8.DecodeLastRuneInString(out[len(out)-1].Text)
		first, _ := utf8.DecodeRuneInString(nodes[0].Text)
		if inSpacedScript(last) && inSpacedScript(first) {
			out = append(out, Text(" "))
		}
	}
	return append(out, nodes...)
}

// inSpacedScript reports whether r is a letter of a script with spaces between words.
func inSpacedScript(r rune) bool { return classOf(r) == letterClass && !ideograph(r) && !hangul(r) }
