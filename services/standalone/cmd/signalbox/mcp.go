package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/process"
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
		c.mcpSub("test", "Ask an MCP server for its tools now", "Asks an MCP server for its tools now, and shows them.", func(ctx context.Context, r *chat.Client, s chat.McpServer) (chat.McpServer, error) {
			return r.TestMcpServer(ctx, s)
		}),
		c.mcpSub("approve", "Approve an MCP server's changed tools",
			`Shows the tools of an MCP server as they were last seen, and approves all whose
definitions have changed. Look at them first: signalbox mcp test <name>.`, approveAll),
		c.mcpSub("remove", "Remove an MCP server and its credential", "Removes an MCP server and its credential.",
			func(ctx context.Context, r *chat.Client, s chat.McpServer) (chat.McpServer, error) {
				return chat.McpServer{}, r.RemoveMcpServer(ctx, s)
			}),
	)
	return group(cmd)
}

func approveAll(ctx context.Context, r *chat.Client, s chat.McpServer) (chat.McpServer, error) {
	var changed []string
	for _, t := range s.Tools {
		if t.Changed {
			changed = append(changed, t.Hash)
		}
	}
	if len(changed) == 0 {
		return s, nil
	}
	return r.ApproveMcpTools(ctx, s, changed)
}

// mcpSub returns a command that does something with the server that its argument names, and
// shows the result.
func (c *cli) mcpSub(name, short, long string, do func(context.Context, *chat.Client, chat.McpServer) (chat.McpServer, error)) *cobra.Command {
	var server string
	cmd := c.remoteSub(remoteCommand{use: name + " <name>", short: short, long: long, run: func(ctx context.Context, r *remoteRun) error {
		s, err := r.client.McpServer(ctx, server)
		if err != nil {
			return err
		}
		if s, err = do(ctx, r.client, s); err != nil {
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
sealed here, so that only the credential broker can decrypt it.`,
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

// mcpState says in a few words how a server stands.
func mcpState(s chat.McpServer) string {
	if s.Failure != nil {
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
