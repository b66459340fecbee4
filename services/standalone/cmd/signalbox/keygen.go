package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/standalone"
)

func (c *cli) keygen() *cobra.Command {
	return &cobra.Command{
		Use:   "keygen",
		Short: "Make the services' keys for a cluster, as environment variables",
		Long: `Makes a private key for each service, with which it authenticates its calls, and for
each service the public keys of the services whose calls it accepts. Keep the output
secret: every service gets its own _SERVICE_KEY as SERVICE_KEY, and its own _TRUSTED_KEYS
as TRUSTED_KEYS.`,
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
			return nil
		},
	}
}
