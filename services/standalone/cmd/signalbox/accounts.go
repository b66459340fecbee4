package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/process"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/standalone"
	"signalbox.dev/services/standalone/internal/datadir"
)

// accountSettings name the broker's database and key of a deployment.
type accountSettings struct {
	DatabaseURL  conf.Secret `env:"DATABASE_URL" doc:"The database of a deployment's credentials."`
	AccountsFile string      `env:"CREDENTIAL_BROKER_ACCOUNTS_FILE" doc:"The file of a broker that has no database."`
	KeyFile      string      `env:"CREDENTIAL_BROKER_KEY_FILE" doc:"The key file of that broker."`
	Profiles     string      `env:"CREDENTIAL_BROKER_PROFILES" doc:"The folder with your own request profiles."`
	AllowPrivate bool        `env:"CREDENTIAL_BROKER_ALLOW_PRIVATE" doc:"Allows base URLs on loopback and private addresses, and on any port."`
	Keys         admin.Keys
	OAuth        admin.OAuth
}

func (c *cli) accounts() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accounts",
		Short: "Manage credentials of model providers",
		Long: `Manages credentials of model providers, sealed in the database. They are shared with
all workspaces unless --workspace names one. A running Signalbox picks up changes
within a second. With DATABASE_URL and CREDENTIAL_BROKER_KEY_FILE in the environment
it works on a deployment instead of the data folder. With DATABASE_URL alone it works on
the external database of the data folder's Signalbox. With CREDENTIAL_BROKER_ACCOUNTS_FILE
and CREDENTIAL_BROKER_KEY_FILE it works on the file of a broker without a database, even
while the broker runs.

A key service (CREDENTIAL_BROKER_KEY_URL; VAULT_SERVER_URL and VAULT_SERVER_TOKEN for a
Vault), further keys (CREDENTIAL_BROKER_OTHER_KEYS) and OAuth clients
(CREDENTIAL_BROKER_OAUTH_CLIENTS) are set as for the broker.`,
	}
	cmd.AddCommand(
		c.accountsAdd(), c.accountsLogin(), c.accountsReauth(), c.accountsLogout(), c.accountsImport(),
		c.accountsList(), c.accountsStatus(), c.accountsRemove(), c.accountsFlatRate(),
		c.accountsStats(), c.accountsResetStats(), c.accountsStrategy(), c.accountsConfig(), c.accountsAudit(), c.accountsManage(), c.accountsNewKey(), c.accountsRotateKeys(),
	)
	cmd.AddCommand(c.accountsChanges()...)
	return group(cmd)
}

// group accepts the flags of its subcommands, hidden, so that a missing or mistyped
// subcommand is what the error is about. Without one it prints its help, which is not JSON.
func group(cmd *cobra.Command) *cobra.Command {
	var asJSON bool
	cmd.Args = none
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if asJSON {
			return process.Usage("%[1]s takes a subcommand (see %[1]s --help)", cmd.CommandPath())
		}
		return cmd.Help()
	}
	dataFlag(cmd, new(string))
	jsonFlag(cmd, &asJSON)
	cmd.Flags().String("workspace", "", "")
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	return cmd
}

// withAccounts opens the accounts of the data folder or of a deployment. Only a command that
// creates may fill an empty data folder, or make the folder of an accounts file.
func (c *cli) withAccounts(cmd *cobra.Command, data string, creates bool, f func(ctx context.Context, a *admin.Accounts) error) error {
	if c.opened != nil {
		return forPeople(f(cmd.Context(), c.opened))
	}
	var s accountSettings
	return c.run(cmd, &s, func(ctx context.Context, log *slog.Logger) error {
		return forPeople(c.openAccounts(ctx, &s, log, data, creates, f))
	})
}

// openAccounts opens the accounts that settings name, else those of the data folder.
func (c *cli) openAccounts(ctx context.Context, s *accountSettings, log *slog.Logger, data string, creates bool, f func(ctx context.Context, a *admin.Accounts) error) error {
	cfg := admin.Config{
		File: s.AccountsFile, KeyFile: s.KeyFile, Keys: s.Keys, Profiles: s.Profiles, AllowPrivate: s.AllowPrivate,
		OAuth: s.OAuth, Operator: operator(), Log: log,
	}
	open := func() error {
		a, err := admin.Open(cfg) //nolint:contextcheck // what it opens outlives the opening
		if err != nil {
			return err
		}
		defer a.Close()
		return f(ctx, a)
	}
	openDatabase := func(url conf.Secret) error {
		m := credentialbroker.Migrations()
		var err error
		if cfg.DB, err = pg.Open(ctx, pg.Config{URL: url, Role: m.Role, Schema: m.Schema, MaxConns: 2, Application: "signalbox accounts"}); err != nil {
			return err
		}
		defer cfg.DB.Close()
		return open()
	}
	switch haveKey := s.KeyFile != "" || s.Keys.URL != ""; {
	case s.AccountsFile != "" && s.DatabaseURL != "":
		return process.Usage("CREDENTIAL_BROKER_ACCOUNTS_FILE and DATABASE_URL are both set: unset one of them")
	case s.AccountsFile != "" && !haveKey:
		return process.Usage("CREDENTIAL_BROKER_KEY_FILE is not set: set it to the key file of the broker that uses CREDENTIAL_BROKER_ACCOUNTS_FILE")
	case s.AccountsFile != "":
		if dir := filepath.Dir(s.AccountsFile); !creates && missing(dir) {
			return fmt.Errorf("there is no folder %s for the accounts file: correct CREDENTIAL_BROKER_ACCOUNTS_FILE, or create the file with `signalbox accounts add`", printable(dir))
		}
		return open()
	case s.DatabaseURL != "" && haveKey:
		return openDatabase(s.DatabaseURL)
	case !creates && s.DatabaseURL == "" && !datadir.Holds(data):
		return fmt.Errorf("there is no Signalbox in %s: give its data folder with --data, or create one with `signalbox up` or `signalbox accounts add`", printable(data))
	}
	dir, err := datadir.Open(data)
	if err != nil {
		return err
	}
	cfg.KeyFile, cfg.AllowLoopback = standalone.KeyFile(dir), true
	return standalone.WithDatabase(ctx, data, s.DatabaseURL, log, openDatabase)
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// operator names the user of the operating system, and the machine.
func operator() string {
	name := strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return printable(name)
}
