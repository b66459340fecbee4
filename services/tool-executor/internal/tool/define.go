package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// Describe fills in the description, input schema and guidance from a tool's page. A page is
// Markdown: the description, then "## Input" with the JSON Schema in a code block, then
// optionally "## Guidance" with lines for the system prompt.
func (s Spec) Describe(page string) (Spec, error) {
	description, rest, ok := strings.Cut(page, "\n## Input\n")
	if !ok {
		return Spec{}, fmt.Errorf("the page of %s has no section Input", s.Name)
	}
	input, guidance, _ := strings.Cut(rest, "\n## Guidance\n")
	_, block, open := strings.Cut(input, "```json\n")
	schema, _, closed := strings.Cut(block, "\n```")
	if !open || !closed || !json.Valid([]byte(schema)) {
		return Spec{}, fmt.Errorf("the page of %s has no JSON Schema in its section Input", s.Name)
	}
	s.Description = strings.TrimSpace(description)
	s.InputSchema = json.RawMessage(schema)
	s.Guidance = strings.TrimSpace(guidance)
	return s, nil
}

// Func is a Tool made of a function over decoded arguments. It is always available.
type Func[A any] struct {
	spec    Spec
	run     func(ctx context.Context, c Call, args A) (Result, error)
	summary func(args A) string
}

// Define returns a tool. summary may be nil.
func Define[A any](spec Spec, run func(context.Context, Call, A) (Result, error), summary func(A) string) *Func[A] {
	return &Func[A]{spec, run, summary}
}

// Spec implements Tool.
func (f *Func[A]) Spec() Spec { return f.spec }

// Available implements Tool.
func (f *Func[A]) Available(context.Context) Availability { return Availability{Available: true} }

// Run implements Tool.
func (f *Func[A]) Run(ctx context.Context, c Call) (Result, error) {
	var args A
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return Result{}, fmt.Errorf("decode arguments that satisfy the schema: %w", err)
	}
	return f.run(ctx, c, args)
}

// Summary implements Summarizer.
func (f *Func[A]) Summary(raw json.RawMessage) string {
	var args A
	if f.summary == nil || json.Unmarshal(raw, &args) != nil {
		return ""
	}
	return f.summary(args)
}
