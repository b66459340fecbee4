package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

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
	ArgsHash []byte // nil: any arguments
	Effect   RuleEffect
}

// Matches reports whether the rule is about a call, and whether it names its arguments.
func (r *Rule) Matches(tool string, args json.RawMessage) (ok, exact bool) {
	if r.ToolName != tool {
		return false, false
	}
	if r.ArgsHash == nil {
		return true, false
	}
	ok = bytes.Equal(r.ArgsHash, HashArgs(args))
	return ok, ok
}

// Rules returns the rules of a run's workspace and session about tools.
func (s *Store) Rules(ctx context.Context, c *Claim, tools []string) ([]Rule, error) {
	var rules []Rule
	args := c.key()
	args["tools"] = tools
	b := &pgx.Batch{}
	b.Queue(`
		SELECT tool_name, args_hash, effect FROM approval_rules
		WHERE workspace_id = @workspace AND tool_name = ANY (@tools) AND (session_id IS NULL OR session_id = @session)`, args).
		Query(pg.Collect(&rules))
	if err := s.db.ReadInWorkspace(ctx, c.Run.Workspace, b); err != nil {
		return nil, fmt.Errorf("read the approval rules of run %s: %w", c.Run.ID, err)
	}
	return rules, nil
}
