// Signalbox is the command line: it runs everything in one process, makes tokens,
// chats, keeps accounts, and prepares databases and buses for a cluster.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/process"
	"signalbox.dev/pkg/telemetry"
)

func main() {
	// Each command decides what a signal means to it: chat stops a run first.
	os.Exit(process.Code(root(os.Stdout, os.Stderr).ExecuteContext(context.Background())))
}

// cli is what all commands share.
type cli struct {
	out, err io.Writer
	environ  []string
}

func root(stdout, stderr io.Writer) *cobra.Command {
	c := &cli{out: stdout, err: stderr, environ: os.Environ()}
	cmd := &cobra.Command{
		Use:           "signalbox",
		Short:         "People, agents and documents on one message bus",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return process.Usage("%v (see %s --help)", err, cmd.CommandPath())
	})
	cmd.AddCommand(c.up(), c.token(), c.chat(), c.accounts(), c.migrate(), c.keygen(), c.simulator(), c.version())
	return cmd
}

// dataFlag is where a standalone Signalbox keeps everything.
func dataFlag(cmd *cobra.Command, into *string) {
	*into = ".signalbox"
	cmd.Flags().Var((*filled)(into), "data", "data folder")
}

// filled is a flag's text that cannot be empty: where a script's variable is not set,
// nobody knows what was meant.
type filled string

func (f *filled) String() string { return string(*f) }
func (f *filled) Type() string   { return "string" }

func (f *filled) Set(text string) error {
	if text == "" {
		return errors.New("it is empty")
	}
	*f = filled(text)
	return nil
}

// settings reads settings from the environment.
func (c *cli) settings(into any) error { return conf.Load(into, c.environ) }

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
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return c.printJSON(map[string]string{"version": process.Version()})
			}
			_, err := fmt.Fprintln(c.out, "signalbox", process.Version())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
