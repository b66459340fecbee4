package pool

import "math/bits"

// mask is a set of members, a bit for each.
type mask []uint64

func newMask(n int) mask { return make(mask, (n+63)/64) }

func (m mask) has(i int) bool { return m[i/64]>>(i%64)&1 != 0 }
func (m mask) set(i int)      { m[i/64] |= 1 << (i % 64) }
func (m mask) clear(i int)    { m[i/64] &^= 1 << (i % 64) }

// fill makes it the first n.
func (m mask) fill(n int) {
	for w := range m {
		m[w] = ^uint64(0)
	}
	if n%64 != 0 {
		m[len(m)-1] = 1<<(n%64) - 1
	}
}

// add takes in another set's members, and reports whether it has any.
func (m mask) add(other mask) bool {
	some := uint64(0)
	for w := range other {
		m[w] |= other[w]
		some |= other[w]
	}
	return some != 0
}

// next returns the first member from i on, −1 for none.
func (m mask) next(i int) int {
	for w := i / 64; w < len(m); w++ {
		word := m[w]
		if w == i/64 {
			word &= ^uint64(0) << (i % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// nth returns the member that k others are before, −1 for none.
func (m mask) nth(k int) int {
	for w, word := range m {
		if n := bits.OnesCount64(word); k >= n {
			k -= n
			continue
		}
		for ; k > 0; k-- {
			word &= word - 1
		}
		return w*64 + bits.TrailingZeros64(word)
	}
	return -1
}
