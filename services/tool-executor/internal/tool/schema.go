package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/plainjson"
)

// MaxArgs bounds the arguments of a call, in bytes of JSON.
const MaxArgs = 1 << 20

// maxViolations bounds how many mistakes are listed at once.
const maxViolations = 8

// Schema is a compiled JSON Schema for arguments. It is safe for concurrent use.
type Schema struct {
	schema *jsonschema.Schema
	fields []string // the names of the top level, for messages
}

// refuser is a loader that fails, so that a schema with external references does not compile.
type refuser struct{}

// Load implements jsonschema.URLLoader.
func (refuser) Load(url string) (any, error) {
	return nil, fmt.Errorf("the schema refers to %s: references outside the schema are not allowed", url)
}

// CompileSchema compiles a schema, whose type must be object. The default draft is 2020-12.
func CompileSchema(name string, text []byte) (*Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the input schema: %w", err)
	}
	object, ok := doc.(map[string]any)
	if !ok || object["type"] != "object" {
		return nil, errors.New("the input schema must have the type object")
	}
	url := "tool:" + name
	c := jsonschema.NewCompiler()
	c.UseLoader(refuser{})
	if err := c.AddResource(url, doc); err != nil {
		return nil, fmt.Errorf("add the input schema: %w", err)
	}
	compiled, err := c.Compile(url)
	if err != nil {
		return nil, fmt.Errorf("compile the input schema: %w", err)
	}
	s := &Schema{schema: compiled}
	if properties, ok := object["properties"].(map[string]any); ok {
		s.fields = slices.Sorted(maps.Keys(properties))
	}
	return s, nil
}

// Check returns args as JSON if they satisfy the schema. Empty text stands for no arguments.
// Otherwise it returns an Invalid fault (TooLarge over MaxArgs) that tells the model each
// field that is wrong.
func (s *Schema) Check(args string) (json.RawMessage, error) { return s.check(args, false) }

// CheckWithoutNulls is Check, but leaves out optional fields with null that must not be null: many
// models write them so.
func (s *Schema) CheckWithoutNulls(args string) (json.RawMessage, error) { return s.check(args, true) }

func (s *Schema) check(args string, dropNulls bool) (json.RawMessage, error) {
	if len(args) > MaxArgs {
		return nil, fault.New(fault.TooLarge, "the arguments are %d bytes; at most %d are allowed: split them into several calls", len(args), MaxArgs)
	}
	if strings.TrimSpace(args) == "" {
		args = "{}"
	}
	v, err := plainjson.Decode(args)
	switch {
	case errors.Is(err, plainjson.ErrSyntax):
		return nil, fault.New(fault.Invalid, "the arguments are %v: send one JSON object", err)
	case err != nil:
		return nil, fault.New(fault.Invalid, "in the arguments, %v", err)
	}
	if _, ok := v.(map[string]any); !ok {
		return nil, fault.New(fault.Invalid, "the arguments must be a JSON object, not %s", typeName(v))
	}
	if err := s.schema.Validate(v); err != nil {
		violation, ok := errors.AsType[*jsonschema.ValidationError](err)
		if !ok {
			return nil, fmt.Errorf("validate the arguments: %w", err)
		}
		if dropNulls && removeNulls(v, violation) && s.schema.Validate(v) == nil {
			return marshal(v)
		}
		return nil, fault.New(fault.Invalid, "%s", s.describe(violation))
	}
	// The validated value is returned, not the text, which could differ if a key is repeated.
	checked, err := marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write the arguments: %w", err)
	}
	return checked, nil
}

// removeNulls removes the members of objects that are wrong and null, and reports whether there are
// any.
func removeNulls(v any, e *jsonschema.ValidationError) (removed bool) {
	for _, c := range e.Causes {
		removed = removeNulls(v, c) || removed
	}
	if len(e.Causes) > 0 || len(e.InstanceLocation) == 0 {
		return removed
	}
	last := len(e.InstanceLocation) - 1
	for _, step := range e.InstanceLocation[:last] {
		switch at := v.(type) {
		case map[string]any:
			v = at[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(at) {
				return removed
			}
			v = at[i]
		}
	}
	parent, ok := v.(map[string]any)
	if !ok {
		return removed
	}
	name := e.InstanceLocation[last]
	if member, ok := parent[name]; !ok || member != nil {
		return removed
	}
	delete(parent, name)
	return true
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case []any:
		return "an array"
	}
	return "an object"
}

// describe returns one sentence for each wrong field, in the order of the fields.
func (s *Schema) describe(e *jsonschema.ValidationError) string {
	var all []string
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		for _, c := range e.Causes {
			walk(c)
		}
		if len(e.Causes) == 0 {
			all = append(all, s.sentences(e)...)
		}
	}
	walk(e)
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > maxViolations {
		all = append(all[:maxViolations], "and more")
	}
	return strings.Join(all, "; ")
}

func (s *Schema) sentences(e *jsonschema.ValidationError) []string {
	at := path(e.InstanceLocation)
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		return each(k.Missing, func(f string) string { return at + "." + clip(f) + ": is missing" })
	case *kind.AdditionalProperties:
		return each(k.Properties, func(f string) string {
			known := ""
			if len(e.InstanceLocation) == 0 && len(s.fields) > 0 {
				known = "; the fields are " + strings.Join(s.fields, ", ")
			}
			return at + "." + clip(f) + ": is not known" + known
		})
	case *kind.Type:
		hint := ""
		if k.Got == "null" {
			hint = "; leave it out instead"
		}
		return []string{fmt.Sprintf("%s: must be %s, not %s%s", at, strings.Join(k.Want, " or "), k.Got, hint)}
	case *kind.MinLength:
		if k.Got == 0 {
			return []string{at + ": must not be empty"}
		}
		return []string{fmt.Sprintf("%s: has %d characters, at least %d are needed", at, k.Got, k.Want)}
	case *kind.MaxLength:
		return []string{fmt.Sprintf("%s: has %d characters, at most %d are allowed", at, k.Got, k.Want)}
	case *kind.Pattern:
		return []string{fmt.Sprintf("%s: must match the pattern %s", at, k.Want)}
	case *kind.Minimum:
		return []string{fmt.Sprintf("%s: must be at least %s", at, k.Want.RatString())}
	case *kind.Maximum:
		return []string{fmt.Sprintf("%s: must be at most %s", at, k.Want.RatString())}
	}
	return []string{at + ": " + clip(e.ErrorKind.LocalizedString(message.NewPrinter(language.English)))}
}

func each(names []string, f func(string) string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, f(n))
	}
	return out
}

// path formats an instance location, such as arguments.items[3].name.
func path(location []string) string {
	var b strings.Builder
	b.WriteString("arguments")
	for _, step := range location {
		if _, err := strconv.Atoi(step); err == nil {
			b.WriteString("[" + clip(step) + "]")
			continue
		}
		b.WriteString("." + clip(step))
	}
	return b.String()
}

// clip bounds the model's own text in an error.
func clip(s string) string {
	if r := []rune(s); len(r) > 100 {
		return string(r[:100]) + "…"
	}
	return s
}
