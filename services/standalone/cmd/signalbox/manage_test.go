package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// pty returns both ends of a pseudo-terminal.
func pty(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	path, err := unlock(ours)
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err = os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

// dialogue is a program at a terminal.
type dialogue struct {
	t    *testing.T
	tty  *os.File
	seen strings.Builder
	from int // how much of seen was matched
}

// expect reads until the program has printed a text.
func (d *dialogue) expect(text string) {
	d.t.Helper()
	b := make([]byte, 4096)
	for {
		if i := strings.Index(d.seen.String()[d.from:], text); i >= 0 {
			d.from += i + len(text)
			return
		}
		n, err := d.tty.Read(b)
		d.seen.Write(b[:n])
		if err != nil && n == 0 {
			d.t.Fatalf("the program ended, or hangs (%v), before it said %q; it said:\n%s", err, text, d.seen.String()[d.from:])
		}
	}
}

func (d *dialogue) say(line string) {
	d.t.Helper()
	if _, err := io.WriteString(d.tty, line+"\n"); err != nil {
		d.t.Fatal(err)
	}
}

// One Ctrl-C or Ctrl-D ends a question, even one without echo, and restores the echo.
func TestInterruptedQuestion(t *testing.T) {
	t.Parallel()
	p := newPlace(t, t.TempDir())
	for _, tt := range []struct {
		args             []string
		asked, key, said string
		code             int
	}{
		{[]string{"accounts", "add", "openai"}, "API key for openai (not shown): ", "\x03", "error: interrupted: nothing was changed", 1},
		{[]string{"accounts", "add", "openai"}, "API key for openai (not shown): ", "\x04", "usage: the key is missing", 2},
		{[]string{"accounts", "login", "sim"}, "Ctrl-C, and use --device or --paste.", "\x03", "error: the sign-in was interrupted", 1},
		{[]string{"accounts", "rotate-keys"}, "Do all brokers have it? [y/N] ", "\x03", "error: interrupted: nothing was changed", 1},
		{[]string{"accounts", "rotate-keys"}, "Do all brokers have it? [y/N] ", "\x04", "error: nothing was changed", 1},
	} {
		ours, theirs := pty(t)
		cmd := exec.CommandContext(t.Context(), "signalbox", tt.args...)
		cmd.Env = append(os.Environ(), append(p.environ, "TERM=xterm")...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		d := &dialogue{t: t, tty: ours}
		d.expect(tt.asked)
		if _, err := io.WriteString(ours, tt.key); err != nil {
			t.Fatal(err)
		}
		d.expect(tt.said)
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != tt.code {
			t.Errorf("%v = %v, want it to end with %d", tt.args, err, tt.code)
		}
		if lflag(t, theirs)&unix.ECHO == 0 {
			t.Errorf("%v: the terminal shows nothing that is typed", tt.args)
		}
		_ = theirs.Close()
	}
}

// lflag returns the local flags of a terminal.
func lflag(t *testing.T, tty *os.File) uint64 {
	t.Helper()
	termios, err := unix.IoctlGetTermios(int(tty.Fd()), getTermios)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(termios.Lflag)
}

func TestManage(t *testing.T) {
	t.Parallel()
	p := newPlace(t, t.TempDir())
	ours, theirs := pty(t)
	cmd := exec.CommandContext(t.Context(), "signalbox", "accounts", "manage")
	cmd.Env = append(os.Environ(), append(p.environ, "TERM=xterm", "NO_COLOR=")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close() // the program has its own
	d := &dialogue{t: t, tty: ours}

	const key = "sk-planted-secret-00000001"
	d.expect("[q]uit: ")
	d.say("a")
	d.expect("provider: ")
	d.say("sim")
	d.expect("label, or nothing: ")
	d.say("mine")
	d.expect("API key for sim (not shown): ")
	d.say(key)
	d.expect("added ")
	d.expect("\x1b[1mPROVIDER\x1b[0m") // a table, in colours
	d.expect("\x1b[32mready\x1b[0m")
	d.expect("[q]uit: ")
	d.say("9")
	d.expect(`error: "9" is not one of these`)
	d.expect("[q]uit: ")
	d.say("a")
	d.expect("provider: ")
	d.say("")
	d.expect("label, or nothing: ")
	d.say("")
	d.expect(`error: provider: "" is not a provider's name`)
	d.expect("[q]uit: ")
	d.say("1")
	d.expect("health")
	d.expect("or nothing: ")
	d.say("d")
	d.expect("disabled sim (mine)\r\n")
	d.expect("[q]uit: ")
	d.say("t")
	d.expect("provider: ")
	d.say("sim")
	d.expect("now sticky): ")
	d.say("hybrid")
	d.expect("the accounts for sim are chosen by hybrid\r\n")
	d.expect("[q]uit: ")
	d.say("1")
	d.expect("or nothing: ")
	d.say("w")
	d.expect("error: account ") // without the context of the error
	d.expect("is disabled: enable it first")
	d.expect("[q]uit: ")
	d.say("1")
	d.expect("or nothing: ")
	d.say("r")
	d.expect("Remove the credential sim (mine)? [y/N] ")
	d.say("n")
	d.expect("error: nothing was changed")
	d.expect("[q]uit: ")
	d.say("1")
	d.expect("or nothing: ")
	d.say("r")
	d.expect("[y/N] ")
	d.say("y")
	d.expect("removed ")
	d.expect("[q]uit: ")
	d.say("q")
	if err := cmd.Wait(); err != nil {
		t.Errorf("manage = %v", err)
	}
	if _, err := io.ReadAll(ours); err != nil && !errors.Is(err, syscall.EIO) { // the other end is closed
		t.Error(err)
	}
	if strings.Contains(d.seen.String(), key) {
		t.Error("the key was shown")
	}
	admin, err := pgx.Connect(t.Context(), p.adminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	var did string
	if err := admin.QueryRow(t.Context(), `SELECT string_agg(action || ' ' || detail, ',' ORDER BY sequence) FROM credentials.audit`).Scan(&did); err != nil {
		t.Fatal(err)
	}
	if want := `created ,changed disabled,changed settings {"strategy":"hybrid"},removed `; did != want {
		t.Errorf("the audit has %q, want %q", did, want)
	}
}
