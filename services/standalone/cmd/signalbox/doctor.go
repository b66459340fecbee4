package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/process"
	"signalbox.dev/services/standalone"
)

func (c *cli) doctor() *cobra.Command {
	var opts standalone.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what `signalbox up` needs, and say what to do",
		Long: `Checks everything that a start needs: settings, data folder, disk space, PostgreSQL,
NATS, port, provider keys and clock, with the same flags and environment as the start. It
changes nothing. The exit code is 1 if there is a problem.`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s upSettings
			if err := c.settings(&s); err != nil {
				return err
			}
			if len(opts.Replicas) > 0 && s.DatabaseURL == "" {
				return process.Usage("--replicas compares with a server: set DATABASE_URL")
			}
			opts.DatabaseURL, opts.NATSURL, opts.Environ = s.DatabaseURL, s.NATSURL, c.environ
			checks := standalone.Doctor(cmd.Context(), opts)
			problems := 0
			for _, check := range checks {
				if check.State == standalone.Problem {
					problems++
				}
			}
			if asJSON {
				if err := c.printJSON(map[string]any{"ok": problems == 0, "checks": checks}); err != nil {
					return err
				}
			} else {
				c.printChecks(checks)
			}
			if problems > 0 {
				return process.ErrShown
			}
			return nil
		},
	}
	startFlags(cmd, &opts)
	cmd.Flags().StringToIntVar(&opts.Replicas, "replicas", nil, "replicas of separate programs (gateway=2,agent-runner=4,…), on Kubernetes twice the pods for rolling updates: compare their connections with what DATABASE_URL admits")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (c *cli) printChecks(checks []standalone.Check) {
	s := c.screen()
	for _, check := range checks {
		mark, colour := "ok      ", green
		switch check.State {
		case standalone.OK:
		case standalone.Warning:
			mark, colour = "warning ", yellow
		case standalone.Problem:
			mark, colour = "PROBLEM ", red
		}
		fmt.Fprintf(s.out, "%s %-13s  %s\n", s.paint(colour, mark), check.Name, printable(check.Found))
		if check.Do != "" {
			fmt.Fprintf(s.out, "%25s-> %s\n", "", printable(check.Do))
		}
	}
}
