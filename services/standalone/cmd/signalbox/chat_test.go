package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// atPrompt starts a command at a terminal of its own and returns the dialogue with it.
func (g *gateway) atPrompt(t *testing.T, args ...string) (*dialogue, *exec.Cmd) {
	t.Helper()
	ours, theirs := pty(t)
	if err := unix.IoctlSetWinsize(int(theirs.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // expect then says what it waits for
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "signalbox", args...)
	cmd.Env = append(os.Environ(), append(g.environ(), "TERM=xterm-256color")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close() // the program has its own
	return &dialogue{t: t, tty: ours}, cmd
}

func (d *dialogue) press(keys string) {
	d.t.Helper()
	if _, err := io.WriteString(d.tty, keys); err != nil {
		d.t.Fatal(err)
	}
}

// A conversation at a terminal: formatted answers, readable tools, commands, history, and a
// Ctrl-C that stops only the answer.
func TestChatAtTerminal(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	d, cmd := g.atPrompt(t, "chat", "--session", "0001")
	d.expect("> an earlier question")
	d.expect("an \x1b[1mearlier\x1b[22m answer")
	d.expect("sim/model-1 · /help")

	d.press("find tea\r")
	d.expect("> find tea")
	d.expect("→ \x1b[22mdoc_list  \x1b[2mquery: tea")
	d.expect("✓ \x1b[22mdoc_list  \x1b[2mdocuments: 1")
	d.expect("There is \x1b[1mone\x1b[22m about tea.")
	d.expect("[stop, 2 steps, 3 tokens in, 4 out]")

	d.press("wait\r")
	d.expect("one two")
	d.press("\x03")
	d.expect("[cancelled, 1 step, 1 tokens in, 2 out]")

	d.press("fail\r")
	d.expect("error: The provider is on fire.")

	for _, step := range []struct{ typed, shown string }{
		{"/help", "/resume [number or id]"},
		{"/model", "sim/other  "},
		{"/model 1", "sim/other answers in this session."},
		{"/tools", "✓ doc_list"},
		{"/doc", "1 2026-11-23 14:53  "},
		{"/doc 1", "It is \x1b[3mhot\x1b[23m."},
		{"/resume", "About tea"},
		{"/resume 1", "> an earlier question"},
		{"/nonsense", "there is no command /nonsense"},
		{"/new", "New session " + sessionID},
	} {
		d.press(step.typed + "\r")
		d.expect(step.shown)
	}

	// Up recalls earlier input, Ctrl-U clears the line, and Ctrl-D ends the chat.
	d.press("\x1b[A\x1b[A\r")
	d.expect("there is no command /nonsense")
	d.press("unsaid\x15\x04")
	d.expect("signalbox chat --session " + sessionID)
	_, _ = io.Copy(io.Discard, d.tty) // until the program has closed its end
	if err := cmd.Wait(); err != nil {
		t.Errorf("chat ends with %v", err)
	}
	if strings.Contains(d.seen.String(), "the run failed") {
		t.Error("a failed run is told twice")
	}
}

// A single message at a terminal is answered in the same format, and a failed run is exit code 1.
func TestMessageAtTerminal(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	for message, want := range map[string]struct {
		said string
		code int
	}{
		"find": {"There is \x1b[1mone\x1b[22m about tea.", 0},
		"fail": {"error: The provider is on fire.", 1},
	} {
		d, cmd := g.atPrompt(t, "chat", message)
		d.expect(want.said)
		_, _ = io.Copy(io.Discard, d.tty) // until the program has closed its end
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != want.code {
			t.Errorf("chat %q = %v, want it to end with %d", message, err, want.code)
		}
	}
}
