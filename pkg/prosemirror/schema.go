package prosemirror

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is the type of an attribute's value.
type Kind string

// The kinds of attributes. Null is also accepted if it is the default.
const (
	Any     Kind = ""
	String  Kind = "string"
	Bool    Kind = "bool"
	Int     Kind = "int"
	Number  Kind = "number" // whole or not
	NumList Kind = "numbers"
)

// AttrSpec describes an attribute.
type AttrSpec struct {
	Name string
	Kind Kind
	// Default is the value for a node without the attribute; nil is null.
	Default any
	// Required means that there is no default: a node without it is invalid.
	Required bool
	// Min and Max bound an Int unless Max is 0.
	Min, Max int
	// Enum lists the allowed values of a String, nil for any.
	Enum []string
}

// NodeSpec describes a type of node.
type NodeSpec struct {
	Name string
	// Content is the content expression. An empty one makes a leaf.
	Content string
	// Group holds the space-separated names by which expressions refer to it.
	Group  string
	Inline bool
	// Marks holds the space-separated names of the marks allowed on its text. "_" and ""
	// allow all, "-" none.
	Marks string
	// Code marks source code: whitespace and newlines are significant.
	Code  bool
	Attrs []AttrSpec
}

// MarkSpec describes a type of mark.
type MarkSpec struct {
	Name string
	// Excludes names the marks that cannot share a text with this one, "_" for all. ""
	// excludes only the mark's own type; "-" excludes nothing, so that several may overlap.
	Excludes string
	Attrs    []AttrSpec
}

// Spec is a schema as data. The order of nodes is the preference when a missing node is
// created; the order of marks is their order on a text.
type Spec struct {
	// Top is the node at the root.
	Top   string
	Nodes []NodeSpec
	Marks []MarkSpec
	// Trailing names the empty node that ends a document whose last node is of another
	// type: editors with TipTap's trailingNode add it themselves. Fit adds it, and
	// Markdown does not show it.
	Trailing string
}

// Schema is a compiled Spec. It is safe for concurrent use.
type Schema struct {
	spec  Spec
	top   *nodeType
	types map[string]*nodeType
	order []*nodeType
	marks map[string]*markType
}

type nodeType struct {
	spec    NodeSpec
	content *match
	inlines bool // the content is inline
	marks   map[*markType]bool
}

type markType struct {
	spec     MarkSpec
	rank     int
	excludes map[*markType]bool
}

func (t *nodeType) leaf() bool { return t.spec.Content == "" }

// New compiles spec.
func New(spec Spec) (*Schema, error) {
	s := &Schema{spec: spec, types: map[string]*nodeType{}, marks: map[string]*markType{}}
	for _, n := range spec.Nodes {
		if s.types[n.Name] != nil {
			return nil, fmt.Errorf("node %s is defined twice", n.Name)
		}
		t := &nodeType{spec: n}
		s.types[n.Name] = t
		s.order = append(s.order, t)
	}
	if s.top = s.types[spec.Top]; s.top == nil {
		return nil, fmt.Errorf("the top node %q is not defined", spec.Top)
	}
	if s.types[TextType] == nil {
		return nil, fmt.Errorf("the node %q is not defined", TextType)
	}
	if err := s.compileMarks(); err != nil {
		return nil, err
	}
	for _, t := range s.order {
		if err := s.compileNode(t); err != nil {
			return nil, fmt.Errorf("node %s: %w", t.spec.Name, err)
		}
	}
	for _, t := range s.order {
		if !s.constructible(t, 0) {
			return nil, fmt.Errorf("node %s: the minimal content of %q is infinite", t.spec.Name, t.spec.Content)
		}
	}
	if t := s.types[spec.Trailing]; spec.Trailing != "" && (t == nil || t.inlineNode()) {
		return nil, fmt.Errorf("the trailing node %q is not a block", spec.Trailing)
	}
	return s, nil
}

// constructible reports whether a node of type t can be created with its required content.
func (s *Schema) constructible(t *nodeType, depth int) bool {
	if depth > len(s.order) {
		return false
	}
	types, ok := (&fitter{s: s}).missing(t.content, atEnd)
	return ok != nil && !slices.ContainsFunc(types, func(t *nodeType) bool { return !s.constructible(t, depth+1) })
}

func (t *nodeType) inlineNode() bool { return t.spec.Inline || t.spec.Name == TextType }

func (s *Schema) compileMarks() error {
	for i, m := range s.spec.Marks {
		if s.marks[m.Name] != nil {
			return fmt.Errorf("mark %s is defined twice", m.Name)
		}
		s.marks[m.Name] = &markType{spec: m, rank: i}
	}
	for _, m := range s.spec.Marks {
		names := m.Excludes
		if names == "" {
			names = m.Name
		}
		set, err := s.markSet(names)
		if err != nil {
			return fmt.Errorf("mark %s excludes: %w", m.Name, err)
		}
		s.marks[m.Name].excludes = set
	}
	return nil
}

func (s *Schema) markSet(names string) (map[*markType]bool, error) {
	set := map[*markType]bool{}
	switch names {
	case "-":
	case "_":
		for _, m := range s.marks {
			set[m] = true
		}
	default:
		for name := range strings.FieldsSeq(names) {
			if s.marks[name] == nil {
				return nil, fmt.Errorf("no mark is named %q", name)
			}
			set[s.marks[name]] = true
		}
	}
	return set, nil
}

func (s *Schema) compileNode(t *nodeType) error {
	m, err := s.compileContent(t.spec.Content)
	if err != nil {
		return fmt.Errorf("content %q: %w", t.spec.Content, err)
	}
	t.content = m
	t.inlines = len(m.edges) > 0 && m.edges[0].typ.inlineNode()
	for _, e := range m.edges {
		if e.typ.inlineNode() != t.inlines {
			return fmt.Errorf("content %q mixes blocks and inline nodes", t.spec.Content)
		}
	}
	names := t.spec.Marks
	if names == "" {
		names = "_"
	}
	t.marks, err = s.markSet(names)
	return err
}

// Spec returns the data from which s was compiled. Callers must not change it.
func (s *Schema) Spec() Spec { return s.spec }

func (s *Schema) attrSpecs(name string, mark bool) []AttrSpec {
	if mark {
		if m := s.marks[name]; m != nil {
			return m.spec.Attrs
		}
		return nil
	}
	if t := s.types[name]; t != nil {
		return t.spec.Attrs
	}
	return nil
}

// markType returns the type of a mark, nil if it is outside the schema.
func (s *Schema) markType(m Mark) *markType {
	if t := s.marks[m.Type]; t != nil {
		return t
	}
	// Only marks that may overlap have a suffix.
	if t := s.marks[m.Name()]; t != nil && !t.excludes[t] {
		return t
	}
	return nil
}

// fitAttrs returns a with defaults filled in and unknown attributes removed, and whether all
// required ones are present. A mark keeps an explicit null, since it is stored with the
// mark; a node cannot store one.
func fitAttrs(specs []AttrSpec, a Attrs, mark bool) (Attrs, bool) {
	ok, same, known := true, true, 0
	for _, spec := range specs {
		v, there := a[spec.Name]
		if there {
			known++
		}
		fit := spec.fit(v, there && mark)
		ok = ok && (fit != nil || !spec.Required)
		same = same && equalValue(fit, v) && there == (fit != nil || spec.Default != nil)
	}
	if same && known == len(a) {
		return a, ok
	}
	out := Attrs{}
	for _, spec := range specs {
		v, there := a[spec.Name]
		if v = spec.fit(v, there && mark); v != nil || spec.Default != nil {
			out[spec.Name] = v
		}
	}
	if len(out) == 0 {
		return nil, ok
	}
	return out, ok
}

// check describes what is wrong with v, or returns "". With mayNull, an explicit null is
// valid for any default.
func (a *AttrSpec) check(v any, mayNull bool) string {
	if v == nil {
		if a.Required || a.Default != nil && !mayNull {
			return "is missing"
		}
		return ""
	}
	ok := false
	switch a.Kind {
	case Any:
		ok = true
	case String:
		var s string
		if s, ok = v.(string); ok && a.Enum != nil && !slices.Contains(a.Enum, s) {
			return fmt.Sprintf("is %q, want one of %q", s, a.Enum)
		}
	case Bool:
		_, ok = v.(bool)
	case Int:
		var i int
		if i, ok = v.(int); ok && a.Max != 0 && (i < a.Min || i > a.Max) {
			return fmt.Sprintf("is %d, want %d to %d", i, a.Min, a.Max)
		}
	case Number:
		ok = isNumber(v)
	case NumList:
		var l []any
		if l, ok = v.([]any); ok {
			ok = !slices.ContainsFunc(l, func(v any) bool { return v != nil && !isNumber(v) })
		}
	}
	if !ok {
		return fmt.Sprintf("is %T, want %s", v, a.Kind)
	}
	return ""
}

func isNumber(v any) bool {
	switch v.(type) {
	case int, float64:
		return true
	}
	return false
}

// fit returns v if it is valid, else the nearest valid value, else the default.
func (a *AttrSpec) fit(v any, mayNull bool) any {
	if v == nil && !mayNull {
		return a.Default
	}
	if a.check(v, mayNull) == "" {
		return v
	}
	switch a.Kind {
	case String:
		if isNumber(v) && a.Enum == nil {
			return fmt.Sprint(v)
		}
	case Bool:
		switch v {
		case "true":
			return true
		case "false":
			return false
		}
	case Int:
		if i, ok := v.(int); ok {
			return min(max(i, a.Min), a.Max)
		}
		var i int
		if s, ok := v.(string); ok && len(s) < 10 {
			if _, err := fmt.Sscanf(s, "%d", &i); err == nil && fmt.Sprint(i) == s {
				return a.fit(i, false)
			}
		}
	}
	return a.Default
}
