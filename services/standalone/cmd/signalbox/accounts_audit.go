package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/process"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
)

func (c *cli) accountsAudit() *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "Show and verify the audit log of credentials"}
	cmd.AddCommand(c.auditList(), c.auditVerify())
	return group(cmd)
}

func (c *cli) auditList() *cobra.Command {
	var before int64
	var limit int
	var of string
	return c.accountsSub(accountsCommand{
		use: "list", short: "Show the audit log of credentials, newest first", scoped: true,
		long: `Shows changes to the credentials of a workspace, who made them, and the first use by each
session. Without --workspace it shows the shared accounts; their uses are listed with the
workspaces that used them. With --account it shows everything about one account, in all
workspaces, even if it was removed: then give its ID.

FROM is the user and the machine for a command, and the network address for a request. For
a use it is the service that runs the session, not the member: SESSION identifies that.

Without a database, a row is written before the change that it describes: if the program
was killed, its last row may describe a change that was not made.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().Int64Var(&before, "before", 0, "rows before this number (default: from the end)")
			cmd.Flags().IntVar(&limit, "limit", 50, "number of rows, at most 100, or 10000 with --account")
			cmd.Flags().Var((*nonEmpty)(&of), "account", "only rows of this account, in all workspaces")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			if of != "" {
				if before != 0 || r.workspace != "" {
					return process.Usage("--account covers all workspaces: omit --workspace and --before")
				}
				return r.auditOf(ctx, of, limit)
			}
			all, next, err := r.scope.Audit(ctx, admin.AuditQuery{Before: before, Limit: limit})
			if err != nil {
				return err
			}
			if r.json {
				return r.printJSON(map[string]any{"rows": all, "next_before": next})
			}
			var rows [][]cell
			for _, a := range all {
				rows = append(rows, plainCells(a.Sequence, day(&a.At, ""), a.Action, a.Provider, idText(a.Account), actor(&a), a.Address, a.Detail, idText(a.Session)))
			}
			if err := r.table([]string{"ROW", "AT", "ACTION", "PROVIDER", "ACCOUNT", "WHO", "FROM", "WHAT", "SESSION"}, rows); err != nil {
				return err
			}
			if next > 0 && r.tables {
				fmt.Fprintf(r.screen.out, "More rows: --before %d\n", next)
			}
			return nil
		},
	})
}

// auditOf shows what is known of one account.
func (r *accountsRun) auditOf(ctx context.Context, name string, limit int) error {
	account, err := id.Parse[id.Account](name)
	if err != nil {
		found, err := r.find(ctx, name)
		if err != nil {
			return err
		}
		account = found.ID
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
		rows = append(rows, plainCells(whose(a.Workspace, "", "shared"), a.Sequence, day(&a.At, ""), a.Action, a.Provider, actor(&a.AuditRow), a.Address, a.Detail, idText(a.Session)))
	}
	return r.table([]string{"WORKSPACE", "ROW", "AT", "ACTION", "PROVIDER", "WHO", "FROM", "WHAT", "SESSION"}, rows)
}

// actor says who did it, and through what.
func actor(a *admin.AuditRow) string {
	if id.IsZero(a.Member) {
		return a.Service
	}
	return a.Member.String() + " by " + a.Service
}

func (c *cli) auditVerify() *cobra.Command {
	var heads string
	return c.accountsSub(accountsCommand{
		use: "verify", short: "Check whether rows of the audit were changed, removed or inserted",
		long: `Does what signalbox audit verify does, for the audit log of credentials alone, also if it
is a file (CREDENTIAL_BROKER_ACCOUNTS_FILE).`,
		flags: func(cmd *cobra.Command) { headsFlag(cmd, &heads) },
		run: func(ctx context.Context, r *accountsRun) error {
			earlier, err := readHeads(heads)
			if err != nil {
				return err
			}
			earlier = slices.DeleteFunc(earlier, func(h hashchain.Head) bool { return h.Audit != "" && h.Audit != credentialbroker.Schema })
			v, err := r.accounts.VerifyAudit(ctx, earlier)
			if err != nil {
				return err
			}
			return r.verified(v, r.json)
		},
	})
}
