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
	var f listFlags
	list := c.remoteCommand("list", "List documents, last changed first", "Lists documents, last changed first.", none,
		func(cmd *cobra.Command, r *remote, client *chat.Client, _ []string) error {
			raw, all, err := listed[chat.Document](cmd, client, "documents", &f)
			if err != nil {
				return err
			}
			if r.asJSON {
				return c.printJSON(map[string]any{"documents": raw})
			}
			if len(all) == 0 && c.screen().tables {
				_, err := fmt.Fprintf(c.out, "There are no documents. An agent makes one: signalbox chat%s 'create a document about tea'\n", client.Flags)
				return err
			}
			var rows [][]cell
			for _, d := range all {
				rows = append(rows, []cell{{d.ID, plain}, {d.Name, plain}, {chat.Day(d.UpdatedAt), grey}})
			}
			return c.screen().table([]string{"ID", "NAME", "UPDATED"}, rows)
		})
	show := c.remoteCommand("show <document>", "Show a document as Markdown", "Shows a document: formatted at a terminal, as Markdown in a pipe.\n", nil,
		func(cmd *cobra.Command, r *remote, client *chat.Client, args []string) error {
			id, err := client.Find(cmd.Context(), "documents", args[0])
			if err != nil {
				return err
			}
			if r.asJSON {
				return c.printRaw(cmd, client, "/api/documents/"+id)
			}
			d, err := client.Document(cmd.Context(), id)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.out, c.style().Markdown(d.Content))
			return err
		})
	edit := c.remoteCommand("edit <document>", "Edit a document as Markdown in $EDITOR",
		`Opens the document's Markdown in $VISUAL, $EDITOR or vi, and saves what was changed.
What others wrote meanwhile is kept where the server can merge. Lines that the document
does not hold as they were written are named. When it cannot be saved, the text stays
in a file that is named.
`, nil,
		func(cmd *cobra.Command, r *remote, client *chat.Client, args []string) error {
			id, err := client.Find(cmd.Context(), "documents", args[0])
			if err != nil {
				return err
			}
			d, err := client.Document(cmd.Context(), id)
			if err != nil {
				return err
			}
			saved, err := c.editDocument(cmd.Context(), client, d)
			switch {
			case err != nil:
				return err
			case r.asJSON && saved == nil:
				return c.printRaw(cmd, client, "/api/documents/"+id)
			case r.asJSON:
				return c.printJSON(saved)
			case saved != nil:
				_, err = fmt.Fprintf(c.out, "saved %s\n", printable(d.Name))
			default:
				_, err = fmt.Fprintf(c.out, "nothing was changed in %s\n", printable(d.Name))
			}
			return err
		})
	cmd.AddCommand(f.add(list, "name"), c.oneID(show, "documents", "name"), c.oneID(edit, "documents", "name"))
	return group(cmd)
}

// editDocument lets a person change a document, and saves it: saved is the server's
// answer, nil where nothing was changed. The file with the text is left where saving or the
// editor fails.
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
		_ = os.Remove(f.Name()) // nobody has written in it yet
		return nil, err
	}
	failed := c.openEditor(ctx, f.Name())
	text, err := os.ReadFile(f.Name())
	switch {
	case err != nil:
		return nil, errors.Join(failed, err)
	case string(text) == d.Content:
		_ = os.Remove(f.Name()) // nothing is in it that the document has not
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

// openEditor lets a person edit a file. Ctrl-C is the editor's meanwhile: it is caught here
// and dropped, because the editor would inherit that it is ignored.
func (c *cli) openEditor(ctx context.Context, file string) error {
	editor := "vi"
	for _, name := range []string{"EDITOR", "VISUAL"} {
		if v := c.variable(name); v != "" {
			editor = v
		}
	}
	dropped := make(chan os.Signal, 1)
	signal.Notify(dropped, os.Interrupt)
	defer signal.Stop(dropped)
	// The shell, because the variable may hold arguments and quotes.
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, "sh", file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the editor %s: %w; set EDITOR to another one", editor, err)
	}
	return nil
}
