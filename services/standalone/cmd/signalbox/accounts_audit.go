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
	"time"

	"github.com/spf13/cobra"

	credentialbroker "signalbox.dev/services/credential-broker"
)

func (c *cli) accountsAudit() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Show and verify what happened to credentials", Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.auditList(), c.auditVerify())
	return cmd
}

func (c *cli) auditList() *cobra.Command {
	var before int64
	var limit int
	return c.accountsSub(accountsCommand{
		use: "list", short: "Show what happened to credentials, newest first", args: none, scoped: true,
		long: `Shows what happened to the credentials of a workspace, who did it, and who used them
first in which session. Without --workspace it is about the shared accounts.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().Int64Var(&before, "before", 0, "rows before this number (default: from the end)")
			cmd.Flags().IntVar(&limit, "limit", 50, "rows, 100 at most")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			all, next, err := r.scope.Audit(ctx, before, limit)
			if err != nil {
				return err
			}
			if r.json {
				return r.printJSON(map[string]any{"rows": all, "next_before": next})
			}
			var rows [][]cell
			for _, a := range all {
				who := a.Service
				if a.Member != "" {
					who = a.Member + " by " + a.Service
				}
				rows = append(rows, plainCells(strconv.FormatInt(a.Sequence, 10), a.At.UTC().Format(time.RFC3339), a.Action, a.Provider, a.Account, who, printable(a.Address), a.Detail))
			}
			if err := r.table([]string{"ROW", "AT", "ACTION", "PROVIDER", "ACCOUNT", "WHO", "FROM", "WHAT"}, rows); err != nil {
				return err
			}
			if next > 0 && r.tables {
				fmt.Fprintf(r.screen.out, "There is more: --before %d\n", next)
			}
			return nil
		},
	})
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
				return fmt.Errorf("the audit is not as it was written: %d problems in %d rows", n, v.Rows)
			}
			if r.json {
				return nil
			}
			_, err = fmt.Fprintf(r.screen.out, "the audit is whole: %d rows in %d chains\n", v.Rows, len(v.Heads))
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
