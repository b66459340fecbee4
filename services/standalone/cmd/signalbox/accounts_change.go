package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/process"
	credentialbroker "signalbox.dev/services/credential-broker"
)

func (c *cli) accountsAdd() *cobra.Command {
	var n credentialbroker.NewAccount
	var noCheck, gateway bool
	cmd := c.accountsSub(accountsCommand{
		use: "add <provider>", short: "Store a key",
		long: `Stores a key of a provider: anthropic, openai, openrouter, or a name of your
own with --base-url, for a server that speaks OpenAI's protocol (Ollama, vLLM, LM
Studio). It is asked for at the terminal, or read from standard input; never from an
argument, which other people on the machine could read. A server of your own may want
none. The provider is asked whether it takes the key before that is stored.

With --gateway it is stored at the Signalbox that SIGNALBOX_URL names, or that runs in the
data folder, for the workspace of SIGNALBOX_TOKEN, who has to own it: sealed here, so that
only the credential broker there opens it. The provider is not asked then.`,
		example: `  signalbox accounts add anthropic
  signalbox accounts add ollama --base-url http://localhost:11434/v1 </dev/null`,
		args: labelled(&n.Label), scoped: true, seals: true, begins: true,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&n.Label, "label", "", "a name for people")
			cmd.Flags().StringVar(&n.Profile, "profile", "", "request profile (default: the provider's)")
			cmd.Flags().StringVar(&n.BaseURL, "base-url", "", "base URL (default: the profile's)")
			cmd.Flags().BoolVar(&noCheck, "no-check", false, "store the key without asking the provider whether it takes it")
			cmd.Flags().BoolVar(&n.FlatRate, "flat-rate", false, "paid by the month: its use costs nothing")
			cmd.Flags().BoolVar(&gateway, "gateway", false, "store it through a gateway, sealed for its credential broker")
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
		return c.addThrough(cmd, n)
	}
	return cmd
}

// addThrough stores a key through a gateway.
func (c *cli) addThrough(cmd *cobra.Command, n credentialbroker.NewAccount) error {
	for _, name := range []string{"workspace", "new-key", "no-check"} {
		if cmd.Flags().Changed(name) {
			return process.Usage("--%s says nothing with --gateway", name)
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
		return unread("the key", err)
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

func (r *accountsRun) add(ctx context.Context, n credentialbroker.NewAccount, check bool) error {
	if err := r.scope.Check(n); err != nil {
		return err
	}
	secret, err := r.askKey(printable(n.Provider), n.Keyless())
	if err != nil && (!n.Keyless() || !errors.Is(err, io.EOF)) {
		return unread("the key", err)
	}
	n.Secret = conf.Secret(secret)
	if check {
		doubt, err := r.scope.Try(ctx, n)
		if f := fault.From(err); err != nil && f.Kind == fault.Conflict {
			return fault.New(f.Kind, "%s. Nothing was stored; accounts add --no-check stores it all the same", f.Message)
		}
		if err != nil {
			return err
		}
		if doubt != "" {
			fmt.Fprintf(r.screen.err, "the key could not be tried: %s\n", printable(doubt))
		}
	}
	made, err := r.scope.Add(ctx, n)
	if err != nil {
		return err
	}
	return r.say(made, "added %s for %s", made.ID, made.Provider)
}

// change is a command that does one thing with one account.
func (c *cli) change(name, short, long, past string, do func(ctx context.Context, s *credentialbroker.Scope, account id.Account) (credentialbroker.Account, error)) *cobra.Command {
	return c.accountsSub(accountsCommand{
		use: name + " <account>", short: short, long: long, args: account, scoped: true,
		run: func(ctx context.Context, r *accountsRun) error {
			_, account, scope, err := r.find(ctx, r.args[0])
			if err != nil {
				return err
			}
			a, err := do(ctx, scope, account)
			if err != nil {
				return err
			}
			return r.say(a, "%s %s", past, named(a))
		},
	})
}

func (c *cli) accountsEnable() *cobra.Command {
	return c.change("enable", "Let requests go out under an account again", "", "enabled",
		func(ctx context.Context, s *credentialbroker.Scope, a id.Account) (credentialbroker.Account, error) {
			return s.Enable(ctx, a)
		})
}

func (c *cli) accountsDisable() *cobra.Command {
	return c.change("disable", "Keep requests from an account until it is enabled", "", "disabled",
		func(ctx context.Context, s *credentialbroker.Scope, a id.Account) (credentialbroker.Account, error) {
			return s.Disable(ctx, a)
		})
}

func (c *cli) accountsSwitch() *cobra.Command {
	return c.change("switch", "Make an account the current one of its pool",
		`Makes an account the one that requests go to next, with the strategies sticky and
hybrid, within their rules: sessions that others have served move too.`, "switched to",
		func(ctx context.Context, s *credentialbroker.Scope, a id.Account) (credentialbroker.Account, error) {
			return s.Switch(ctx, a)
		})
}

func (c *cli) accountsRefresh() *cobra.Command {
	return c.change("refresh", "Renew the access token of an account now", "", "renewed the token of",
		func(ctx context.Context, s *credentialbroker.Scope, a id.Account) (credentialbroker.Account, error) {
			return s.Refresh(ctx, a)
		})
}

func (c *cli) accountsReset() *cobra.Command {
	return c.accountsSub(accountsCommand{
		use: "reset <account>", short: "Forget an account's limits and make it healthy", args: account, scoped: true, destructive: true,
		run: func(ctx context.Context, r *accountsRun) error {
			a, account, scope, err := r.find(ctx, r.args[0])
			if err != nil {
				return err
			}
			if err := r.confirm(r.yes, "Forget the limits and the health of %s?", named(a)); err != nil {
				return err
			}
			if a, err = scope.Reset(ctx, account); err != nil {
				return err
			}
			return r.say(a, "reset %s", named(a))
		},
	})
}

func (c *cli) accountsFlatRate() *cobra.Command {
	var off bool
	return c.accountsSub(accountsCommand{
		use: "flat-rate <account>", short: "Count the use of an account as costing nothing", args: account, scoped: true,
		long: `Marks an account as paid by the month, such as a subscription: from now on its use
counts as costing nothing. With --off it is paid by the token again.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&off, "off", false, "it is paid by the token")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			_, account, scope, err := r.find(ctx, r.args[0])
			if err != nil {
				return err
			}
			a, err := scope.SetFlatRate(ctx, account, !off)
			if err != nil {
				return err
			}
			return r.say(a, "%s is %s", named(a), paid(a))
		},
	})
}

// paid says how an account is paid.
func paid(a credentialbroker.Account) string {
	if a.FlatRate {
		return "paid by the month"
	}
	return "paid by the token"
}

func (c *cli) accountsRemove() *cobra.Command {
	var leave bool
	return c.accountsSub(accountsCommand{
		use: "remove <account>", short: "Forget a credential", args: account, scoped: true, destructive: true,
		long: `Forgets a credential, and what was counted of it. Where somebody signed in, the
sign-in is taken back at the provider first, as far as it can be told; the account is
removed in any case, but for one whose token does not open with this key: that one
needs --no-revoke.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&leave, "no-revoke", false, "leave the sign-in good at the provider")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			a, account, scope, err := r.find(ctx, r.args[0])
			if err != nil {
				return err
			}
			if err := r.confirm(r.yes, "Forget the credential %s?", named(a)); err != nil {
				return err
			}
			return r.remove(ctx, scope, a, account, leave)
		},
	})
}

// remove forgets an account and says so. A sign-in is taken back, unless it is to be left.
func (r *accountsRun) remove(ctx context.Context, scope *credentialbroker.Scope, a credentialbroker.Account, account id.Account, leave bool) error {
	if leave || a.Grant == nil {
		if err := scope.Forget(ctx, account); err != nil {
			return err
		}
		return r.say(map[string]any{"success": true, "id": a.ID}, "removed %s", a.ID)
	}
	rev, err := takeOut(ctx, scope, account)
	if err != nil {
		return err
	}
	done := signedOut{Account: a.ID, AtProvider: rev.AtProvider, Reason: rev.Why}
	return r.say(map[string]any{"success": true, "id": a.ID, "at_provider": rev.AtProvider, "reason": rev.Why}, "removed %s: %s", a.ID, done.text(named(a)))
}

// takeOut removes an account that somebody signed in to.
func takeOut(ctx context.Context, scope *credentialbroker.Scope, account id.Account) (credentialbroker.Revocation, error) {
	if err := scope.Opens(ctx, account); err != nil {
		return credentialbroker.Revocation{}, fmt.Errorf("%w; to remove it without telling the provider, use: signalbox accounts remove %s --no-revoke", forPeople(err), account)
	}
	return scope.Remove(ctx, account)
}
