package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"signalbox.dev/services/standalone/internal/chat"
)

func (c *cli) models() *cobra.Command {
	return c.remoteCommand("models", "List the models that can be called",
		`Lists the models that the workspace's accounts can call, with their context in tokens
and their prices in US dollars per million tokens. Providers that have an account and
cannot be asked are named.
`, none,
		func(cmd *cobra.Command, r *remote, client *chat.Client, _ []string) error {
			if r.asJSON {
				return c.printRaw(cmd, client, "/api/models")
			}
			all, err := client.Models(cmd.Context())
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
		})
}
