package process_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/process"
)

// TestMain is also the child process: the tests need a process of their own for signals and exit
// codes.
func TestMain(m *testing.M) {
	if story := os.Getenv("PROCESS_TEST_STORY"); story != "" {
		os.Exit(process.Main(stories[story]))
	}
	os.Exit(m.Run())
}

var errBroken = errors.New("the disk is full")

var stories = map[string]func(context.Context) error{
	"well":    func(context.Context) error { return nil },
	"failed":  func(context.Context) error { return fmt.Errorf("open: %w", errBroken) },
	"partial": func(context.Context) error { return fmt.Errorf("%w: 2 left out", process.ErrPartial) },
	"shown":   func(context.Context) error { return fmt.Errorf("run: %w", process.ErrShown) },
	"usage":   func(context.Context) error { return fmt.Errorf("up: %w", process.Usage("unknown flag %q", "--x")) },
	"drain": func(ctx context.Context) error {
		fmt.Println("ready") //nolint:forbidigo // the child of this test
		<-ctx.Done()
		fmt.Println("drained") //nolint:forbidigo // the child of this test
		return nil
	},
	"hang": func(ctx context.Context) error {
		fmt.Println("ready") //nolint:forbidigo // the child of this test
		<-ctx.Done()
		fmt.Println("draining") //nolint:forbidigo // the child of this test
		select {}
	},
}

type child struct {
	cmd    *exec.Cmd
	stdout *bufio.Scanner
	stderr *strings.Builder
}

func start(t *testing.T, story string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	c := &child{cmd: exec.CommandContext(ctx, self), stderr: &strings.Builder{}}
	c.cmd.Env = append(os.Environ(), "PROCESS_TEST_STORY="+story)
	c.cmd.Stderr = c.stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdout = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *child) expect(t *testing.T, line string) {
	t.Helper()
	if !c.stdout.Scan() || c.stdout.Text() != line {
		t.Fatalf("child said %q (%v), want %q; stderr: %s", c.stdout.Text(), c.stdout.Err(), line, c.stderr)
	}
}

func (c *child) wait(t *testing.T) *os.ProcessState {
	t.Helper()
	_ = c.cmd.Wait() // the process state has the exit code
	return c.cmd.ProcessState
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		code   int
		stderr string
	}{
		{"well", 0, ""},
		{"failed", 1, "error: open: the disk is full\n"},
		{"shown", 1, ""},
		{"partial", 3, "error: only part of the work was done: 2 left out\n"},
		{"usage", 2, "up: usage: unknown flag \"--x\"\n"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			c := start(t, tt.story)
			if got := c.wait(t).ExitCode(); got != tt.code {
				t.Errorf("exit code %d, want %d", got, tt.code)
			}
			if got := c.stderr.String(); got != tt.stderr {
				t.Errorf("stderr %q, want %q", got, tt.stderr)
			}
		})
	}
}

func TestFirstSignalDrains(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			c := start(t, "drain")
			c.expect(t, "ready")
			if err := c.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			c.expect(t, "drained")
			if got := c.wait(t).ExitCode(); got != 0 {
				t.Errorf("exit code %d after a drain, want 0", got)
			}
		})
	}
}

func TestSecondSignalEnds(t *testing.T) {
	t.Parallel()
	c := start(t, "hang")
	c.expect(t, "ready")
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	c.expect(t, "draining")
	ended := make(chan *os.ProcessState, 1)
	go func() { ended <- c.wait(t) }()
	// The default action is restored a moment after the first signal, so repeat the second one.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case state := <-ended:
			status, ok := state.Sys().(syscall.WaitStatus)
			if !ok || status.Signal() != syscall.SIGINT {
				t.Errorf("ended as %v, want by SIGINT", state)
			}
			return
		case <-again.C:
			if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	if err := process.Usage("no %s", "command"); !errors.Is(err, process.ErrUsage) || err.Error() != "usage: no command" {
		t.Errorf("Usage = %v", err)
	}
	if errors.Is(io.EOF, process.ErrUsage) {
		t.Error("another error is no usage error")
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	if want := cmp.Or(os.Getenv("PROCESS_TEST_VERSION"), "devel"); process.Version() != want {
		t.Errorf("Version() = %q, want %q", process.Version(), want)
	}
}

// The linker flag of the Makefile and the Dockerfile sets Version.
func TestVersionStamp(t *testing.T) {
	t.Parallel()
	for _, recipe := range []string{"../../Makefile", "../../deploy/Dockerfile"} {
		b, err := os.ReadFile(recipe)
		if err != nil {
			t.Fatal(err)
		}
		flag := regexp.MustCompile(`-X (\S+)=\$`).FindStringSubmatch(string(b))
		if flag == nil {
			t.Fatalf("%s stamps no version", recipe)
		}
		cmd := exec.CommandContext(t.Context(), "go", "test", "-ldflags", "-X "+flag[1]+"=1.2.3", "-run", "^TestVersion$", ".")
		cmd.Env = append(os.Environ(), "PROCESS_TEST_VERSION=1.2.3")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("with the flag of %s: %v\n%s", recipe, err, out)
		}
	}
}
