package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// checkBody refuses what encoding/json accepts in a body for a value of type t: a field that
// looks like a misspelt field of t, a body without any known field, and half of a surrogate
// pair, which would become U+FFFD. Other unknown fields are ignored, because clients may be
// newer. data is valid JSON. checkBody makes one pass and copies no value.
func checkBody(data []byte, t reflect.Type) error {
	c := &bodyChecker{data: data}
	return c.value(t)
}

// bodyChecker parses valid JSON.
type bodyChecker struct {
	data []byte
	at   int
	path []step // of the value at the current position
}

// step is a field (its raw name) or an element of a path.
type step struct {
	field []byte
	index int
}

// where returns the path as text, for an error.
func (c *bodyChecker) where() string {
	var b strings.Builder
	for i, s := range c.path {
		switch {
		case i == maxPath:
			return b.String() + "…"
		case s.field == nil:
			fmt.Fprintf(&b, "[%d]", s.index)
			continue
		case i > 0:
			b.WriteByte('.')
		}
		b.WriteString(clip(fieldName(s.field)))
	}
	return b.String()
}

// maxPath bounds the steps of a path in an error, and maxUnknown the unknown fields of an
// object that are compared with the known ones.
const (
	maxPath    = 10
	maxUnknown = 50
)

func fieldName(raw []byte) (name string) {
	_ = json.Unmarshal(raw, &name) // valid
	return name
}

// in checks a nested value.
func (c *bodyChecker) in(s step, t reflect.Type) error {
	c.path = append(c.path, s)
	err := c.value(t)
	c.path = c.path[:len(c.path)-1]
	return err
}

// next skips white space, colons and commas and returns the next byte.
func (c *bodyChecker) next() byte {
	for strings.IndexByte(" \t\r\n:,", c.data[c.at]) >= 0 {
		c.at++
	}
	return c.data[c.at]
}

// value checks the value at the current position; a nil t is any type.
func (c *bodyChecker) value(t reflect.Type) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		t = nil // it validates itself
	}
	switch c.next() {
	case '{':
		return c.object(t)
	case '[':
		if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
			t = t.Elem()
		} else {
			t = nil
		}
		c.at++
		for i := 0; c.next() != ']'; i++ {
			if err := c.in(step{index: i}, t); err != nil {
				return err
			}
		}
		c.at++
	case '"':
		_, err := c.text()
		return err
	default:
		for c.at < len(c.data) && strings.IndexByte(" \t\r\n,]}", c.data[c.at]) < 0 {
			c.at++
		}
	}
	return nil
}

func (c *bodyChecker) object(t reflect.Type) error {
	var elem reflect.Type
	var known map[string]reflect.Type
	switch {
	case t == nil:
	case t.Kind() == reflect.Map:
		elem = t.Elem()
	case t.Kind() == reflect.Struct:
		known = map[string]reflect.Type{}
		fieldsOf(t, known)
	}
	var unknown [][]byte
	fields, strange := 0, 0
	c.at++
	for ; c.next() != '}'; fields++ {
		raw, err := c.text()
		if err != nil {
			return err
		}
		field := elem
		if known != nil {
			var ok bool
			if field, ok = known[strings.ToLower(fieldName(raw))]; !ok { // encoding/json ignores case too
				if strange++; strange <= maxUnknown {
					unknown = append(unknown, raw)
				}
			}
		}
		if err := c.in(step{field: raw}, field); err != nil {
			return err
		}
	}
	c.at++
	names := slices.Sorted(maps.Keys(known))
	for _, raw := range unknown {
		if meant := nearest(fieldName(raw), names); meant != "" {
			c.path = append(c.path, step{field: raw})
			return fmt.Errorf("%s: no such field; did you mean %s?", c.where(), meant)
		}
	}
	if len(c.path) == 0 && fields > 0 && strange == fields {
		return fmt.Errorf("%s: no such field; the fields are %s", clip(fieldName(unknown[0])), strings.Join(names, ", "))
	}
	return nil
}

// fieldsOf adds the fields of a struct by their JSON names in lower case.
func fieldsOf(t reflect.Type, into map[string]reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			fieldsOf(f.Type, into)
		case f.IsExported() && name != "-":
			if name == "" {
				name = f.Name
			}
			into[strings.ToLower(name)] = f.Type
		}
	}
}

// text skips a string and returns it with its quotes.
func (c *bodyChecker) text() ([]byte, error) {
	start := c.at
	for c.at++; c.data[c.at] != '"'; c.at++ {
		if c.data[c.at] != '\\' {
			continue
		}
		c.at++
		if c.data[c.at] != 'u' {
			continue
		}
		r := c.escaped(c.at)
		c.at += 4
		if !utf16.IsSurrogate(r) {
			continue
		}
		if r < 0xdc00 && c.data[c.at+1] == '\\' && c.data[c.at+2] == 'u' {
			if low := c.escaped(c.at + 2); low >= 0xdc00 && low <= 0xdfff {
				c.at += 6
				continue
			}
		}
		return nil, fmt.Errorf(`%s: has \u%04x, half of a surrogate pair: send the whole character`, cmp.Or(c.where(), "the body"), r)
	}
	c.at++
	return c.data[start:c.at], nil
}

// escaped returns the code unit of the escape whose u is at i.
func (c *bodyChecker) escaped(i int) rune {
	n, _ := strconv.ParseUint(string(c.data[i+1:i+5]), 16, 16)
	return rune(n)
}

// nearest returns the name that is probably meant, or "": one in another spelling
// (systemPrompt), or one that differs by one or two slips and is long enough for that.
func nearest(name string, names []string) string {
	plain := func(s string) string {
		return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
	}
	best, least := "", 3
	for _, n := range names {
		limit := 0
		switch k := len(plain(n)); {
		case k >= 8:
			limit = 2
		case k >= 4:
			limit = 1
		}
		if d := distance(plain(name), plain(n)); d <= limit && d < least {
			best, least = n, d
		}
	}
	return best
}

// distance returns the Damerau-Levenshtein distance of a and b, or 3 if their lengths differ by
// more than 2.
func distance(a, b string) int {
	if len(a)-len(b) > 2 || len(b)-len(a) > 2 {
		return 3
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			same := 1
			if a[i] == b[j] {
				same = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+same)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
