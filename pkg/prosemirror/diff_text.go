package prosemirror

import (
	"slices"
	"unicode"
	"unicode/utf8"
)

// words splits text into words, runs of whitespace and single characters. It never splits
// what a reader sees as one character.
func words(text string) []string {
	out := make([]string, 0, len(text)/4+1)
	start, last, was := 0, rune(-1), otherClass
	for i, r := range text {
		joined, is := joins(last, r), classOf(r)
		if i > 0 && !joined && (is != was || is == otherClass || ideograph(r)) {
			out = append(out, text[start:i])
			start = i
		}
		if last = r; !joined {
			was = is
		}
	}
	if start < len(text) {
		out = append(out, text[start:])
	}
	return out
}

// class is the class of a character.
type class uint8

const (
	otherClass class = iota // each is a word by itself
	letterClass
	blankClass
)

func classOf(r rune) class {
	switch {
	case 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9':
		return letterClass
	case unicode.IsSpace(r):
		return blankClass
	case r < utf8.RuneSelf:
		return otherClass
	case unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.Regional_Indicator, r):
		return letterClass
	}
	return otherClass
}

const (
	zeroWidthJoiner    = '\u200d'
	zeroWidthNonJoiner = '\u200c'
)

// joins reports whether r extends the character whose last rune is last.
func joins(last, r rune) bool {
	switch {
	case r < 0x300:
		return last == zeroWidthJoiner
	case last == zeroWidthJoiner, r == zeroWidthJoiner, r == zeroWidthNonJoiner, unicode.Is(unicode.M, r):
		return true
	case r >= 0x1f3fb && r <= 0x1f3ff, r >= 0xe0020 && r <= 0xe007f: // skin tones, flag tags
		return true
	case unicode.Is(unicode.Regional_Indicator, r):
		return unicode.Is(unicode.Regional_Indicator, last)
	}
	return hangul(r) && hangul(last) // one or more syllables
}

func hangul(r rune) bool { return r >= 0x1100 && r < 0x1200 || r >= 0xac00 && r <= 0xd7a3 }

// ideograph reports whether r is a word by itself, in scripts without spaces.
func ideograph(r rune) bool {
	return r >= 0xe00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai)
}

// chunk is a step of a text diff, in bytes: del of the old text become ins of the new one,
// or keep of both are equal.
type chunk struct{ keep, del, ins int }

// texts returns the splices that turn old into next.
func (d *differ) texts(old, next []*Node) []Splice {
	if slices.EqualFunc(old, next, (*Node).Equal) {
		return nil
	}
	a, b := concat(old), concat(next)
	t := &textDiff{s: d.s, old: texts{all: old}, next: texts{all: next}}
	for _, c := range diffText(a, b) {
		t.chunk(a[t.i:], b[t.j:], c)
	}
	return t.finish()
}

func concat(texts []*Node) string {
	if len(texts) == 1 {
		return texts[0].Text
	}
	return (&Node{Content: texts}).TextContent()
}

// textDiff walks both texts; i and j are the byte positions.
type textDiff struct {
	s         *Schema
	old, next texts
	i, j      int
	left      []Mark // the new marks of the preceding text
	out       []Splice
}

// texts is a forward iterator over texts.
type texts struct {
	all  []*Node // from the current one
	from int     // its start in bytes
}

// marksAt returns the marks at byte i and the end of the text that has them. i never decreases.
func (t *texts) marksAt(i int) ([]Mark, int) {
	for len(t.all) > 0 {
		first := t.all[0]
		if end := t.from + len(first.Text); i < end {
			return first.Marks, end
		}
		t.from += len(first.Text)
		t.all = t.all[1:]
	}
	return nil, t.from
}

func (t *textDiff) chunk(a, b string, c chunk) {
	for end := t.j + c.ins; t.j < end; {
		marks, to := t.next.marksAt(t.j)
		to = min(to, end)
		marks = append(slices.Clip(marks), t.foreign(t.left)...)
		text := b[:to-t.j]
		b = b[to-t.j:]
		t.out = append(t.out, Splice{Insert: text, Format: marks})
		t.j, t.left = to, marks
	}
	if c.del > 0 {
		t.out = append(t.out, Splice{Delete: Len16(a[:c.del])})
		t.i, a = t.i+c.del, a[c.del:]
	}
	for end := t.i + c.keep; t.i < end; {
		was, to := t.old.marksAt(t.i)
		is, nextTo := t.next.marksAt(t.j)
		n := min(to-t.i, nextTo-t.j, end-t.i)
		sp := Splice{Retain: Len16(a[:n])}
		a = a[n:]
		for _, m := range is {
			if !hasMark(was, m) {
				sp.Format = append(sp.Format, m)
			}
		}
		for _, m := range was {
			if !hasType(is, m.Type) && t.s.markType(m) != nil {
				sp.Unformat = append(sp.Unformat, m.Type)
			}
		}
		t.retain(sp)
		t.left = append(slices.Clip(is), t.foreign(was)...)
		t.i, t.j = t.i+n, t.j+n
	}
}

// foreign returns the marks outside the schema.
func (t *textDiff) foreign(marks []Mark) []Mark {
	var out []Mark
	for _, m := range marks {
		if t.s.markType(m) == nil {
			out = append(out, m)
		}
	}
	return out
}

// retain appends sp, merged into the previous splice if both do the same.
func (t *textDiff) retain(sp Splice) {
	if k := len(t.out) - 1; k >= 0 && t.out[k].Retain > 0 && EqualMarks(t.out[k].Format, sp.Format) && slices.Equal(t.out[k].Unformat, sp.Unformat) {
		t.out[k].Retain += sp.Retain
		return
	}
	t.out = append(t.out, sp)
}

// finish returns the splices without a trailing retain.
func (t *textDiff) finish() []Splice {
	if k := len(t.out) - 1; k >= 0 && t.out[k].Retain > 0 && len(t.out[k].Format) == 0 && len(t.out[k].Unformat) == 0 {
		return t.out[:k]
	}
	return t.out
}

// diffText compares two texts by words; whitespace goes with the words around it. A replaced
// stretch is reduced by its common prefix and suffix.
func diffText(a, b string) []chunk {
	if a == b {
		return []chunk{{keep: len(a)}}
	}
	w := &wordDiff{}
	var aAt, bAt []int
	w.a, aAt = nonSpaceWords(a)
	w.b, bAt = nonSpaceWords(b)
	w.steps = leastSteps + stepsPerWord*(len(w.a)+len(w.b))
	w.diff(0, len(w.a), 0, len(w.b))
	var out []chunk
	i, j := 0, 0
	for _, p := range w.pairs {
		out = trimmed(out, a[i:aAt[p.old]], b[j:bAt[p.next]])
		n := len(w.a[p.old])
		out = keep(out, n)
		i, j = aAt[p.old]+n, bAt[p.next]+n
	}
	return trimmed(out, a[i:], b[j:])
}

// nonSpaceWords returns the words that are not whitespace, and their offsets.
func nonSpaceWords(text string) (ws []string, at []int) {
	i := 0
	for _, w := range words(text) {
		if r, _ := utf8.DecodeRuneInString(w); !unicode.IsSpace(r) {
			ws, at = append(ws, w), append(at, i)
		}
		i += len(w)
	}
	return ws, at
}

// wordDiff collects the pairs of equal words, in order.
type wordDiff struct {
	a, b  []string
	pairs []pairing
	steps int // budget; when it is spent, the rest counts as replaced
}

// The budget in word comparisons, which keeps the time proportional to the length of a text.
const (
	leastSteps   = 1 << 21
	stepsPerWord = 64
)

// maxEdits bounds the edit distance of Myers' algorithm; beyond it, words that occur exactly
// once on both sides divide the text.
const maxEdits = 400

func (w *wordDiff) diff(a0, a1, b0, b1 int) {
	for a0 < a1 && b0 < b1 && w.a[a0] == w.b[b0] {
		w.pairs = append(w.pairs, pairing{a0, b0})
		a0++
		b0++
	}
	tail := 0
	for a1 > a0 && b1 > b0 && w.a[a1-1] == w.b[b1-1] {
		a1--
		b1--
		tail++
	}
	if a0 < a1 && b0 < b1 && w.steps > 0 && !w.myers(a0, a1, b0, b1) {
		w.unique(a0, a1, b0, b1)
	}
	for k := range tail {
		w.pairs = append(w.pairs, pairing{a1 + k, b1 + k})
	}
}

// myers finds the longest common subsequence of words, if few words differ.
func (w *wordDiff) myers(a0, a1, b0, b1 int) bool {
	n, m := a1-a0, b1-b0
	limit := min(n+m, maxEdits)
	v := make([]int, 2*limit+2)
	at := func(v []int, k int) *int { return &v[(k+len(v))%len(v)] }
	var trace [][]int
	for e := 0; e <= limit && w.steps > 0; e++ {
		trace = append(trace, slices.Clone(v))
		for k := -e; k <= e; k += 2 {
			x := 0
			if k == -e || k != e && *at(v, k-1) < *at(v, k+1) {
				x = *at(v, k+1)
			} else {
				x = *at(v, k-1) + 1
			}
			y, from := x-k, x
			for x < n && y < m && y >= 0 && w.a[a0+x] == w.b[b0+y] {
				x++
				y++
			}
			w.steps -= 1 + x - from
			*at(v, k) = x
			if x >= n && y >= m {
				w.back(trace, a0, b0, n, m)
				return true
			}
		}
	}
	return false
}

// back follows the trace back from the end and collects the pairs.
func (w *wordDiff) back(trace [][]int, a0, b0, x, y int) {
	start := len(w.pairs)
	for e, v := range slices.Backward(trace) {
		get := func(k int) int { return v[(k+len(v))%len(v)] }
		k := x - y
		prev := k - 1
		if k == -e || k != e && get(k-1) < get(k+1) {
			prev = k + 1
		}
		px := get(prev)
		py := px - prev
		if e == 0 {
			px, py = 0, 0
		}
		for x > px && y > py {
			x--
			y--
			w.pairs = append(w.pairs, pairing{a0 + x, b0 + y})
		}
		x, y = px, py
	}
	slices.Reverse(w.pairs[start:])
}

// unique divides both sides at words that occur exactly once on each.
func (w *wordDiff) unique(a0, a1, b0, b1 int) {
	w.steps -= a1 - a0 + b1 - b0
	type count struct{ a, b, at int }
	counts := map[string]*count{}
	for _, t := range w.a[a0:a1] {
		if counts[t] == nil {
			counts[t] = &count{}
		}
		counts[t].a++
	}
	for j := b0; j < b1; j++ {
		if c := counts[w.b[j]]; c != nil {
			c.b++
			c.at = j
		}
	}
	var candidates []pairing
	for i := a0; i < a1; i++ {
		if c := counts[w.a[i]]; c.a == 1 && c.b == 1 {
			candidates = append(candidates, pairing{i, c.at})
		}
	}
	i, j := a0, b0
	for _, p := range increasing(candidates) {
		w.gap(i, p.old, j, p.next)
		w.pairs = append(w.pairs, p)
		i, j = p.old+1, p.next+1
	}
	if i > a0 { // otherwise nothing divides it, and all of it is replaced
		w.gap(i, a1, j, b1)
	}
}

func (w *wordDiff) gap(a0, a1, b0, b1 int) {
	if a0 < a1 && b0 < b1 {
		w.diff(a0, a1, b0, b1)
	}
}

// increasing returns the longest subsequence of ps whose next increases.
func increasing(ps []pairing) []pairing {
	var tails []int // the index of the smallest last element of each length
	prev := make([]int, len(ps))
	for i, p := range ps {
		k, _ := slices.BinarySearchFunc(tails, p.next, func(t, next int) int { return ps[t].next - next })
		prev[i] = -1
		if k > 0 {
			prev[i] = tails[k-1]
		}
		if k == len(tails) {
			tails = append(tails, i)
		} else {
			tails[k] = i
		}
	}
	if len(tails) == 0 {
		return nil
	}
	var out []pairing
	for i := tails[len(tails)-1]; i >= 0; i = prev[i] {
		out = append(out, ps[i])
	}
	slices.Reverse(out)
	return out
}

// keep appends n equal bytes.
func keep(out []chunk, n int) []chunk {
	if n == 0 {
		return out
	}
	if k := len(out) - 1; k >= 0 {
		out[k].keep += n
		return out
	}
	return append(out, chunk{keep: n})
}

// trimmed appends the replacement of a by b, reduced by their common prefix and suffix.
func trimmed(out []chunk, a, b string) []chunk {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	for head > 0 && (!border(a, head) || !border(b, head)) {
		head--
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	for tail > 0 && (!border(a, len(a)-tail) || !border(b, len(b)-tail)) {
		tail--
	}
	out = keep(out, head)
	if del, ins := len(a)-head-tail, len(b)-head-tail; del+ins > 0 {
		out = append(out, chunk{del: del, ins: ins})
	}
	return keep(out, tail)
}

// border reports whether s can be cut at i without splitting a character.
func border(s string, i int) bool {
	if i == 0 || i == len(s) {
		return true
	}
	if !utf8.RuneStart(s[i]) {
		return false
	}
	last, _ := utf8.DecodeLastRuneInString(s[:i])
	r, _ := utf8.DecodeRuneInString(s[i:])
	return !joins(last, r)
}
