package editing

import (
	"fmt"
	"math/rand/v2"

	"signalbox.dev/pkg/yjs"
)

var words = []string{"alpha ", "beta ", "grün ", "日本 ", "🙂 ", "x", "y ", "\n", "longer words here "}

// most is the maximum number of the document's blocks.
const most = 200

// edit makes a change: mostly typing, as people do.
func edit(rnd *rand.Rand, doc *yjs.Doc) error {
	f := doc.XMLFragment("default")
	if f.Len() == 0 || f.Len() < most && rnd.IntN(60) == 0 {
		p := yjs.NewXMLElement("paragraph")
		if err := f.Insert(rnd.IntN(f.Len()+1), p); err != nil {
			return err
		}
		return p.Push(yjs.NewXMLText(words[rnd.IntN(len(words))]))
	}
	at := rnd.IntN(f.Len())
	node, _ := f.Get(at)
	p, ok := node.(*yjs.XMLElement)
	if !ok {
		return fmt.Errorf("block %d is a %T", at, node)
	}
	switch n := rnd.IntN(100); {
	case n == 0 && f.Len() > 5:
		return f.Delete(at, 1)
	case n == 1:
		return p.SetAttribute("level", rnd.IntN(6)+1)
	case n == 2:
		return doc.Map("notes").Set(words[rnd.IntN(len(words))], rnd.IntN(1000))
	}
	first, ok := p.Get(0)
	if !ok {
		return p.Push(yjs.NewXMLText("a"))
	}
	x, ok := first.(*yjs.XMLText)
	if !ok {
		return fmt.Errorf("block %d has a %T in it", at, first)
	}
	text := x.Text()
	switch n := rnd.IntN(20); {
	case n < 4 && text.Len() > 0:
		from := rnd.IntN(text.Len())
		text.Delete(from, min(1+rnd.IntN(6), text.Len()-from))
	case n == 4 && text.Len() > 1:
		from := rnd.IntN(text.Len() - 1)
		return text.Format(from, 1+rnd.IntN(text.Len()-from), yjs.Object{{Key: "bold", Value: yjs.Object{}}})
	default:
		text.Insert(rnd.IntN(text.Len()+1), words[rnd.IntN(len(words))])
	}
	return nil
}
