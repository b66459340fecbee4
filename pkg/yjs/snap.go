package yjs

import (
	"unicode"
	"unicode/utf8"
)

// snap moves an index into the text and to the boundary of a grapheme (a surrogate pair, a
// letter with combining marks, a joined emoji, a flag, a Hangul syllable): the one before it,
// or the one after it if up is set.
func (b *branch) snap(index int, up bool) int {
	index = max(0, min(index, int(b.length)))
	if !b.doc.wide || index == 0 || index == int(b.length) {
		return index
	}
	r, at := b.seek(index)
	for n := 0; n < 64 && index > 0 && index < int(b.length); n++ {
		if !b.splitsGrapheme(r, at) {
			return index
		}
		if up {
			index++
		} else {
			index--
		}
		r, at = b.seek(index)
	}
	return index
}

// seek finds the item that contains index or ends there, without using the markers' order.
func (b *branch) seek(index int) (r ref, at int) {
	d := b.doc
	r = b.start
	if b.markers != nil {
		best := index
		for _, m := range b.markers.list {
			if dist := index - m.index; dist > 0 && dist < best {
				r, at, best = m.item, m.index, dist
			}
		}
	}
	at = index - at
	for r != 0 {
		it := d.at(r)
		if it.shown() {
			if at <= int(it.length) {
				return r, at
			}
			at -= int(it.length)
		}
		r = it.right
	}
	return 0, 0
}

// splitsGrapheme reports whether the position at units into item r splits a grapheme.
func (b *branch) splitsGrapheme(r ref, at int) bool {
	d := b.doc
	if r == 0 {
		return false
	}
	it := d.at(r)
	if it.kind != kindString {
		return false
	}
	p := d.textOf(it)
	cut := at
	if it.flags&itASCII == 0 {
		off, rest := wtf8Offset(p, uint64(at))
		if rest != 0 {
			return true
		}
		cut = off
	}
	var next rune
	if cut < len(p) {
		next, _ = utf8.DecodeRune(p[cut:])
	} else {
		next = b.firstRune(it.right)
	}
	if next < 0x300 {
		return false
	}
	prev, size := utf8.DecodeLastRune(p[:cut])
	if extends(next) {
		return !unicode.IsControl(prev)
	}
	switch {
	case prev == zwj:
		return unicode.Is(unicode.So, next)
	case regional(prev) && regional(next):
		n := 0
		for q := p[:cut]; size > 0 && regional(prev); n++ {
			q = q[:len(q)-size]
			prev, size = utf8.DecodeLastRune(q)
		}
		return n%2 == 1
	}
	return hangulJoined(prev, next)
}

func (b *branch) firstRune(r ref) rune {
	for r != 0 {
		it := b.doc.at(r)
		if it.shown() {
			if it.kind != kindString {
				return 0
			}
			x, _ := utf8.DecodeRune(b.doc.textOf(it))
			return x
		}
		r = it.right
	}
	return 0
}

const zwj = 0x200d

func extends(r rune) bool {
	return r == zwj || r == 0x200c || (r >= 0x1f3fb && r <= 0x1f3ff) || (r >= 0xe0020 && r <= 0xe007f) ||
		unicode.In(r, unicode.Mn, unicode.Me, unicode.Mc)
}

func regional(r rune) bool { return r >= 0x1f1e6 && r <= 0x1f1ff }

// hangulJoined reports whether two Hangul characters belong to one syllable.
func hangulJoined(a, b rune) bool {
	lead := a >= 0x1100 && a < 0x1160
	vowel := a >= 0x1160 && a < 0x11a8
	tail := a >= 0x11a8 && a < 0x1200
	syllable := a >= 0xac00 && a <= 0xd7a3
	open := syllable && (a-0xac00)%28 == 0
	switch {
	case b >= 0x1100 && b < 0x1160:
		return lead
	case b >= 0x1160 && b < 0x11a8:
		return lead || vowel || open
	case b >= 0x11a8 && b < 0x1200:
		return vowel || tail || syllable
	case b >= 0xac00 && b <= 0xd7a3:
		return lead
	}
	return false
}
