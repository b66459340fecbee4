package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/admin"
)

func (c *cli) accountsList() *cobra.Command {
	return c.accountsSub(accountsCommand{
		use: "list", short: "List stored credentials, without their secrets", scoped: true,
		run: func(ctx context.Context, r *accountsRun) error {
			all, err := r.list(ctx)
			if err != nil {
				return err
			}
			r.warnOfKey(ctx)
			if r.json {
				return r.printJSON(map[string]any{"accounts": all})
			}
			return r.tableOf(all, "ID", func(i int) cell { return cell{all[i].ID.String(), plain} })
		},
	})
}

// warnOfKey warns if the key decrypts nothing.
func (r *accountsRun) warnOfKey(ctx context.Context) {
	if err := r.accounts.CheckKey(ctx); fault.KindOf(err) == fault.Conflict {
		fmt.Fprintf(r.screen.err, "warning: %s\n", fault.From(err).Message)
	}
}

// tableOf prints accounts, each with a first column of the caller's.
func (r *accountsRun) tableOf(all []admin.Account, header string, first func(i int) cell) error {
	if len(all) == 0 {
		text := "No credentials are stored. Add one with: signalbox accounts add anthropic"
		if r.workspace != "" {
			text = "This workspace has no credential of its own. Add one with: signalbox accounts add anthropic --workspace " + r.workspace
		}
		_, err := fmt.Fprintln(r.screen.out, text)
		return err
	}
	var rows [][]cell
	for i, a := range all {
		key := "…" + a.Hint
		if a.Grant != nil {
			key = "sign-in"
		}
		rows = append(rows, []cell{
			first(i),
			{a.Provider, plain},
			{key, grey},
			{a.Label, plain},
			{whose(a.Workspace, "", "all workspaces"), plain},
			{a.Status.Words(), colourOf(a.Status)},
			{fmt.Sprintf("%.0f", a.Health), plain},
			{day(a.LastUsedAt, "never"), grey},
		})
	}
	return r.table([]string{header, "PROVIDER", "KEY", "LABEL", "FOR", "STATUS", "HEALTH", "LAST USED"}, rows)
}

func colourOf(s admin.Status) colour {
	switch s {
	case admin.Ready:
		return green
	case admin.Cooling, admin.Unhealthy:
		return yellow
	case admin.Reauthorize, admin.SignedOut, admin.Unusable:
		return red
	case admin.Disabled:
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
		use: "status [account]", short: "Show the health, limits and sign-ins of accounts", scoped: true,
		args: between(0, 1, "one account at most"), about: true,
		long: `Shows the state of one account or all: its health, its sign-in, and until when and why it
is parked, or skipped if others are available, with the provider's answer. Running brokers
write the state within half a second, and the last use once a minute.`,
		run: func(ctx context.Context, r *accountsRun) error {
			r.warnOfKey(ctx)
			if len(r.args) == 1 {
				return r.say(r.account, "%s", strings.TrimSuffix(r.status(r.account), "\n"))
			}
			all, err := r.list(ctx)
			if err != nil {
				return err
			}
			if r.json {
				return r.printJSON(map[string]any{"accounts": all})
			}
			if len(all) == 0 {
				return r.tableOf(nil, "", nil)
			}
			for _, a := range all {
				if _, err := fmt.Fprint(r.screen.out, r.status(a)); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

// status describes one account in lines.
func (r *accountsRun) status(a admin.Account) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %s %s\n", r.paint(grey, fmt.Sprintf("%-10s", name)), printable(fmt.Sprintf(format, args...)))
	}
	fmt.Fprintf(&b, "%s  %s\n", r.paint(bold, named(a)), r.paint(colourOf(a.Status), a.Status.Words()))
	line("id", "%s", a.ID)
	if a.Reason != "" {
		line("why", "%s", a.Reason)
	}
	line("for", "%s", whose(a.Workspace, "", "all workspaces"))
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
		line("token", "expires %s, renewal %s", day(g.ExpiresAt, "at an unknown time"), day(g.RefreshAt, "never"))
	}
	return b.String()
}
