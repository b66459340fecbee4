package world

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Timeout is the timeout of every wait for a part.
const Timeout = 60 * time.Second

// Part is a part of a world that can be stopped and restarted.
type Part interface {
	// Name is unique in the world: postgres, nats, simulator, gateway-1.
	Name() string
	// Kill ends the part like `kill -9`, and returns when all of its processes have ended.
	Kill() error
	// Stop shuts the part down and waits for its end. It does nothing if the part has ended.
	Stop() error
	// Restart starts the part again with the same settings, and does not wait until it is ready.
	Restart() error
	// Ready waits until the part is ready.
	Ready(ctx context.Context) error
	// Running reports whether the part has been started and has not ended.
	Running() bool
}

// Proc is a program of a world.
type Proc struct {
	// Service is the program's name and Replica counts from 1.
	Service string
	Replica int
	// Addr is its listen address, Ops the base URL of its /metrics.
	Addr, Ops string

	name, path, log, health string
	args                    []string
	as                      func(*syscall.SysProcAttr)
	killed                  bool

	mu   sync.Mutex // guards what follows
	env  []string
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	err  error         // its error, valid once done is closed
}

// spec describes how to run a program.
type spec struct {
	name, path, dir   string // dir has its log
	service           string
	replica           int
	addr, ops, health string // health is the URL that answers 200 when it is ready, or tcp://…, where it then listens
	args, env         []string
	as                func(*syscall.SysProcAttr) // chooses another user; may be nil
	killed            bool                       // it has nothing to lose, and is killed to stop it
}

// run starts a program with only env and PATH as its environment, and its output in a file.
func run(s spec) (*Proc, error) {
	p := &Proc{
		Service: s.service, Replica: s.replica, Addr: s.addr, Ops: s.ops,
		name: s.name, path: s.path, log: filepath.Join(s.dir, s.name+".log"), health: s.health, args: s.args, as: s.as, killed: s.killed,
		env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, s.env...),
	}
	return p, p.Restart()
}

// Name implements Part.
func (p *Proc) Name() string { return p.name }

// LogFile returns the path of the program's log.
func (p *Proc) LogFile() string { return p.log }

// Restart implements Part.
func (p *Proc) Restart() error {
	if p.Running() {
		return fmt.Errorf("%s is running", p.name)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the program has inherited it
	cmd := exec.Command(p.path, p.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.environment(), log, log
	cmd.SysProcAttr = dieWithUs()
	if p.as != nil {
		p.as(cmd.SysProcAttr)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	done := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.done = cmd, done
	p.mu.Unlock()
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(done)
	}()
	return nil
}

// Again runs the program a second time in the same environment, like `docker exec` in a
// container. Its error contains the program's output.
func (p *Proc) Again(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Env = p.environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %q: %w: %s", p.name, args, err, out)
	}
	return nil
}

func (p *Proc) environment() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.env)
}

// Env returns a variable of the program's environment, "" if it is not set.
func (p *Proc) Env(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range slices.Backward(p.env) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// SetEnv sets a variable of the environment from the next start on.
func (p *Proc) SetEnv(name, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.env = append(p.env, name+"="+value) // the last one counts
}

// PID returns the process id of the running program, or of the last one.
func (p *Proc) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Done is closed when the current process has ended.
func (p *Proc) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Running implements Part.
func (p *Proc) Running() bool {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done == nil {
		return false
	}
	select {
	case <-done:
		return false
	default:
		return true
	}
}

// Ended returns the program's error, nil for exit status 0. Call it after Done.
func (p *Proc) Ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Signal sends a signal to the program.
func (p *Proc) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	cmd := p.cmd
	p.mu.Unlock()
	return cmd.Process.Signal(sig)
}

// Kill implements Part.
func (p *Proc) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.Done()
	return nil
}

// Stop implements Part.
func (p *Proc) Stop() error {
	if !p.Running() {
		return nil
	}
	if p.killed {
		return p.Kill()
	}
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.Done():
		if err := p.Ended(); err != nil {
			return fmt.Errorf("%s did not end well: %w\n%s", p.name, err, p.Tail(4000))
		}
		return nil
	case <-time.After(Timeout):
		return errors.Join(fmt.Errorf("%s did not end after SIGTERM", p.name), p.Kill())
	}
}

// Ready implements Part: the program's health page answers 200.
func (p *Proc) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	done := p.Done()
	for {
		err := p.healthy(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-done:
			ended := p.Ended()
			if ended == nil {
				ended = errors.New("exit status 0")
			}
			return fmt.Errorf("%s ended: %w\n%s", p.name, ended, p.Tail(4000))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", p.name, err, p.Tail(4000))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *Proc) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if addr, ok := strings.CutPrefix(p.health, "tcp://"); ok {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.health, nil)
	if err != nil {
		return err
	}
	req.Close = true // the next request may reach another process
	// The certificate is for the service's name, and nothing secret is asked.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // as above
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body) // only the status counts
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// Tail returns the last n bytes of the program's log.
func (p *Proc) Tail(n int64) string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-n), n))
	if err != nil {
		return err.Error()
	}
	return string(b)
}
