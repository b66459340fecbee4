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
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/standalone/internal/chat"
)

// loginFlags say how somebody wants to sign in.
type loginFlags struct{ device, paste bool }

func (f *loginFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.device, "device", false, "type a short code in on another device")
	cmd.Flags().BoolVar(&f.paste, "paste", false, "paste the code that the provider shows")
}

// kind is the way that is wanted, else the first that the provider has. Without a terminal
// nobody waits for a browser: a script's may run anywhere.
func (f *loginFlags) kind(r *accountsRun, provider string) (credentialbroker.LoginKind, error) {
	ways, err := r.accounts.LoginWays(provider)
	if !r.answers {
		ways = slices.DeleteFunc(ways, func(k credentialbroker.LoginKind) bool { return k == credentialbroker.LoginBrowser })
	}
	switch {
	case f.device && f.paste:
		return "", process.Usage("--device and --paste are two ways: choose one")
	case err != nil:
		return "", err
	case f.device:
		return credentialbroker.LoginDevice, nil
	case f.paste:
		return credentialbroker.LoginPaste, nil
	case len(ways) == 0:
		return "", fmt.Errorf("one can sign in to %s in the console only, or at a terminal where it sends browsers back to this machine", provider)
	}
	return ways[0], nil
}

func (c *cli) accountsLogin() *cobra.Command {
	var flags loginFlags
	var label string
	return c.accountsSub(accountsCommand{
		use: "login <provider>", short: "Sign in to a provider for a new account",
		long: `Signs in to a provider, such as anthropic, google or github: it shows an
address to be opened in a browser. At a terminal, where the provider allows it, the
browser then comes back to this command, on a port of 127.0.0.1. Otherwise, or with
a flag, a short code is typed in on any device (--device) or a code is pasted here
(--paste). With --json it prints the address first and the account when it is there,
each a JSON document. Client ids are in CREDENTIAL_BROKER_OAUTH_CLIENTS.`,
		args: labelled(&label), scoped: true, seals: true, begins: true,
		flags: func(cmd *cobra.Command) {
			flags.add(cmd)
			cmd.Flags().StringVar(&label, "label", "", "a name for people")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			kind, err := flags.kind(r, r.args[0])
			if err != nil {
				return err
			}
			return r.login(ctx, r.scope, credentialbroker.LoginRequest{Provider: r.args[0], Kind: kind, Label: label})
		},
	})
}

func (c *cli) accountsReauth() *cobra.Command {
	var flags loginFlags
	return c.accountsSub(accountsCommand{
		use: "reauth <account>", short: "Sign in again for an account that is there", args: account, scoped: true, seals: true,
		long: `Signs in again for an account: its tokens are replaced, and its limits, statistics
and place stay. Until it is done the account is as it was.`,
		flags: flags.add,
		run: func(ctx context.Context, r *accountsRun) error {
			a, account, scope, err := r.find(ctx, r.args[0])
			if err != nil {
				return err
			}
			return r.reauth(ctx, scope, a, account, flags)
		},
	})
}

func (r *accountsRun) reauth(ctx context.Context, scope *credentialbroker.Scope, a credentialbroker.Account, account id.Account, flags loginFlags) error {
	if a.Grant == nil {
		return fmt.Errorf("%s is a key: nobody signed in to it; add the new key and remove this one", named(a))
	}
	kind, err := flags.kind(r, a.Grant.Provider)
	if err != nil {
		return err
	}
	return r.login(ctx, scope, credentialbroker.LoginRequest{Kind: kind, Account: account})
}

func (r *accountsRun) login(ctx context.Context, scope *credentialbroker.Scope, request credentialbroker.LoginRequest) error {
	complete := r.paste
	switch request.Kind {
	case credentialbroker.LoginDevice:
		complete = r.poll
	case credentialbroker.LoginBrowser:
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
	if r.json {
		if err := r.printJSON(l); err != nil {
			return err
		}
	} else if err := r.instruct(l); err != nil {
		return err
	}
	a, err := complete(ctx, scope, l)
	if err != nil {
		return err
	}
	return r.say(a, "signed in: %s, %s", named(a), a.ID)
}

func (r *accountsRun) instruct(l credentialbroker.Login) error {
	text := fmt.Sprintf("Open this address in a browser:\n\n  %s\n\n", l.URL)
	switch {
	case l.UserCode != "":
		text += fmt.Sprintf("and type in the code %s\n\n", r.paint(bold, printable(l.UserCode)))
	case l.Kind == credentialbroker.LoginBrowser:
		text += "It comes back to this command, so it must run on this machine. If none does, press\nCtrl-C, and use --device or --paste.\n\n"
	}
	_, err := fmt.Fprint(r.screen.out, text)
	return err
}

func (r *accountsRun) paste(ctx context.Context, scope *credentialbroker.Scope, l credentialbroker.Login) (credentialbroker.Account, error) {
	code, err := r.askSecret("Paste the code that it shows (not shown here): ")
	if err != nil {
		return credentialbroker.Account{}, unread("the code", err)
	}
	return scope.CompleteLogin(ctx, credentialbroker.LoginAnswer{Login: l.ID, Code: code})
}

// errLeft ends the wait for a sign-in that is approved elsewhere.
var errLeft = errors.New("the sign-in was not waited for: what is approved now is lost, so start again")

// poll waits until the code was typed in.
func (r *accountsRun) poll(ctx context.Context, scope *credentialbroker.Scope, l credentialbroker.Login) (credentialbroker.Account, error) {
	for wait := l.Wait; ; {
		select {
		case <-ctx.Done():
			return credentialbroker.Account{}, errLeft
		case <-time.After(wait):
		}
		a, next, err := scope.PollLogin(ctx, l.ID)
		switch {
		case err != nil && ctx.Err() != nil:
			return a, errLeft
		case err != nil || next == 0:
			return a, err
		}
		wait = next
	}
}

func unread(what string, err error) error {
	switch {
	case errors.Is(err, errInterrupted), errors.Is(err, process.ErrUsage):
		return err
	case errors.Is(err, io.EOF):
		return process.Usage("%s is missing: type it in, or put it into the standard input", what)
	}
	return fmt.Errorf("read %s: %w", what, err)
}

// signedOut is how the sign-out of one account went.
type signedOut struct {
	Account    string `json:"id"`
	AtProvider bool   `json:"at_provider"`
	Reason     string `json:"reason,omitempty"`
}

func (c *cli) accountsLogout() *cobra.Command {
	var all bool
	return c.accountsSub(accountsCommand{
		use: "logout <account>", short: "Take a sign-in back, here and at the provider", destructive: true, scoped: true,
		long: `Takes a sign-in back: nobody uses it any more, the provider is told where it has a
way to be, and the tokens are erased. The account stays and can be signed in to
again (reauth). With --all, every sign-in: those of --workspace, else of everybody.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&all, "all", false, "all accounts that somebody signed in to")
		},
		args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || all != (len(args) == 0) {
				return process.Usage("%s takes one account, or --all", cmd.CommandPath())
			}
			return nil
		},
		run: func(ctx context.Context, r *accountsRun) error {
			if !all {
				a, account, scope, err := r.find(ctx, r.args[0])
				if err != nil {
					return err
				}
				if err := r.confirm(r.yes, "Sign out of %s?", named(a)); err != nil {
					return err
				}
				done, err := logout(ctx, scope, account)
				if err != nil {
					return err
				}
				return r.say(done, "%s", done.text(named(a)))
			}
			return r.logoutAll(ctx)
		},
	})
}

func logout(ctx context.Context, scope *credentialbroker.Scope, account id.Account) (signedOut, error) {
	_, rev, err := scope.Logout(ctx, account)
	return signedOut{Account: account.String(), AtProvider: rev.AtProvider, Reason: rev.Why}, err
}

func (s *signedOut) text(name string) string {
	if s.AtProvider {
		return "signed out of " + name + ", here and at the provider"
	}
	return "signed out of " + name + " here; the provider was not told: " + printable(s.Reason)
}

func (r *accountsRun) logoutAll(ctx context.Context) error {
	all, err := r.list(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(a credentialbroker.Account) bool { return a.Grant == nil || a.Status == credentialbroker.SignedOut })
	if len(all) > 0 {
		if err := r.confirm(r.yes, "Sign out of %s?", chat.Plural(len(all), "account")); err != nil {
			return err
		}
	}
	out := []signedOut{}
	var failed []error
	for _, a := range all {
		_, account, scope, err := r.find(ctx, a.ID)
		if err == nil {
			var done signedOut
			if done, err = logout(ctx, scope, account); err == nil {
				out = append(out, done)
				if !r.json {
					fmt.Fprintln(r.screen.out, done.text(named(a)))
				}
			}
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", named(a), forPeople(err)))
		}
	}
	if r.json {
		failed = append(failed, r.printJSON(map[string]any{"signed_out": out}))
	} else if len(all) == 0 {
		fmt.Fprintln(r.screen.out, "Nobody is signed in.")
	}
	return errors.Join(failed...)
}
