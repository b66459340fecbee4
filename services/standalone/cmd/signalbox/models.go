package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (c *cli) models() *cobra.Command {
	return c.remoteSub(remoteCommand{
		use: "models", short: "List the models that can be called",
		long: `Lists the models that the workspace's accounts can call, with their context in tokens
and their prices in US dollars per million tokens, and names the providers that have an
account but do not answer.`,
		run: func(ctx context.Context, r *remoteRun) error {
			if r.json {
				return r.printAPI(ctx, "/api/models")
			}
			all, err := r.client.Models(ctx)
			if err != nil {
				return err
			}
			var rows [][]cell
			for _, m := range all.Models {
				context, in, out := "", "", ""
				if m.Context != nil {
					context = fmt.Sprint(*m.Context)
				}
				if m.Prices != nil {
					in, out = fmt.Sprint(m.Prices.Input), fmt.Sprint(m.Prices.Output)
				}
				rows = append(rows, []cell{{m.Provider, plain}, {m.ID, plain}, {context, plain}, {in, plain}, {out, plain}, {m.About(), grey}})
			}
			if err := c.screen().table([]string{"PROVIDER", "MODEL", "CONTEXT", "$ IN", "$ OUT", "ABILITIES"}, rows); err != nil {
				return err
			}
			for _, p := range all.Problems {
				fmt.Fprintf(c.err, "%s: %s\n", printable(p.Provider), printable(p.Reason))
			}
			return nil
		},
	})
}
