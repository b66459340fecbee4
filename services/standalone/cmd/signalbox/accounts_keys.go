package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/admin"
	_ "signalbox.dev/services/credential-broker/kms" // the key services that may hold the key
	"signalbox.dev/services/standalone/internal/chat"
)

const rotateQuestion = "A broker without this key could no longer decrypt credentials. Do all brokers have it?"

func (c *cli) accountsRotateKeys() *cobra.Command {
	wrapOnly := false
	return c.accountsSub(accountsCommand{
		use: "rotate-keys", short: "Replace the keys that seal credentials", seals: true, ask: rotateQuestion,
		long: `Creates a new data key for every workspace and reseals all credentials with it, while
brokers run: they pick up the new keys by themselves, and remove the old ones within a few
minutes. It can be stopped and started again at any time.

Data keys are wrapped by the key in CREDENTIAL_BROKER_KEY_FILE, or by the one at
CREDENTIAL_BROKER_KEY_URL. To replace that key too, without downtime:

  1. Create the new key in the key service, or as a file with signalbox accounts new-key.
     Every broker must be able to read it.
  2. Add it to CREDENTIAL_BROKER_OTHER_KEYS of every broker.
  3. Swap the two in every broker.
  4. Set the same variables for this command, and run it; with --wrap-only it keeps the data keys
     and only rewraps them.
  5. Remove the old key. Keep a copy as long as you keep backups of the database.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&wrapOnly, "wrap-only", false, "keep the data keys, and rewrap them with the current key")
		},
		run: func(ctx context.Context, r *accountsRun) error {
			if err := r.confirm(r.yes, rotateQuestion); err != nil {
				return err
			}
			return r.rotateKeys(ctx, wrapOnly)
		},
	})
}

func (c *cli) accountsNewKey() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "new-key <path>", Short: "Create a key file for a change of keys",
		Long: `Creates a file with a new key for CREDENTIAL_BROKER_KEY_FILE, which only you can read.
It seals nothing yet: rotate-keys --help explains how to change keys. An existing file is
not changed. The file and the database together reveal all credentials, and without the
file they are lost: keep a copy, but not with the database's backups.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return process.Usage("%s takes the path of the file to create", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			name, err := admin.NewKeyFile(args[0])
			if err != nil {
				return err
			}
			r := accountsRun{cli: c, screen: c.screen(), json: asJSON}
			made := struct {
				Path string `json:"path"`
				Key  string `json:"key"` // its name in errors
			}{args[0], name}
			return r.say(made, "created the key file %s: %s", args[0], name)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (r *accountsRun) rotateKeys(ctx context.Context, wrapOnly bool) error {
	told := time.Now()
	done, err := r.accounts.RotateKeys(ctx, wrapOnly, func(k admin.KeyRotation) {
		if time.Since(told) < time.Second {
			return
		}
		told = time.Now()
		fmt.Fprintf(r.cli.err, "%s, %s\n", chat.Plural(k.Workspaces, "workspace"), chat.Plural(k.Sealed, "secret"))
	})
	if err != nil {
		return fmt.Errorf("%w (%s done; run it again)", inContext(err), chat.Plural(done.Workspaces, "workspace"))
	}
	err = r.say(done, "%s: %s rewrapped, %d created, %d removed; %s resealed",
		chat.Plural(done.Workspaces, "workspace"), chat.Plural(done.Wrapped, "data key"), done.Made, done.Removed, chat.Plural(done.Sealed, "secret"))
	if err != nil || done.Failed == 0 {
		return err
	}
	for _, f := range done.Failures {
		fmt.Fprintf(r.cli.err, "%s %s: %s\n", whose(f.Workspace, "workspace ", "shared"), idText(f.Account), printable(f.Err.Error()))
	}
	if done.Unavailable == done.Failed {
		return fmt.Errorf("%d keys and secrets were not changed, because a key service did not decrypt them: check that it answers and allows the use of this key, and run this again", done.Unavailable)
	}
	return fmt.Errorf("%d keys and secrets cannot be decrypted and were not changed: add the key that sealed them to CREDENTIAL_BROKER_OTHER_KEYS and run this again, or remove the accounts", done.Failed)
}
