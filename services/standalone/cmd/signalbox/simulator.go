package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/services/simulator"
)

func (c *cli) simulator() *cobra.Command {
	var addr, script string
	var services bool
	cmd := &cobra.Command{
		Use:   "simulator",
		Short: "Run the simulated model provider, and fakes of the services that tools call",
		Args:  none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var cfg simulator.Config
			return c.run(cmd, &cfg, func(ctx context.Context, log *slog.Logger) error {
				if addr != "" {
					cfg.Addr = addr
				}
				if script != "" {
					cfg.Script = script
				}
				cfg.Services = cfg.Services || services
				sim, err := simulator.New(cfg, simulator.Deps{Log: log})
				if err != nil {
					return err
				}
				listener, err := httpserver.Listen(ctx, cfg.Addr)
				if err != nil {
					return err
				}
				defer context.AfterFunc(ctx, sim.Close)()
				fmt.Fprintf(c.out, "the simulated provider answers at http://%s\n", listener.Addr())
				return httpserver.Serve(ctx, httpserver.Config{Listener: listener, Handler: sim, Log: log, Drain: 5 * time.Second})
			})
		},
	}
	cmd.Flags().StringVar(&addr, "addr", "", "address (default $SIMULATOR_ADDR)")
	cmd.Flags().StringVar(&script, "script", "", "script file or folder (default $SIMULATOR_SCRIPT, else the built-in one)")
	cmd.Flags().BoolVar(&services, "services", false, "also serve fakes of Google Calendar, Google Tasks, Notion and GitHub (default $SIMULATOR_SERVICES)")
	return cmd
}
