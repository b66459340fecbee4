package yjs_test

import (
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"strings"

	"signalbox.dev/pkg/yjs"
)

// canon formats the content of a document like bench/yjs/canon.mjs.
func canon(d *yjs.Doc) string {
	var w canonWriter
	for i, v := range []any{d.Text("t"), d.Map("m"), d.Array("a"), d.XMLFragment("x")} {
		if i > 0 {
			w.WriteByte('\n')
		}
		w.value(v)
	}
	return w.String()
}

type canonWriter struct{ strings.Builder }

// json writes halves of surrogate pairs as U+FFFD: only their author sees them.
func (w *canonWriter) json(v any) {
	if s, ok := v.(string); ok {
		p := []byte(s)
		for i := 0; i+2 < len(p); i++ {
			if p[i] == 0xed && p[i+1] >= 0xa0 {
				copy(p[i:], "\uFFFD")
			}
		}
		v = string(p)
	}
	w.Write(yjs.AppendJSON(nil, v))
}

func (w *canonWriter) value(v any) {
	switch v := v.(type) {
	case nil:
		w.WriteByte('n')
	case yjs.UndefinedValue:
		w.WriteByte('u')
	case bool:
		w.WriteString(strconv.FormatBool(v)[:1])
	case float64:
		w.number(v)
	case yjs.BigInt:
		w.WriteString("b" + strconv.FormatInt(int64(v), 10))
	case string:
		w.json(v)
	case []byte:
		w.WriteString("x" + hex.EncodeToString(v))
	case []any:
		w.list(v)
	case yjs.Object:
		w.object(v, false)
	case *yjs.Subdoc:
		w.WriteByte('D')
		w.json(v.GUID())
	case *yjs.XMLHook:
		w.WriteByte('H')
		w.json(v.Name())
		w.entries(v.Map())
	case *yjs.XMLText:
		w.WriteByte('X')
		w.delta(v.Text())
	case *yjs.XMLElement:
		w.WriteByte('E')
		w.json(v.Name())
		w.object(v.Attributes(), true)
		w.list(v.Children())
	case *yjs.XMLFragment:
		w.WriteByte('F')
		w.list(v.Children())
	case *yjs.Text:
		w.WriteByte('T')
		w.delta(v)
	case *yjs.Map:
		w.WriteByte('M')
		w.entries(v)
	case *yjs.Array:
		w.WriteByte('A')
		w.list(v.Values())
	}
}

func (w *canonWriter) number(f float64) {
	w.WriteByte('#')
	if f == 0 && math.Signbit(f) {
		w.WriteByte('-')
	}
	switch {
	case f != f:
		w.WriteString("NaN")
	case math.IsInf(f, 1):
		w.WriteString("Infinity")
	case math.IsInf(f, -1):
		w.WriteString("-Infinity")
	default:
		w.json(f)
	}
}

func (w *canonWriter) list(vs []any) {
	w.WriteByte('[')
	for i, v := range vs {
		if i > 0 {
			w.WriteByte(',')
		}
		w.value(v)
	}
	w.WriteByte(']')
}

func (w *canonWriter) object(o yjs.Object, sorted bool) {
	if sorted {
		o = slices.Clone(o)
		slices.SortFunc(o, func(a, b yjs.Member) int { return strings.Compare(a.Key, b.Key) })
	}
	w.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			w.WriteByte(',')
		}
		w.json(m.Key)
		w.WriteByte(':')
		w.value(m.Value)
	}
	w.WriteByte('}')
}

func (w *canonWriter) entries(m *yjs.Map) {
	var o yjs.Object
	m.Each(func(key string, v any) bool {
		o = append(o, yjs.Member{Key: key, Value: v})
		return true
	})
	w.object(o, true)
}

func (w *canonWriter) delta(t *yjs.Text) {
	w.WriteByte('(')
	for i, op := range t.Delta() {
		if i > 0 {
			w.WriteByte(';')
		}
		w.value(op.Insert)
		if len(op.Attributes) > 0 {
			w.WriteByte('@')
			w.object(op.Attributes, true)
		}
	}
	w.WriteByte(')')
	w.object(t.Attributes(), true)
}
