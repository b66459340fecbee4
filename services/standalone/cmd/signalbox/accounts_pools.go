package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/admin"
)

// strategies lists the strategies in a format of the name and the description.
func strategies(format, between string) string {
	var all []string
	for _, s := range admin.Strategies() {
		all = append(all, fmt.Sprintf(format, s.Name, s.About))
	}
	return strings.Join(all, between)
}

func (c *cli) accountsStrategy() *cobra.Command {
	return c.accountsSub(accountsCommand{
		use: "strategy [provider] [strategy]", short: "Show or set how accounts are chosen", scoped: true,
		long: `Shows the strategy by which the accounts of each provider are chosen, or sets it. Without
--workspace it applies to the shared accounts. The strategies:

` + strategies("  %-13[1]s %[2]s\n", ""),
		args: func(cmd *cobra.Command, args []string) error {
			if err := between(0, 2, "a provider and a strategy at most")(cmd, args); err != nil || len(args) == 0 {
				return err
			}
			return checkProvider(args[0])
		},
		run: func(ctx context.Context, r *accountsRun) error {
			if len(r.args) == 0 {
				return r.listPools(ctx)
			}
			p, err := r.pool(ctx, r.args[0])
			if err != nil {
				return err
			}
			if len(r.args) == 1 {
				return r.say(p, "%s", p.Settings.Strategy)
			}
			if p, err = r.scope.SetPool(ctx, p.Provider, map[string]any{"strategy": r.args[1]}, false); err != nil {
				return err
			}
			return r.say(p, "the accounts for %s are chosen by %s", p.Provider, p.Settings.Strategy)
		},
	})
}

func (r *accountsRun) listPools(ctx context.Context) error {
	all, err := r.scope.Pools(ctx)
	if err != nil {
		return err
	}
	if r.json {
		return r.printJSON(map[string]any{"pools": all})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(r.screen.out, "No accounts yet.")
		return err
	}
	var rows [][]cell
	for _, p := range all {
		rows = append(rows, plainCells(p.Provider, p.Settings.Strategy, p.Accounts, strings.Join(p.Changed, " ")))
	}
	return r.table([]string{"PROVIDER", "STRATEGY", "ACCOUNTS", "CHANGED SETTINGS"}, rows)
}

func (c *cli) accountsConfig() *cobra.Command {
	var reset bool
	return c.accountsSub(accountsCommand{
		use: "config <provider> [setting=value …]", short: "Show or change the settings of a provider's accounts", scoped: true,
		long: `Shows the settings by which the accounts of a provider are chosen, or changes some of
them, all or none. Without --workspace it applies to the shared accounts. All but the
strategy are numbers, listed with their range and default.

  strategy                      ` + strategies("%[1]s", ", ") + ` (see
                                accounts strategy); ` + string(admin.Strategies()[0].Name) + `

With every strategy:

  floor_seconds                 how long the last usable account is parked at most, if the
                                provider does not say; 1 to 3600; 5

Each account has a health of 0 to 100, for hybrid and for information:

  min_usable                    below it hybrid prefers other accounts; 0 to 100; 50
  health_success                added by an answer; 0 to 100; 1
  health_rate_limit             what a rate limit or an overload adds; -100 to 0; -10
  health_failure                what a refused key or a used-up quota adds; -100 to 0;
                                -20
  health_recovery_per_hour      added every hour; 0 to 360000; 2

Each account has a token bucket that spreads the load: a request takes a token, and with
hybrid an account without tokens comes last. No request is refused for lack of tokens.

  max_tokens                    size of the bucket; 1 to 1000000; 50
  initial_tokens                tokens of a new account; 0 to max_tokens; 50
  regeneration_rate_per_minute  tokens added per minute; 0 to 1000000; 6

The score of hybrid is health × 2 + the share of tokens left × 500 + up to 360 for an
hour without use:

  stickiness                    a bonus for the current account; 0 to 1000000; 150
  switch_threshold              by how much another account must be better; 0 to 1000000;
                                100`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&reset, "reset", false, "reset all other settings to their defaults")
		},
		args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return process.Usage("%s takes a provider, and then settings such as max_tokens=100", cmd.CommandPath())
			}
			if err := checkProvider(args[0]); err != nil {
				return err
			}
			_, err := assignments(args[1:])
			return err
		},
		run: func(ctx context.Context, r *accountsRun) error {
			values, err := assignments(r.args[1:])
			if err != nil {
				return err
			}
			p, err := r.pool(ctx, r.args[0])
			if err == nil && (len(values) > 0 || reset) {
				p, err = r.scope.SetPool(ctx, r.args[0], values, reset)
			}
			if err != nil {
				return err
			}
			if r.json {
				return r.printJSON(p)
			}
			return r.settings(p)
		},
	})
}

// pool returns the pool for a provider. An unknown provider without accounts or settings is
// probably mistyped, and an Invalid fault.
func (r *accountsRun) pool(ctx context.Context, provider string) (admin.Pool, error) {
	p, err := r.scope.Pool(ctx, provider)
	if err == nil && p.Accounts == 0 && len(p.Changed) == 0 && !slices.Contains(r.accounts.Providers(), provider) {
		err = fault.New(fault.Invalid, "there is no account for %s, and no provider with that name: use one of %s, or add an account first", printable(provider), strings.Join(r.accounts.Providers(), ", "))
	}
	return p, err
}

// assignments parses setting=value arguments.
func assignments(args []string) (map[string]any, error) {
	out := map[string]any{}
	for _, a := range args {
		name, value, ok := strings.Cut(a, "=")
		if !ok || name == "" {
			return nil, process.Usage("%q is not a setting with a value: write max_tokens=100", a)
		}
		out[name] = value
		if n, err := strconv.ParseFloat(value, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
			out[name] = n
		}
	}
	return out, nil
}

// settings prints a pool's settings, and marks those that differ from the defaults.
func (r *accountsRun) settings(p admin.Pool) error {
	text, err := json.Marshal(p.Settings)
	if err != nil {
		return err
	}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	var rows [][]cell
	for _, name := range slices.Sorted(maps.Keys(all)) {
		note := ""
		if slices.Contains(p.Changed, name) {
			note = "changed"
		}
		rows = append(rows, []cell{{name, plain}, {fmt.Sprint(all[name]), plain}, {note, yellow}})
	}
	return r.table([]string{"SETTING", "VALUE", ""}, rows)
}

func (c *cli) accountsStats() *cobra.Command {
	return c.accountsSub(accountsCommand{
		use: "stats", short: "Show the usage of accounts", scoped: true,
		run: func(ctx context.Context, r *accountsRun) error {
			scopes, err := r.scopes(ctx)
			if err != nil {
				return err
			}
			all := []admin.Stat{}
			for _, s := range scopes {
				some, err := s.Stats(ctx)
				if err != nil {
					return err
				}
				all = append(all, some...)
			}
			if r.json {
				return r.printJSON(map[string]any{"stats": all})
			}
			if len(all) == 0 {
				_, err := fmt.Fprintln(r.screen.out, "No usage yet.")
				return err
			}
			var rows [][]cell
			for _, s := range all {
				rows = append(rows, plainCells(s.Account, s.Provider, s.Reason, s.Requests, s.TokensIn, s.TokensOut, fmt.Sprintf("$%.4f", float64(s.CostMicros)/1e6)))
			}
			return r.table([]string{"ACCOUNT", "PROVIDER", "OUTCOME", "REQUESTS", "TOKENS IN", "TOKENS OUT", "COST"}, rows)
		},
	})
}

func (c *cli) accountsResetStats() *cobra.Command {
	return c.accountsSub(accountsCommand{
		use: "reset-stats [account]", short: "Reset the usage counters", args: between(0, 1, "one account at most"), about: true, scoped: true, ask: "Reset the counters of %s?",
		long: `Resets the counters of one account, of --workspace, or of all workspaces.`,
		run: func(ctx context.Context, r *accountsRun) error {
			success := map[string]any{"success": true}
			if len(r.args) == 1 {
				if err := r.owner.ResetStats(ctx, r.account.ID); err != nil {
					return err
				}
				return r.say(success, "counters reset: %s", named(r.account))
			}
			if err := r.confirm(r.yes, "Reset the counters of all accounts?"); err != nil {
				return err
			}
			scopes, err := r.scopes(ctx)
			if err != nil {
				return err
			}
			for _, s := range scopes {
				if err := s.ResetStats(ctx, id.Account{}); err != nil {
					return err
				}
			}
			return r.say(success, "counting anew")
		},
	})
}
