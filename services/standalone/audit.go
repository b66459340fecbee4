package standalone

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/pg"
	agentrunner "signalbox.dev/services/agent-runner"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/gateway"
	"signalbox.dev/services/standalone/internal/backup"
	toolexecutor "signalbox.dev/services/tool-executor"
)

// VerifyAudits verifies the audits of all services, in the database that o names. Their names are
// those of their schemas. Earlier heads without a name are those of credentials.
func VerifyAudits(ctx context.Context, o BackupOptions, earlier []hashchain.Head) (hashchain.Verification, error) {
	all := hashchain.Verification{Problems: []hashchain.Problem{}, Heads: []hashchain.Head{}}
	err := o.withDatabase(ctx, func(url conf.Secret, _ *backup.Owner) error {
		for _, a := range []struct {
			pg.Migrations
			table func(*pg.DB) hashchain.Table
		}{
			{gateway.Migrations(), gateway.AuditTable},
			{agentrunner.Migrations(), agentrunner.AuditTable},
			{toolexecutor.Migrations(), toolexecutor.AuditTable},
			{credentialbroker.Migrations(), credentialbroker.AuditTable},
		} {
			db, err := pg.Open(ctx, pg.Config{URL: url, Role: a.Role, Schema: a.Schema, MaxConns: 2, Application: "signalbox audit"})
			if err != nil {
				return err
			}
			defer db.Close()
			known := slices.DeleteFunc(slices.Clone(earlier), func(h hashchain.Head) bool { return cmp.Or(h.Audit, credentialbroker.Schema) != a.Schema })
			v, err := hashchain.Verify(ctx, a.Schema, a.table(db), known)
			switch {
			case pg.HasCode(err, "42P01"), pg.HasCode(err, "42703"): // undefined_table, undefined_column
				return fmt.Errorf("the database is of an older version: run signalbox migrate, or start signalbox up (%w)", err)
			case err != nil:
				return fmt.Errorf("schema %s: %w", a.Schema, err)
			}
			all.Rows += v.Rows
			all.Problems, all.Heads = append(all.Problems, v.Problems...), append(all.Heads, v.Heads...)
		}
		return nil
	})
	return all, err
}
