package prosemirror

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// JSON returns n exactly as TipTap's getJSON would: with all attributes of the schema in its
// order, including defaults and nulls. Marshalling a Node writes only what is set.
func (s *Schema) JSON(n *Node) ([]byte, error) {
	var b bytes.Buffer
	if err := s.appendJSON(&b, n); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (s *Schema) appendJSON(b *bytes.Buffer, n *Node) error {
	b.WriteString(`{"type":`)
	if err := appendValue(b, n.Type); err != nil {
		return err
	}
	if err := s.appendAttrs(b, n.Type, false, n.Attrs); err != nil {
		return err
	}
	for i, c := range n.Content {
		b.WriteString([]string{`,"content":[`, ","}[min(i, 1)])
		if err := s.appendJSON(b, c); err != nil {
			return err
		}
	}
	if len(n.Content) > 0 {
		b.WriteByte(']')
	}
	for i, m := range n.Marks {
		b.WriteString([]string{`,"marks":[`, ","}[min(i, 1)] + `{"type":`)
		if err := appendValue(b, m.Name()); err != nil {
			return err
		}
		if err := s.appendAttrs(b, m.Name(), true, m.Attrs); err != nil {
			return err
		}
		b.WriteByte('}')
	}
	if len(n.Marks) > 0 {
		b.WriteByte(']')
	}
	if n.IsText() {
		b.WriteString(`,"text":`)
		if err := appendValue(b, n.Text); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

// appendAttrs writes the schema's attributes, then the others.
func (s *Schema) appendAttrs(b *bytes.Buffer, name string, mark bool, attrs Attrs) error {
	open := `,"attrs":{`
	add := func(name string, v any) error {
		b.WriteString(open)
		open = ","
		if err := appendValue(b, name); err != nil {
			return err
		}
		b.WriteByte(':')
		return appendValue(b, v)
	}
	known := map[string]bool{}
	for _, a := range s.attrSpecs(name, mark) {
		known[a.Name] = true
		v, ok := attrs[a.Name]
		if !ok {
			v = a.Default
		}
		if err := add(a.Name, v); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(attrs) {
		if known[name] || attrs[name] == nil {
			continue
		}
		if err := add(name, attrs[name]); err != nil {
			return err
		}
	}
	if open == "," {
		b.WriteByte('}')
	}
	return nil
}

func appendValue(b *bytes.Buffer, v any) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write a value of a document: %w", err)
	}
	b.Truncate(b.Len() - 1) // the encoder's newline
	return nil
}
