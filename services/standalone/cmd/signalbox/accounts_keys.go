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

const rotateQuestion = "A broker that does not have this key could not open credentials any more. Do all have it?"

func (c *cli) accountsRotateKeys() *cobra.Command {
	wrapOnly := false
	return c.accountsSub(accountsCommand{
		use: "rotate-keys", short: "Replace the keys that seal credentials", seals: true, ask: rotateQuestion,
		long: `Gives every workspace a new data key and seals all credentials again with it, while
brokers run: they pick up the new keys by themselves, and remove the former ones within
some minutes. It can be stopped and started again at any time.

Data keys are wrapped by the key in CREDENTIAL_BROKER_KEY_FILE, or by the one at
CREDENTIAL_BROKER_KEY_URL. To replace that one as well, without a pause:

  1. Make the new key: at the key service, or a file with signalbox accounts new-key,
     which every broker can read.
  2. Name it in CREDENTIAL_BROKER_OTHER_KEYS of every broker.
  3. Swap the two in every broker.
  4. Set the same for this command, and run it; with --wrap-only it keeps the data keys
     and only rewraps them.
  5. Remove the former key. Keep a copy as long as you keep backups of the database.`,
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
		Use: "new-key <path>", Short: "Make a key file, to change to",
		Long: `Makes a file with a new key for CREDENTIAL_BROKER_KEY_FILE, which only you can read.
It seals nothing yet: rotate-keys --help says how to change the key. An existing file is
left unchanged. Anybody with the file and the database has all credentials, and without
the file nobody has: keep a copy, but not with the database's backups.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return process.Usage("%s takes the path of a file that is to be made", cmd.CommandPath())
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
			return r.say(made, "made the key file %s: %s", args[0], name)
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
		return fmt.Errorf("%d keys and secrets were left as they are, because a key service did not open them: check that it answers and allows the use of this key, and run it again", done.Unavailable)
	}
	return fmt.Errorf("%d keys and secrets do not open and were left as they are: name the key that sealed them in CREDENTIAL_BROKER_OTHER_KEYS and run it again, or remove the accounts", done.Failed)
}
