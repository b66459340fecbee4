package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/service"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/standalone"
)

// migrateSettings say what to migrate, and as whom.
type migrateSettings struct {
	DatabaseURL  conf.Secret   `env:"DATABASE_URL,required" doc:"The database, with a user that is a superuser, or has CREATEROLE and CREATE on it."`
	DirectURL    conf.Secret   `env:"DATABASE_DIRECT_URL" doc:"Is used instead of DATABASE_URL if that goes through a connection pooler: migrations need a session of their own."`
	Wait         time.Duration `env:"MIGRATE_WAIT" envDefault:"30s" doc:"How long to wait for a PostgreSQL that is starting."`
	NATSURL      string        `env:"NATS_URL" doc:"NATS servers; if empty, streams are not changed."`
	NATSUser     string        `env:"NATS_USER" envDefault:"admin" doc:"The NATS user that administers streams."`
	NATSPassword conf.Secret   `env:"NATS_PASSWORD" doc:"Password of that user; empty if the servers require none."`
	NATSCA       string        `env:"NATS_CA_FILE" doc:"PEM file with the authorities that sign the NATS servers' certificates. With it, or with tls:// in NATS_URL, the connection is encrypted."`
	Partitions   int           `env:"EVENT_PARTITIONS" envDefault:"4" doc:"Partitions of the run log: the same number for all services. It cannot be lowered later."`
	Replicas     int           `env:"EVENT_REPLICAS" envDefault:"1" doc:"Replicas of each stream: 1 on a single server, 3 in a cluster."`

	Gateway     conf.Secret `env:"GATEWAY_DB_PASSWORD" doc:"Lets the role signalbox_gateway log in with this password; if empty, its login is not changed."`
	Agent       conf.Secret `env:"AGENT_RUNNER_DB_PASSWORD" doc:"The same for signalbox_agent."`
	Tools       conf.Secret `env:"TOOL_EXECUTOR_DB_PASSWORD" doc:"The same for signalbox_tools."`
	Documents   conf.Secret `env:"DOCUMENT_SYNC_DB_PASSWORD" doc:"The same for signalbox_documents."`
	Credentials conf.Secret `env:"CREDENTIAL_BROKER_DB_PASSWORD" doc:"The same for signalbox_credentials."`

	TLS mtls.Config
}

// passwords returns the passwords by schema.
func (s *migrateSettings) passwords() map[string]conf.Secret {
	return map[string]conf.Secret{
		"gateway": s.Gateway, "agent": s.Agent, "tools": s.Tools, "documents": s.Documents, "credentials": s.Credentials,
	}
}

func (c *cli) migrate() *cobra.Command {
	var allowNewer bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring a database and a bus up to date for the services",
		Args:  none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s migrateSettings
			return c.run(cmd, &s, func(ctx context.Context, log *slog.Logger) error {
				err := c.migrateAll(ctx, &s, log)
				if allowNewer && errors.Is(err, pg.ErrNewer) {
					_, err = fmt.Fprintln(c.out, "database: a newer version of Signalbox has migrated it; nothing was changed")
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&allowNewer, "allow-newer", false, "succeed without a change if a newer version has migrated the database")
	return c.withVariables(cmd, new(migrateSettings))
}

// withVariables adds the variables of settings to a command's help.
func (c *cli) withVariables(cmd *cobra.Command, settings any) *cobra.Command {
	help := cmd.HelpFunc()
	cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		help(cmd, args)
		fmt.Fprintln(c.out, "\nEnvironment:")
		_ = conf.WriteHelp(c.out, settings) // the terminal is gone
	})
	return cmd
}

func (c *cli) migrateAll(ctx context.Context, s *migrateSettings, log *slog.Logger) error {
	all := standalone.Migrations()
	for i := range all {
		all[i].Password = s.passwords()[all[i].Schema]
	}
	variable, url := "DATABASE_DIRECT_URL", s.DirectURL
	if url == "" {
		variable, url = "DATABASE_URL", s.DatabaseURL
	}
	if err := service.CheckLinks(service.Options{
		TLS: s.TLS, Bus: bus.Config{URL: s.NATSURL, CAFile: s.NATSCA}, Database: pg.Config{Role: "migrate", URL: s.DatabaseURL, DirectURL: s.DirectURL},
	}); err != nil {
		return err
	}
	if err := pg.Await(ctx, url.Reveal(), s.Wait, log); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	if err := pg.Migrate(ctx, url.Reveal(), log, all...); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	fmt.Fprintln(c.out, "database: up to date")
	if s.NATSURL == "" {
		fmt.Fprintln(c.out, "streams: not changed (NATS_URL is not set)")
		return nil
	}
	secure, err := mtls.Open(s.TLS, "", nil, log)
	if err != nil {
		return err
	}
	topology, err := subject.NewTopology(subject.Options{Partitions: s.Partitions, Replicas: s.Replicas})
	if err != nil {
		return fmt.Errorf("EVENT_PARTITIONS, EVENT_REPLICAS: %w", err)
	}
	admin, err := bus.Connect(ctx, bus.Config{URL: s.NATSURL, Service: subject.Admin, User: s.NATSUser, Password: s.NATSPassword, CAFile: s.NATSCA, TLS: secure, Log: log})
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := bus.Apply(ctx, admin, topology); err != nil {
		return fmt.Errorf("NATS_URL: %w", err)
	}
	_, err = fmt.Fprintln(c.out, "streams: up to date")
	return err
}
