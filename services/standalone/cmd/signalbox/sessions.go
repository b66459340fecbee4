package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"signalbox.dev/pkg/process"
	"signalbox.dev/services/standalone/internal/chat"
)

// elsewhere is the end of the help of what speaks with a running Signalbox.
const elsewhere = `
It finds the Signalbox that runs in the data folder. SIGNALBOX_URL, SIGNALBOX_TOKEN
and SIGNALBOX_WORKSPACE name one elsewhere.`

// remote are the flags of a command that speaks with a running Signalbox.
type remote struct {
	data   string
	asJSON bool
}

// remoteCommand returns a command that speaks with a running Signalbox.
func (c *cli) remoteCommand(use, short, long string, args cobra.PositionalArgs, run func(cmd *cobra.Command, r *remote, client *chat.Client, args []string) error) *cobra.Command {
	r := &remote{}
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long + elsewhere, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := c.client(cmd, r.data)
			if err != nil {
				return err
			}
			return run(cmd, r, client, args)
		},
	}
	dataFlag(cmd, &r.data)
	jsonFlag(cmd, &r.asJSON)
	return cmd
}

// oneID takes one argument, the id of one of a list, and completes it.
func (c *cli) oneID(cmd *cobra.Command, what, name string) *cobra.Command {
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return process.Usage("%s takes one id, or its beginning or end: `signalbox %s list` has them", cmd.Name(), cmd.Parent().Name())
		}
		return nil
	}
	cmd.ValidArgsFunction = c.completeIDs(what, name)
	return cmd
}

// completeIDs completes the ids of a list, with its names; where nothing can be asked it
// completes nothing.
func (c *cli) completeIDs(what, name string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		client, err := c.client(cmd, cmd.Flag("data").Value.String())
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, _ := chat.List[map[string]any](cmd.Context(), client, what, "", completed)
		ids := make([]string, len(all))
		for i, item := range all {
			ids[i] = cobra.CompletionWithDesc(fmt.Sprint(item["id"]), printable(fmt.Sprint(item[name])))
		}
		return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// completed is how many ids a shell offers.
const completed = 50

// listFlags narrow a list.
type listFlags struct {
	limit  int
	search string
}

func (f *listFlags) add(cmd *cobra.Command, in string) *cobra.Command {
	cmd.Flags().IntVar(&f.limit, "limit", 20, "how many, newest first")
	cmd.Flags().StringVar(&f.search, "search", "", "only those with these words in the "+in)
	return cmd
}

// listed reads a list as it is and, of the same items, what a table shows.
func listed[T any](cmd *cobra.Command, client *chat.Client, what string, f *listFlags) ([]json.RawMessage, []T, error) {
	if f.limit < 1 {
		return nil, nil, process.Usage("--limit: want at least 1")
	}
	raw, err := chat.List[json.RawMessage](cmd.Context(), client, what, f.search, f.limit)
	if err != nil {
		return nil, nil, err
	}
	items := make([]T, len(raw))
	for i, r := range raw {
		if err := json.Unmarshal(r, &items[i]); err != nil {
			return nil, nil, fmt.Errorf("list the %s: %w", what, err)
		}
	}
	return raw, items, nil
}

func (c *cli) sessions() *cobra.Command {
	cmd := &cobra.Command{Use: "sessions", Short: "List and show sessions", Args: none}
	var f listFlags
	list := c.remoteCommand("list", "List sessions, newest first", "Lists sessions, newest first.", none,
		func(cmd *cobra.Command, r *remote, client *chat.Client, _ []string) error {
			raw, all, err := listed[chat.Session](cmd, client, "sessions", &f)
			if err != nil {
				return err
			}
			if r.asJSON {
				return c.printJSON(map[string]any{"sessions": raw})
			}
			if len(all) == 0 && c.screen().tables {
				_, err := fmt.Fprintln(c.out, "There are no sessions. Begin one with: signalbox chat"+client.Flags)
				return err
			}
			var rows [][]cell
			for _, s := range all {
				rows = append(rows, []cell{{s.ID, plain}, {s.Title, plain}, {s.Provider + "/" + s.Model, grey}, {chat.Day(s.UpdatedAt), grey}})
			}
			return c.screen().table([]string{"ID", "TITLE", "MODEL", "UPDATED"}, rows)
		})
	show := c.remoteCommand("show <session>", "Show what was said in a session",
		"Shows the messages of a session. To go on with it: signalbox chat --session <session>.\n", nil,
		func(cmd *cobra.Command, r *remote, client *chat.Client, args []string) error {
			id, err := client.Find(cmd.Context(), "sessions", args[0])
			if err != nil {
				return err
			}
			if r.asJSON {
				return c.printRaw(cmd, client, "/api/sessions/"+id)
			}
			d, err := client.Session(cmd.Context(), id)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.out, c.style().Transcript(d.Messages))
			return err
		})
	cmd.AddCommand(f.add(list, "title"), c.oneID(show, "sessions", "title"))
	return group(cmd)
}

// printRaw prints what the API answers.
func (c *cli) printRaw(cmd *cobra.Command, client *chat.Client, path string) error {
	raw, err := chat.Get[json.RawMessage](cmd.Context(), client, path)
	if err != nil {
		return err
	}
	return c.printJSON(raw)
}

// style is how text looks on the output.
func (c *cli) style() chat.Style {
	s := c.screen()
	return chat.Style{Width: s.width, Colours: s.colours}
}
