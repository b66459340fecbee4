package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/process"
	credentialbroker "signalbox.dev/services/credential-broker"
)

func (c *cli) accountsManage() *cobra.Command {
	return c.accountsSub(accountsCommand{
		use: "manage", short: "Look after accounts in a dialogue", args: none, scoped: true, seals: true, begins: true,
		long: `Shows the accounts with a number each and asks what to do, until you quit. It needs a
terminal; every step is a subcommand too, for scripts.`,
		run: func(ctx context.Context, r *accountsRun) error {
			if !r.answers || !r.tables || r.json {
				return process.Usage("accounts manage needs a terminal: in scripts use the other subcommands")
			}
			err := r.manage(ctx)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		},
	})
}

// errQuit ends the dialogue.
var errQuit = errors.New("quit")

// manage shows the accounts and does what is asked, until somebody quits. What goes
// wrong is told, and the dialogue goes on.
func (r *accountsRun) manage(ctx context.Context) error {
	for {
		all, err := r.list(ctx)
		if err != nil {
			return err
		}
		r.menu(all)
		choice, err := r.ask("number, or [a]dd a key, sign [i]n, s[t]rategy, [q]uit: ")
		if err != nil {
			return err
		}
		err = r.chosen(ctx, all, choice)
		switch {
		case errors.Is(err, errQuit):
			return nil
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return err
		case err != nil:
			fmt.Fprintln(r.screen.out, r.paint(red, "error: "+inDialogue(err)))
		}
	}
}

// inDialogue returns what an error says to who is being asked: of a fault its message.
func inDialogue(err error) string {
	if why := whyNotOpen(err); why != "" {
		return why
	}
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind != fault.Internal {
		return f.Message
	}
	return err.Error()
}

func (r *accountsRun) menu(all []credentialbroker.Account) {
	var rows [][]cell
	for i, a := range all {
		rows = append(rows, []cell{
			{strconv.Itoa(i + 1), bold},
			{a.Provider, plain},
			{kindOf(a), grey},
			{a.Label, plain},
			{whose(a), plain},
			{a.Status.Words(), colourOf(a.Status)},
			{fmt.Sprintf("%.0f", a.Health), plain},
		})
	}
	fmt.Fprintln(r.screen.out)
	_ = r.table([]string{"", "PROVIDER", "KEY", "LABEL", "FOR", "STATUS", "HEALTH"}, rows) // the terminal went away: the next question finds out
}

func (r *accountsRun) chosen(ctx context.Context, all []credentialbroker.Account, choice string) error {
	switch strings.ToLower(choice) {
	case "":
		return nil
	case "q":
		return errQuit
	case "a":
		return r.askAdd(ctx)
	case "i":
		provider, err := r.ask("provider: ")
		if err != nil || provider == "" {
			return err
		}
		var flags loginFlags
		kind, err := flags.kind(r, provider)
		if err != nil {
			return err
		}
		label, err := r.ask("a name for people, or nothing: ")
		if err != nil {
			return err
		}
		return r.login(ctx, r.scope, credentialbroker.LoginRequest{Provider: provider, Kind: kind, Label: label})
	case "t":
		return r.askStrategy(ctx)
	}
	n, err := strconv.Atoi(choice)
	if err != nil || n < 1 || n > len(all) {
		return fmt.Errorf("%q is none of these", printable(choice))
	}
	return r.one(ctx, all[n-1].ID)
}

func (r *accountsRun) askAdd(ctx context.Context) error {
	var n credentialbroker.NewAccount
	for _, q := range []struct {
		question string
		into     *string
	}{
		{"provider: ", &n.Provider}, {"a name for people, or nothing: ", &n.Label},
	} {
		answer, err := r.ask("%s", q.question)
		if err != nil {
			return err
		}
		*q.into = answer
	}
	return r.add(ctx, n, true)
}

func (r *accountsRun) askStrategy(ctx context.Context) error {
	provider, err := r.ask("provider: ")
	if err != nil || provider == "" {
		return err
	}
	p, err := r.pool(ctx, provider)
	if err != nil {
		return err
	}
	strategy, err := r.ask("strategy (%s; now %s): ", strategies("%[1]s", ", "), p.Settings.Strategy)
	if err != nil || strategy == "" {
		return err
	}
	if p, err = r.scope.SetPool(ctx, provider, map[string]any{"strategy": strategy}, false); err != nil {
		return err
	}
	return r.say(p, "the accounts for %s are chosen by %s", p.Provider, p.Settings.Strategy)
}

// one asks what to do with one account.
func (r *accountsRun) one(ctx context.Context, name string) error {
	a, account, scope, err := r.find(ctx, name)
	if err != nil {
		return err
	}
	if err := r.status(a); err != nil {
		return err
	}
	what, err := r.ask("[e]nable, [d]isable, s[w]itch to it, reset [l]imits, re[n]ew token, sign [i]n again, sign [o]ut, [r]emove, or nothing: ")
	if err != nil {
		return err
	}
	past := ""
	switch strings.ToLower(what) {
	case "":
		return nil
	case "e":
		past = "enabled"
		_, err = scope.Enable(ctx, account)
	case "d":
		past = "disabled"
		_, err = scope.Disable(ctx, account)
	case "w":
		past = "switched to"
		_, err = scope.Switch(ctx, account)
	case "n":
		past = "renewed the token of"
		_, err = scope.Refresh(ctx, account)
	case "l":
		past = "reset"
		if err = r.confirm(false, "Forget the limits and the health of %s?", named(a)); err == nil {
			_, err = scope.Reset(ctx, account)
		}
	case "i":
		return r.reauth(ctx, scope, a, account, loginFlags{})
	case "o":
		if err = r.confirm(false, "Sign out of %s?", named(a)); err != nil {
			return err
		}
		done, err := logout(ctx, scope, account)
		if err == nil {
			fmt.Fprintln(r.screen.out, done.text(named(a)))
		}
		return err
	case "r":
		if err = r.confirm(false, "Forget the credential %s?", named(a)); err != nil {
			return err
		}
		return r.remove(ctx, scope, a, account, false)
	default:
		return fmt.Errorf("%q is none of these", printable(what))
	}
	if err != nil {
		return err
	}
	return r.say(nil, "%s %s", past, named(a))
}
