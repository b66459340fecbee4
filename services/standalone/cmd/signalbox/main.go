// Signalbox is the command line: it runs everything in one process, makes tokens, chats,
// manages accounts, prepares databases and buses for a cluster, and backs them up.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/process"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/credential-broker/admin"
	toolexecutor "signalbox.dev/services/tool-executor"
)

func main() {
	toolexecutor.BrowserRelay()
	// Everything here logs with slog. Only net/http uses the standard logger, also for
	// unexpected bytes from a provider, which may contain a secret.
	log.SetOutput(io.Discard)
	// Each command handles signals itself: chat stops a run first.
	os.Exit(process.Code(root(os.Stdout, os.Stderr).ExecuteContext(context.Background())))
}

// cli is shared by all commands.
type cli struct {
	out, err io.Writer
	environ  []string

	// In the dialogue of accounts manage, what its commands share.
	opened *admin.Accounts
	shown  *screen
}

func root(stdout, stderr io.Writer) *cobra.Command {
	c := &cli{out: stdout, err: stderr, environ: os.Environ()}
	cmd := &cobra.Command{
		Use:           "signalbox",
		Short:         "People, agents and documents on one message bus",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          none,
		Version:       process.Version(),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return process.Usage("%v (see %s --help)", err, cmd.CommandPath())
	})
	cmd.AddCommand(c.up(), c.token(), c.chat(), c.sessions(), c.docs(), c.models(), c.mcp(), c.audit(), c.accounts(), c.doctor(), c.migrate(), c.backup(), c.restore(), c.keygen(), c.simulator(), c.version())
	strict(cmd)
	return cmd
}

// strict makes cobra's own commands refuse unknown arguments, as ours do.
func strict(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				about, rest, err := root.Find(args)
				if err == nil && about.HasSubCommands() {
					err = none(about, rest)
				}
				return err
			}
		case "completion":
			cmd.Args = none
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() } // without RunE, cobra does not check the arguments
			for _, shell := range cmd.Commands() {
				shell.Args = none
			}
		}
	}
}

// dataFlag adds the flag for the data folder.
func dataFlag(cmd *cobra.Command, into *string) {
	*into = ".signalbox"
	cmd.Flags().Var((*nonEmpty)(into), "data", "data folder")
	_ = cmd.MarkFlagDirname("data") // it was added above
}

func jsonFlag(cmd *cobra.Command, into *bool) {
	cmd.Flags().BoolVar(into, "json", false, "print JSON")
}

// oneOf lets shells complete a flag with its values.
func oneOf(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // only an unknown flag is an error
}

// nonEmpty is a flag that must not be empty: a script's variable may be unset by mistake.
type nonEmpty string

func (f *nonEmpty) String() string { return string(*f) }
func (f *nonEmpty) Type() string   { return "string" }

func (f *nonEmpty) Set(text string) error {
	if text == "" {
		return errors.New("it is empty")
	}
	*f = nonEmpty(text)
	return nil
}

// settings loads settings from the environment.
func (c *cli) settings(into any) error { return conf.Load(into, c.environ) }

// run loads settings and calls f, with a context that a signal ends.
func (c *cli) run(cmd *cobra.Command, settings any, f func(ctx context.Context, log *slog.Logger) error) error {
	if err := c.settings(settings); err != nil {
		return err
	}
	log, err := c.log()
	if err != nil {
		return err
	}
	ctx, stop := process.Signals(cmd.Context())
	defer stop()
	return f(ctx, log)
}

// log returns a logger for people at a terminal: warnings, unless LOG_LEVEL says more.
func (c *cli) log() (*slog.Logger, error) {
	var cfg telemetry.Config
	environ := append([]string{"LOG_LEVEL=warn", "LOG_FORMAT=text"}, c.environ...)
	if err := conf.Load(&cfg, environ); err != nil {
		return nil, err
	}
	return telemetry.NewLogger(c.err, cfg, "signalbox")
}

func (c *cli) printJSON(v any) error {
	enc := json.NewEncoder(c.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (c *cli) version() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: none,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return c.printJSON(map[string]string{"version": process.Version()})
			}
			_, err := fmt.Fprintln(c.out, "signalbox", process.Version())
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
