package llm

import (
	"encoding/json"
	"slices"
	"strings"
)

// Bounds of the schemas that providers enforce, below which both OpenAI and Anthropic stay.
const (
	maxFormatDepth = 10
	maxFormatEnum  = 500 // values of all enums
	maxFormatRefs  = 100 // definitions
)

// Strict describes how a provider can enforce a JSON Schema.
type Strict struct {
	// OK means that the schema is in the subset that providers enforce: the root is an
	// object, every object lists all of its properties as required and allows no others, and
	// only common keywords are used.
	OK bool
	// Refs means that it has references, which may be recursive.
	Refs bool
	// Unions is the number of its anyOf and lists of types.
	Unions int

	enum int
}

// StrictOf describes a schema.
func StrictOf(schema json.RawMessage) Strict {
	var root map[string]any
	s := Strict{}
	if json.Unmarshal(schema, &root) != nil || root["type"] != "object" || root["anyOf"] != nil {
		return s
	}
	s.OK = s.schema(root, maxFormatDepth) && s.enum <= maxFormatEnum
	return s
}

// schema reports whether a schema is in the subset. It may be nested left levels deep.
func (s *Strict) schema(v any, left int) bool {
	m, ok := v.(map[string]any)
	if !ok || left == 0 || !strictTypes(m) {
		return false
	}
	for keyword, v := range m {
		if !s.keyword(keyword, v, left) {
			return false
		}
	}
	return true
}

func (s *Strict) keyword(keyword string, v any, left int) bool {
	switch keyword {
	case "type":
		if _, list := v.([]any); list {
			s.Unions++
		}
		return true
	case "properties", "$defs":
		of, ok := v.(map[string]any)
		for _, e := range of {
			ok = ok && s.schema(e, left-1)
		}
		return ok && (keyword == "properties" || len(of) <= maxFormatRefs)
	case "anyOf":
		s.Unions++
		of, ok := v.([]any)
		for _, e := range of {
			ok = ok && s.schema(e, left-1)
		}
		return ok && len(of) > 0
	case "items":
		return s.schema(v, left-1)
	case "$ref":
		s.Refs = true
		ref, ok := v.(string)
		return ok && (ref == "#" || strings.HasPrefix(ref, "#/$defs/"))
	case "enum":
		of, ok := v.([]any)
		s.enum += len(of)
		return ok && !slices.ContainsFunc(of, func(e any) bool { return !scalar(e) })
	case "const":
		return scalar(v)
	case "required", "additionalProperties", "title", "description": // strictTypes checks the first two
		return true
	}
	return false
}

func scalar(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}

// strictTypes reports whether a schema says what kind of value it describes: an object with all
// properties required and no others, an array with items, or something else that is not empty.
func strictTypes(m map[string]any) bool {
	types, _ := m["type"].([]any)
	is := func(name string) bool { return m["type"] == name || slices.Contains(types, any(name)) }
	if is("array") && m["items"] == nil {
		return false
	}
	if !is("object") {
		return m["properties"] == nil && (m["type"] != nil || m["anyOf"] != nil || m["$ref"] != nil || m["enum"] != nil || m["const"] != nil)
	}
	properties, _ := m["properties"].(map[string]any)
	required, _ := m["required"].([]any)
	if m["additionalProperties"] != false || len(properties) == 0 || len(required) != len(properties) {
		return false
	}
	for name := range properties {
		if !slices.Contains(required, any(name)) {
			return false
		}
	}
	return true
}
