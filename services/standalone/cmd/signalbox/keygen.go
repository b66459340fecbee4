package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/standalone"
)

func (c *cli) keygen() *cobra.Command {
	return &cobra.Command{
		Use:   "keygen",
		Short: "Generate the services' keys for a cluster, as environment variables",
		Long: `Generates a private key for each service, with which it authenticates its calls, and the
list of public keys from which it accepts calls. Keep the output secret. Set SERVICE_KEY
and TRUSTED_KEYS of each service to the variables with its name.`,
		Args: none,
		RunE: func(*cobra.Command, []string) error {
			keys := map[string]identity.Key{}
			for _, s := range standalone.Services() {
				k, err := identity.NewKey()
				if err != nil {
					return err
				}
				keys[s] = k
			}
			for _, s := range standalone.Services() {
				name := strings.ToUpper(strings.ReplaceAll(s, "-", "_"))
				fmt.Fprintf(c.out, "%s_SERVICE_KEY=%s\n", name, keys[s].Encode())
				callers := standalone.Callers(s)
				if len(callers) == 0 {
					continue
				}
				trusted := map[string]string{}
				for _, caller := range slices.Sorted(slices.Values(callers)) {
					trusted[caller] = keys[caller].Public()
				}
				fmt.Fprintf(c.out, "%s_TRUSTED_KEYS=%s\n", name, identity.FormatTrusted(trusted))
			}
			fmt.Fprintf(c.out, "BROWSER_TRUSTED_KEYS=%s\n", identity.FormatTrusted(map[string]string{subject.ToolExecutor: keys[subject.ToolExecutor].Public()}))
			return nil
		},
	}
}
