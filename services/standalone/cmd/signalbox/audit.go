package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/process"
	"signalbox.dev/services/standalone/internal/chat"
)

// auditRow is a row of the audit; fields may be empty.
type auditRow struct {
	At      string `json:"at"`
	Member  string `json:"member_id"`
	Action  string `json:"action"`
	Subject string `json:"subject"`
	Tool    string `json:"tool"`
	Session string `json:"session_id"`
	Detail  string `json:"detail"`
}

func (c *cli) audit() *cobra.Command {
	var limit int
	cmd := c.remoteSub(remoteCommand{
		use: "audit", short: "Show who approved tool calls and changed rules and budgets",
		long: `Shows who answered when agents asked for approval, and who changed approval rules and
budgets, newest first. It is for owners. For credentials see: signalbox accounts audit.`,
		run: func(ctx context.Context, r *remoteRun) error {
			if limit < 1 {
				return process.Usage("--limit: want at least 1")
			}
			raw, err := chat.List[json.RawMessage](ctx, r.client, "audit", "", limit)
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
				rows[i] = []cell{
					{chat.Day(a.At), grey},
					{a.Action, plain},
					{a.Tool, plain},
					{a.Detail, plain},
					{a.Member, plain},
					{a.Subject, grey},
					{a.Session, grey},
				}
			}
			return c.screen().table([]string{"AT", "ACTION", "TOOL", "DETAIL", "WHO", "SUBJECT", "SESSION"}, rows)
		},
	})
	cmd.Flags().IntVar(&limit, "limit", 20, "maximum number, newest first")
	return cmd
}
