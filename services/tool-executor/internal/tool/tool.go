// Package tool says what a tool is: its description for the model (Spec), the
// schema its arguments are checked against (Schema), and the envelope that every
// answer travels in (Result).
//
// A tool runs on behalf of an actor, who is in the context it is given. It may be
// run more than once for one call, after a crash in between; what that does to
// the world is its Effect, and Call.Key is how it tells the second time from the
// first.
package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

// What a Spec that says nothing gets.
const (
	DefaultDeadline  = 30 * time.Second
	DefaultOutputCap = 64 << 10
)

// Sources of tools.
const (
	BuiltIn  = "built-in"
	Provider = "provider" // run by the model's provider, never here
)

// Spec is all that is fixed about a tool.
type Spec struct {
	Name        string          // [a-zA-Z0-9_-]{1,64}
	Description string          // what the model is told
	Guidance    string          // lines for the system prompt while the tool is enabled
	InputSchema json.RawMessage // JSON Schema of type object
	Source      string          // BuiltIn when empty
	Effect      toolv1.Effect
	Deadline    time.Duration // DefaultDeadline when 0
	OutputCap   int           // bytes of JSON; DefaultOutputCap when 0, which is also the most
	// Settle is for EFFECT_VERIFY: after this time since a run began that was cut off,
	// its effect is there or never comes. It has to hold for the far end too, which may
	// be at work on a request that nobody waits for any more. Deadline when 0.
	Settle time.Duration
	// Less tells the model how to ask for less when a result was over the cap.
	Less          string
	NeedsApproval bool
	Always        bool // enabled in every session, whatever it selects
}

// Availability says whether a workspace can use a tool now.
type Availability struct {
	Available  bool
	Reason     string // why not, and what to do
	ConnectURL string // where a person connects what is missing
}

// Call is one call of a tool.
type Call struct {
	// Key names the call for ever: the same key is the same call, delivered again.
	Key id.Operation
	// Args is a JSON object that satisfies the tool's schema.
	Args json.RawMessage
	// Timezone is the member's IANA name; empty when unknown.
	Timezone string
	// OutputCap is the most bytes of JSON that the result may have.
	OutputCap int
}

// Tool is something that a model can call.
type Tool interface {
	// Spec returns the same each time.
	Spec() Spec
	// Available reports whether the context's actor can use the tool. It answers at once.
	Available(ctx context.Context) Availability
	// Run runs a call and returns when ctx is done at the latest. An error with a
	// fault is told to the model (what it did wrong, or what it may not do);
	// fault.Unavailable is tried again where the effect allows it; any other error
	// is ours and told to nobody. Whatever may have reached the far end is one of the
	// last two: the rest says that nothing happened.
	Run(ctx context.Context, c Call) (Result, error)
}

// Verifier is implemented by every tool of EFFECT_VERIFY.
type Verifier interface {
	// Verify looks by Call.Key for the effect of a call that may have run. found says
	// that it happened, and the result is then the call's. Not found means that it has
	// not happened yet: whether it still can is for the caller to know (Spec.Settle).
	// An error says that nobody can tell; fault.Unavailable, that they may later.
	Verify(ctx context.Context, c Call) (r Result, found bool, err error)
}

// Summarizer is implemented by tools that can say in a few words, without secrets,
// what a call is about: a path, an id, a name.
type Summarizer interface {
	Summary(args json.RawMessage) string
}

// Catalogue is the set of tools of this process, with their schemas compiled. It
// does not change after NewCatalogue.
type Catalogue struct {
	entries []Entry // by name
}

// Entry is a tool of a catalogue.
type Entry struct {
	Tool   Tool
	Spec   Spec // with its defaults filled in
	schema *Schema
}

// Check checks arguments against the tool's schema; see Schema.Check.
func (e Entry) Check(args string) (json.RawMessage, error) { return e.schema.Check(args) }

var nameForm = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// NewCatalogue compiles the tools' schemas. Its errors are programming errors.
func NewCatalogue(tools ...Tool) (*Catalogue, error) {
	c := &Catalogue{}
	for _, t := range tools {
		s := t.Spec()
		if !nameForm.MatchString(s.Name) {
			return nil, fmt.Errorf("tool %q: a name is 1 to 64 letters, digits, _ and -", s.Name)
		}
		if s.Effect == toolv1.Effect_EFFECT_UNSPECIFIED || s.Description == "" {
			return nil, fmt.Errorf("tool %s: effect and description are needed", s.Name)
		}
		schema, err := CompileSchema(s.Name, s.InputSchema)
		if err != nil {
			return nil, fmt.Errorf("tool %s: %w", s.Name, err)
		}
		if s.Source == "" {
			s.Source = BuiltIn
		}
		if s.Deadline == 0 {
			s.Deadline = DefaultDeadline
		}
		if s.OutputCap == 0 {
			s.OutputCap = DefaultOutputCap
		}
		if s.OutputCap > DefaultOutputCap {
			return nil, fmt.Errorf("tool %s: its output cap is over %d bytes", s.Name, DefaultOutputCap)
		}
		if s.Settle == 0 {
			s.Settle = s.Deadline
		}
		if _, ok := t.(Verifier); !ok && s.Effect == toolv1.Effect_EFFECT_VERIFY {
			return nil, fmt.Errorf("tool %s: its effect is to be verified, and it is no Verifier", s.Name)
		}
		c.entries = append(c.entries, Entry{t, s, schema})
	}
	slices.SortFunc(c.entries, func(a, b Entry) int { return strings.Compare(a.Spec.Name, b.Spec.Name) })
	for i := 1; i < len(c.entries); i++ {
		if c.entries[i].Spec.Name == c.entries[i-1].Spec.Name {
			return nil, fmt.Errorf("two tools are called %s", c.entries[i].Spec.Name)
		}
	}
	return c, nil
}

// All returns the tools in the order of their names. The caller must not change the slice.
func (c *Catalogue) All() []Entry { return c.entries }

// Get returns the tool of a name.
func (c *Catalogue) Get(name string) (Entry, bool) {
	i, ok := slices.BinarySearchFunc(c.entries, name, func(e Entry, n string) int { return strings.Compare(e.Spec.Name, n) })
	if !ok {
		return Entry{}, false
	}
	return c.entries[i], true
}
