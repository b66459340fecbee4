// Package structured checks values against JSON Schemas that come from outside: a run's final
// answer, and the arguments of the tools that clients run.
package structured

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"signalbox.dev/pkg/fault"
)

// Bounds of a schema, which comes from outside.
const (
	maxSchema = 64 << 10
	maxDepth  = 32
	// maxProblem bounds what the model is told about an answer, in bytes.
	maxProblem = 2000
)

// Schema is a compiled JSON Schema (draft 2020-12 unless it names another). It is safe for
// concurrent use.
type Schema struct {
	text   string
	schema *jsonschema.Schema

	mu     sync.Mutex // guards effort, and allows one check at a time
	effort *effort
}

// refuser is a loader that fails, so that a schema with external references does not compile.
type refuser struct{}

// Load implements jsonschema.URLLoader.
func (refuser) Load(url string) (any, error) {
	return nil, fmt.Errorf("it refers to %s: references outside of the schema are not allowed", url)
}

// ResponseFormat is the field of the API that has the schema of an answer.
const ResponseFormat = "response_format.schema"

// Compile compiles a schema. Its errors are Invalid faults for the caller of the API, and
// name the field that has the schema.
func Compile(field string, text []byte) (*Schema, error) {
	if len(text) > maxSchema {
		return nil, fault.New(fault.Invalid, "%s has %d bytes; at most %d are allowed", field, len(text), maxSchema)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s is not JSON", field)
	}
	if Deeper(doc, maxDepth) {
		return nil, fault.New(fault.Invalid, "%s is nested more than %d levels deep", field, maxDepth)
	}
	if err := checkNumbers(doc); err != nil {
		return nil, fault.New(fault.Invalid, "%s: %v", field, err)
	}
	compiled, counted, err := compile(doc)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s is not a JSON Schema: %s", field, strings.Join(strings.Fields(err.Error()), " "))
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil { // it was read above
		return nil, fault.New(fault.Invalid, "%s is not JSON", field)
	}
	return &Schema{text: compact.String(), schema: compiled, effort: counted}, nil
}

// compile compiles a schema that counts the effort of its checks. A schema is itself checked, by
// that of schemas, which the limit of its size bounds.
func compile(doc any) (*jsonschema.Schema, *effort, error) {
	const url = "response:schema"
	e := &effort{left: math.MaxInt}
	c := jsonschema.NewCompiler()
	c.UseLoader(refuser{})
	c.UseRegexpEngine(e.compile)
	c.RegisterVocabulary(e.vocabulary())
	c.AssertVocabs()
	if err := c.AddResource(url, doc); err != nil {
		return nil, nil, err
	}
	compiled, err := c.Compile(url)
	return compiled, e, err
}

// Deeper reports whether a decoded JSON value is nested more than n levels deep.
func Deeper(v any, n int) bool {
	if n < 0 {
		return true
	}
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			if Deeper(e, n-1) {
				return true
			}
		}
	case []any:
		for _, e := range v {
			if Deeper(e, n-1) {
				return true
			}
		}
	}
	return false
}

// JSON returns the schema without white space.
func (s *Schema) JSON() json.RawMessage { return json.RawMessage(s.text) }

// Prompt is the part of the system prompt that asks for such an answer.
func (s *Schema) Prompt() string {
	return "Your final answer must be one JSON value that satisfies this JSON Schema, and nothing else: no explanation, no code fence.\n" + s.text
}

// Check returns the JSON of an answer, or an error that tells the model what is wrong with it.
// The JSON may be in a Markdown code fence.
func (s *Schema) Check(answer string) (json.RawMessage, error) {
	text := unfenced(answer)
	if err := s.CheckValue(text); err != nil {
		return nil, err
	}
	return json.RawMessage(text), nil
}

// CheckValue returns an error that tells the model what is wrong with a JSON value, or nil.
func (s *Schema) CheckValue(text string) error {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return errors.New("it is not one JSON value")
	}
	if err := checkNumbers(v); err != nil {
		return err
	}
	if err := s.validate(v); err != nil {
		problem := err.Error()
		if _, rest, ok := strings.Cut(problem, "\n"); ok { // the first line names the schema's internal URL
			problem = strings.Join(strings.Fields(rest), " ")
		}
		if len(problem) > maxProblem {
			problem = strings.ToValidUTF8(problem[:maxProblem], "") + "…"
		}
		return errors.New(problem)
	}
	return nil
}

// validate validates a value, with limited effort.
func (s *Schema) validate(v any) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		switch p := recover(); p {
		case nil:
		case errEffort:
			err = errEffort
		default:
			panic(p)
		}
	}()
	s.effort.left = maxEffort
	return s.schema.Validate(v)
}

// Repair is what the model is told about an answer that Check refuses.
func Repair(problem error) string {
	return fmt.Sprintf("That answer does not satisfy the JSON Schema: %v\nAnswer again with the corrected JSON value only.", problem)
}

// unfenced returns the text inside of a code fence, or the whole text if there is none around it.
func unfenced(answer string) string {
	text := strings.TrimSpace(answer)
	rest, ok := strings.CutPrefix(text, "```")
	if !ok {
		return text
	}
	inside, ok := strings.CutSuffix(rest, "```")
	_, body, line := strings.Cut(inside, "\n")
	if !ok || !line {
		return text
	}
	return strings.TrimSpace(body)
}
