package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/process"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/standalone/internal/chat"
)

func (c *cli) accountsAudit() *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "Show and verify what happened to credentials"}
	cmd.AddCommand(c.auditList(), c.auditVerify())
	return group(cmd)
}

func (c *cli) auditList() *cobra.Command {
	var before int64
	var limit int
	var of string
	return c.accountsSub(accountsCommand{
		use: "list", short: "Show what happened to credentials, newest first", args: none, scoped: true,
		long: `Shows what happened to the credentials of a workspace and who did it, and which sessions
used which of them, a row for the first time. Without --workspace it is about the shared
accounts, but for their use: that stands with the workspaces that used them. With
--account it is all that is known of one account, wherever it stands, also after it was
removed: then name it by its ID.

FROM is the user and the machine of whoever typed a command, and the network address of
whoever sent a request. For a use that is the service that runs the session, and not the
member: SESSION says whose it is.

Without a database a row is written before what it tells of: the last row of a program that
was killed may be of something that did not come about.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().Int64Var(&before, "before", 0, "rows before this number (default: from the end)")
			cmd.Flags().IntVar(&limit, "limit", 50, "rows, 100 at most; with --account 10000")
			cmd.Flags().Var((*filled)(&of), "account", "only of this account, in all workspaces")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			if of != "" {
				if before != 0 || !r.global {
					return process.Usage("--account is about all workspaces and takes neither --workspace nor --before")
				}
				return r.auditOf(ctx, of, limit)
			}
			all, next, err := r.scope.Audit(ctx, before, limit)
			if err != nil {
				return err
			}
			if r.json {
				return r.printJSON(map[string]any{"rows": all, "next_before": next})
			}
			var rows [][]cell
			for _, a := range all {
				rows = append(rows, plainCells(strconv.FormatInt(a.Sequence, 10), day(&a.At, ""), a.Action, a.Provider, a.Account, who(&a), a.Address, a.Detail, a.Session))
			}
			if err := r.table([]string{"ROW", "AT", "ACTION", "PROVIDER", "ACCOUNT", "WHO", "FROM", "WHAT", "SESSION"}, rows); err != nil {
				return err
			}
			if next > 0 && r.tables {
				fmt.Fprintf(r.screen.out, "There is more: --before %d\n", next)
			}
			return nil
		},
	})
}

// auditOf shows what is known of one account.
func (r *accountsRun) auditOf(ctx context.Context, name string, limit int) error {
	account, err := id.Parse[id.Account](name)
	if err != nil {
		if _, account, _, err = r.find(ctx, name); err != nil {
			return err
		}
	}
	all, err := r.accounts.AuditOf(ctx, account, limit)
	if err != nil {
		return err
	}
	if r.json {
		return r.printJSON(map[string]any{"rows": all})
	}
	var rows [][]cell
	for _, a := range all {
		in := "shared"
		if a.Workspace != "" {
			in = a.Workspace
		}
		rows = append(rows, plainCells(in, strconv.FormatInt(a.Sequence, 10), day(&a.At, ""), a.Action, a.Provider, who(&a.AuditRow), a.Address, a.Detail, a.Session))
	}
	return r.table([]string{"WORKSPACE", "ROW", "AT", "ACTION", "PROVIDER", "WHO", "FROM", "WHAT", "SESSION"}, rows)
}

// who did it, and through what.
func who(a *credentialbroker.AuditRow) string {
	if a.Member == "" {
		return a.Service
	}
	return a.Member + " by " + a.Service
}

func (c *cli) auditVerify() *cobra.Command {
	var heads string
	return c.accountsSub(accountsCommand{
		use: "verify", short: "Look whether rows of the audit were changed, removed or inserted", args: none,
		long: `Computes the chains of all workspaces anew and says which row was changed, removed,
inserted, moved or replaced; then it ends with the code 1. Whoever can write the
database could compute a chain anew: keep what --json prints elsewhere, and hand it
in with --heads the next time.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&heads, "heads", "", "file with what an earlier verify --json printed")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			earlier, err := readHeads(heads)
			if err != nil {
				return err
			}
			v, err := r.accounts.VerifyAudit(ctx, earlier)
			if err != nil {
				return err
			}
			if r.json {
				if err := r.printJSON(v); err != nil {
					return err
				}
			} else {
				for _, p := range slices.Concat(v.Problems, v.CutOff) {
					of := "the shared accounts"
					if p.Workspace != "" {
						of = "workspace " + p.Workspace
					}
					row := ""
					if p.Row != "" {
						row = " (" + p.Row + ")"
					}
					fmt.Fprintf(r.screen.out, "%s  %s: %s%s\n", r.paint(red, p.Kind), of, p.Message, row)
				}
			}
			if n := len(v.Problems); n > 0 {
				return fmt.Errorf("the audit is not as it was written: %s in %s", chat.Plural(n, "problem"), chat.Plural(v.Rows, "row"))
			}
			if r.json {
				return nil
			}
			_, err = fmt.Fprintf(r.screen.out, "the audit is whole: %s in %s\n", chat.Plural(v.Rows, "row"), chat.Plural(len(v.Heads), "chain"))
			return err
		},
	})
}

func readHeads(path string) ([]credentialbroker.AuditHead, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--heads: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	var v credentialbroker.Verification
	if err := json.NewDecoder(io.LimitReader(f, 64<<20)).Decode(&v); err != nil || v.Heads == nil {
		return nil, errors.New("--heads: the file is not what verify --json printed")
	}
	return v.Heads, nil
}
