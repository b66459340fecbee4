package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
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
	ok = bytes.Equal(normal(*r.Args), normal(args))
	return ok, ok
}

// normal returns the arguments as the tool-executor hands them to tools (internal/tool, Schema.Check):
// sorted fields, the last of several with one name, and whole numbers without fraction and exponent.
// What differed only here would let a call past a rule. It returns what is not JSON as it is.
func normal(args json.RawMessage) []byte {
	d := json.NewDecoder(bytes.NewReader(args))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return args
	}
	b, err := json.Marshal(plainNumbers(v))
	if err != nil {
		return args
	}
	return b
}

func plainNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if f, err := v.Float64(); err == nil && f == math.Trunc(f) && math.Abs(f) <= 1<<53 && strings.ContainsAny(v.String(), ".eE") {
			return int64(f)
		}
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plainNumbers(v[k])
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
