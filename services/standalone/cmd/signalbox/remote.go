package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/process"
	"signalbox.dev/services/standalone/internal/chat"
)

// remoteHelp ends the help of a command that talks to a running Signalbox.
const remoteHelp = `
It uses the Signalbox that runs in the data folder, or another one if SIGNALBOX_URL,
SIGNALBOX_TOKEN and SIGNALBOX_WORKSPACE are set.`

// remoteCommand describes a command that talks to a running Signalbox.
type remoteCommand struct {
	use, short, long string
	// of is the list, "sessions" or "documents", from which the command takes one id; empty
	// for a command without arguments.
	of  string
	run func(ctx context.Context, r *remoteRun) error
}

// remoteRun is one run of a remoteCommand.
type remoteRun struct {
	*cli
	client *chat.Client
	id     string
	json   bool
}

func (c *cli) remoteSub(spec remoteCommand) *cobra.Command {
	r := &remoteRun{cli: c}
	var data string
	cmd := &cobra.Command{
		Use: spec.use, Short: spec.short, Long: spec.long + "\n" + remoteHelp, Args: none,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if r.client, err = c.client(cmd, data); err != nil {
				return err
			}
			if spec.of != "" {
				if r.id, err = r.client.Find(cmd.Context(), spec.of, args[0]); err != nil {
					return err
				}
			}
			return spec.run(cmd.Context(), r)
		},
	}
	if spec.of != "" {
		cmd.ValidArgsFunction = c.completeIDs(spec.of)
		cmd.Args = func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return process.Usage("%s takes one id, or its beginning or end: `signalbox %s list` shows them", cmd.Name(), cmd.Parent().Name())
			}
			return nil
		}
	}
	dataFlag(cmd, &data)
	jsonFlag(cmd, &r.json)
	return cmd
}

// printAPI prints the answer of the API.
func (r *remoteRun) printAPI(ctx context.Context, path string) error {
	raw, err := chat.Get[json.RawMessage](ctx, r.client, path)
	if err != nil {
		return err
	}
	return r.printJSON(raw)
}

// maxCompleted is how many ids a shell offers.
const maxCompleted = 50

// completeIDs completes the ids of a list; if the server cannot be asked, it completes
// nothing.
func (c *cli) completeIDs(of string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		client, err := c.client(cmd, cmd.Flag("data").Value.String())
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, _ := chat.List[struct{ ID, Title, Name string }](cmd.Context(), client, of, "", maxCompleted)
		ids := make([]string, len(all))
		for i, item := range all {
			ids[i] = cobra.CompletionWithDesc(item.ID, printable(item.Title+item.Name)) // an item has one of the two
		}
		return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// listing describes a list command.
type listing[T any] struct {
	of, short, searched string
	empty               string // what to tell a person who has none, with a %s for flags
	header              []string
	row                 func(T) []cell
}

func listCommand[T any](c *cli, spec listing[T]) *cobra.Command {
	var limit int
	var search string
	cmd := c.remoteSub(remoteCommand{use: "list", short: spec.short, long: spec.short + ".", run: func(ctx context.Context, r *remoteRun) error {
		if limit < 1 {
			return process.Usage("--limit: want at least 1")
		}
		raw, err := chat.List[json.RawMessage](ctx, r.client, spec.of, search, limit)
		if err != nil {
			return err
		}
		if r.json {
			return r.printJSON(map[string]any{spec.of: raw})
		}
		if len(raw) == 0 && c.screen().tables {
			_, err := fmt.Fprintf(c.out, spec.empty+"\n", r.client.Flags)
			return err
		}
		rows := make([][]cell, len(raw))
		for i, text := range raw {
			var item T
			if err := json.Unmarshal(text, &item); err != nil {
				return fmt.Errorf("list the %s: %w", spec.of, err)
			}
			rows[i] = spec.row(item)
		}
		return c.screen().table(spec.header, rows)
	}})
	cmd.Flags().IntVar(&limit, "limit", 20, "maximum number, newest first")
	cmd.Flags().StringVar(&search, "search", "", "only those with these words in the "+spec.searched)
	return cmd
}

// style is how text looks on the output.
func (c *cli) style() chat.Style {
	s := c.screen()
	return chat.Style{Width: s.width, Colours: s.colours}
}
