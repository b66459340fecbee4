package script

import (
	"slices"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"signalbox.dev/services/simulator/internal/chat"
)

// Action is one action of a rule. Exactly one field is set.
type Action struct {
	Say        *Say
	Think      *Think
	Redacted   *Template
	Call       *Call
	Search     *SearchAction
	Block      *BlockAction
	Event      *EventAction
	Wait       *Duration
	Fail       *Fail
	Stop       *StopAction
	Usage      map[string]int
	Interleave []Action
}

// Say is text of the answer. Its short form is a plain string.
type Say struct {
	Text  Template  `yaml:"text"`
	Chunk *Chunk    `yaml:"chunk"`
	Delay *Duration `yaml:"delay"`
	Cite  []int     `yaml:"cite"` // results of the search before it, from 0
}

// Think is reasoning. Its short form is a plain string.
type Think struct {
	Text      Template  `yaml:"text"`
	Signature string    `yaml:"signature"` // "" for one that later requests are checked against
	Chunk     *Chunk    `yaml:"chunk"`
	Delay     *Duration `yaml:"delay"`
}

// Call is a tool call. Consecutive calls are parallel.
type Call struct {
	Tool  Template  `yaml:"tool"`
	Args  *Args     `yaml:"args"`  // absent: no arguments are streamed
	Break int       `yaml:"break"` // characters of them to stream; 0: all
	ID    string    `yaml:"id"`
	Chunk *Chunk    `yaml:"chunk"`
	Delay *Duration `yaml:"delay"`
}

// SearchAction is a search that the provider runs itself.
type SearchAction struct {
	Query   Template `yaml:"query"`
	Results []struct {
		URL   Template `yaml:"url"`
		Title Template `yaml:"title"`
		Text  Template `yaml:"text"`
		Age   string   `yaml:"age"`
	} `yaml:"results"`
	Error string `yaml:"error"` // such as max_uses_exceeded: the search fails with it
	Open  bool   `yaml:"open"`  // no result block: for a turn that pauses
}

// BlockAction is a content block given as JSON (Anthropic).
type BlockAction struct {
	Start  JSON   `yaml:"start"`
	Deltas []JSON `yaml:"deltas"`
	Final  JSON   `yaml:"final"`
}

// EventAction is an event or frame to be written verbatim.
type EventAction struct {
	Name string `yaml:"name"`
	Data string `yaml:"data"`
}

// Fail is a scripted fault. Its short form is a plain kind.
type Fail struct {
	Kind       chat.FaultKind    `yaml:"kind"`
	Times      int               `yaml:"times"` // 0: each time
	Scope      string            `yaml:"scope"` // conversation (default) or script
	InStream   bool              `yaml:"in_stream"`
	Late       bool              `yaml:"late"` // after the reason to stop
	Torn       bool              `yaml:"torn"` // in the middle of an event
	For        Duration          `yaml:"for"`
	Status     int               `yaml:"status"`
	Type       string            `yaml:"type"`
	Code       string            `yaml:"code"`
	Message    string            `yaml:"message"`
	RetryAfter string            `yaml:"retry_after"`
	Headers    map[string]string `yaml:"headers"`
}

// StopAction sets the reason to stop. Its short form is a plain reason.
type StopAction struct {
	Reason   chat.Stop `yaml:"reason"`
	Sequence string    `yaml:"sequence"`
}

// UnmarshalYAML reads a mapping with one key.
func (a *Action) UnmarshalYAML(n ast.Node) error {
	m, ok := n.(ast.MapNode)
	if !ok {
		return bad(n, "an action is a mapping with one key, such as say: hello")
	}
	it := m.MapRange()
	if !it.Next() {
		return bad(n, "an empty action")
	}
	key, value := it.Key(), it.Value()
	if it.Next() {
		return bad(it.Key(), "an action has one key; begin a new list entry for the next")
	}
	return a.read(key.String(), key, value)
}

func (a *Action) read(name string, key, value ast.Node) error {
	switch name {
	case "say":
		a.Say = new(Say)
		return shortOr(value, &a.Say.Text, a.Say)
	case "think":
		a.Think = new(Think)
		return shortOr(value, &a.Think.Text, a.Think)
	case "redacted":
		a.Redacted = new(Template)
		return a.Redacted.UnmarshalYAML(value)
	case "call":
		a.Call = new(Call)
		if err := shortOr(value, &a.Call.Tool, a.Call); err != nil {
			return err
		}
		if a.Call.Break < 0 {
			return bad(value, "break is not negative; leave it out for whole arguments")
		}
		return nil
	case "search":
		a.Search = new(SearchAction)
		return shortOr(value, &a.Search.Query, a.Search)
	case "block":
		a.Block = new(BlockAction)
		if err := strict(value, a.Block); err != nil {
			return err
		}
		if len(a.Block.Start) == 0 {
			return bad(value, "block needs start, the block as content_block_start has it")
		}
		return nil
	case "event":
		a.Event = new(EventAction)
		return strict(value, a.Event)
	case "wait":
		a.Wait = new(Duration)
		return a.Wait.UnmarshalYAML(value)
	case "fail":
		return a.readFail(value)
	case "stop":
		return a.readStop(value)
	case "usage":
		return a.readUsage(value)
	case "interleave":
		return a.readInterleave(value)
	default:
		return bad(key, "unknown action %q: use say, think, redacted, call, search, block, event, wait, fail, stop, usage or interleave", name)
	}
}

func (a *Action) readFail(value ast.Node) error {
	a.Fail = new(Fail)
	if err := shortOr(value, &a.Fail.Kind, a.Fail); err != nil {
		return err
	}
	f := a.Fail
	kinds := []chat.FaultKind{
		chat.Overloaded, chat.RateLimited, chat.ServerError, chat.Unauthorized, chat.Forbidden, chat.NotFound, chat.TooLarge,
		chat.Invalid, chat.NoCredit, chat.TimedOut, chat.Stall, chat.Reset, chat.Drop, chat.Cut,
	}
	switch {
	case !slices.Contains(kinds, f.Kind):
		return bad(value, "unknown kind of failure %q: use one of %v", f.Kind, kinds)
	case f.Scope != "" && f.Scope != "conversation" && f.Scope != "script":
		return bad(value, "unknown scope %q: use conversation or script", f.Scope)
	case f.Times < 0:
		return bad(value, "times is not negative; leave it out to fail each time")
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return bad(value, "status %d is no error: use 400 to 599", f.Status)
	case f.For != 0 && f.Kind != chat.Stall:
		return bad(value, "for belongs to stall")
	case f.For != 0 && (f.Late || f.Torn):
		return bad(value, "late and torn are for failures that end the answer: leave out for")
	case f.Torn && (f.Late || !slices.Contains([]chat.FaultKind{chat.Stall, chat.Reset, chat.Drop, chat.Cut}, f.Kind)):
		return bad(value, "torn belongs to stall, reset, drop and cut, and not beside late")
	}
	return nil
}

func (a *Action) readStop(value ast.Node) error {
	a.Stop = new(StopAction)
	if err := shortOr(value, &a.Stop.Reason, a.Stop); err != nil {
		return err
	}
	reasons := []chat.Stop{chat.EndTurn, chat.MaxTokens, chat.StopSequence, chat.ToolUse, chat.PauseTurn, chat.Refusal}
	if !slices.Contains(reasons, a.Stop.Reason) {
		return bad(value, "unknown reason to stop %q: use one of %v", a.Stop.Reason, reasons)
	}
	return nil
}

func (a *Action) readUsage(value ast.Node) error {
	if err := yaml.NodeToValue(value, &a.Usage); err != nil {
		return err
	}
	fields := []string{"input", "cache_read", "cache_write", "output", "thinking", "searches"}
	for f, n := range a.Usage {
		if !slices.Contains(fields, f) {
			return bad(value, "unknown usage field %q: use one of %v", f, fields)
		}
		if n < 0 {
			return bad(value, "usage %s is negative", f)
		}
	}
	return nil
}

func (a *Action) readInterleave(value ast.Node) error {
	a.Interleave = []Action{}
	if err := strict(value, &a.Interleave); err != nil {
		return err
	}
	for _, in := range a.Interleave {
		if in.Say == nil && in.Think == nil && in.Call == nil && in.Block == nil {
			return bad(value, "interleave takes say, think, call and block only")
		}
	}
	if len(a.Interleave) < 2 || len(a.Interleave) > 16 {
		return bad(value, "interleave takes 2 to 16 actions")
	}
	return nil
}

// shortOr decodes a scalar into short and anything else into whole.
func shortOr(n ast.Node, short, whole any) error {
	if _, ok := n.(ast.ScalarNode); !ok {
		return strict(n, whole)
	}
	return strict(n, short)
}

func strict(n ast.Node, into any) error { return yaml.NodeToValue(n, into, yaml.Strict()) }
