package script

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Pattern is a regular expression (RE2). Templates can use its named groups.
type Pattern struct{ *regexp.Regexp }

// UnmarshalYAML reads a scalar.
func (p *Pattern) UnmarshalYAML(n ast.Node) error {
	var s string
	if err := yaml.NodeToValue(n, &s); err != nil {
		return err
	}
	re, err := regexp.Compile(s)
	if err != nil {
		return bad(n, "not a regular expression: %v", err)
	}
	p.Regexp = re
	return nil
}

// groups adds the named groups of a match in s to into. It reports whether s matches.
func (p *Pattern) groups(s string, into map[string]string) bool {
	m := p.FindStringSubmatch(s)
	if m == nil {
		return false
	}
	for i, name := range p.SubexpNames() {
		if name != "" {
			into[name] = m[i]
		}
	}
	return true
}

// Duration is a duration such as 250ms or 2s.
type Duration time.Duration

// UnmarshalYAML reads a scalar.
func (d *Duration) UnmarshalYAML(n ast.Node) error {
	var s string
	if err := yaml.NodeToValue(n, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return bad(n, "%q is not a duration: write 250ms, 2s or 1m", s)
	}
	if v < 0 || v > maxDelay {
		return bad(n, "%s is out of range: 0s to %s", s, maxDelay)
	}
	*d = Duration(v)
	return nil
}

// Names is one string or a list of them.
type Names []string

// UnmarshalYAML reads a scalar or a sequence.
func (l *Names) UnmarshalYAML(n ast.Node) error {
	if n.Type() == ast.SequenceType {
		return yaml.NodeToValue(n, (*[]string)(l))
	}
	var s string
	if err := yaml.NodeToValue(n, &s); err != nil {
		return err
	}
	*l = Names{s}
	return nil
}

// JSON is a JSON text, given as a string to preserve its bytes.
type JSON json.RawMessage

// UnmarshalYAML reads a scalar.
func (j *JSON) UnmarshalYAML(n ast.Node) error {
	var s string
	if err := yaml.NodeToValue(n, &s); err != nil {
		return err
	}
	if !json.Valid([]byte(s)) {
		return bad(n, "not valid JSON: write it as one quoted YAML string")
	}
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(s)); err != nil {
		return bad(n, "not valid JSON: %v", err)
	}
	*j = b.Bytes()
	return nil
}

// Chunk says how a text is split into deltas: by word (the default), by line, not at all, or by
// a number of characters. Several numbers are used in turn.
type Chunk struct {
	mode  string
	sizes []int
}

// UnmarshalYAML reads word, line, all, a number or a list of numbers.
func (c *Chunk) UnmarshalYAML(n ast.Node) error {
	switch n.Type() {
	case ast.SequenceType:
		if err := yaml.NodeToValue(n, &c.sizes); err != nil {
			return err
		}
	case ast.IntegerType:
		c.sizes = []int{0}
		if err := yaml.NodeToValue(n, &c.sizes[0]); err != nil {
			return err
		}
	default:
		if err := yaml.NodeToValue(n, &c.mode); err != nil {
			return err
		}
		if c.mode != "word" && c.mode != "line" && c.mode != "all" {
			return bad(n, "%q is not known: use word, line, all, a number of characters or a list of numbers", c.mode)
		}
		return nil
	}
	if len(c.sizes) == 0 {
		return bad(n, "an empty list of sizes")
	}
	for _, size := range c.sizes {
		if size < 1 {
			return bad(n, "a chunk has at least one character")
		}
	}
	return nil
}

// split splits s into pieces, none of which is empty.
func (c *Chunk) split(s string) []string {
	if s == "" {
		return nil
	}
	switch {
	case c == nil || c.mode == "word":
		return splitWords(s)
	case c.mode == "all":
		return []string{s}
	case c.mode == "line":
		return splitAfter(s, '\n')
	}
	return splitSizes(s, c.sizes)
}

func splitSizes(s string, sizes []int) []string {
	var out []string
	for turn := 0; s != ""; turn++ {
		n, end := sizes[turn%len(sizes)], 0
		for ; n > 0 && end < len(s); n-- {
			_, w := utf8.DecodeRuneInString(s[end:])
			end += w
		}
		out, s = append(out, s[:end]), s[end:]
	}
	return out
}

func splitAfter(s string, sep byte) []string {
	var out []string
	start := 0
	for i := range len(s) {
		if s[i] == sep {
			out, start = append(out, s[start:i+1]), i+1
		}
	}
	if start < len(s) {
		out = append(out, s[start:])
	}
	return out
}

// splitWords splits before each run of spaces, like tokens of models.
func splitWords(s string) []string {
	var out []string
	start := 0
	for i := 1; i < len(s); i++ {
		space := s[i] == ' ' || s[i] == '\n'
		before := s[i-1] == ' ' || s[i-1] == '\n'
		if space && !before {
			out, start = append(out, s[start:i]), i
		}
	}
	return append(out, s[start:])
}

// argSizes are the sizes of the deltas of tool arguments.
func argSizes() *Chunk { return &Chunk{sizes: []int{2, 5, 9, 14, 20}} }

// Args are a tool's arguments: a mapping whose strings are templates, or one
// template that gives the JSON text.
type Args struct {
	tree any       // argObject, []any, *Template or json.RawMessage
	text *Template // the whole as JSON text
}

type argField struct {
	name  string
	value any
}

type argObject []argField

// UnmarshalYAML reads a mapping or a scalar.
func (a *Args) UnmarshalYAML(n ast.Node) error {
	if _, ok := n.(ast.MapNode); !ok {
		a.text = new(Template)
		return a.text.UnmarshalYAML(n)
	}
	var v any
	if err := yaml.NodeToValue(n, &v, yaml.UseOrderedMap()); err != nil {
		return err
	}
	tree, err := compileArgs(v)
	if err != nil {
		return bad(n, "%v", err)
	}
	a.tree = tree
	return nil
}

func compileArgs(v any) (any, error) {
	switch v := v.(type) {
	case string:
		return newTemplate(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			var err error
			if out[i], err = compileArgs(v[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	case yaml.MapSlice:
		out := make(argObject, len(v))
		for i, item := range v {
			value, err := compileArgs(item.Value)
			if err != nil {
				return nil, err
			}
			out[i] = argField{name: fmt.Sprint(item.Key), value: value}
		}
		return out, nil
	default:
		b, err := json.Marshal(v)
		return json.RawMessage(b), err
	}
}

// render returns the arguments as JSON.
func (a *Args) render(data func() map[string]any) (string, error) {
	if a.text != nil {
		s, err := a.text.render(data)
		if err != nil {
			return "", err
		}
		if !json.Valid([]byte(s)) {
			return "", fmt.Errorf("args: the template gave no valid JSON: %.200s", s)
		}
		return s, nil
	}
	b, err := appendArgs(nil, a.tree, data)
	return string(b), err
}

func appendArgs(b []byte, v any, data func() map[string]any) ([]byte, error) {
	var err error
	switch v := v.(type) {
	case *Template:
		var s string
		if s, err = v.render(data); err != nil {
			return nil, err
		}
		return appendJSON(b, s)
	case []any:
		b = append(b, '[')
		for i := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendArgs(b, v[i], data); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case argObject:
		b = append(b, '{')
		for i, f := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendJSON(b, f.name); err != nil {
				return nil, err
			}
			if b, err = appendArgs(append(b, ':'), f.value, data); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	case json.RawMessage:
		return append(b, v...), nil
	default:
		return nil, fmt.Errorf("args: a value of type %T", v)
	}
}

// appendJSON is json.Marshal without HTML escapes.
func appendJSON(b []byte, v any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...), nil
}
