package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"signalbox.dev/services/standalone/internal/chat"
)

func (c *cli) sessions() *cobra.Command {
	cmd := &cobra.Command{Use: "sessions", Short: "List and show sessions", Args: none}
	cmd.AddCommand(
		listCommand(c, listing[chat.Session]{
			of: "sessions", short: "List sessions, newest first", searched: "title",
			empty:  "There are no sessions. Start one with: signalbox chat%s",
			header: []string{"ID", "TITLE", "MODEL", "UPDATED"},
			row: func(s chat.Session) []cell {
				return []cell{{s.ID, plain}, {s.Title, plain}, {s.Provider + "/" + s.Model, grey}, {chat.Day(s.UpdatedAt), grey}}
			},
		}),
		c.remoteSub(remoteCommand{
			use: "show <session>", short: "Show the messages of a session", of: "sessions",
			long: "Shows the messages of a session. To continue it: signalbox chat --session <session>.",
			run: func(ctx context.Context, r *remoteRun) error {
				if r.json {
					return r.printAPI(ctx, "/api/sessions/"+r.id)
				}
				d, err := r.client.Session(ctx, r.id)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.out, c.style().Transcript(d.Messages))
				return err
			},
		}),
	)
	return group(cmd)
}
