package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/standalone/internal/chat"
)

const (
	authFile     = ".local/share/opencode/auth.json"
	accountsFile = ".config/opencode/anthropic-accounts.json"
)

func (c *cli) accountsImport() *cobra.Command {
	var sources []string
	var auth, accounts string
	var dry bool
	return c.accountsSub(accountsCommand{
		use: "import", short: "Import the credentials of other programs", scoped: true, seals: true, creates: true,
		long: `Imports the credentials of a single user, from three sources:

  auth      ~/` + authFile + `
  accounts  ~/` + accountsFile + `
  env       ` + strings.Join(admin.KeyVariables(), ", ") + `

Duplicates of a credential become one account, and an account that already exists stays
unchanged. If anything else is left out, it is listed, and the exit code is 3. Files are
only read. If the provider rotates tokens, a sign-in that Signalbox has renewed is no longer
valid in the program it came from: do not use both.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringSliceVar(&sources, "source", []string{"auth", "accounts", "env"}, "where to look")
			cmd.Flags().Var((*nonEmpty)(&auth), "auth-file", "another auth.json")
			cmd.Flags().Var((*nonEmpty)(&accounts), "accounts-file", "another anthropic-accounts.json")
			cmd.Flags().BoolVar(&dry, "dry-run", false, "report what would be imported, and change nothing")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			from, err := r.sources(sources, auth, accounts)
			if err != nil {
				return err
			}
			done, err := r.scope.Import(ctx, from, dry)
			if err == nil {
				err = leftOut(done)
			} else if err = inContext(err); len(done.Imported) == 0 {
				return err
			}
			// What was imported before an error is reported too.
			if r.json {
				return errors.Join(err, r.printJSON(done))
			}
			if len(done.Imported)+len(done.Skipped) == 0 {
				return r.searched(from)
			}
			return errors.Join(err, r.imported(done, dry))
		},
	})
}

// leftOut is the error of an import that left credentials out.
func leftOut(done admin.Import) error {
	n := 0
	for _, a := range done.Skipped {
		if !a.Here {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s left out for the listed reasons", process.ErrPartial, chat.Plural(n, "credential"))
}

// sources says where to look. A file named by a flag must exist, and its source be selected;
// files in their usual places may be missing.
func (r *accountsRun) sources(names []string, auth, accounts string) (from admin.ImportSources, err error) {
	for _, name := range names {
		if !slices.Contains([]string{"auth", "accounts", "env"}, name) {
			return from, process.Usage("--source: %q is not a source: use auth, accounts and env, separated by commas", name)
		}
	}
	for _, named := range []struct{ flag, source, path string }{{"--auth-file", "auth", auth}, {"--accounts-file", "accounts", accounts}} {
		switch {
		case named.path == "":
		case !slices.Contains(names, named.source):
			return from, process.Usage("%s needs %s in --source", named.flag, named.source)
		default:
			if _, err := os.Stat(named.path); err != nil {
				return from, fmt.Errorf("%s: %w", named.flag, err)
			}
		}
	}
	home := func(given, path string) string {
		if given == "" && r.variable("HOME") != "" {
			return filepath.Join(r.variable("HOME"), path)
		}
		return given
	}
	if slices.Contains(names, "auth") {
		from.AuthFile = home(auth, authFile)
	}
	if slices.Contains(names, "accounts") {
		from.AccountsFile = home(accounts, accountsFile)
	}
	if slices.Contains(names, "env") {
		from.Environ = r.environ
	}
	return from, nil
}

// searched reports where nothing was found.
func (r *accountsRun) searched(from admin.ImportSources) error {
	var places []string
	for _, file := range []string{from.AuthFile, from.AccountsFile} {
		if file != "" {
			places = append(places, printable(file))
		}
	}
	if from.Environ != nil {
		places = append(places, admin.KeyVariables()...)
	}
	_, err := fmt.Fprintf(r.screen.out, "Nothing to import in %s.\n", strings.Join(places, ", "))
	return err
}

func (r *accountsRun) imported(done admin.Import, dry bool) error {
	verb := "imported"
	if dry {
		verb = "would import"
	}
	line := func(c colour, verb, provider, label, source, note string) {
		if label != "" {
			provider += " (" + printable(label) + ")"
		}
		fmt.Fprintf(r.screen.out, "%s %s from %s%s\n", r.paint(c, verb), printable(provider), source, note)
	}
	for _, a := range done.Imported {
		note := ""
		if !a.Enabled {
			note = ", disabled"
		}
		line(green, verb, a.Provider, a.Label, a.Source, note)
	}
	here := 0
	for _, a := range done.Skipped {
		verb := "left out"
		if a.Here {
			verb = "skipped"
			here++
		}
		line(yellow, verb, a.Provider, a.Label, a.Source, ": "+a.Reason)
	}
	if dry {
		verb = "to import"
	}
	_, err := fmt.Fprintf(r.screen.out, "%d %s, %d left out, %d already stored, %d merged\n", len(done.Imported), verb, len(done.Skipped)-here, here, done.Merged)
	return err
}
