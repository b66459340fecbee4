// Package tool defines tools: the description for the model (Spec), the schema of the
// arguments (Schema), and the envelope of every answer (Result).
//
// A tool runs on behalf of the actor in its context. After a crash it may run again for the
// same call. Its Effect says whether that is safe, and Call.Key identifies the call.
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

// Defaults of a Spec.
const (
	DefaultDeadline  = 30 * time.Second
	DefaultOutputCap = 64 << 10
	ImageOutputCap   = 256 << 10 // of a tool that returns an image
	// MaxImage bounds a picture that is added to a result, in bytes: with it in base64, a
	// result of DefaultOutputCap stays within ImageOutputCap.
	MaxImage = (ImageOutputCap - DefaultOutputCap - 1<<10) / 4 * 3
)

// Sources of tools.
const (
	BuiltIn  = "built-in"
	Provider = "provider" // run by the model's provider, never here
)

// Spec is the fixed description of a tool.
type Spec struct {
	Name        string          // [a-zA-Z0-9_-]{1,64}
	Description string          // for the model
	Guidance    string          // lines for the system prompt while the tool is enabled
	InputSchema json.RawMessage // JSON Schema of type object
	Source      string          // BuiltIn when empty
	Effect      toolv1.Effect
	Deadline    time.Duration // DefaultDeadline when 0
	// Longest is how long a call may take that reports progress: with each report, it has
	// another Deadline. Deadline when 0.
	Longest   time.Duration
	OutputCap int // bytes of JSON; DefaultOutputCap or ImageOutputCap when 0, which is also the most
	// Settle is for EFFECT_VERIFY: when this time has passed since an interrupted run began,
	// its effect has happened or never will. That includes the time in which the remote side
	// may still process an abandoned request. Deadline when 0.
	Settle time.Duration
	// Less tells the model how to ask for less if a result is over the cap.
	Less          string
	NeedsApproval bool
	Always        bool // enabled in every session, regardless of its selection
	// What a call means for the trust of the run; see docs/security.md.
	ReadsUntrusted bool // results may contain text that strangers wrote
	ReadsPrivate   bool // results may contain the workspace's private data
	ActsOutside    bool // changes or sends something outside of Signalbox
	// ReturnsImage means that the member image of a result is a File, which the model sees.
	ReturnsImage bool
	// DropNulls means that arguments are checked by Schema.CheckWithoutNulls.
	DropNulls bool
	// MayReturnImage means that a result may have a picture (Result.WithImage), and is of use
	// to a model that cannot see it.
	MayReturnImage bool
}

// Availability says whether a workspace can use a tool now.
type Availability struct {
	Available  bool
	Reason     string // why not, and what to do
	ConnectURL string // where a person connects a missing account
	Cause      *Cause // for programs; nil means Unavailable with the reason
}

// Call is one call of a tool.
type Call struct {
	// Key identifies the call: a call with the same key is the same call, delivered again.
	Key id.Operation
	// Args is a JSON object that satisfies the tool's schema.
	Args json.RawMessage
	// Timezone is the member's IANA name; empty when unknown.
	Timezone string
	// OutputCap bounds the result, in bytes of JSON.
	OutputCap int
	// Progress gets what the tool reports; nil if nobody wants it.
	Progress func(Progress)
}

// Progress says how far a call is.
type Progress struct {
	Message string // for people; may be empty
	Percent int    // 0 to 100; negative if unknown
}

// Report says how far the call is. It may be called from any goroutine, as often as there is
// something to say.
func (c Call) Report(p Progress) {
	if c.Progress != nil {
		c.Progress(p)
	}
}

// Tool is something that a model can call.
type Tool interface {
	// Spec returns the same value each time.
	Spec() Spec
	// Available reports whether the context's actor can use the tool. It must not block.
	Available(ctx context.Context) Availability
	// Run runs a call and returns when ctx is done at the latest. The model sees an error
	// that is a fault, such as a wrong argument or a missing permission. fault.Unavailable is
	// retried where the effect allows it. Any other error is internal and not shown. If a
	// request may have reached the remote side, the error must be Unavailable or internal:
	// other faults mean that the call had no effect.
	Run(ctx context.Context, c Call) (Result, error)
}

// Verifier is implemented by every tool of EFFECT_VERIFY.
type Verifier interface {
	// Verify looks up, by Call.Key, the effect of a call that may have run. If found, r is
	// the call's result. If not found, the effect has not happened yet; the caller knows
	// whether it still can (Spec.Settle). An error means that the tool cannot tell;
	// fault.Unavailable means that it may be able to later.
	Verify(ctx context.Context, c Call) (r Result, found bool, err error)
}

// Summarizer is implemented by tools that can summarize a call without secrets, such as by a
// path, an id or a name.
type Summarizer interface {
	Summary(args json.RawMessage) string
}

// Source has the tools that single workspaces have added. Both methods wait for the database
// at most, and not for a remote side.
type Source interface {
	// Tools returns a workspace's tools, sorted by name.
	Tools(ctx context.Context, ws id.Workspace) ([]Entry, error)
	// Tool returns one of them; ok is false if there is none of that name.
	Tool(ctx context.Context, ws id.Workspace, name string) (e Entry, ok bool, err error)
}

// Catalogue is the set of tools of this process, with compiled schemas, and the source of those
// that workspaces have added. It is immutable.
type Catalogue struct {
	entries []Entry // by name
	added   Source  // may be nil
}

// Entry is a tool of a catalogue.
type Entry struct {
	Tool   Tool
	Spec   Spec // with its defaults filled in
	schema *Schema
}

// Check checks arguments against the tool's schema; see Schema.Check and Spec.DropNulls.
func (e Entry) Check(args string) (json.RawMessage, error) {
	if e.Spec.DropNulls {
		return e.schema.CheckWithoutNulls(args)
	}
	return e.schema.Check(args)
}

var nameForm = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// NewEntry fills in a spec's defaults and compiles the schema that arguments are checked
// against: checks, or the tool's own input schema if checks is nil.
func NewEntry(t Tool, checks json.RawMessage) (Entry, error) {
	s := t.Spec()
	if !nameForm.MatchString(s.Name) {
		return Entry{}, fmt.Errorf("tool %q: a name is 1 to 64 letters, digits, _ and -", s.Name)
	}
	if s.Effect == toolv1.Effect_EFFECT_UNSPECIFIED || s.Description == "" {
		return Entry{}, fmt.Errorf("tool %s: effect and description are needed", s.Name)
	}
	if checks == nil {
		checks = s.InputSchema
	}
	schema, err := CompileSchema(s.Name, checks)
	if err != nil {
		return Entry{}, fmt.Errorf("tool %s: %w", s.Name, err)
	}
	if s.Source == "" {
		s.Source = BuiltIn
	}
	if s.Deadline == 0 {
		s.Deadline = DefaultDeadline
	}
	s.Longest = max(s.Longest, s.Deadline)
	most := DefaultOutputCap
	if s.ReturnsImage {
		most = ImageOutputCap
	}
	if s.OutputCap == 0 {
		s.OutputCap = most
	}
	if s.OutputCap > most {
		return Entry{}, fmt.Errorf("tool %s: its output cap is over %d bytes", s.Name, most)
	}
	if s.Settle == 0 {
		s.Settle = s.Deadline
	}
	if _, ok := t.(Verifier); !ok && s.Effect == toolv1.Effect_EFFECT_VERIFY {
		return Entry{}, fmt.Errorf("tool %s: a tool of EFFECT_VERIFY must implement Verifier", s.Name)
	}
	return Entry{t, s, schema}, nil
}

// NewCatalogue returns a catalogue of tools that all workspaces have. Its errors are
// programming errors.
func NewCatalogue(tools ...Tool) (*Catalogue, error) {
	c := &Catalogue{}
	for _, t := range tools {
		e, err := NewEntry(t, nil)
		if err != nil {
			return nil, err
		}
		c.entries = append(c.entries, e)
	}
	SortEntries(c.entries)
	for i := 1; i < len(c.entries); i++ {
		if c.entries[i].Spec.Name == c.entries[i-1].Spec.Name {
			return nil, fmt.Errorf("two tools are called %s", c.entries[i].Spec.Name)
		}
	}
	return c, nil
}

// With returns the catalogue with the tools of s, none of which may have the name of another
// tool.
func (c *Catalogue) With(s Source) *Catalogue { return &Catalogue{c.entries, s} }

// SortEntries sorts entries by name.
func SortEntries(all []Entry) {
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Spec.Name, b.Spec.Name) })
}

// All returns the tools that all workspaces have, sorted by name. The caller must not change
// the slice.
func (c *Catalogue) All() []Entry { return c.entries }

// Get returns the tool with a name among those that all workspaces have.
func (c *Catalogue) Get(name string) (Entry, bool) { return Find(c.entries, name) }

// Of returns all tools of a workspace: those that all have, then its own, each sorted by name.
func (c *Catalogue) Of(ctx context.Context, ws id.Workspace) ([]Entry, error) {
	if c.added == nil {
		return c.entries, nil
	}
	own, err := c.added.Tools(ctx, ws)
	return slices.Concat(c.entries, own), err
}

// Lookup returns a workspace's tool with a name; ok is false if there is none.
func (c *Catalogue) Lookup(ctx context.Context, ws id.Workspace, name string) (e Entry, ok bool, err error) {
	if e, ok := c.Get(name); ok || c.added == nil {
		return e, ok, nil
	}
	return c.added.Tool(ctx, ws, name)
}

// Find returns the entry with a name among entries that are sorted by name.
func Find(sorted []Entry, name string) (Entry, bool) {
	i, ok := slices.BinarySearchFunc(sorted, name, func(e Entry, n string) int { return strings.Compare(e.Spec.Name, n) })
	if !ok {
		return Entry{}, false
	}
	return sorted[i], true
}
