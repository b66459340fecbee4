package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/standalone"
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
	cmd := c.auditSub("audit", []string{"AT", "ACTION", "TOOL", "DETAIL", "WHO", "SUBJECT", "SESSION"}, func(a auditRow) []cell {
		return []cell{{chat.Day(a.At), grey}, {a.Action, plain}, {a.Tool, plain}, {a.Detail, plain}, {a.Member, plain}, {a.Subject, grey}, {a.Session, grey}}
	}, remoteCommand{
		short: "Show who approved tool calls and changed rules, budgets, members and keys",
		long: `Shows who answered when agents asked for approval, and who changed approval rules,
budgets, members and API keys, newest first. It is for owners. For credentials see: signalbox
accounts audit, and for MCP servers: signalbox mcp audit.`,
	})
	cmd.AddCommand(c.auditVerifyAll())
	return cmd
}

func (c *cli) auditVerifyAll() *cobra.Command {
	var s backupSettings
	var o standalone.BackupOptions
	var heads string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "verify", Short: "Check whether rows of the audits were changed, removed or inserted", Args: none,
		Long: `Recomputes the hash chains of all audits in the database, of all workspaces: of members and
keys (gateway), of approvals, rules and budgets (agent), of tools' effects and MCP servers (tools),
and of credentials (credentials). Lists the rows that were changed, removed, inserted, moved or
replaced; if there are any, the exit code is 1.
Anyone who can write to the database could recompute a chain: keep the output of --json elsewhere,
and pass it with --heads the next time. It works on the deployment that DATABASE_URL names, else
on the data folder, whether Signalbox runs or not.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			earlier, err := readHeads(heads)
			if err != nil {
				return err
			}
			return c.run(cmd, &s, func(ctx context.Context, log *slog.Logger) error {
				s.into(&o)
				o.Log = log
				v, err := standalone.VerifyAudits(ctx, o, earlier)
				if err != nil {
					return fmt.Errorf("verify the audits: %w", err)
				}
				return c.verified(v, asJSON)
			})
		},
	}
	headsFlag(cmd, &heads)
	dataFlag(cmd, &o.Data)
	jsonFlag(cmd, &asJSON)
	return c.withVariables(cmd, new(backupSettings))
}

func headsFlag(cmd *cobra.Command, into *string) {
	cmd.Flags().StringVar(into, "heads", "", "file with the output of an earlier verify --json")
}

func readHeads(path string) ([]hashchain.Head, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--heads: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	var v hashchain.Verification
	if err := json.NewDecoder(io.LimitReader(f, 64<<20)).Decode(&v); err != nil || v.Heads == nil {
		return nil, errors.New("--heads: the file is not the output of verify --json")
	}
	return v.Heads, nil
}

// verified shows a verification. It is an error if something is wrong.
func (c *cli) verified(v hashchain.Verification, asJSON bool) error {
	s := c.screen()
	if asJSON {
		if err := c.printJSON(v); err != nil {
			return err
		}
	} else {
		for _, p := range slices.Concat(v.Problems, v.CutOff) {
			where, row := whose(p.Workspace, "workspace ", "the shared accounts"), ""
			if p.Audit != "" {
				where = p.Audit + ", " + where
			}
			if p.ID != uuid.Nil {
				row = " (" + p.ID.String() + ")"
			}
			fmt.Fprintf(s.out, "%s  %s: %s%s\n", s.paint(red, string(p.Kind)), where, p.Message, row)
		}
	}
	if n := len(v.Problems); n > 0 {
		return fmt.Errorf("the audit was altered: %s in %s", chat.Plural(n, "problem"), chat.Plural(v.Rows, "row"))
	}
	if asJSON {
		return nil
	}
	_, err := fmt.Fprintf(s.out, "the audit is intact: %s in %s\n", chat.Plural(v.Rows, "row"), chat.Plural(len(v.Heads), "chain"))
	return err
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
