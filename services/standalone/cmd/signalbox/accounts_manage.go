package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/admin"
)

func (c *cli) accountsManage() *cobra.Command {
	return c.accountsSub(accountsCommand{
		use: "manage", short: "Manage accounts interactively", scoped: true, seals: true, creates: true,
		long: `Lists the accounts with numbers and asks what to do, until you quit. It needs a terminal;
for scripts, every step is also a subcommand.`,
		run: func(ctx context.Context, r *accountsRun) error {
			if !r.answers || !r.tables || r.json {
				return process.Usage("accounts manage needs a terminal: in scripts use the other subcommands")
			}
			err := r.manage(ctx)
			if errors.Is(err, io.EOF) || errors.Is(err, errQuit) {
				return nil
			}
			return err
		},
	})
}

// errQuit ends the dialogue.
var errQuit = errors.New("quit")

// manage lists the accounts and runs the chosen subcommands until the person quits. It
// reports their errors and goes on.
func (r *accountsRun) manage(ctx context.Context) error {
	for {
		all, err := r.list(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(r.screen.out)
		_ = r.tableOf(all, "", func(i int) cell { return cell{strconv.Itoa(i + 1), bold} }) // if the terminal is gone, the next question fails
		choice, err := r.ask("number, or [a]dd a key, sign [i]n, s[t]rategy, [q]uit: ")
		if err != nil {
			return err
		}
		err = r.choose(ctx, all, choice)
		switch {
		case errors.Is(err, errQuit), errors.Is(err, io.EOF), ctx.Err() != nil:
			return err
		case err != nil:
			text := strings.TrimPrefix(err.Error(), process.ErrUsage.Error()+": ") // the person typed no command
			fmt.Fprintln(r.screen.out, r.paint(red, "error: "+text))
		}
	}
}

// subcommand runs a subcommand of accounts as if it were typed.
func (r *accountsRun) subcommand(ctx context.Context, args ...string) error {
	inner := *r.cli
	inner.opened, inner.shown = r.accounts, r.screen
	cmd := inner.accounts() //nolint:contextcheck // ExecuteContext passes it
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if r.workspace != "" {
		args = append([]string{args[0], "--workspace", r.workspace}, args[1:]...)
	}
	cmd.SetArgs(args)
	return cmd.ExecuteContext(ctx)
}

func (r *accountsRun) choose(ctx context.Context, all []admin.Account, choice string) error {
	name, ok := map[string]string{"a": "add", "i": "login", "t": "strategy"}[strings.ToLower(choice)]
	switch {
	case choice == "":
		return nil
	case strings.EqualFold(choice, "q"):
		return errQuit
	case !ok:
		n, err := strconv.Atoi(choice)
		if err != nil || n < 1 || n > len(all) {
			return fmt.Errorf("%q is not one of these", printable(choice))
		}
		return r.manageOne(ctx, all[n-1].ID.String())
	}
	provider, err := r.ask("provider: ")
	if err != nil || provider == "" && name != "add" { // add says what is wrong
		return err
	}
	if name == "strategy" {
		p, err := r.pool(ctx, provider)
		if err != nil {
			return forPeople(err)
		}
		strategy, err := r.ask("strategy (%s; now %s): ", strategies("%[1]s", ", "), p.Settings.Strategy)
		if err != nil || strategy == "" {
			return err
		}
		return r.subcommand(ctx, name, "--", provider, strategy)
	}
	label, err := r.ask("label, or nothing: ")
	if err != nil {
		return err
	}
	return r.subcommand(ctx, name, "--label="+label, "--", provider)
}

// manageOne asks what to do with one account.
func (r *accountsRun) manageOne(ctx context.Context, account string) error {
	if err := r.subcommand(ctx, "status", account); err != nil {
		return err
	}
	choice, err := r.ask("[e]nable, [d]isable, s[w]itch to it, reset [l]imits, re[n]ew token, sign [i]n again, sign [o]ut, [r]emove, or nothing: ")
	if err != nil || choice == "" {
		return err
	}
	name, ok := map[string]string{
		"e": "enable", "d": "disable", "w": "switch", "l": "reset", "n": "refresh", "i": "reauth", "o": "logout", "r": "remove",
	}[strings.ToLower(choice)]
	if !ok {
		return fmt.Errorf("%q is not one of these", printable(choice))
	}
	return r.subcommand(ctx, name, account)
}
