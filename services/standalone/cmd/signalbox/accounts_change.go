package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/admin"
)

func (c *cli) accountsAdd() *cobra.Command {
	var n admin.NewAccount
	var noCheck, gateway bool
	cmd := c.accountsSub(accountsCommand{
		use: "add <provider>", short: "Store a key",
		long: `Stores a key of a provider (` + strings.Join(admin.KeyProviders(), ", ") + ` and others), or of a name
of your own with --base-url, for a server that speaks OpenAI's protocol (Ollama, vLLM,
LM Studio). The key is read from the terminal or standard input, never from an argument,
which other users of the machine could read. Your own server may need no key. The key is
checked with the provider before it is stored.

With --gateway the key is stored in the Signalbox at SIGNALBOX_URL, or in the one that
runs in the data folder, for the workspace of SIGNALBOX_TOKEN, which must be an owner's.
It is sealed here, so that only that credential broker can decrypt it, and is not checked
with the provider.`,
		example: `  signalbox accounts add anthropic
  signalbox accounts add ollama --base-url http://localhost:11434/v1 </dev/null`,
		args: oneProvider(&n.Label), scoped: true, seals: true, creates: true,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&n.Label, "label", "", "a label for the account")
			cmd.Flags().StringVar(&n.Profile, "profile", "", "request profile (default: the provider's)")
			cmd.Flags().StringVar(&n.BaseURL, "base-url", "", "base URL (default: the profile's)")
			cmd.Flags().BoolVar(&noCheck, "no-check", false, "store the key without checking it with the provider")
			cmd.Flags().BoolVar(&n.FlatRate, "flat-rate", false, "the account has a flat rate: its usage costs nothing")
			cmd.Flags().BoolVar(&gateway, "gateway", false, "store the key through a gateway, sealed for its credential broker")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			n.Provider = r.args[0]
			return r.add(ctx, n, !noCheck)
		},
	})
	here := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !gateway {
			return here(cmd, args)
		}
		n.Provider = args[0]
		return c.addThroughGateway(cmd, n)
	}
	return cmd
}

func (c *cli) addThroughGateway(cmd *cobra.Command, n admin.NewAccount) error {
	for _, name := range []string{"workspace", "new-key", "no-check"} {
		if cmd.Flags().Changed(name) {
			return process.Usage("--%s has no effect with --gateway", name)
		}
	}
	ctx, stop := process.Signals(cmd.Context())
	defer stop()
	client, err := c.client(cmd, cmd.Flag("data").Value.String())
	if err != nil {
		return err
	}
	s := c.screen()
	s.ctx = ctx
	secret, err := s.askKey(printable(n.Provider), false)
	if err != nil {
		return readError("the key", err)
	}
	fields := map[string]any{"provider": n.Provider, "flat_rate": n.FlatRate}
	for name, text := range map[string]string{"profile": n.Profile, "label": n.Label, "base_url": n.BaseURL} {
		if text != "" {
			fields[name] = text
		}
	}
	made, err := client.AddAccount(ctx, fields, conf.Secret(secret))
	if err != nil {
		return err
	}
	if cmd.Flag("json").Value.String() == "true" {
		return c.printJSON(map[string]any{"id": made, "provider": n.Provider})
	}
	_, err = fmt.Fprintf(c.out, "added %s for %s\n", made, printable(n.Provider))
	return err
}

func (r *accountsRun) add(ctx context.Context, n admin.NewAccount, check bool) error {
	if err := r.scope.Check(n); err != nil {
		return err
	}
	secret, err := r.askKey(printable(n.Provider), n.Keyless())
	if err != nil && (!n.Keyless() || !errors.Is(err, io.EOF)) {
		return readError("the key", err)
	}
	n.Secret = conf.Secret(secret)
	if check {
		doubt, err := r.scope.Try(ctx, n)
		if f := fault.From(err); err != nil && f.Kind == fault.Conflict {
			return fault.New(f.Kind, "%s. Nothing was stored; to store it anyway, use: accounts add --no-check", f.Message)
		}
		if err != nil {
			return err
		}
		if doubt != "" {
			fmt.Fprintf(r.screen.err, "the key could not be checked: %s\n", printable(doubt))
		}
	}
	made, err := r.scope.Add(ctx, n)
	if err != nil {
		return err
	}
	return r.say(made, "added %s for %s", made.ID, made.Provider)
}

// accountsChanges are the commands that do one thing with one account.
func (c *cli) accountsChanges() []*cobra.Command {
	var all []*cobra.Command
	for _, x := range []struct {
		name, short, long, ask, past string
		do                           func(s *admin.Scope, ctx context.Context, account id.Account) (admin.Account, error)
	}{
		{"enable", "Let requests use an account again", "", "", "enabled", (*admin.Scope).Enable},
		{"disable", "Keep requests from using an account until it is enabled", "", "", "disabled", (*admin.Scope).Disable},
		{"switch", "Make an account the current one of its pool", `Sends the next requests to an account, with the strategies sticky and hybrid and within
their rules. Sessions that other accounts have served move too.`, "", "switched to", (*admin.Scope).Switch},
		{"refresh", "Renew the access token of an account now", "", "", "renewed the token of", (*admin.Scope).Refresh},
		{"reset", "Clear an account's limits and restore its health", "", "Clear the limits and the health of %s?", "reset", (*admin.Scope).Reset},
	} {
		all = append(all, c.accountsSub(accountsCommand{
			use: x.name + " <account>", short: x.short, long: x.long, args: oneAccount, about: true, scoped: true, ask: x.ask,
			run: func(ctx context.Context, r *accountsRun) error {
				a, err := x.do(r.owner, ctx, r.account.ID)
				if err != nil {
					return err
				}
				return r.say(a, "%s %s", x.past, named(a))
			},
		}))
	}
	return all
}

func (c *cli) accountsFlatRate() *cobra.Command {
	var off bool
	return c.accountsSub(accountsCommand{
		use: "flat-rate <account>", short: "Mark an account as paid by flat rate", args: oneAccount, about: true, scoped: true,
		long: `Marks an account as paid by flat rate, such as a subscription: from now on its usage
costs nothing. With --off the account is paid by the token again.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&off, "off", false, "the account is paid by the token")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			a, err := r.owner.SetFlatRate(ctx, r.account.ID, !off)
			if err != nil {
				return err
			}
			paid := "token"
			if a.FlatRate {
				paid = "month"
			}
			return r.say(a, "%s is paid by the %s", named(a), paid)
		},
	})
}

func (c *cli) accountsRemove() *cobra.Command {
	var keep bool
	return c.accountsSub(accountsCommand{
		use: "remove <account>", short: "Remove a credential", args: oneAccount, about: true, scoped: true, ask: "Remove the credential %s?",
		long: `Removes a credential and its statistics. A sign-in is revoked at the provider first, if
the provider supports it. The account is removed in any case, unless its token cannot be
decrypted with this key: then use --no-revoke.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&keep, "no-revoke", false, "leave the sign-in valid at the provider")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			a := r.account
			if keep || a.Grant == nil {
				if err := r.owner.Forget(ctx, a.ID); err != nil {
					return err
				}
				return r.say(map[string]any{"success": true, "id": a.ID}, "removed %s", a.ID)
			}
			if err := r.owner.CheckDecrypt(ctx, a.ID); err != nil {
				return fmt.Errorf("%w; to remove it without revoking it at the provider, use: signalbox accounts remove %s --no-revoke", forPeople(err), a.ID)
			}
			rev, err := r.owner.Remove(ctx, a.ID)
			if err != nil {
				return err
			}
			done := signedOut{Account: a.ID, AtProvider: rev.AtProvider, Reason: rev.Why}
			return r.say(map[string]any{"success": true, "id": a.ID, "at_provider": rev.AtProvider, "reason": rev.Why}, "removed %s: %s", a.ID, done.text(named(a)))
		},
	})
}
