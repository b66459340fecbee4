package prosemirror_test

import (
	"math"
	"math/rand/v2"
	"testing"

	pm "signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
)

// scribbler makes shared documents outside any schema: adjacent texts and texts at the top,
// hooks, maps, embedded objects, values of all kinds, deep nesting.
type scribbler struct{ *rand.Rand }

func (r scribbler) value() any {
	switch r.IntN(12) {
	case 0:
		return nil
	case 1:
		return yjs.Undefined
	case 2:
		return r.IntN(2) == 0
	case 3:
		return r.IntN(9)
	case 4:
		return []float64{math.NaN(), math.Inf(1), math.Copysign(0, -1), 0.5, 1e300}[r.IntN(5)]
	case 5:
		return yjs.BigInt(1 << 60)
	case 6:
		return []byte{1}
	case 7:
		return []any{1, nil, math.NaN(), yjs.Undefined}
	case 8:
		return yjs.Object{{Key: "href", Value: "u"}, {Key: "x", Value: yjs.Undefined}}
	case 9:
		return yjs.NewMap()
	}
	return "value"
}

func (r scribbler) pick(s ...string) string { return s[r.IntN(len(s))] }

func (r scribbler) name() string {
	return r.pick("paragraph", "heading", "doc", "text", "", "table", "tableRow", "tableCell", "bulletList", "listItem", "hardBreak", "image", "codeBlock", "unknown", "taskItem", "mention")
}

func (r scribbler) format() yjs.Object {
	var o yjs.Object
	for r.IntN(2) == 0 {
		v := r.value()
		if _, shared := v.(*yjs.Map); shared {
			v = yjs.Object{}
		}
		o = o.Set(r.pick("bold", "link", "code", "comment--abcdefgh", "", "italic--abcdefgh", "unknown"), v)
	}
	return o
}

func (r scribbler) write(t *yjs.Text) {
	for r.IntN(3) > 0 {
		n := t.Len()
		switch r.IntN(6) {
		case 0:
			_ = t.InsertEmbed(r.IntN(n+1), r.value(), r.format())
		case 1:
			_ = t.Format(r.IntN(n+1), r.IntN(4), r.format())
		case 2:
			t.Delete(r.IntN(n+1), r.IntN(4))
		default:
			_ = t.InsertFormatted(r.IntN(n+1), r.pick("word", "😀", "e\u0301", "two words", "\n"), r.format())
		}
	}
}

func (r scribbler) fill(f *yjs.XMLFragment, depth int) {
	for r.IntN(4) > 0 && f.Len() < 8 {
		var n any
		switch r.IntN(10) {
		case 0:
			n = yjs.NewMap()
		case 1:
			n = yjs.NewArray()
		case 2:
			n = yjs.NewXMLHook("paragraph")
		case 3:
			n = yjs.NewText("plain")
		case 4:
			n = yjs.NewXMLFragment()
		case 5, 6:
			n = yjs.NewXMLText("")
		default:
			n = yjs.NewXMLElement(r.name())
		}
		_ = f.Insert(r.IntN(f.Len()+1), n)
		switch n := n.(type) {
		case *yjs.XMLText:
			r.write(n.Text())
		case *yjs.Text:
			r.write(n)
		case *yjs.XMLElement:
			for r.IntN(3) == 0 {
				_ = n.SetAttribute(r.pick("level", "href", "colspan", "colwidth", "checked", "src", "x", ""), r.value())
			}
			if depth < 6 {
				r.fill(n.Fragment(), depth+1)
			}
		}
	}
	if f.Len() > 0 && r.IntN(6) == 0 {
		_ = f.Delete(r.IntN(f.Len()), 1)
	}
}

// checkAnything reads an arbitrary fragment and writes into it.
func checkAnything(t *testing.T, r *replica, next *pm.Node) {
	t.Helper()
	doc := r.read()
	if _, err := r.s.JSON(doc); err != nil {
		t.Fatalf("JSON of what was read: %v", err)
	}
	r.s.Render(doc)
	r.write(doc)
	now := r.read()
	if update, _ := r.write(doc); update != nil {
		t.Fatalf("writing the same again makes an update\nread %s\nthen %s\nthen %s", show(doc), show(now), show(r.read()))
	}
	r.write(next)
	now = r.read()
	if update, _ := r.write(next); update != nil {
		t.Fatalf("writing another one again makes an update\nnext %s\nis   %s\nthen %s", show(next), show(now), show(r.read()))
	}
	if got, want := now.TextContent(), next.TextContent(); got != want {
		t.Fatalf("after Write the text is %q, want %q", got, want)
	}
}

func TestReadAnything(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for seed := range uint64(rounds(400)) {
		r := newReplica(t, s, 1)
		scribble := scribbler{rand.New(rand.NewPCG(seed, 5))}
		r.d.Transact(nil, func(*yjs.Txn) { scribble.fill(r.f, 0) })
		checkAnything(t, r, newGenerator(s, seed).doc())
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestReadDeep reads a fragment nested deeper than any document.
func TestReadDeep(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	r := newReplica(t, s, 1)
	at := r.f
	for range 3000 {
		e := yjs.NewXMLElement("blockquote")
		if err := at.Insert(0, e); err != nil {
			t.Fatal(err)
		}
		at = e.Fragment()
	}
	_ = at.Insert(0, newElem("paragraph", yjs.NewXMLText("deep")))
	checkAnything(t, r, parse(t, s, "one"))
}

// FuzzRead reads fragments made by arbitrary updates.
func FuzzRead(f *testing.F) {
	s := pm.TipTap()
	for seed := range uint64(40) {
		r := newReplica(f, s, 1)
		scribble := scribbler{rand.New(rand.NewPCG(seed, 6))}
		r.d.Transact(nil, func(*yjs.Txn) { scribble.fill(r.f, 0) })
		f.Add(r.d.EncodeStateAsUpdate(nil))
	}
	f.Fuzz(func(t *testing.T, update []byte) {
		r := newReplica(t, s, 1)
		if r.d.ApplyUpdate(update, nil) != nil || len(r.s.Read(r.f).Content) > 200 {
			return
		}
		checkAnything(t, r, newGenerator(s, uint64(len(update))).doc())
	})
}
