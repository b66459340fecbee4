package prosemirror

import (
	"encoding/json"
	"fmt"
	"html"
	"slices"
	"strings"
)

// What Markdown cannot say is written in the HTML that TipTap writes for the
// same thing, and exactly these tags are read back. A tag with any attribute
// more than these is text.

// htmlTag is a tag as it was written.
type htmlTag struct {
	name  string
	end   bool
	attrs []htmlAttr
}

type htmlAttr struct{ name, value string }

// cutTag reads the tag at the start of s.
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

// attr returns the attribute's value.
func (t *htmlTag) attr(name string) (string, bool) {
	for _, a := range t.attrs {
		if a.name == name {
			return a.value, true
		}
	}
	return "", false
}

// only tells whether the tag has no attributes but these.
func (t *htmlTag) only(names ...string) bool {
	return !slices.ContainsFunc(t.attrs, func(a htmlAttr) bool { return !slices.Contains(names, a.name) })
}

// markTags holds the tag that is written for a mark.
var markTags = map[string]string{
	"bold": "strong", "italic": "em", "strike": "s", "code": "code", "underline": "u",
	"highlight": "mark", "superscript": "sup", "subscript": "sub", "link": "a",
}

// tagMarks holds the marks of tags that are read.
var tagMarks = map[string]string{
	"strong": "bold", "b": "bold", "em": "italic", "i": "italic", "s": "strike", "del": "strike",
	"strike": "strike", "code": "code", "u": "underline", "mark": "highlight",
	"sup": "superscript", "sub": "subscript", "a": "link",
}

// openTag returns the tag that opens a mark, without those of its attributes
// that are the default. Those of a link have their own names, others data- and the
// name.
func (s *Schema) openTag(m Mark) string {
	mt := s.markType(m)
	var b strings.Builder
	b.WriteString("<" + markTags[mt.spec.Name])
	for _, a := range mt.spec.Attrs {
		v := m.Attrs[a.Name]
		if equalValue(v, a.Default) {
			continue
		}
		if v == nil {
			v = "" // null, since leaving it out means the default
		}
		name := a.Name
		if mt.spec.Name != "link" {
			name = "data-" + strings.ToLower(name)
		}
		appendAttr(&b, name, v)
	}
	b.WriteByte('>')
	return b.String()
}

// tagMark returns the mark that a tag opens.
func (s *Schema) tagMark(t htmlTag) (Mark, bool) {
	mt := s.marks[tagMarks[t.name]]
	if mt == nil {
		return Mark{}, false
	}
	attrs, used := Attrs{}, 0
	for _, a := range mt.spec.Attrs {
		name := a.Name
		if mt.spec.Name != "link" {
			name = "data-" + strings.ToLower(name)
		}
		v, ok := t.attr(name)
		if !ok {
			if a.Default != nil {
				attrs[a.Name] = a.Default
			}
			continue
		}
		used++
		if v == "" && a.Default != nil {
			attrs[a.Name] = nil
			continue
		}
		val, ok := a.parse(v)
		if !ok {
			return Mark{}, false
		}
		attrs[a.Name] = val
	}
	if _, ok := t.attr("href"); t.name == "a" && !ok || used != len(t.attrs) {
		return Mark{}, false
	}
	if len(attrs) == 0 {
		attrs = nil
	}
	return Mark{Type: mt.spec.Name, Attrs: attrs}, true
}

// parse reads the value of an attribute as appendAttr wrote it.
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

// appendAttr writes an attribute: a string as it is, else JSON.
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

// escapeHTML writes s so that it can stand anywhere, in a table cell too. Line
// ends and blanks at either side are references, since Markdown would move them.
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
