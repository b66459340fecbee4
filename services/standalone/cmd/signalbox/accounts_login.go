package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/standalone/internal/chat"
)

// loginFlags say how somebody wants to sign in.
type loginFlags struct{ device, paste bool }

func (f *loginFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.device, "device", false, "enter a short code on another device")
	cmd.Flags().BoolVar(&f.paste, "paste", false, "paste the code that the provider shows")
}

// kind returns the way that was chosen, else the provider's best. Without a terminal it never
// waits for a browser: a script may run on another machine.
func (f *loginFlags) kind(r *accountsRun, provider string) (admin.LoginKind, error) {
	if f.device && f.paste {
		return "", process.Usage("--device and --paste exclude each other: choose one")
	}
	kinds, err := r.accounts.LoginKinds(provider)
	switch {
	case err != nil:
		return "", err
	case f.device:
		return admin.LoginDevice, nil
	case f.paste:
		return admin.LoginPaste, nil
	}
	for _, k := range []admin.LoginKind{admin.LoginBrowser, admin.LoginDevice, admin.LoginPaste} {
		if slices.Contains(kinds, k) && (k != admin.LoginBrowser || r.answers) {
			return k, nil
		}
	}
	return "", fmt.Errorf("signing in to %s is possible only in the console, or at a terminal if it redirects browsers to this machine", provider)
}

func (c *cli) accountsLogin() *cobra.Command {
	var flags loginFlags
	var label string
	return c.accountsSub(accountsCommand{
		use: "login <provider>", short: "Sign in to a provider for a new account",
		long: `Signs in to a provider, such as anthropic, google or github, and shows an address to open
in a browser. At a terminal, if the provider allows it, the browser then returns to this
command, on a port of 127.0.0.1. Otherwise, or with a flag, enter a short code on any
device (--device) or paste a code here (--paste). --json prints two JSON documents: the
address first, and the account once it exists. CREDENTIAL_BROKER_OAUTH_CLIENTS contains
the client ids.`,
		args: oneProvider(&label), scoped: true, seals: true, creates: true,
		flags: func(cmd *cobra.Command) {
			flags.add(cmd)
			cmd.Flags().StringVar(&label, "label", "", "a label for the account")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			kind, err := flags.kind(r, r.args[0])
			if err != nil {
				return err
			}
			return r.login(ctx, r.scope, admin.LoginRequest{Provider: r.args[0], Kind: kind, Label: label})
		},
	})
}

func (c *cli) accountsReauth() *cobra.Command {
	var flags loginFlags
	return c.accountsSub(accountsCommand{
		use: "reauth <account>", short: "Sign in again for an existing account", args: oneAccount, about: true, scoped: true, seals: true,
		long: `Signs in again for an account: its tokens are replaced, and its limits, statistics and
place in the pool stay. Until the sign-in is complete the account is unchanged.`,
		flags: flags.add,
		run: func(ctx context.Context, r *accountsRun) error {
			if r.account.Grant == nil {
				return fmt.Errorf("%s is an API key, not a sign-in: add the new key and remove this one", named(r.account))
			}
			kind, err := flags.kind(r, r.account.Grant.Provider)
			if err != nil {
				return err
			}
			return r.login(ctx, r.owner, admin.LoginRequest{Kind: kind, Account: r.account.ID})
		},
	})
}

func (r *accountsRun) login(ctx context.Context, scope *admin.Scope, request admin.LoginRequest) error {
	complete := r.paste
	switch request.Kind {
	case admin.LoginDevice:
		complete = r.poll
	case admin.LoginBrowser:
		back, err := listenLoopback(ctx)
		if err != nil {
			return err
		}
		defer back.close()
		request.Redirect, complete = back.redirect(), back.receive
	}
	l, err := scope.StartLogin(ctx, request)
	if err != nil {
		return err
	}
	if err := r.say(l, "%s", r.instructions(l)); err != nil {
		return err
	}
	a, err := complete(ctx, scope, l)
	if err != nil {
		return err
	}
	return r.say(a, "signed in: %s, %s", named(a), a.ID)
}

func (r *accountsRun) instructions(l admin.Login) string {
	text := fmt.Sprintf("Open this address in a browser:\n\n  %s\n", l.URL)
	switch {
	case l.UserCode != "":
		text += fmt.Sprintf("\nand enter the code %s\n", r.paint(bold, printable(l.UserCode)))
	case l.Kind == admin.LoginBrowser:
		text += "\nThe browser must run on this machine, because it returns to this command. Otherwise press\nCtrl-C, and use --device or --paste.\n"
	}
	return text
}

func (r *accountsRun) paste(ctx context.Context, scope *admin.Scope, l admin.Login) (admin.Account, error) {
	code, err := r.askSecret("Paste the code that it shows (not shown here): ")
	if err != nil {
		return admin.Account{}, readError("the code", err)
	}
	return scope.CompleteLogin(ctx, admin.LoginAnswer{Login: l.ID, Code: code})
}

// errAbandoned ends the wait for a sign-in that is approved elsewhere.
var errAbandoned = errors.New("the sign-in was interrupted: start again")

// poll waits until the code was entered.
func (r *accountsRun) poll(ctx context.Context, scope *admin.Scope, l admin.Login) (admin.Account, error) {
	for wait := l.Wait; ; {
		select {
		case <-ctx.Done():
			return admin.Account{}, errAbandoned
		case <-time.After(wait):
		}
		a, next, err := scope.PollLogin(ctx, l.ID)
		switch {
		case err != nil && ctx.Err() != nil:
			return a, errAbandoned
		case err != nil || next == 0:
			return a, err
		}
		wait = next
	}
}

func readError(what string, err error) error {
	switch {
	case errors.Is(err, errInterrupted), errors.Is(err, process.ErrUsage):
		return err
	case errors.Is(err, io.EOF):
		return process.Usage("%s is missing: enter it, or pass it on standard input", what)
	}
	return fmt.Errorf("read %s: %w", what, err)
}

// signedOut is the outcome of a sign-out.
type signedOut struct {
	Account    id.Account `json:"id"`
	AtProvider bool       `json:"at_provider"`
	Reason     string     `json:"reason,omitempty"`
}

func (s *signedOut) text(name string) string {
	if s.AtProvider {
		return "signed out of " + name + ", here and at the provider"
	}
	return "signed out of " + name + " here, but not at the provider: " + printable(s.Reason)
}

func (c *cli) accountsLogout() *cobra.Command {
	var all bool
	return c.accountsSub(accountsCommand{
		use: "logout <account>", short: "Revoke a sign-in, here and at the provider", about: true, scoped: true, ask: "Sign out of %s?",
		long: `Revokes a sign-in: requests no longer use it, it is revoked at the provider if the
provider supports that, and the tokens are erased. The account stays, so that you can sign
in again (reauth). With --all it revokes every sign-in, or those of --workspace.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&all, "all", false, "sign out of all accounts")
		},
		args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || all != (len(args) == 0) {
				return process.Usage("%s takes one account, or --all", cmd.CommandPath())
			}
			return nil
		},
		run: func(ctx context.Context, r *accountsRun) error {
			if all {
				return r.logoutAll(ctx)
			}
			done, err := logout(ctx, r.owner, r.account.ID)
			if err != nil {
				return err
			}
			return r.say(done, "%s", done.text(named(r.account)))
		},
	})
}

func logout(ctx context.Context, scope *admin.Scope, account id.Account) (signedOut, error) {
	_, rev, err := scope.Logout(ctx, account)
	return signedOut{Account: account, AtProvider: rev.AtProvider, Reason: rev.Why}, err
}

func (r *accountsRun) logoutAll(ctx context.Context) error {
	all, err := r.list(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(a admin.Account) bool { return a.Grant == nil || a.Status == admin.SignedOut })
	if len(all) > 0 {
		if err := r.confirm(r.yes, "Sign out of %s?", chat.Plural(len(all), "account")); err != nil {
			return err
		}
	}
	out := []signedOut{}
	var failed []error
	for _, a := range all {
		done, err := logout(ctx, r.accounts.Operator(a.Workspace), a.ID)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", named(a), forPeople(err)))
			continue
		}
		out = append(out, done)
		if !r.json {
			fmt.Fprintln(r.screen.out, done.text(named(a)))
		}
	}
	if r.json {
		failed = append(failed, r.printJSON(map[string]any{"signed_out": out}))
	} else if len(all) == 0 {
		fmt.Fprintln(r.screen.out, "Nobody is signed in.")
	}
	return errors.Join(failed...)
}
