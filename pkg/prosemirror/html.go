package prosemirror

import (
	"encoding/json"
	"fmt"
	"html"
	"slices"
	"strings"
)

// What Markdown cannot express is written as the HTML that TipTap writes for it, and exactly
// these tags are read back. A tag with any other attribute is text.

// htmlTag is a parsed tag.
type htmlTag struct {
	name  string
	end   bool
	attrs []htmlAttr
}

type htmlAttr struct{ name, value string }

// cutTag parses the tag at the start of s.
func cutTag(s string) (tag htmlTag, rest string, ok bool) {
	if s, ok = strings.CutPrefix(s, "<"); !ok {
		return tag, s, false
	}
	s, tag.end = strings.CutPrefix(s, "/")
	tag.name, s = cutName(s)
	if tag.name == "" {
		return tag, s, false
	}
	for {
		t := strings.TrimLeft(s, " \t\r\n")
		if t, ok := strings.CutPrefix(strings.TrimPrefix(t, "/"), ">"); ok {
			return tag, t, true
		}
		var a htmlAttr
		if len(t) == len(s) {
			return tag, s, false
		}
		if a.name, s = cutName(t); a.name == "" || len(tag.attrs) > 20 {
			return tag, s, false
		}
		if v := strings.TrimLeft(s, " \t\r\n"); strings.HasPrefix(v, "=") {
			if a.value, s, ok = cutValue(strings.TrimLeft(v[1:], " \t\r\n")); !ok {
				return tag, s, false
			}
		}
		tag.attrs = append(tag.attrs, a)
	}
}

func cutName(s string) (name, rest string) {
	i := 0
	for i < len(s) && (isAlnum(s[i]) || s[i] == '-' || s[i] == '_' || s[i] == ':' || s[i] == '.') {
		i++
	}
	return strings.ToLower(s[:i]), s[i:]
}

func cutValue(s string) (value, rest string, ok bool) {
	if s == "" {
		return "", "", false
	}
	if q := s[0]; q == '"' || q == '\'' {
		i := strings.IndexByte(s[1:], q)
		if i < 0 {
			return "", s, false
		}
		return html.UnescapeString(s[1 : i+1]), s[i+2:], true
	}
	i := strings.IndexAny(s, " \t\r\n>")
	if i <= 0 {
		return "", s, false
	}
	return html.UnescapeString(s[:i]), s[i:], true
}

// attr returns the value of an attribute.
func (t *htmlTag) attr(name string) (string, bool) {
	for _, a := range t.attrs {
		if a.name == name {
			return a.value, true
		}
	}
	return "", false
}

// only reports whether the tag has no other attributes.
func (t *htmlTag) only(names ...string) bool {
	return !slices.ContainsFunc(t.attrs, func(a htmlAttr) bool { return !slices.Contains(names, a.name) })
}

// markTags holds the tag written for each mark.
var markTags = map[string]string{
	"bold": "strong", "italic": "em", "strike": "s", "code": "code", "underline": "u",
	"highlight": "mark", "superscript": "sup", "subscript": "sub", "link": "a",
}

// tagMarks holds the mark read from each tag.
var tagMarks = map[string]string{
	"strong": "bold", "b": "bold", "em": "italic", "i": "italic", "s": "strike", "del": "strike",
	"strike": "strike", "code": "code", "u": "underline", "mark": "highlight",
	"sup": "superscript", "sub": "subscript", "a": "link",
}

// openTag returns the tag that opens a mark, with its attributes that differ from the
// default.
func (s *Schema) openTag(m Mark) string {
	mt := s.markType(m)
	attrName := markAttrName(mt)
	var b strings.Builder
	b.WriteString("<" + markTags[mt.spec.Name])
	for _, a := range mt.spec.Attrs {
		v := m.Attrs[a.Name]
		if equalValue(v, a.Default) {
			continue
		}
		if v == nil {
			v = "" // null: omitting it would mean the default
		}
		appendAttr(&b, attrName(a.Name), v)
	}
	b.WriteByte('>')
	return b.String()
}

// markAttrName returns the HTML name of a mark's attribute: a link keeps the names, others
// prefix them with data-.
func markAttrName(t *markType) func(string) string {
	if t.spec.Name == "link" {
		return func(name string) string { return name }
	}
	return func(name string) string { return "data-" + strings.ToLower(name) }
}

// tagMark returns the mark that a tag opens.
func (s *Schema) tagMark(t htmlTag) (Mark, bool) {
	mt := s.marks[tagMarks[t.name]]
	if mt == nil {
		return Mark{}, false
	}
	attrs, ok := t.read(mt.spec.Attrs, true, markAttrName(mt))
	if _, href := t.attr("href"); !ok || t.name == "a" && !href {
		return Mark{}, false
	}
	if len(attrs) == 0 {
		attrs = nil
	}
	return Mark{Type: mt.spec.Name, Attrs: attrs}, true
}

// tagAttrs returns the attributes that a tag has for a node of type typ.
func (s *Schema) tagAttrs(typ string, tag *htmlTag) (Attrs, bool) {
	t := s.types[typ]
	if t == nil {
		return nil, false
	}
	return tag.read(t.spec.Attrs, false, strings.ToLower)
}

// read returns the attributes in specs, where name gives their HTML names. An absent attribute
// of a mark has its default, an empty one is null. ok is false if a value is invalid or the
// tag has other attributes.
func (t *htmlTag) read(specs []AttrSpec, mark bool, name func(string) string) (attrs Attrs, ok bool) {
	attrs = Attrs{}
	used := 0
	for _, a := range specs {
		raw, there := t.attr(name(a.Name))
		if there {
			used++
		}
		switch marked := mark && a.Default != nil; {
		case marked && !there:
			attrs[a.Name] = a.Default
		case marked && raw == "":
			attrs[a.Name] = nil
		case there:
			if attrs[a.Name], ok = a.parse(raw); !ok {
				return nil, false
			}
		}
	}
	return attrs, used == len(t.attrs)
}

// parse reads the value of an attribute as written by appendAttr.
func (a *AttrSpec) parse(s string) (any, bool) {
	if a.Kind == String {
		return s, a.check(s, false) == ""
	}
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil || d.More() {
		return nil, false
	}
	v = fromJSON(v)
	return v, v != nil && a.check(v, false) == ""
}

// appendAttr writes an attribute: a string verbatim, other values as JSON.
func appendAttr(b *strings.Builder, name string, v any) {
	s, ok := v.(string)
	if !ok {
		j, err := json.Marshal(v)
		if err != nil {
			j = fmt.Append(nil, v)
		}
		s = string(j)
	}
	b.WriteString(" " + name + `="`)
	escapeHTML(b, s)
	b.WriteByte('"')
}

// escapeHTML escapes s for any context, including table cells. Newlines and spaces at either
// end become references, since Markdown would strip them.
func escapeHTML(b *strings.Builder, s string) {
	for i, c := range []byte(s) {
		switch {
		case c == '&':
			b.WriteString("&amp;")
		case c == '<':
			b.WriteString("&lt;")
		case c == '>':
			b.WriteString("&gt;")
		case c == '"':
			b.WriteString("&quot;")
		case c == '|' || c == '`' || c < ' ' || c == ' ' && (i == 0 || i == len(s)-1):
			fmt.Fprintf(b, "&#%d;", c)
		default:
			b.WriteByte(c)
		}
	}
}
