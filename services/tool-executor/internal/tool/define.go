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

// Func is a Tool made of a function over decoded arguments.
type Func[A any] struct {
	spec      Spec
	run       func(ctx context.Context, c Call, args A) (Result, error)
	summary   func(args A) string
	available func(ctx context.Context) Availability // nil: always
}

// Define returns a tool that is always available. summary may be nil.
func Define[A any](spec Spec, run func(context.Context, Call, A) (Result, error), summary func(A) string) *Func[A] {
	return &Func[A]{spec: spec, run: run, summary: summary}
}

// When returns a tool that is available when a function says so.
func (f *Func[A]) When(available func(ctx context.Context) Availability) *Func[A] {
	g := *f
	g.available = available
	return &g
}

// Verified returns a tool of EFFECT_VERIFY, whose effect a function looks up; see Verifier.
func (f *Func[A]) Verified(verify func(ctx context.Context, c Call, args A) (r Result, found bool, err error)) Tool {
	return verified[A]{f, verify}
}

// Spec implements Tool.
func (f *Func[A]) Spec() Spec { return f.spec }

// Available implements Tool.
func (f *Func[A]) Available(ctx context.Context) Availability {
	if f.available == nil {
		return Availability{Available: true}
	}
	return f.available(ctx)
}

// Run implements Tool.
func (f *Func[A]) Run(ctx context.Context, c Call) (Result, error) {
	args, err := arguments[A](c)
	if err != nil {
		return Result{}, err
	}
	return f.run(ctx, c, args)
}

func arguments[A any](c Call) (args A, err error) {
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return args, fmt.Errorf("decode arguments that satisfy the schema: %w", err)
	}
	return args, nil
}

// Summary implements Summarizer.
func (f *Func[A]) Summary(raw json.RawMessage) string {
	var args A
	if f.summary == nil || json.Unmarshal(raw, &args) != nil {
		return ""
	}
	return f.summary(args)
}

type verified[A any] struct {
	*Func[A]

	verify func(ctx context.Context, c Call, args A) (Result, bool, error)
}

// Verify implements Verifier.
func (v verified[A]) Verify(ctx context.Context, c Call) (Result, bool, error) {
	args, err := arguments[A](c)
	if err != nil {
		return Result{}, false, err
	}
	return v.verify(ctx, c, args)
}
