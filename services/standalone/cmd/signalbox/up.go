package main

import (
	"context"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/standalone"
)

// upSettings are what `signalbox up` reads from the environment, apart from the services'
// own variables.
type upSettings struct {
	DatabaseURL conf.Secret `env:"DATABASE_URL" doc:"A PostgreSQL database to use instead of a private one, with an administrator's user."`
	NATSURL     conf.Secret `env:"NATS_URL" doc:"NATS servers with JetStream to use instead of the embedded one."`
}

func (c *cli) up() *cobra.Command {
	var opts standalone.Options
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run all of Signalbox in this process",
		Long: `Runs the five services in one process, with an embedded NATS server and a private
PostgreSQL, and keeps all data in the data folder. Ctrl-C parks runs and stops; a second
Ctrl-C kills the process.

Environment: DATABASE_URL and NATS_URL name servers to use instead. Without a provider's
key or account, the simulated provider answers; keys are
` + strings.Join(admin.KeyVariables(), ", ") + `.
Until a workspace connects Google, Notion or GitHub, the simulator stands in for them too,
unless SIMULATED_SERVICES is false. Every variable of the services works too (gateway --help).`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s upSettings
			return c.run(cmd, &s, func(ctx context.Context, log *slog.Logger) error {
				opts.DatabaseURL, opts.NATSURL, opts.Environ, opts.Out, opts.Log = s.DatabaseURL, s.NATSURL, c.environ, c.out, log
				return standalone.Up(ctx, opts)
			})
		},
	}
	startFlags(cmd, &opts)
	return cmd
}

// startFlags adds the flags that say where to run.
func startFlags(cmd *cobra.Command, opts *standalone.Options) {
	cmd.Flags().StringVar(&opts.HTTP, "http", "127.0.0.1:8080", "public address")
	dataFlag(cmd, &opts.Data)
}
