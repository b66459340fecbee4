package prosemirror

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
)

// Diff returns the changes that turn old into next: as few as it finds, none if they are
// equal, so that concurrent edits survive.
//
// Equal children are paired first, as the heaviest sequence that is in order on both sides;
// other equal children have moved, which is a deletion and an insertion. Children between
// two pairs are paired by type and by the text that they share. Pairs are then compared
// recursively: attributes one by one, text word by word.
//
// Marks and attributes outside the schema stay, and text inserted after a text with such a
// mark gets it too. A node outside the schema inside text stays while the text around it
// does.
func (s *Schema) Diff(old, next *Node) []Op {
	d := newDiffer(s)
	d.element(nil, old, next)
	return d.ops
}

func newDiffer(s *Schema) *differ {
	return &differ{s: s, seed: maphash.MakeSeed(), hashes: map[*Node]uint64{}, bags: map[*Node][]word{}}
}

type differ struct {
	s      *Schema
	seed   maphash.Seed
	hashes map[*Node]uint64
	bags   map[*Node][]word
	ops    []Op
	// compared counts the words compared in search of similar children.
	compared int
}

// element compares two elements of the same type.
func (d *differ) element(path []int, old, next *Node) {
	if old == next {
		return
	}
	d.attrs(path, old, next)
	next = d.graft(old, next)
	a, b := childrenOf(old.Content), childrenOf(next.Content)
	pairs := d.align(a, b)
	// From the end, so that earlier indices stay valid.
	oldEnd, nextEnd := len(a), len(b)
	for k := len(pairs); k >= 0; k-- {
		i, j := -1, -1
		if k > 0 {
			i, j = pairs[k-1].old, pairs[k-1].next
		}
		if n := oldEnd - i - 1; n > 0 {
			d.ops = append(d.ops, DeleteNodes{Path: path, Index: i + 1, Count: n})
		}
		if j+1 < nextEnd {
			d.ops = append(d.ops, InsertNodes{Path: path, Index: i + 1, Nodes: flatten(b[j+1 : nextEnd])})
		}
		if k > 0 {
			d.pair(append(slices.Clip(path), i), a[i], b[j])
		}
		oldEnd, nextEnd = i, j
	}
}

func flatten(ks []child) []*Node {
	var out []*Node
	for _, k := range ks {
		if k.node != nil {
			out = append(out, k.node)
		}
		out = append(out, k.texts...)
	}
	return out
}

func (d *differ) pair(path []int, a, b child) {
	if a.node != nil {
		d.element(path, a.node, b.node)
		return
	}
	if delta := d.texts(a.texts, b.texts); len(delta) > 0 {
		d.ops = append(d.ops, EditText{Path: path, Delta: delta})
	}
}

func (d *differ) attrs(path []int, old, next *Node) {
	for _, spec := range d.s.attrSpecs(next.Type, false) {
		was, is := old.Attrs[spec.Name], next.Attrs[spec.Name]
		if was == nil {
			was = spec.Default
		}
		if is == nil {
			is = spec.Default
		}
		if !equalValue(was, is) {
			d.ops = append(d.ops, SetAttr{Path: path, Name: spec.Name, Value: is})
		}
	}
}

// pairing says that an old child becomes a next child.
type pairing struct{ old, next int }

// align pairs the children that are equal or similar, in order.
func (d *differ) align(a, b []child) []pairing {
	var pairs []pairing
	lo := 0
	for lo < len(a) && lo < len(b) && d.same(a[lo], b[lo]) {
		pairs = append(pairs, pairing{lo, lo})
		lo++
	}
	aEnd, bEnd := len(a), len(b)
	for aEnd > lo && bEnd > lo && d.same(a[aEnd-1], b[bEnd-1]) {
		aEnd--
		bEnd--
	}
	i, j := lo, lo
	for _, p := range append(d.anchors(a[:aEnd], b[:bEnd], lo), pairing{aEnd, bEnd}) {
		pairs = append(pairs, d.similar(a, b, pairing{i, j}, p)...)
		if p.old < aEnd {
			pairs = append(pairs, p)
		}
		i, j = p.old+1, p.next+1
	}
	for k := range len(a) - aEnd {
		pairs = append(pairs, pairing{aEnd + k, bEnd + k})
	}
	return pairs
}

// maxRepeats bounds how many equal children are tried for one.
const maxRepeats = 32

// anchors pairs equal children from lo: the heaviest sequence in order.
func (d *differ) anchors(a, b []child, lo int) []pairing {
	where := map[uint64][]int{}
	for i := lo; i < len(a); i++ {
		h := d.hash(a[i])
		where[h] = append(where[h], i)
	}
	// best is a Fenwick tree over the places in a: the heaviest sequence that ends there.
	type row struct {
		weight int
		p      pairing
		prev   *row
	}
	best := make([]*row, len(a)+1)
	upTo := func(i int) *row {
		var r *row
		for ; i > 0; i -= i & -i {
			if best[i] != nil && (r == nil || best[i].weight > r.weight) {
				r = best[i]
			}
		}
		return r
	}
	for j := lo; j < len(b); j++ {
		is := where[d.hash(b[j])]
		if len(is) > maxRepeats { // the nearest
			k, _ := slices.BinarySearch(is, j)
			from := min(max(0, k-maxRepeats/2), len(is)-maxRepeats)
			is = is[from : from+maxRepeats]
		}
		for _, i := range slices.Backward(is) {
			if !d.same(a[i], b[j]) {
				continue
			}
			r := &row{weight: d.weight(b[j]), p: pairing{i, j}, prev: upTo(i)}
			if r.prev != nil {
				r.weight += r.prev.weight
			}
			for k := i + 1; k < len(best); k += k & -k {
				if best[k] == nil || best[k].weight < r.weight {
					best[k] = r
				}
			}
		}
	}
	var out []pairing
	for r := upTo(len(a)); r != nil; r = r.prev {
		out = append(out, r.p)
	}
	slices.Reverse(out)
	return out
}

// maxCompared bounds how many pairs of children are compared by their words at a time, and
// maxWords the words of all: beyond, type and order decide.
const (
	maxCompared = 1 << 14
	maxWords    = 1 << 27
)

// similar pairs the children between two pairs by the words they share.
func (d *differ) similar(a, b []child, from, to pairing) []pairing {
	n, m := to.old-from.old, to.next-from.next
	switch {
	case n == 0 || m == 0:
		return nil
	case n*m == 1 || n*m > maxCompared || !d.mayCompare(a[from.old:to.old], b[from.next:to.next]):
		return d.byType(a, b, from, to)
	}
	// score[i][j] is the best total for a from i and b from j.
	score := make([]int, (n+1)*(m+1))
	at := func(i, j int) int { return i*(m+1) + j }
	common := make([]int, n*m)
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			c := d.common(a[from.old+i], b[from.next+j])
			common[i*m+j] = c
			best := max(score[at(i+1, j)], score[at(i, j+1)])
			if c > 0 {
				best = max(best, c+score[at(i+1, j+1)])
			}
			score[at(i, j)] = best
		}
	}
	var out []pairing
	for i, j := 0, 0; i < n && j < m; {
		c := common[i*m+j]
		switch {
		case c > 0 && score[at(i, j)] == c+score[at(i+1, j+1)]:
			out = append(out, pairing{from.old + i, from.next + j})
			i++
			j++
		case score[at(i, j)] == score[at(i+1, j)]:
			i++
		default:
			j++
		}
	}
	return out
}

// mayCompare reports whether all of a may be compared with all of b, and counts it.
func (d *differ) mayCompare(a, b []child) bool {
	n := 0
	for _, k := range a {
		n += len(b) * len(d.bag(k))
	}
	for _, k := range b {
		n += len(a) * len(d.bag(k))
	}
	if d.compared+n > maxWords {
		return false
	}
	d.compared += n
	return true
}

// byType pairs children of the same type in order.
func (d *differ) byType(a, b []child, from, to pairing) []pairing {
	var out []pairing
	for i, j := from.old, from.next; i < to.old && j < to.next; i, j = i+1, j+1 {
		if d.kind(a[i]) == d.kind(b[j]) {
			out = append(out, pairing{i, j})
		}
	}
	return out
}

func (d *differ) kind(k child) string {
	if k.node == nil {
		return TextType
	}
	return k.node.Type
}

// same reports whether two children are equal.
func (d *differ) same(a, b child) bool {
	if a.node != nil && b.node != nil {
		return a.node.Equal(b.node)
	}
	return a.node == nil && b.node == nil && slices.EqualFunc(a.texts, b.texts, (*Node).Equal)
}

// common measures what two children share: 0 if their types differ, else at least 1.
func (d *differ) common(a, b child) int {
	if d.kind(a) != d.kind(b) {
		return 0
	}
	x, y := d.bag(a), d.bag(b)
	n := 1
	for i, j := 0, 0; i < len(x) && j < len(y); {
		switch {
		case x[i].hash < y[j].hash:
			i++
		case x[i].hash > y[j].hash:
			j++
		default:
			n += 8 * x[i].size
			i++
			j++
		}
	}
	return n
}

// word is the hash and the length of a word.
type word struct {
	hash uint64
	size int
}

// bag returns the sorted words of a child.
func (d *differ) bag(k child) []word {
	nodes, key := k.texts, k.node
	if key == nil {
		key = nodes[0]
	} else {
		nodes = []*Node{key}
	}
	if w, ok := d.bags[key]; ok {
		return w
	}
	var out []word
	var walk func(*Node)
	walk = func(n *Node) {
		for _, t := range words(n.Text) {
			out = append(out, word{maphash.String(d.seed, t), len(t)})
		}
		for _, v := range n.Attrs {
			if v, ok := v.(string); ok {
				out = append(out, word{maphash.String(d.seed, v), len(v)})
			}
		}
		for _, c := range n.Content {
			walk(c)
		}
	}
	for _, n := range nodes {
		walk(n)
	}
	slices.SortFunc(out, func(a, b word) int { return cmp.Compare(a.hash, b.hash) })
	d.bags[key] = out
	return out
}

// weight is the approximate size of an insertion of the child in bytes.
func (d *differ) weight(k child) int {
	if k.node != nil {
		return weight(k.node)
	}
	n := 0
	for _, t := range k.texts {
		n += weight(t)
	}
	return n
}

func weight(n *Node) int {
	w := 10 + len(n.Text) + 10*len(n.Attrs)
	for _, c := range n.Content {
		w += weight(c)
	}
	return w
}

// hash returns the same value for equal children.
func (d *differ) hash(k child) uint64 {
	if k.node != nil {
		return d.nodeHash(k.node)
	}
	h := uint64(1)
	for _, t := range k.texts {
		h = h*31 + d.nodeHash(t)
	}
	return h
}

func (d *differ) nodeHash(n *Node) uint64 {
	if h, ok := d.hashes[n]; ok {
		return h
	}
	h := maphash.String(d.seed, n.Type) + 3*maphash.String(d.seed, n.Text) + d.attrsHash(n.Attrs)
	for _, m := range n.Marks {
		h = h*31 + maphash.String(d.seed, m.Type) + d.attrsHash(m.Attrs)
	}
	for _, c := range n.Content {
		h = h*31 + d.nodeHash(c)
	}
	d.hashes[n] = h
	return h
}

func (d *differ) attrsHash(a Attrs) uint64 {
	var h uint64
	for k, v := range a {
		if v == nil {
			continue
		}
		s, ok := v.(string)
		if !ok {
			s = fmt.Sprint(v)
		}
		h += maphash.String(d.seed, k) * (1 + 2*maphash.String(d.seed, s))
	}
	return h
}
