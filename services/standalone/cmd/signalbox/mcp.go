package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/standalone/internal/chat"
)

func (c *cli) mcp() *cobra.Command {
	cmd := &cobra.Command{Use: "mcp", Short: "Manage the workspace's MCP servers, whose tools agents can use", Args: none}
	cmd.AddCommand(
		c.remoteSub(remoteCommand{use: "list", short: "List the MCP servers", long: "Lists the MCP servers.", run: func(ctx context.Context, r *remoteRun) error {
			if r.json {
				return r.printAPI(ctx, chat.McpServersPath)
			}
			all, err := r.client.McpServers(ctx)
			if err != nil {
				return err
			}
			if len(all) == 0 && c.screen().tables {
				_, err := fmt.Fprintln(c.out, "There are no MCP servers. Add one with: signalbox mcp add <name> <url>")
				return err
			}
			rows := make([][]cell, len(all))
			for i, s := range all {
				address := s.URL
				if s.Operator {
					address = "by the operator"
				}
				rows[i] = []cell{{s.Name, plain}, {address, plain}, {fmt.Sprint(len(s.Tools)), plain}, {mcpState(s), grey}}
			}
			return c.screen().table([]string{"NAME", "URL", "TOOLS", "STATE"}, rows)
		}}),
		c.mcpAdd(),
		c.mcpSignIn(),
		c.mcpSub("test", "Ask an MCP server for its tools now", "Asks an MCP server for its tools now, and shows them.", func(ctx context.Context, r *remoteRun, s chat.McpServer) (chat.McpServer, error) {
			return r.client.TestMcpServer(ctx, s)
		}),
		c.mcpSub("approve", "Approve an MCP server's changed tools",
			`Shows the tools of an MCP server as they were last seen, and approves all whose
definitions have changed. Look at them first: signalbox mcp test <name>.`, approveAll),
		c.mcpSub("remove", "Remove an MCP server and its credential", "Removes an MCP server and its credential.",
			func(ctx context.Context, r *remoteRun, s chat.McpServer) (chat.McpServer, error) {
				return chat.McpServer{}, r.client.RemoveMcpServer(ctx, s)
			}),
		c.mcpAudit(),
	)
	return group(cmd)
}

func approveAll(ctx context.Context, r *remoteRun, s chat.McpServer) (chat.McpServer, error) {
	var changed []string
	for _, t := range s.Tools {
		if t.Changed {
			changed = append(changed, t.Hash)
		}
	}
	if len(changed) == 0 {
		return s, nil
	}
	return r.client.ApproveMcpTools(ctx, s, changed)
}

// mcpSub returns a command that does something with the server that its argument names, and
// shows the result.
func (c *cli) mcpSub(name, short, long string, do func(context.Context, *remoteRun, chat.McpServer) (chat.McpServer, error)) *cobra.Command {
	var server string
	cmd := c.remoteSub(remoteCommand{use: name + " <name>", short: short, long: long, run: func(ctx context.Context, r *remoteRun) error {
		s, err := r.client.McpServer(ctx, server)
		if err != nil {
			return err
		}
		if s, err = do(ctx, r, s); err != nil {
			return err
		}
		if s.ID == "" {
			_, err := fmt.Fprintf(c.out, "removed %s\n", printable(server))
			return err
		}
		return r.printMcpServer(s)
	}})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return process.Usage("%s takes the server's name: `mcp list` has them", cmd.Name())
		}
		server = args[0]
		return nil
	}
	return cmd
}

func (c *cli) mcpAdd() *cobra.Command {
	var name, address string
	var token bool
	cmd := c.remoteSub(remoteCommand{
		use: "add <name> <url>", short: "Add an MCP server",
		long: `Adds an MCP server that speaks streamable HTTP, and approves the tools that it has now.
With --token it asks for a bearer token, or reads it from the standard input. The token is
sealed here, so that only the credential broker can decrypt it. If the server uses OAuth, the
command continues, at a terminal, with the sign-in: see signalbox mcp sign-in.`,
		run: func(ctx context.Context, r *remoteRun) error {
			secret := ""
			if token {
				s := c.screen()
				s.ctx = ctx
				var err error
				if secret, err = s.askKey(printable(name), false); err != nil {
					return readError("the token", err)
				}
			}
			s, err := r.client.AddMcpServer(ctx, name, address, conf.Secret(secret))
			if err != nil {
				return err
			}
			if s.NeedsSignIn && secret == "" && c.screen().tables {
				if s, err = r.signInToMcp(ctx, s, "", ""); err != nil {
					return fmt.Errorf("%s was added, and nobody is signed in to it (`signalbox mcp sign-in %s`): %w", printable(name), printable(name), err)
				}
			}
			return r.printMcpServer(s)
		},
	})
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 2 {
			return process.Usage("add takes a name and a URL")
		}
		name, address = args[0], args[1]
		return nil
	}
	cmd.Flags().BoolVar(&token, "token", false, "the server needs a bearer token")
	return cmd
}

func (c *cli) mcpSignIn() *cobra.Command {
	var client string
	var secret bool
	cmd := c.mcpSub("sign-in", "Sign in to an MCP server that uses OAuth",
		`Signs in to an MCP server that uses OAuth, for the first time, again, or to allow more. It shows
an address to open in a browser on this machine, to which the browser returns. The credential
broker keeps the tokens and renews them. --client-id names a client that you have registered with
the server by hand, where it registers none by itself; with --client-secret the command asks for
its secret, or reads it from the standard input.`,
		func(ctx context.Context, r *remoteRun, s chat.McpServer) (chat.McpServer, error) {
			given := ""
			if secret {
				screen := c.screen()
				screen.ctx = ctx
				var err error
				if given, err = screen.askKey(printable(s.Name), false); err != nil {
					return s, readError("the client's secret", err)
				}
			}
			return r.signInToMcp(ctx, s, client, conf.Secret(given))
		})
	cmd.Flags().StringVar(&client, "client-id", "", "a client that you have registered with the server by hand")
	cmd.Flags().BoolVar(&secret, "client-secret", false, "the client has a secret")
	return cmd
}

// signInToMcp signs in to a server in a browser, and returns the server as it is then.
func (r *remoteRun) signInToMcp(ctx context.Context, s chat.McpServer, client string, secret conf.Secret) (chat.McpServer, error) {
	back, err := listenLoopback(ctx)
	if err != nil {
		return s, err
	}
	defer back.close()
	in, err := r.client.StartMcpSignIn(ctx, s, back.redirect(), client, secret)
	if err != nil {
		return s, err
	}
	// To the standard error: the standard output has the server.
	if _, err := fmt.Fprintf(r.err, "Open this address in a browser on this machine:\n\n  %s\n\n", printable(in.URL)); err != nil {
		return s, err
	}
	err = back.await(ctx, admin.Login{URL: in.URL, ExpiresAt: in.ExpiresAt}, func(a admin.LoginAnswer) error {
		answer := map[string]string{}
		for name, value := range map[string]string{"state": a.State, "code": a.Code, "error": a.Error, "iss": a.Issuer, "redirect": a.Redirect} {
			if value != "" {
				answer[name] = value
			}
		}
		return r.client.CompleteMcpSignIn(ctx, in, answer)
	})
	if err != nil {
		return s, err
	}
	return r.client.McpServer(ctx, s.Name)
}

// mcpState says in a few words how a server stands.
func mcpState(s chat.McpServer) string {
	switch {
	case s.NeedsSignIn:
		return "sign in: signalbox mcp sign-in " + printable(s.Name)
	case s.Failure != nil:
		return printable(*s.Failure)
	}
	changed := 0
	for _, t := range s.Tools {
		if t.Changed {
			changed++
		}
	}
	if changed > 0 {
		return chat.Plural(changed, "tool") + " to approve"
	}
	return "ready"
}

func (r *remoteRun) printMcpServer(s chat.McpServer) error {
	if r.json {
		return r.printJSON(s)
	}
	if _, err := fmt.Fprintf(r.out, "%s: %s\n", printable(s.Name), mcpState(s)); err != nil || len(s.Tools) == 0 {
		return err
	}
	rows := make([][]cell, len(s.Tools))
	for i, t := range s.Tools {
		state := ""
		if t.UnavailableReason != nil {
			state = *t.UnavailableReason
		}
		rows[i] = []cell{{t.Name, plain}, {printable(t.Description), plain}, {printable(state), grey}}
	}
	return r.screen().table([]string{"TOOL", "DESCRIPTION", "UNAVAILABLE BECAUSE"}, rows)
}
