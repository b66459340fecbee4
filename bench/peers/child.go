package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// child is a program that this one started. It ends when its standard input does,
// or on a signal.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	log   *tail
	once  sync.Once
}

// tail keeps the end of what a program says, for the error when it fails.
type tail struct {
	mu sync.Mutex // guards b
	b  []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - 4<<10; over > 0 {
		t.b = t.b[over:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// launch starts a program with no more in its environment than env and what
// finds programs and folders.
func launch(name, program string, env []string, args ...string) (*child, io.Reader, error) {
	cmd := exec.Command(program, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, env...)
	c := &child{name: name, cmd: cmd, log: &tail{}}
	cmd.Stderr = c.log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.stdin = stdin
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, stdout, nil
}

// self starts this program in another role and returns its address.
func self(name string, env []string, args ...string) (*child, string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("find this program: %w", err)
	}
	c, out, err := launch(name, program, env, args...)
	if err != nil {
		return nil, "", err
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		c.stop()
		return nil, "", fmt.Errorf("%s does not say where it listens: %w\n%s", name, err, c.log)
	}
	return c, strings.TrimSpace(addr), nil
}

const patience = 10 * time.Second

// stop ends the program and waits for it.
func (c *child) stop() {
	c.once.Do(func() {
		_ = c.stdin.Close()
		_ = c.cmd.Process.Signal(os.Interrupt)
		late := time.AfterFunc(patience, func() { _ = c.cmd.Process.Kill() })
		defer late.Stop()
		_ = c.cmd.Wait() // it was told to end; how it does is nobody's concern
	})
}

// ready waits until a URL answers 200.
func (c *child) ready(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s does not come up\n%s", c.name, c.log)
		}
	}
}

// serve is the life of a program that was started as a child: it says where it
// listens and ends with its standard input.
func serve(ctx context.Context, in io.Reader, out io.Writer, h http.Handler) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: patience}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(io.Discard, in) // until the end
		_ = srv.Close()
	})
	defer wg.Wait()
	fmt.Fprintln(out, l.Addr())
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// command runs a program to its end.
func command(ctx context.Context, env []string, stdin, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
