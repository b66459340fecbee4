package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/process"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/standalone"
	"signalbox.dev/services/standalone/internal/datadir"
)

// accountSettings name the broker's database and key of a deployment.
type accountSettings struct {
	DatabaseURL  conf.Secret `env:"DATABASE_URL" doc:"The credentials' database of a deployment."`
	KeyFile      string      `env:"CREDENTIAL_BROKER_KEY_FILE" doc:"The broker's key file there."`
	Profiles     string      `env:"CREDENTIAL_BROKER_PROFILES" doc:"The folder of your own request profiles."`
	AllowPrivate bool        `env:"CREDENTIAL_BROKER_ALLOW_PRIVATE" doc:"Allows base URLs at loopback and private addresses."`
	Keys         credentialbroker.Keys
	OAuth        credentialbroker.OAuth
}

func (c *cli) accounts() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accounts",
		Short: "Keep credentials of model providers",
		Long: `Keeps credentials of model providers, sealed in the database. They are shared with
all workspaces unless --workspace names one. A running Signalbox takes notice
within a second. With DATABASE_URL and CREDENTIAL_BROKER_KEY_FILE in the environment
it works on a deployment instead of the data folder.`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		c.accountsAdd(), c.accountsLogin(), c.accountsReauth(), c.accountsRefresh(), c.accountsLogout(), c.accountsImport(),
		c.accountsList(), c.accountsStatus(), c.accountsEnable(), c.accountsDisable(), c.accountsSwitch(), c.accountsReset(), c.accountsRemove(),
		c.accountsStats(), c.accountsResetStats(), c.accountsStrategy(), c.accountsConfig(), c.accountsAudit(), c.accountsManage(), c.accountsRotateKeys(),
	)
	return cmd
}

// withAccounts opens the accounts of the data folder or of a deployment.
func (c *cli) withAccounts(cmd *cobra.Command, data string, f func(ctx context.Context, a *credentialbroker.Accounts) error) error {
	var s accountSettings
	if err := c.settings(&s); err != nil {
		return err
	}
	log, err := c.log()
	if err != nil {
		return err
	}
	ctx, stop := process.Signals(cmd.Context())
	defer stop()
	use := func(url conf.Secret, key string) error {
		m := credentialbroker.Migrations()
		db, err := pg.Open(ctx, pg.Config{URL: url, Role: m.Role, Schema: m.Schema, MaxConns: 2, Application: "signalbox accounts"})
		if err != nil {
			return err
		}
		defer db.Close()
		a, err := credentialbroker.OpenAccounts(credentialbroker.AccountsConfig{DB: db, KeyFile: key, Keys: s.Keys, Profiles: s.Profiles, AllowPrivate: s.AllowPrivate, OAuth: s.OAuth, Log: log}) //nolint:contextcheck // what it opens outlives the opening
		if err != nil {
			return err
		}
		defer a.Close()
		return f(ctx, a)
	}
	if s.DatabaseURL != "" && (s.KeyFile != "" || s.Keys.URL != "") {
		return forPeople(use(s.DatabaseURL, s.KeyFile))
	}
	dir, err := datadir.Open(data)
	if err != nil {
		return err
	}
	return forPeople(standalone.WithDatabase(ctx, data, log, func(url conf.Secret) error { return use(url, standalone.KeyFile(dir)) }))
}

// forPeople leaves of a fault what is meant for people.
func forPeople(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind != fault.Internal {
		return errors.New(f.Message)
	}
	return err
}
