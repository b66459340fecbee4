package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/process"
	"signalbox.dev/services/standalone/internal/chat"
)

// auditRow is a row of an audit; fields may be empty.
type auditRow struct {
	At      string `json:"at"`
	Member  string `json:"member_id"`
	Action  string `json:"action"`
	Subject string `json:"subject"`
	Tool    string `json:"tool"`
	Session string `json:"session_id"`
	Server  string `json:"server_name"`
	Detail  string `json:"detail"`
}

func (c *cli) audit() *cobra.Command {
	return c.auditSub("audit", []string{"AT", "ACTION", "TOOL", "DETAIL", "WHO", "SUBJECT", "SESSION"}, func(a auditRow) []cell {
		return []cell{{chat.Day(a.At), grey}, {a.Action, plain}, {a.Tool, plain}, {a.Detail, plain}, {a.Member, plain}, {a.Subject, grey}, {a.Session, grey}}
	}, remoteCommand{
		short: "Show who approved tool calls and changed rules, budgets, members and keys",
		long: `Shows who answered when agents asked for approval, and who changed approval rules,
budgets, members and API keys, newest first. It is for owners. For credentials see: signalbox
accounts audit, and for MCP servers: signalbox mcp audit.`,
	})
}

func (c *cli) mcpAudit() *cobra.Command {
	return c.auditSub("mcp-servers/audit", []string{"AT", "ACTION", "SERVER", "DETAIL", "WHO"}, func(a auditRow) []cell {
		return []cell{{chat.Day(a.At), grey}, {a.Action, plain}, {a.Server, plain}, {a.Detail, plain}, {a.Member, plain}}
	}, remoteCommand{
		short: "Show who changed MCP servers and approved their tools",
		long: `Shows who added, removed and signed in to MCP servers, and who approved changed tools,
newest first. It is for owners.`,
	})
}

// auditSub returns a command that lists the rows of an audit, newest first.
func (c *cli) auditSub(what string, head []string, cells func(auditRow) []cell, rc remoteCommand) *cobra.Command {
	var limit int
	rc.use = "audit"
	rc.run = func(ctx context.Context, r *remoteRun) error {
		if limit < 1 {
			return process.Usage("--limit: want at least 1")
		}
		raw, err := chat.List[json.RawMessage](ctx, r.client, what, "", limit)
		if err != nil {
			return err
		}
		if r.json {
			return r.printJSON(map[string]any{"audit": raw})
		}
		rows := make([][]cell, len(raw))
		for i, text := range raw {
			var a auditRow
			if err := json.Unmarshal(text, &a); err != nil {
				return fmt.Errorf("read the audit: %w", err)
			}
			rows[i] = cells(a)
		}
		return c.screen().table(head, rows)
	}
	cmd := c.remoteSub(rc)
	cmd.Flags().IntVar(&limit, "limit", 20, "maximum number, newest first")
	return cmd
}
