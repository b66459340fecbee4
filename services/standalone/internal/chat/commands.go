package chat

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// command is a command that a person can type instead of a message.
type command struct {
	name, argument, alias, about string

	do func(t *talk, ctx context.Context, argument string) error // nil for help
}

var commands = []command{
	{"/help", "", "/?", "list the commands and keys", nil},
	{"/model", "[number or name]", "", "list the models, or switch to another one", (*talk).model},
	{"/tools", "", "", "list the tools, and which of them are enabled", (*talk).tools},
	{"/new", "", "", "begin a new session", func(t *talk, ctx context.Context, _ string) error { return t.begin(ctx, "") }},
	{"/resume", "[number or id]", "", "list the sessions, or resume one", (*talk).resume},
	{"/compact", "", "", "summarize the older messages before the next answer", (*talk).compact},
	{"/doc", "[number or id]", "/docs", "list the documents, or show one", (*talk).doc},
	{"/quit", "", "/exit", "end the chat; the session stays", func(*talk, context.Context, string) error { return errQuit }},
}

const keys = `Enter sends, Alt-Enter or Ctrl-J begins a new line. Up and Down recall earlier messages.
Ctrl-C stops an answer, clears what is typed, or ends the chat; Ctrl-D ends it.`

func (t *talk) help() error {
	var b strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&b, "%-27s %s\n", strings.TrimSpace(c.name+" "+c.argument), c.about)
	}
	t.block(ansi.Wrap(b.String()+"\n"+keys, t.style().width(), ""))
	return nil
}

func (t *talk) model(ctx context.Context, argument string) error {
	if argument == "" {
		all, err := t.client.Models(ctx)
		if err != nil {
			return err
		}
		for _, p := range all.Problems {
			t.line(t.style().red(oneLine(p.Provider+": "+p.Reason, t.style().width())))
		}
		hint := fmt.Sprintf("%s/%s answers here. /model 1 chooses the first.", clean(t.session.Provider), clean(t.session.Model))
		return t.list("models", hint, len(all.Models), func(i int) (id, name, about string) {
			return all.Models[i].ID, all.Models[i].Provider + "/" + all.Models[i].ID, all.Models[i].About()
		})
	}
	if n, err := strconv.Atoi(argument); err == nil && n >= 1 && n <= len(t.listed["models"]) {
		argument = t.listed["models"][n-1]
	}
	// A model's name may contain a slash: the part before it is a provider if there is no
	// model with the whole name.
	changed, err := t.client.UpdateSession(ctx, t.session.ID, map[string]any{"model": argument})
	if provider, model, ok := strings.Cut(argument, "/"); err != nil && ok {
		changed, err = t.client.UpdateSession(ctx, t.session.ID, map[string]any{"provider": provider, "model": model})
	}
	if err != nil {
		return err
	}
	t.session = changed
	t.block(fmt.Sprintf("%s/%s answers in this session.", clean(t.session.Provider), clean(t.session.Model)))
	return nil
}

func (t *talk) tools(ctx context.Context, _ string) error {
	all, err := Get[struct{ Tools []Tool }](ctx, t.client, "/api/tools")
	if err != nil {
		return err
	}
	s := t.style()
	var rows []string
	for _, tool := range all.Tools {
		mark := " "
		if tool.Always || t.session.Tools != nil && slices.Contains(*t.session.Tools, tool.Name) {
			mark = "✓"
		}
		about := tool.Description
		if !tool.Available {
			about = "not available: " + tool.UnavailableReason
		}
		rows = append(rows, s.listLine(mark, tool.Name, about))
	}
	which := "The session's tools are marked."
	if t.session.Tools == nil {
		which = "The session has its preset's tools; those marked are in every session."
	}
	t.block(strings.Join(rows, "\n") + "\n\n" + s.dim(s.wrap(which)))
	return nil
}

func (t *talk) resume(ctx context.Context, argument string) error {
	if argument != "" {
		id, err := t.resolve(ctx, "sessions", argument)
		if err != nil {
			return err
		}
		return t.begin(ctx, id)
	}
	all, err := List[Session](ctx, t.client, "sessions", "", maxListed)
	if err != nil {
		return err
	}
	return t.list("sessions", "/resume 1 continues the first.", len(all), func(i int) (id, name, about string) {
		return all[i].ID, Day(all[i].UpdatedAt), cmp.Or(all[i].Title, "(no messages)")
	})
}

func (t *talk) compact(ctx context.Context, _ string) error {
	if err := t.client.Compact(ctx, t.session.ID); err != nil {
		return err
	}
	t.line(t.style().dim("Before the next answer, the model summarizes the older messages for itself. They stay in the session."))
	return nil
}

func (t *talk) doc(ctx context.Context, argument string) error {
	if argument == "" {
		all, err := List[Document](ctx, t.client, "documents", "", maxListed)
		if err != nil {
			return err
		}
		return t.list("documents", "/doc 1 shows the first.", len(all), func(i int) (id, name, about string) {
			return all[i].ID, Day(all[i].UpdatedAt), all[i].Name
		})
	}
	id, err := t.resolve(ctx, "documents", argument)
	if err != nil {
		return err
	}
	d, err := t.client.Document(ctx, id)
	if err != nil {
		return err
	}
	s := t.style()
	t.block(s.bold(oneLine(d.Name, s.width())) + "  " + s.dim(d.ID) + "\n\n" + s.Markdown(d.Content))
	return nil
}

// maxListed is how many items of a list the chat shows.
const maxListed = 20

// list prints numbered items and keeps their ids for resolve.
func (t *talk) list(what, hint string, n int, item func(i int) (id, name, about string)) error {
	if n == 0 {
		t.block("There are no " + what + ".")
		return nil
	}
	var ids, rows []string
	for i := range n {
		id, name, about := item(i)
		ids = append(ids, id)
		rows = append(rows, t.style().listLine(fmt.Sprintf("%2d", i+1), name, about))
	}
	if t.listed == nil {
		t.listed = map[string][]string{}
	}
	t.listed[what] = ids
	t.block(strings.Join(rows, "\n") + "\n\n" + t.style().dim(t.style().wrap(hint)))
	return nil
}

// listLine returns one line of a list.
func (s Style) listLine(mark, name, about string) string {
	return mark + " " + oneLine(name, 40) + "  " + s.dim(oneLine(about, max(s.width()-ansi.StringWidth(mark+name)-3, 10)))
}

// Day shortens a timestamp of the API to the minute.
func Day(stamp string) string {
	return strings.Replace(stamp[:min(len(stamp), len("2026-11-23T14:53"))], "T", " ", 1)
}
