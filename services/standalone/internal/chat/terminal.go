package chat

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"signalbox.dev/pkg/process"
)

// Terminal is a conversation in plain text, in a pipe or at a simple terminal.
type Terminal struct {
	Client  *Client
	Session string
	Out     io.Writer
	// JSON prints each event as a line of JSON instead of prose.
	JSON bool
	// Style formats all that is not the answer itself.
	Style Style

	// read reads a line that the person types; nil if nobody does.
	read  func(prompt string) (string, bool)
	asked questions

	explained   bool // what a simulated answer is
	inReasoning bool
	midLine     bool // the cursor is not at the beginning of a line
}

// Talk reads messages from in, one per line, and shows prompt before each. Ctrl-C stops an
// answer, and ends the program at the prompt.
func (t *Terminal) Talk(ctx context.Context, in io.Reader, prompt string) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	t.read = func(prompt string) (string, bool) {
		fmt.Fprint(t.Out, prompt)
		more := lines.Scan()
		return lines.Text(), more
	}
	for {
		fmt.Fprint(t.Out, prompt)
		if !lines.Scan() {
			if prompt != "" {
				fmt.Fprintln(t.Out)
			}
			return lines.Err()
		}
		text := strings.TrimSpace(lines.Text())
		switch text {
		case "":
			continue
		case "/quit", "/exit":
			return nil
		}
		if err := t.Say(ctx, text); err != nil && !errors.Is(err, process.ErrShown) {
			if _, ok := errors.AsType[errFinal](err); !ok && ctx.Err() != nil {
				return err
			}
			t.line("error: " + err.Error())
		}
	}
}

// Say sends one message and shows the answer. Ctrl-C asks Signalbox to stop the run. If the
// run fails, Say shows its error and returns process.ErrShown.
func (t *Terminal) Say(ctx context.Context, text string) error {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	stopped := make(chan error, 1)
	over := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-interrupts:
			stopped <- t.Client.Cancel(ctx, t.Session)
		case <-over:
		}
	}()
	var failed error
	err := t.Client.Send(ctx, t.Session, text, func(ev Event) error {
		if ev.Type == "error" {
			failed = process.ErrShown
		}
		return t.show(ctx, ev)
	})
	close(over)
	return cmp.Or(errors.Join(err, <-stopped), failed)
}

func (t *Terminal) show(ctx context.Context, ev Event) error {
	if t.JSON {
		b, err := json.Marshal(map[string]any{"id": ev.ID, "event": ev.Type, "data": ev.Data})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(t.Out, "%s\n", b)
		return err
	}
	d, err := ev.parse()
	if err != nil {
		return err
	}
	switch ev.Type {
	case "run-start":
		if d.Simulated && !t.explained {
			t.explained = true
			t.line(t.Client.simulatedNote())
		}
	case "text-delta":
		t.write(false, d.Delta)
	case "reasoning-delta":
		t.write(true, d.Delta)
	case "tool-call-complete":
		t.line(t.Style.dim("→ " + d.ToolName + " " + clip(string(d.Args), 200)))
	case "tool-result":
		mark := "← "
		if d.IsError {
			mark = "✗ "
		}
		t.line(t.Style.dim(mark + d.ToolName + " " + clip(d.Result, 200)))
	case "source":
		t.line(t.Style.dim("· " + d.Title + " " + d.URL))
	case "step-retry":
		t.line(t.Style.dim("↻ " + d.Reason))
	case "tool-approval-request":
		t.asked.add(d.asked())
	case "tool-client-request":
		t.line(t.Style.dim(d.clientRequest()))
	case "tool-approval-response":
		t.asked.remove(d.ToolCallID)
		t.line(t.Style.dim(d.decided()))
	case "compaction":
		t.line(t.Style.dim(fmt.Sprintf("… the first %d messages are summarized for the model", d.Messages)))
	case "waiting":
		if d.ForPerson {
			return t.ask(ctx)
		}
		t.line(t.Style.dim("… waiting: " + d.Reason + " " + d.Until))
	case "error":
		t.line("error: " + d.Error)
	case "done":
		t.line(t.Style.dim(d.summary()))
	}
	return nil
}

// ask asks the person about the tool calls that wait, and sends the answers.
func (t *Terminal) ask(ctx context.Context) error {
	for {
		q, ok := t.asked.first()
		if !ok {
			return nil
		}
		t.line(q.String())
		body, ok := map[string]any(nil), false
		for !ok {
			if t.read == nil {
				t.line("  Nobody can type here: answer in an interactive chat, or with POST /api/sessions/" + t.Session + "/approvals/" + q.ToolCallID)
				t.asked.clear()
				return nil
			}
			typed, more := t.read("y/n> ")
			if !more {
				t.read = nil
				continue
			}
			body, ok = q.answer(typed)
		}
		t.asked.remove(q.ToolCallID)
		if err := t.Client.Decide(ctx, t.Session, q.ToolCallID, body); err != nil {
			t.line("error: " + err.Error()) // somebody else may have answered
		}
	}
}

// Plural returns a number and a noun, with an s if needed.
func Plural[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// write continues the text; a change between reasoning and answer begins a new line.
func (t *Terminal) write(reasoning bool, text string) {
	if reasoning != t.inReasoning {
		t.newline()
		t.inReasoning = reasoning
	}
	if text == "" {
		return
	}
	t.midLine = !strings.HasSuffix(text, "\n")
	if reasoning {
		text = t.Style.dim(text)
	}
	fmt.Fprint(t.Out, text)
}

// line writes a separate line.
func (t *Terminal) line(text string) {
	t.newline()
	fmt.Fprintln(t.Out, text)
}

func (t *Terminal) newline() {
	if t.midLine {
		fmt.Fprintln(t.Out)
		t.midLine = false
	}
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}
