package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/plainjson"
)

// RuleEffect is what a rule does with the calls that it matches.
type RuleEffect string

// The effects of rules.
const (
	Allow RuleEffect = "allow" // nobody is asked
	Deny  RuleEffect = "deny"  // the call is refused
	AskBy RuleEffect = "ask"   // a person is asked, whether or not the tool needs it
)

// Rule is what people have decided about later calls of a tool.
type Rule struct {
	ToolName string
	Args     *json.RawMessage // nil: any arguments
	Effect   RuleEffect
}

// Matches reports whether the rule is about a call, and whether it names its arguments: a model
// does not get around a rule by writing the same arguments differently.
func (r *Rule) Matches(tool string, args json.RawMessage) (ok, exact bool) {
	if r.ToolName != tool {
		return false, false
	}
	if r.Args == nil {
		return true, false
	}
	form := alike
	if r.Effect == Allow {
		form = same
	}
	ok = bytes.Equal(form(*r.Args), form(args))
	return ok, ok
}

// same returns the arguments in the form in which the tool-executor checks them. It returns what
// is not JSON as it is.
func same(args json.RawMessage) []byte {
	v, err := plainjson.Decode(string(args))
	if err != nil {
		return args
	}
	b, err := json.Marshal(v)
	if err != nil {
		return args
	}
	return b
}

// alike is same, but makes all arguments equal that may have one meaning to a tool: the
// tool-executor leaves out members with null that a schema does not allow, and most programs read
// numbers as float64. A rule that restricts calls is about more of them rather than too few.
func alike(args json.RawMessage) []byte {
	v, err := plainjson.Decode(string(args))
	if err != nil {
		return args
	}
	b, err := json.Marshal(withoutSpelling(v))
	if err != nil {
		return args
	}
	return b
}

func withoutSpelling(v any) any {
	switch v := v.(type) {
	case json.Number:
		if f, err := v.Float64(); err == nil {
			return f + 0 // no negative zero
		}
	case []any:
		for i := range v {
			v[i] = withoutSpelling(v[i])
		}
	case map[string]any:
		maps.DeleteFunc(v, func(_ string, member any) bool { return member == nil })
		for k := range v {
			v[k] = withoutSpelling(v[k])
		}
	}
	return v
}

// Rules returns the rules of a run's workspace and session about tools.
func (s *Store) Rules(ctx context.Context, c *Claim, tools []string) ([]Rule, error) {
	var rules []Rule
	args := c.key()
	args["tools"] = tools
	b := &pgx.Batch{}
	b.Queue(`
		SELECT tool_name, args, effect FROM approval_rules
		WHERE workspace_id = @workspace AND tool_name = ANY (@tools) AND (session_id IS NULL OR session_id = @session)`, args).
		Query(pg.Collect(&rules))
	if err := s.db.ReadInWorkspace(ctx, c.Run.Workspace, b); err != nil {
		return nil, fmt.Errorf("read the approval rules of run %s: %w", c.Run.ID, err)
	}
	return rules, nil
}
