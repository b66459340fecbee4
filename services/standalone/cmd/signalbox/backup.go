package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/standalone"
	"signalbox.dev/services/standalone/internal/chat"
)

// backupSettings name the database of a deployment.
type backupSettings struct {
	DatabaseURL conf.Secret `env:"DATABASE_URL" doc:"The database of a deployment, with the user of migrate; if empty, the one in the data folder."`
	DirectURL   conf.Secret `env:"DATABASE_DIRECT_URL" doc:"Is used instead of DATABASE_URL if that goes through a connection pooler."`
}

// restoreSettings name the database, and the keys of its credentials.
type restoreSettings struct {
	Database backupSettings
	KeyFile  string `env:"CREDENTIAL_BROKER_KEY_FILE" doc:"The credential broker's key file, with DATABASE_URL. In a data folder it is keys/broker.key."`
	Keys     admin.Keys
}

func (s *backupSettings) into(o *standalone.BackupOptions) {
	if o.DatabaseURL = s.DirectURL; o.DatabaseURL == "" {
		o.DatabaseURL = s.DatabaseURL
	}
}

func (c *cli) backup() *cobra.Command {
	var o standalone.BackupOptions
	var asJSON bool
	var s backupSettings
	cmd := &cobra.Command{
		Use:   "backup <file or folder>",
		Short: "Back up all data into one file, while everything runs",
		Long: `Writes everything that is stored, as of one moment, into a zip file: of the deployment that
DATABASE_URL names, else of the data folder. Services keep running; an upgrade's migrate waits.
Only you may read the file. It has people's conversations, documents and addresses: keep
it encrypted. It does not have the key that seals stored credentials: without a copy of that key
they are lost. Keep that copy elsewhere.`,
		Args: one("the file to write, or a folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, &s, func(ctx context.Context, log *slog.Logger) error {
				s.into(&o)
				o.File, o.Log, o.Progress = args[0], log, c.progress()
				r, err := standalone.Backup(ctx, o)
				if err != nil {
					return fmt.Errorf("back up: %w", err)
				}
				if asJSON {
					return c.printJSON(r)
				}
				fmt.Fprintf(c.out, "backed up %s to %s (%d bytes)\n", contents(r), printable(r.File), r.Bytes)
				if len(r.Keys) > 0 {
					fmt.Fprintf(c.out, "not in it: the key %s, which seals stored credentials; keep a copy of it elsewhere\n", strings.Join(r.Keys, ", "))
				}
				return nil
			})
		},
	}
	dataFlag(cmd, &o.Data)
	jsonFlag(cmd, &asJSON)
	return c.withVariables(cmd, new(backupSettings))
}

func (c *cli) restore() *cobra.Command {
	var o standalone.BackupOptions
	var check, asJSON bool
	var s restoreSettings
	cmd := &cobra.Command{
		Use:   "restore <file>",
		Short: "Restore a backup into an empty database or a new data folder",
		Long: `Verifies the whole file, then restores it into the empty database that DATABASE_URL names, of
any name and owner, or else into a new data folder, and brings it up to date with this
version. Nothing is restored if the file is damaged, if the database has rows, or if the
key does not open the stored credentials. Before, put your copy of the key where the credential
broker finds it (CREDENTIAL_BROKER_KEY_FILE, or keys/broker.key in the data folder).
After it, run signalbox migrate for a deployment, which sets passwords and makes the streams,
and start the services.`,
		Args: one("the file of a backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, &s, func(ctx context.Context, log *slog.Logger) error {
				s.Database.into(&o)
				o.File, o.Log, o.Progress, o.KeyFile, o.Keys = args[0], log, c.progress(), s.KeyFile, s.Keys
				do, done := standalone.Restore, "restored"
				if check {
					do, done = func(ctx context.Context, o standalone.BackupOptions) (standalone.BackupReport, error) {
						return standalone.CheckBackup(ctx, o.File)
					}, "the file is intact:"
				}
				r, err := do(ctx, o)
				if err != nil {
					return fmt.Errorf("restore: %w", err)
				}
				if asJSON {
					return c.printJSON(r)
				}
				fmt.Fprintf(c.out, "%s %s, of %s, by version %s\n", done, contents(r), r.CreatedAt.Format(time.RFC3339), printable(r.Program))
				return nil
			})
		},
	}
	dataFlag(cmd, &o.Data)
	cmd.Flags().BoolVar(&check, "check", false, "only verify the file")
	cmd.Flags().BoolVar(&o.WithoutKey, "without-key", false, "restore stored credentials without a key that opens them; they have to be replaced")
	jsonFlag(cmd, &asJSON)
	return c.withVariables(cmd, new(restoreSettings))
}

// contents says what is in a backup.
func contents(r standalone.BackupReport) string {
	tables := 0
	for _, s := range r.Schemas {
		tables += len(s.Tables)
	}
	return fmt.Sprintf("%s of %s", chat.Plural(r.Rows(), "row"), chat.Plural(tables, "table"))
}

// progress returns a function that names what is under way, once a second at most.
func (c *cli) progress() func(string) {
	told := time.Now()
	return func(what string) {
		if time.Since(told) >= time.Second {
			told = time.Now()
			fmt.Fprintln(c.err, what)
		}
	}
}
