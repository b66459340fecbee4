package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/standalone"
)

type tokenSettings struct {
	DatabaseURL conf.Secret `env:"DATABASE_URL" doc:"The database of a deployment."`
	Secret      conf.Secret `env:"GATEWAY_DEV_SECRET" doc:"The secret of its development issuer."`
}

func (c *cli) token() *cobra.Command {
	var (
		opts                    standalone.TokenOptions
		workspace, member, role string
		asJSON                  bool
	)
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create a development token",
		Long: `Creates a development token for the data folder's own workspace and member, or for
others, which are created if they do not exist. Signalbox need not be running. With
DATABASE_URL and GATEWAY_DEV_SECRET in the environment it creates a token for a deployment
whose development issuer is enabled.`,
		Args: none,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s tokenSettings
			var err error
			if opts.Workspace, err = optional[id.Workspace]("workspace", workspace); err != nil {
				return err
			}
			if opts.Member, err = optional[id.Member]("member", member); err != nil {
				return err
			}
			if opts.Role, err = identity.ParseRole(role); err != nil {
				return process.Usage("--role: %v", err)
			}
			return c.run(cmd, &s, func(ctx context.Context, log *slog.Logger) error {
				opts.DatabaseURL, opts.Secret, opts.Log = s.DatabaseURL, s.Secret, log
				token, err := standalone.NewToken(ctx, opts)
				if err != nil {
					return err
				}
				if asJSON {
					return c.printJSON(token)
				}
				_, err = fmt.Fprintln(c.out, cmp.Or(token.Link, token.Token))
				return err
			})
		},
	}
	dataFlag(cmd, &opts.Data)
	cmd.Flags().StringVar(&workspace, "workspace", "", "workspace id (default: the data folder's)")
	cmd.Flags().StringVar(&member, "member", "", "member id (default: the data folder's)")
	cmd.Flags().StringVar(&role, "role", "owner", "owner, editor or viewer")
	oneOf(cmd, "role", "owner", "editor", "viewer")
	cmd.Flags().StringVar(&opts.Console, "link", "", "address of the console: print a link that signs in there once, within a day")
	cmd.Flags().BoolVar(&asJSON, "json", false, `print {"token","workspace_id","member_id","expires_at"}`)
	return cmd
}

// optional parses an id that may be left out.
func optional[T id.Kind](flag, text string) (T, error) {
	var none T
	if text == "" {
		return none, nil
	}
	v, err := id.Parse[T](text)
	if err != nil {
		return none, process.Usage("--%s: %v", flag, err)
	}
	return v, nil
}

// idText returns an id, and "" for the zero one.
func idText[T id.Kind](v T) string {
	if id.IsZero(v) {
		return ""
	}
	return fmt.Sprint(v)
}
