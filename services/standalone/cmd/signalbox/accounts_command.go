package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/process"
	credentialbroker "signalbox.dev/services/credential-broker"
)

// accountsRun is one call of a subcommand of accounts.
type accountsRun struct {
	*cli
	*screen
	accounts *credentialbroker.Accounts
	args     []string
	// Flags; not every command has all of them.
	data, workspace   string
	json, yes, global bool
	scope             *credentialbroker.Scope // of --workspace, else the shared accounts
}

// accountsCommand is what the subcommands have in common.
type accountsCommand struct {
	use, short, long, example string
	args                      cobra.PositionalArgs
	// scoped commands have --workspace, destructive ones --yes; those that seal look
	// first whether the key is the brokers', and have --new-key. Only those that begin may
	// be the first in a data folder: the others make none where nothing is.
	scoped, destructive, seals, begins bool
	flags                              func(cmd *cobra.Command)
	run                                func(ctx context.Context, r *accountsRun) error
}

// checkKey is CheckKey for a command that has --new-key.
func checkKey(ctx context.Context, a *credentialbroker.Accounts) error {
	err := a.CheckKey(ctx)
	if f := fault.From(err); err != nil && f.Kind == fault.Conflict {
		return fault.New(f.Kind, "%s. With --new-key more are sealed with this one, which every broker then needs", f.Message)
	}
	return err
}

func (c *cli) accountsSub(spec accountsCommand) *cobra.Command {
	r, newKey := &accountsRun{cli: c}, false
	cmd := &cobra.Command{
		Use: spec.use, Short: spec.short, Long: spec.long, Example: spec.example, Args: spec.args,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.screen, r.args, r.global = c.screen(), args, r.workspace == ""
			ws, err := optional[id.Workspace]("workspace", r.workspace)
			if err != nil {
				return err
			}
			return c.withAccounts(cmd, r.data, spec.begins, func(ctx context.Context, a *credentialbroker.Accounts) error {
				r.accounts, r.scope, r.ctx = a, a.Operator(ws), ctx
				if err := r.scope.Possible(); err != nil {
					return err
				}
				if spec.seals && !newKey {
					if err := checkKey(ctx, a); err != nil {
						return err
					}
				}
				return spec.run(ctx, r)
			})
		},
	}
	dataFlag(cmd, &r.data)
	cmd.Flags().BoolVar(&r.json, "json", false, "print JSON")
	if spec.scoped {
		cmd.Flags().Var((*filled)(&r.workspace), "workspace", "workspace id (default: shared with all)")
	}
	if spec.destructive {
		cmd.Flags().BoolVar(&r.yes, "yes", false, "do not ask")
	}
	if spec.seals {
		cmd.Flags().BoolVar(&newKey, "new-key", false, "seal with a key that has sealed nothing here yet")
	}
	if spec.flags != nil {
		spec.flags(cmd)
	}
	return cmd
}

// none takes no argument.
func none(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return process.Usage("unknown command %q for %s (see %s --help)", args[0], cmd.CommandPath(), cmd.CommandPath())
	}
	return process.Usage("%s takes no argument", cmd.CommandPath())
}

// one takes exactly one argument, and says what it is when it is not there.
func one(what, example string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return process.Usage("%s takes one %s, such as %s", cmd.CommandPath(), what, example)
		}
		return nil
	}
}

// provider takes exactly one provider.
func provider(cmd *cobra.Command, args []string) error {
	if err := one("provider", "anthropic")(cmd, args); err != nil {
		return err
	}
	return checkProvider(args[0])
}

// labelled is provider for a command that has --label too.
func labelled(label *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := provider(cmd, args); err != nil || !likeKey(*label) {
			return err
		}
		return keyInPlaceOf("a name for people")
	}
}

// checkProvider refuses what may be a key, without a word of it.
func checkProvider(text string) error {
	if len(text) > 32 || likeKey(text) {
		return keyInPlaceOf("a provider, such as anthropic,")
	}
	return nil
}

// likeKey tells whether an argument may be a key.
func likeKey(text string) bool { return strings.HasPrefix(text, "sk-") }

// keyInPlaceOf refuses what may be a key in the place of something else.
func keyInPlaceOf(what string) error {
	return process.Usage("what stands in the place of %s is none. If it is a key: others on this machine could read it, so have the provider replace it. Keys are asked for, or read from standard input", what)
}

// account takes exactly one account.
func account(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return process.Usage("%s takes one account: the ID that list shows, or its beginning or end, or the label", cmd.CommandPath())
	}
	return nil
}

// upTo takes n arguments at most.
func upTo(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return process.Usage("%s takes %s", cmd.CommandPath(), what)
		}
		return nil
	}
}

// shortest is how much of an id has to be there.
const shortest = 4

// find returns the account that a person means, and whose it is: by its id, by its label
// where only one has it, or by how its id begins or ends where that of only one does. With --workspace it is one of that workspace's. Without,
// labels are those of the shared accounts alone: what tenants call theirs never decides
// what an operator's command hits.
func (r *accountsRun) find(ctx context.Context, text string) (credentialbroker.Account, id.Account, *credentialbroker.Scope, error) {
	if parsed, err := id.Parse[id.Account](text); err == nil {
		if r.global {
			a, scope, err := r.accounts.Find(ctx, parsed)
			return a, parsed, scope, err
		}
		a, err := r.scope.Get(ctx, parsed)
		return a, parsed, r.scope, err
	}
	all, err := r.scope.List(ctx)
	if err != nil {
		return credentialbroker.Account{}, id.Account{}, nil, err
	}
	var ids []string
	for _, a := range all {
		if text != "" && strings.EqualFold(a.Label, text) {
			ids = append(ids, a.ID)
		}
	}
	what := "have the label"
	if len(ids) == 0 {
		what = "have an ID that begins or ends with"
		if ids, err = r.abbreviated(ctx, text); err != nil {
			return credentialbroker.Account{}, id.Account{}, nil, err
		}
	}
	switch {
	case len(ids) == 0 && likeKey(text):
		return credentialbroker.Account{}, id.Account{}, nil, keyInPlaceOf("an account")
	case len(ids) == 0:
		whose := "a shared account"
		advice := "; one of a workspace is named by its ID, or with --workspace"
		if !r.global {
			whose, advice = "an account of workspace "+r.workspace, ""
		}
		return credentialbroker.Account{}, id.Account{}, nil, fault.New(fault.NotFound, "%q is not the ID or the label of %s: list shows them%s", printable(text), whose, advice)
	case len(ids) == 1:
		return r.find(ctx, ids[0])
	}
	return credentialbroker.Account{}, id.Account{}, nil, fault.New(fault.Conflict, "%d accounts %s %q: name one by its ID: %s", len(ids), what, printable(text), strings.Join(ids[:min(len(ids), 10)], ", "))
}

// abbreviated returns the accounts whose id begins or ends with a text of some length. As
// with whole ids, all accounts count where there is no --workspace.
func (r *accountsRun) abbreviated(ctx context.Context, text string) (ids []string, err error) {
	text = strings.ToLower(text)
	if len(text) < shortest || strings.Trim(text, "0123456789abcdef-") != "" {
		return nil, nil
	}
	all, err := r.list(ctx)
	for _, a := range all {
		if strings.HasPrefix(a.ID, text) || strings.HasSuffix(a.ID, text) {
			ids = append(ids, a.ID)
		}
	}
	return ids, err
}

// scopes are those whose accounts a command is about: of --workspace, else all that
// there are, the operator's first.
func (r *accountsRun) scopes(ctx context.Context) ([]*credentialbroker.Scope, error) {
	if !r.global {
		return []*credentialbroker.Scope{r.scope}, nil
	}
	all, err := r.accounts.List(ctx)
	if err != nil {
		return nil, err
	}
	scopes := []*credentialbroker.Scope{r.scope}
	for _, a := range all {
		if a.Shared || a.Workspace == scopes[len(scopes)-1].Workspace().String() {
			continue
		}
		ws, err := id.Parse[id.Workspace](a.Workspace)
		if err != nil {
			return nil, err
		}
		scopes = append(scopes, r.accounts.Operator(ws))
	}
	return scopes, nil
}

// say prints v as JSON where that is wanted, else a line.
func (r *accountsRun) say(v any, format string, args ...any) error {
	if r.json {
		return r.printJSON(v)
	}
	_, err := fmt.Fprintf(r.screen.out, format+"\n", args...)
	return err
}

// named is how people know an account.
func named(a credentialbroker.Account) string {
	switch {
	case a.Label != "":
		return fmt.Sprintf("%s (%s)", a.Provider, printable(a.Label))
	case a.Hint != "":
		return fmt.Sprintf("%s (…%s)", a.Provider, a.Hint)
	}
	return fmt.Sprintf("%s (%s)", a.Provider, a.ID)
}

func whose(a credentialbroker.Account) string {
	if a.Shared {
		return "all workspaces"
	}
	return a.Workspace
}
