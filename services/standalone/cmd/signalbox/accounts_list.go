package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/fault"
	credentialbroker "signalbox.dev/services/credential-broker"
)

func (c *cli) accountsList() *cobra.Command {
	return c.accountsSub(accountsCommand{
		use: "list", short: "List stored credentials, without their secrets", args: none, scoped: true,
		run: func(ctx context.Context, r *accountsRun) error {
			all, err := r.list(ctx)
			if err != nil {
				return err
			}
			r.warnOfKey(ctx)
			if r.json {
				return r.printJSON(map[string]any{"accounts": all})
			}
			return r.tableOf(all)
		},
	})
}

// warnOfKey says that nothing opens, and what to do.
func (r *accountsRun) warnOfKey(ctx context.Context) {
	if err := r.accounts.CheckKey(ctx); fault.KindOf(err) == fault.Conflict {
		fmt.Fprintf(r.screen.err, "warning: %s\n", fault.From(err).Message)
	}
}

// list returns the accounts that a command is about; never nil.
func (r *accountsRun) list(ctx context.Context) ([]credentialbroker.Account, error) {
	all, err := []credentialbroker.Account(nil), error(nil)
	if r.global {
		all, err = r.accounts.List(ctx)
	} else {
		all, err = r.scope.List(ctx)
	}
	if all == nil {
		all = []credentialbroker.Account{}
	}
	return all, err
}

func (r *accountsRun) tableOf(all []credentialbroker.Account) error {
	if len(all) == 0 {
		text := "No credential is stored. Add one with: signalbox accounts add anthropic"
		if !r.global {
			text = "This workspace has no credential of its own. Add one with: signalbox accounts add anthropic --workspace " + r.workspace
		}
		_, err := fmt.Fprintln(r.screen.out, text)
		return err
	}
	var rows [][]cell
	for _, a := range all {
		rows = append(rows, []cell{
			{a.ID, plain},
			{a.Provider, plain},
			{kindOf(a), grey},
			{a.Label, plain},
			{whose(a), plain},
			{a.Status.Words(), colourOf(a.Status)},
			{fmt.Sprintf("%.0f", a.Health), plain},
			{day(a.LastUsedAt, "never"), grey},
		})
	}
	return r.table([]string{"ID", "PROVIDER", "KEY", "LABEL", "FOR", "STATUS", "HEALTH", "LAST USED"}, rows)
}

// kindOf is the end of a key, or that somebody signed in.
func kindOf(a credentialbroker.Account) string {
	if a.Grant != nil {
		return "sign-in"
	}
	return "…" + a.Hint
}

func colourOf(s credentialbroker.Status) colour {
	switch s {
	case credentialbroker.Ready:
		return green
	case credentialbroker.Cooling, credentialbroker.Unhealthy:
		return yellow
	case credentialbroker.Reauthorize, credentialbroker.SignedOut, credentialbroker.Unusable:
		return red
	case credentialbroker.Disabled:
		return grey
	}
	return plain
}

func day(t *time.Time, otherwise string) string {
	if t == nil {
		return otherwise
	}
	return t.UTC().Format(time.RFC3339)
}

func (c *cli) accountsStatus() *cobra.Command {
	return c.accountsSub(accountsCommand{
		use: "status [account]", short: "Show what is known of accounts: health, limits, sign-ins", args: upTo(1, "one account at most"), scoped: true,
		long: `Shows what is known of an account, or of all: its health, until when and why it is
parked, or skipped while there are others, with what the provider sent, and how its sign-in does. It is what running
brokers have written down, half a second ago; the last use once a minute.`,
		run: func(ctx context.Context, r *accountsRun) error {
			r.warnOfKey(ctx)
			if len(r.args) == 1 {
				a, _, _, err := r.find(ctx, r.args[0])
				if err != nil {
					return err
				}
				if r.json {
					return r.printJSON(a)
				}
				return r.status(a)
			}
			all, err := r.list(ctx)
			if err != nil {
				return err
			}
			if r.json {
				return r.printJSON(map[string]any{"accounts": all})
			}
			if len(all) == 0 {
				return r.tableOf(all)
			}
			for _, a := range all {
				if err := r.status(a); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

// status writes what is known of one account.
func (r *accountsRun) status(a credentialbroker.Account) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %s %s\n", r.paint(grey, fmt.Sprintf("%-10s", name)), printable(fmt.Sprintf(format, args...)))
	}
	fmt.Fprintf(&b, "%s  %s\n", r.paint(bold, named(a)), r.paint(colourOf(a.Status), a.Status.Words()))
	line("id", "%s", a.ID)
	if a.Reason != "" {
		line("why", "%s", a.Reason)
	}
	line("for", "%s", whose(a))
	line("profile", "%s", a.Profile)
	if a.BaseURL != "" {
		line("base url", "%s", a.BaseURL)
	}
	if a.FlatRate {
		line("paid", "by the month")
	}
	line("health", "%.0f of 100", a.Health)
	line("last used", "%s", day(a.LastUsedAt, "never"))
	for _, c := range a.Cooldowns {
		name, what := "parked", "whole account"
		if c.PassedOver {
			name = "skipped"
		}
		if c.Family != "" {
			what = c.Family
		}
		text := fmt.Sprintf("%s until %s: %s", what, day(&c.Until, ""), c.Reason)
		if c.HTTPStatus != 0 {
			text += fmt.Sprintf(", HTTP %d", c.HTTPStatus)
		}
		if c.RetryAfter != "" {
			text += fmt.Sprintf(", %q", c.RetryAfter)
		}
		line(name, "%s", text)
	}
	if g := a.Grant; g != nil {
		line("sign-in", "%s, %s", g.Provider, g.State)
		if g.Reason != "" {
			line("why", "%s", g.Reason)
		}
		if g.LastError != "" {
			line("last error", "%s", g.LastError)
		}
		line("token", "good until %s, renewed at %s", day(g.ExpiresAt, "nobody knows when"), day(g.RefreshAt, "no time"))
	}
	_, err := fmt.Fprint(r.screen.out, b.String())
	return err
}
