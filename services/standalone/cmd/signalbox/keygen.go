package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/standalone"
)

const (
	serviceKey  = "_SERVICE_KEY"
	trustedKeys = "_TRUSTED_KEYS"
	// sealKeyFile is the key of a Secret whose value is the broker's key file.
	sealKeyFile = "seal.key"
	keygenTime  = 2 * time.Minute
)

func (c *cli) keygen() *cobra.Command {
	var secret nonEmpty
	cmd := &cobra.Command{
		Use:   "keygen",
		Short: "Generate the services' keys for a cluster, as environment variables",
		Long: `Generates a private key for each service, with which it authenticates its calls, and the
list of public keys from which it accepts calls. Keep the output secret. Set SERVICE_KEY
and TRUSTED_KEYS of each service to the variables with its name.

With --kubernetes-secret it prints nothing. In a pod of a cluster, it creates that Secret in
the pod's namespace with these keys, the passwords for PostgreSQL and NATS, and the key that
seals stored credentials. If the Secret exists, it adds what is missing and changes nothing.`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if secret == "" {
				keys := map[string]string{}
				if err := addServiceKeys(keys); err != nil {
					return err
				}
				for _, name := range keyNames() {
					fmt.Fprintf(c.out, "%s=%s\n", name, keys[name])
				}
				return nil
			}
			return c.run(cmd, &struct{}{}, func(ctx context.Context, _ *slog.Logger) error {
				ctx, cancel := context.WithTimeout(ctx, keygenTime)
				defer cancel()
				api, err := inCluster(serviceAccount, c.environ)
				if err != nil {
					return err
				}
				added, err := api.fillSecret(ctx, string(secret), fillInstallation)
				if err != nil {
					return fmt.Errorf("secret %s: %w", secret, err)
				}
				_, err = fmt.Fprintf(c.out, "secret %s: %d values added\n", secret, added)
				return err
			})
		},
	}
	cmd.Flags().Var(&secret, "kubernetes-secret", "fill this Secret, in a pod of a Kubernetes cluster")
	return cmd
}

// variable returns the beginning of a service's variables.
func variable(service string) string { return strings.ToUpper(strings.ReplaceAll(service, "-", "_")) }

// callers returns the services whose keys each service trusts.
func callers() map[string][]string {
	all := map[string][]string{"browser": {subject.ToolExecutor}}
	for _, s := range standalone.Services() {
		if by := standalone.Callers(s); len(by) > 0 {
			all[s] = slices.Sorted(slices.Values(by))
		}
	}
	return all
}

// keyNames returns the variables with keys, in the order in which they are printed.
func keyNames() (names []string) {
	trusted := callers()
	for _, s := range append(standalone.Services(), "browser") {
		if s != "browser" {
			names = append(names, variable(s)+serviceKey)
		}
		if trusted[s] != nil {
			names = append(names, variable(s)+trustedKeys)
		}
	}
	return names
}

// addServiceKeys adds the keys of services that values does not have. It is an error if a
// service would not trust the key of one that calls it.
func addServiceKeys(values map[string]string) error {
	public := map[string]string{}
	for _, s := range standalone.Services() {
		name := variable(s) + serviceKey
		k, err := identity.NewKey()
		if text, ok := values[name]; ok {
			if k, err = identity.ParseKey(text); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if err != nil {
			return err
		}
		values[name], public[s] = k.Encode(), k.Public()
	}
	for s, by := range callers() {
		trusted := map[string]string{}
		for _, caller := range by {
			trusted[caller] = public[caller]
		}
		name, want := variable(s)+trustedKeys, identity.FormatTrusted(trusted)
		got, ok := values[name]
		if !ok {
			values[name] = want
			continue
		}
		keys, err := identity.ParseTrusted(got)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		// While keys are rotated, there are others besides.
		if slices.ContainsFunc(by, func(caller string) bool { return !slices.Contains(keys[caller], public[caller]) }) {
			return fmt.Errorf("%s does not have the public keys of %s: remove it, and it is made again from their %s", name, strings.Join(by, ", "), serviceKey[1:])
		}
	}
	return nil
}

// fillInstallation adds every password and key that values does not have.
func fillInstallation(values map[string]string) error {
	if err := addServiceKeys(values); err != nil {
		return err
	}
	names := []string{"POSTGRES_PASSWORD", "ADMIN_NATS_PASSWORD", "GATEWAY_DEV_SECRET"}
	for _, s := range standalone.Services() {
		names = append(names, variable(s)+"_DB_PASSWORD", variable(s)+"_NATS_PASSWORD")
	}
	for _, name := range names {
		if values[name] == "" {
			values[name] = password()
		}
	}
	if values[sealKeyFile] != "" {
		return nil
	}
	dir, err := os.MkdirTemp("", "signalbox-keygen-")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, sealKeyFile)
	_, err = admin.NewKeyFile(file)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	text, err := os.ReadFile(file)
	values[sealKeyFile] = string(text)
	return errors.Join(err, os.RemoveAll(dir))
}

// password returns a password of letters and digits that begins with a letter, since it becomes part
// of URLs and of NATS' configuration.
func password() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails
	return "p" + hex.EncodeToString(b[:])
}
