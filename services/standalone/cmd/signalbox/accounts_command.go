package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/admin"
)

// accountsCommand describes a subcommand of accounts.
type accountsCommand struct {
	use, short, long, example string
	args                      cobra.PositionalArgs
	// scoped commands have --workspace. Those that seal check the key first, unless
	// --new-key is given. Only those that create may be the first in a data folder.
	scoped, seals, creates bool
	// about has the argument, if there is one, name an account, which the run gets.
	about bool
	// ask is the question that confirms the command, about an account's name; with it there
	// is --yes. A run without an account asks by itself.
	ask   string
	flags func(cmd *cobra.Command)
	run   func(ctx context.Context, r *accountsRun) error
}

// accountsRun is one run of a subcommand.
type accountsRun struct {
	*cli
	*screen
	accounts *admin.Accounts
	scope    *admin.Scope // of --workspace, else the shared accounts
	args     []string

	account admin.Account // that the argument names
	owner   *admin.Scope  // of the account

	data, workspace   string
	json, yes, newKey bool
}

func (c *cli) accountsSub(spec accountsCommand) *cobra.Command {
	r := &accountsRun{cli: c}
	cmd := &cobra.Command{
		Use: spec.use, Short: spec.short, Long: spec.long, Example: spec.example, Args: spec.args,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.screen, r.args = c.screen(), args
			ws, err := optional[id.Workspace]("workspace", r.workspace)
			if err != nil {
				return err
			}
			return c.withAccounts(cmd, r.data, spec.creates, func(ctx context.Context, a *admin.Accounts) error {
				r.accounts, r.scope, r.ctx = a, a.Operator(ws), ctx
				return r.do(ctx, &spec)
			})
		},
	}
	if spec.args == nil {
		cmd.Args = none
	}
	dataFlag(cmd, &r.data)
	jsonFlag(cmd, &r.json)
	if spec.scoped {
		cmd.Flags().Var((*nonEmpty)(&r.workspace), "workspace", "workspace id (default: shared with all)")
	}
	if spec.ask != "" {
		cmd.Flags().BoolVar(&r.yes, "yes", false, "do not ask for confirmation")
	}
	if spec.seals {
		cmd.Flags().BoolVar(&r.newKey, "new-key", false, "seal with a key that has sealed nothing in this database yet")
	}
	if spec.flags != nil {
		spec.flags(cmd)
	}
	return cmd
}

func (r *accountsRun) do(ctx context.Context, spec *accountsCommand) error {
	if err := r.scope.Possible(); err != nil {
		return err
	}
	if spec.seals && !r.newKey && r.opened == nil {
		if err := r.checkKey(ctx); err != nil {
			return err
		}
	}
	if spec.about && len(r.args) > 0 {
		var err error
		if r.account, err = r.find(ctx, r.args[0]); err != nil {
			return err
		}
		r.owner = r.accounts.Operator(r.account.Workspace)
		if spec.ask != "" {
			if err := r.confirm(r.yes, spec.ask, named(r.account)); err != nil {
				return err
			}
		}
	}
	return spec.run(ctx, r)
}

// checkKey is CheckKey with the way around it.
func (r *accountsRun) checkKey(ctx context.Context) error {
	err := r.accounts.CheckKey(ctx)
	if f := fault.From(err); err != nil && f.Kind == fault.Conflict {
		return fault.New(f.Kind, "%s. To seal with this key all the same, use --new-key; every broker then needs it", f.Message)
	}
	return err
}

// none accepts no argument.
func none(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return process.Usage("unknown command %q for %s (see %s --help)", args[0], cmd.CommandPath(), cmd.CommandPath())
	}
	return process.Usage("%s takes no argument", cmd.CommandPath())
}

// one accepts one argument; what says which.
func one(what string) cobra.PositionalArgs { return between(1, 1, what) }

// between accepts a range of numbers of arguments; what says which.
func between(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return process.Usage("%s takes %s", cmd.CommandPath(), what)
		}
		return nil
	}
}

// oneAccount accepts one account.
var oneAccount = one("one account: the ID that list shows, or its beginning or end, or the label")

// oneProvider accepts one provider, beside a --label.
func oneProvider(label *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := one("one provider, such as anthropic")(cmd, args); err != nil {
			return err
		}
		if err := checkProvider(args[0]); err != nil || !likeKey(*label) {
			return err
		}
		return maybeKey("a label for the account")
	}
}

// checkProvider refuses an argument that may be a key, without quoting it.
func checkProvider(text string) error {
	if len(text) > 32 || likeKey(text) {
		return maybeKey("a provider, such as anthropic")
	}
	return nil
}

// likeKey reports whether an argument may be a key.
func likeKey(text string) bool { return strings.HasPrefix(text, "sk-") }

func maybeKey(what string) error {
	return process.Usage("expected %s. If this is a key: other users of this machine could read it, so have the provider replace it. Keys are asked for, or read from standard input", what)
}

// minAbbreviation is how much of an id is needed.
const minAbbreviation = 4

// find returns the account that a person names: by its id, by a label that only it has, or
// by a beginning or end of the id that only it has. With --workspace it is one of that
// workspace's. Without, only labels of the shared accounts count: what tenants call their
// accounts never decides which account an operator's command affects.
func (r *accountsRun) find(ctx context.Context, text string) (admin.Account, error) {
	if parsed, err := id.Parse[id.Account](text); err == nil {
		if r.workspace == "" {
			return r.accounts.Find(ctx, parsed)
		}
		return r.scope.Get(ctx, parsed)
	}
	all, err := r.scope.List(ctx)
	if err != nil {
		return admin.Account{}, err
	}
	var found []admin.Account
	for _, a := range all {
		if text != "" && strings.EqualFold(a.Label, text) {
			found = append(found, a)
		}
	}
	what := "have the label"
	if len(found) == 0 {
		what = "have an ID that begins or ends with"
		if found, err = r.abbreviated(ctx, strings.ToLower(text)); err != nil {
			return admin.Account{}, err
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 0:
		var ids []string
		for _, a := range found[:min(len(found), 10)] {
			ids = append(ids, a.ID.String())
		}
		return admin.Account{}, fault.New(fault.Conflict, "%d accounts %s %q: name one by its ID: %s", len(found), what, printable(text), strings.Join(ids, ", "))
	case likeKey(text):
		return admin.Account{}, maybeKey("an account")
	}
	whose, advice := "a shared account", "; for an account of a workspace, give its ID or --workspace"
	if r.workspace != "" {
		whose, advice = "an account of workspace "+r.workspace, ""
	}
	return admin.Account{}, fault.New(fault.NotFound, "%q is not the ID or the label of %s: list shows them%s", printable(text), whose, advice)
}

// abbreviated returns the accounts whose id begins or ends with a long enough text; without
// --workspace those of all workspaces, as for whole ids.
func (r *accountsRun) abbreviated(ctx context.Context, text string) (found []admin.Account, err error) {
	if len(text) < minAbbreviation || strings.Trim(text, "0123456789abcdef-") != "" {
		return nil, nil
	}
	all, err := r.list(ctx)
	for _, a := range all {
		if name := a.ID.String(); strings.HasPrefix(name, text) || strings.HasSuffix(name, text) {
			found = append(found, a)
		}
	}
	return found, err
}

// list returns the accounts of --workspace, else all; never nil.
func (r *accountsRun) list(ctx context.Context) (all []admin.Account, err error) {
	if r.workspace == "" {
		all, err = r.accounts.List(ctx)
	} else {
		all, err = r.scope.List(ctx)
	}
	if all == nil {
		all = []admin.Account{}
	}
	return all, err
}

// scopes returns the scope of --workspace, else all scopes that have accounts, the shared
// one first.
func (r *accountsRun) scopes(ctx context.Context) ([]*admin.Scope, error) {
	scopes := []*admin.Scope{r.scope}
	if r.workspace != "" {
		return scopes, nil
	}
	all, err := r.accounts.List(ctx)
	last := id.Workspace{}
	for _, a := range all {
		if a.Workspace != last {
			last = a.Workspace
			scopes = append(scopes, r.accounts.Operator(last))
		}
	}
	return scopes, err
}

// say prints v as JSON with --json, else a line.
func (r *accountsRun) say(v any, format string, args ...any) error {
	if r.json {
		return r.printJSON(v)
	}
	_, err := fmt.Fprintf(r.screen.out, format+"\n", args...)
	return err
}

// named is how people know an account.
func named(a admin.Account) string {
	switch {
	case a.Label != "":
		return fmt.Sprintf("%s (%s)", a.Provider, printable(a.Label))
	case a.Hint != "":
		return fmt.Sprintf("%s (…%s)", a.Provider, a.Hint)
	}
	return fmt.Sprintf("%s (%s)", a.Provider, a.ID)
}

// whose names a workspace behind a prefix, and the operator in other words.
func whose(ws id.Workspace, prefix, operator string) string {
	if id.IsZero(ws) {
		return operator
	}
	return prefix + ws.String()
}
