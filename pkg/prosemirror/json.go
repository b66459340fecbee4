package prosemirror

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// JSON returns n exactly as TipTap's getJSON would: with all attributes of the schema in its
// order, including defaults and nulls. Marshalling a Node writes only what is set.
func (s *Schema) JSON(n *Node) ([]byte, error) {
	w := &jsonWriter{s: s}
	w.node(n)
	return w.buf.Bytes(), w.err
}

type jsonWriter struct {
	s   *Schema
	buf bytes.Buffer
	err error
}

func (w *jsonWriter) node(n *Node) {
	w.open(n.Type, false, n.Attrs)
	for i, c := range n.Content {
		w.buf.WriteString([]string{`,"content":[`, ","}[min(i, 1)])
		w.node(c)
	}
	if len(n.Content) > 0 {
		w.buf.WriteByte(']')
	}
	for i, m := range n.Marks {
		w.buf.WriteString([]string{`,"marks":[`, ","}[min(i, 1)])
		w.open(m.Name(), true, m.Attrs)
		w.buf.WriteByte('}')
	}
	if len(n.Marks) > 0 {
		w.buf.WriteByte(']')
	}
	if n.IsText() {
		w.buf.WriteString(`,"text":`)
		w.value(n.Text)
	}
	w.buf.WriteByte('}')
}

// open writes the type and the attributes of a node or mark.
func (w *jsonWriter) open(typ string, mark bool, attrs Attrs) {
	w.buf.WriteString(`{"type":`)
	w.value(typ)
	stored := w.s.stored(typ, mark, attrs)
	for i, a := range stored {
		w.buf.WriteString([]string{`,"attrs":{`, ","}[min(i, 1)])
		w.value(a.Key)
		w.buf.WriteByte(':')
		w.value(a.Value)
	}
	if len(stored) > 0 {
		w.buf.WriteByte('}')
	}
}

func (w *jsonWriter) value(v any) {
	e := json.NewEncoder(&w.buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		w.err = fmt.Errorf("encode document: %w", err)
		return
	}
	w.buf.Truncate(w.buf.Len() - 1) // the encoder's newline
}
