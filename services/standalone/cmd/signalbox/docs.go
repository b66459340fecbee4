package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"

	"github.com/spf13/cobra"

	"signalbox.dev/services/standalone/internal/chat"
)

func (c *cli) docs() *cobra.Command {
	cmd := &cobra.Command{Use: "docs", Short: "List, show and edit documents", Args: none}
	cmd.AddCommand(
		listCommand(c, listing[chat.Document]{
			of: "documents", short: "List documents, last changed first", searched: "name",
			empty:  "There are no documents. Have an agent create one: signalbox chat%s 'create a document about tea'",
			header: []string{"ID", "NAME", "UPDATED"},
			row: func(d chat.Document) []cell {
				return []cell{{d.ID, plain}, {d.Name, plain}, {chat.Day(d.UpdatedAt), grey}}
			},
		}),
		c.remoteSub(remoteCommand{
			use: "show <document>", short: "Show a document as Markdown", of: "documents",
			long: "Shows a document: formatted at a terminal, as Markdown in a pipe.",
			run: func(ctx context.Context, r *remoteRun) error {
				if r.json {
					return r.printAPI(ctx, "/api/documents/"+r.id)
				}
				d, err := r.client.Document(ctx, r.id)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.out, c.style().Markdown(d.Content))
				return err
			},
		}),
		c.remoteSub(remoteCommand{
			use: "edit <document>", short: "Edit a document as Markdown in $EDITOR", of: "documents",
			long: `Opens the document's Markdown in $VISUAL, $EDITOR or vi, and saves the changes. The
server merges them with other people's changes, where it can. Lines that the document
cannot keep as written are listed. If the text cannot be saved, it stays in a file whose
name is printed.`,
			run: func(ctx context.Context, r *remoteRun) error {
				d, err := r.client.Document(ctx, r.id)
				if err != nil {
					return err
				}
				saved, err := c.editDocument(ctx, r.client, d)
				switch {
				case err != nil:
					return err
				case r.json && saved == nil:
					return r.printAPI(ctx, "/api/documents/"+r.id)
				case r.json:
					return c.printJSON(saved)
				case saved != nil:
					_, err = fmt.Fprintf(c.out, "saved %s\n", printable(d.Name))
				default:
					_, err = fmt.Fprintf(c.out, "no changes in %s\n", printable(d.Name))
				}
				return err
			},
		}),
	)
	return group(cmd)
}

// editDocument lets a person edit a document, and saves it. It returns the server's answer,
// nil if nothing was changed. If the editor or saving fails, the file with the text stays.
func (c *cli) editDocument(ctx context.Context, client *chat.Client, d chat.Document) (saved json.RawMessage, err error) {
	f, err := os.CreateTemp("", "signalbox-*.md")
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(d.Content)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		_ = os.Remove(f.Name()) // nothing is written in it yet
		return nil, err
	}
	failed := c.openEditor(ctx, f.Name())
	text, err := os.ReadFile(f.Name())
	switch {
	case err != nil:
		return nil, errors.Join(failed, err)
	case string(text) == d.Content:
		_ = os.Remove(f.Name()) // the document has it all
		return nil, failed
	case failed != nil:
		return nil, fmt.Errorf("%w; your text is in %s", failed, f.Name())
	}
	saved, warnings, err := client.UpdateDocument(ctx, d.ID, map[string]any{"content": string(text), "base": d.Sequence})
	if err != nil {
		return nil, fmt.Errorf("%w; your text is in %s", err, f.Name())
	}
	for _, w := range warnings {
		fmt.Fprintf(c.err, "line %d: %s is kept as %s\n", w.Line, printable(w.What), printable(w.KeptAs))
	}
	_ = os.Remove(f.Name()) // it is saved
	return saved, nil
}

// openEditor lets a person edit a file. Meanwhile Ctrl-C is for the editor: this process
// catches and drops it, because the editor would inherit an ignored signal.
func (c *cli) openEditor(ctx context.Context, file string) error {
	editor := "vi"
	for _, name := range []string{"EDITOR", "VISUAL"} {
		if v := c.variable(name); v != "" {
			editor = v
		}
	}
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	// Through the shell, because the variable may contain arguments and quotes.
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, "sh", file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the editor %s: %w; set EDITOR to another editor", editor, err)
	}
	return nil
}
