package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
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
	AllowPrivate bool        `env:"CREDENTIAL_BROKER_ALLOW_PRIVATE" doc:"Allows base URLs at loopback and private addresses."`
}

func (c *cli) accounts() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accounts",
		Short: "Keep credentials of model providers",
		Long: `Keeps credentials of model providers, sealed in the database. They are shared with
all workspaces unless --workspace names one. A running Signalbox takes notice
within a second. With DATABASE_URL and CREDENTIAL_BROKER_KEY_FILE in the environment
it works on a deployment instead of the data folder.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.accountsAdd(), c.accountsList(), c.accountsRemove())
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
		a, err := credentialbroker.OpenAccounts(credentialbroker.AccountsConfig{DB: db, KeyFile: key, AllowPrivate: s.AllowPrivate})
		if err != nil {
			return err
		}
		return f(ctx, a)
	}
	if s.DatabaseURL != "" && s.KeyFile != "" {
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

func (c *cli) accountsAdd() *cobra.Command {
	var (
		data, workspace string
		n               credentialbroker.NewAccount
		asJSON          bool
	)
	cmd := &cobra.Command{
		Use:   "add <provider>",
		Short: "Store a credential",
		Long: `Stores a credential of a provider: anthropic, openai, openrouter, or a name of your
own with --base-url. It is asked for at the terminal, or read from standard input;
never from an argument, which other people on the machine could read.`,
		Args: one("provider", "anthropic"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			n.Provider = args[0]
			if n.Workspace, err = optional[id.Workspace]("workspace", workspace); err != nil {
				return err
			}
			if n.Secret, err = c.readSecret(args[0]); err != nil {
				return err
			}
			return c.withAccounts(cmd, data, func(ctx context.Context, a *credentialbroker.Accounts) error {
				made, err := a.Add(ctx, n)
				if err != nil {
					return err
				}
				if asJSON {
					return c.printJSON(made)
				}
				_, err = fmt.Fprintf(c.out, "added %s for %s\n", made.ID, made.Provider)
				return err
			})
		},
	}
	dataFlag(cmd, &data)
	cmd.Flags().StringVar(&workspace, "workspace", "", "workspace id (default: shared with all)")
	cmd.Flags().StringVar(&n.Label, "label", "", "a name for people")
	cmd.Flags().StringVar(&n.Profile, "profile", "", "request profile (default: the provider's)")
	cmd.Flags().StringVar(&n.BaseURL, "base-url", "", "base URL (default: the profile's)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// one takes exactly one argument, and says what it is when it is not there.
func one(what, example string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return process.Usage("%s takes one %s, such as %s", cmd.CommandPath(), what, example)
		}
		return nil
	}
}

const maxSecret = 64 << 10

func (c *cli) readSecret(provider string) (conf.Secret, error) {
	if term.IsTerminal(int(os.Stdin.Fd())) {
		fmt.Fprintf(c.err, "API key for %s (not shown): ", provider)
		b, err := term.ReadPassword(int(os.Stdin.Fd()))
		fmt.Fprintln(c.err)
		if err != nil {
			return "", fmt.Errorf("read the key: %w", err)
		}
		return conf.Secret(strings.TrimSpace(string(b))), nil
	}
	line, err := bufio.NewReader(io.LimitReader(os.Stdin, maxSecret)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the key: %w", err)
	}
	return conf.Secret(strings.TrimSpace(line)), nil
}

func (c *cli) accountsList() *cobra.Command {
	var (
		data   string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use: "list", Short: "List stored credentials, without their secrets", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAccounts(cmd, data, func(ctx context.Context, a *credentialbroker.Accounts) error {
				all, err := a.List(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return c.printJSON(map[string]any{"accounts": all})
				}
				return c.table(all)
			})
		},
	}
	dataFlag(cmd, &data)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (c *cli) table(all []credentialbroker.Account) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(c.out, "No credential is stored. Add one with: signalbox accounts add anthropic")
		return err
	}
	w := tabwriter.NewWriter(c.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tPROVIDER\tKEY\tLABEL\tFOR\tLAST USED")
	for _, a := range all {
		whose, used := a.Workspace, "never"
		if a.Shared {
			whose = "all workspaces"
		}
		if a.LastUsedAt != nil {
			used = a.LastUsedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t…%s\t%s\t%s\t%s\n", a.ID, a.Provider, a.Hint, a.Label, whose, used)
	}
	return w.Flush()
}

func (c *cli) accountsRemove() *cobra.Command {
	var (
		data   string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use: "remove <id>", Short: "Forget a credential", Args: one("account id", "the ID that list shows"),
		RunE: func(cmd *cobra.Command, args []string) error {
			account, err := id.Parse[id.Account](args[0])
			if err != nil {
				return process.Usage("%v: list shows the ids", err)
			}
			return c.withAccounts(cmd, data, func(ctx context.Context, a *credentialbroker.Accounts) error {
				if err := a.Remove(ctx, account); err != nil {
					return err
				}
				if asJSON {
					return c.printJSON(map[string]bool{"success": true})
				}
				_, err := fmt.Fprintln(c.out, "removed", args[0])
				return err
			})
		},
	}
	dataFlag(cmd, &data)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
