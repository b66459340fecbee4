package mcp

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/visible"
)

const (
	writeTimeout = 10 * time.Second // for a message that the process does not read
	exitGrace    = time.Second      // between the end of its input and the kill

	maxErrorLine  = 1024 // characters of a line of its standard error
	maxErrorLines = 200  // that are logged per minute
)

// processError says why a process cannot be used, to people who do not know the operator's
// machine.
type processError string

// Error implements error.
func (e processError) Error() string { return string(e) }

const (
	errExited    = processError("its process has ended; the log of tool-executor has what it said")
	errNoSandbox = processError("the operator has to install bubblewrap, in which it runs")
	errNotSetUp  = processError("its process cannot be started; the log of tool-executor has the reason")
)

// process is a running server. It reads what the server writes to its standard output, within
// bounds, and writes to its standard input.
type process struct {
	cmd    *exec.Cmd
	in     *os.File
	out    *os.File
	errors *os.File
	exited chan struct{}

	base *operation
	line int64 // bytes of the line that is being read
	scan scanner

	closing sync.Once
}

// startProcess starts a server. The caller closes the process; running waits for its goroutines.
func startProcess(c *Command, ws id.Workspace, base *operation, log *slog.Logger, running *sync.WaitGroup) (*process, error) {
	p := &process{base: base, exited: make(chan struct{})}
	log = log.With("workspace", ws, "mcp_server", c.name)
	p.cmd = &exec.Cmd{Env: c.environment(ws), SysProcAttr: processAttributes(c.sandboxed())}
	err := c.prepare(p.cmd, ws)
	if err == nil {
		err = p.start()
	}
	if err != nil {
		log.WarnContext(base.ctx, "MCP server not started", "error", err)
		if errors.Is(err, errNoSandbox) {
			return nil, errNoSandbox
		}
		return nil, errNotSetUp
	}
	running.Go(func() { p.logErrors(c.secrets(ws, true), log) })
	running.Go(func() {
		err := p.cmd.Wait()
		close(p.exited)
		log.InfoContext(base.ctx, "MCP server ended", "error", err)
	})
	return p, nil
}

// start starts the command with pipes to its standard streams.
func (p *process) start() error {
	var in, out, problems *os.File
	var errs [3]error
	in, p.in, errs[0] = os.Pipe()
	p.out, out, errs[1] = os.Pipe()
	p.errors, problems, errs[2] = os.Pipe()
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = in, out, problems
	err := errors.Join(errs[:]...)
	if err == nil {
		err = p.cmd.Start()
	}
	for _, f := range []*os.File{in, out, problems} {
		_ = f.Close() // the process has its own
	}
	if err != nil {
		p.closePipes()
	}
	return err
}

func (p *process) closePipes() {
	for _, f := range []*os.File{p.in, p.out, p.errors} {
		_ = f.Close() // nothing depends on it any more
	}
}

// environment returns the variables of the server: none of our own.
func (c *Command) environment(ws id.Workspace) []string {
	env := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
	for name, value := range c.Env {
		env[name] = expand(value, ws)
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, name+"="+env[name])
	}
	return all
}

// limits is a shell's program that sets the limits of its first arguments, and becomes the rest.
// The second argument is empty where all processes of our user would count. Shells disagree on
// the name of the limit of processes.
const limits = `ulimit -c 0 && ulimit -n 1024 && ulimit -d "$1" && { test -z "$2" || ulimit -u "$2" 2>/dev/null || ulimit -p "$2"; } && shift 2 && exec "$@"`

// prepare sets the command line: directly, or in a sandbox, which has namespaces of its own, no
// network unless the operator says so, the system's programs and libraries, the paths of the
// operator and a /tmp of its own, and ends with us.
func (c *Command) prepare(cmd *exec.Cmd, ws id.Workspace) error {
	program, processes := "/bin/sh", ""
	if c.sandboxed() {
		path, err := exec.LookPath("bwrap")
		if err != nil {
			return errors.Join(errNoSandbox, err)
		}
		for _, path := range c.Write {
			if err := makeWritable(expand(path, ws)); err != nil {
				return err
			}
		}
		program, processes = path, fmt.Sprint(c.Processes)
		cmd.Args = append(append([]string{"bwrap"}, c.sandbox(ws)...), "--")
	}
	cmd.Path, cmd.Dir = program, "/"
	cmd.Args = append(cmd.Args, "/bin/sh", "-c", limits, "sh", fmt.Sprint(c.MemoryMiB<<10), processes, c.Command)
	for _, a := range c.Args {
		cmd.Args = append(cmd.Args, expand(a, ws))
	}
	return nil
}

// sandbox returns bubblewrap's options.
func (c *Command) sandbox(ws id.Workspace) []string {
	all := []string{"--die-with-parent", "--new-session", "--unshare-all", "--cap-drop", "ALL", "--hostname", "mcp"}
	if c.Network {
		all = append(all, "--share-net")
	}
	all = append(all, "--ro-bind", "/usr", "/usr")
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		if target, err := os.Readlink(dir); err == nil {
			all = append(all, "--symlink", target, dir)
		} else {
			all = append(all, "--ro-bind-try", dir, dir)
		}
	}
	for _, name := range []string{
		"alternatives", "ca-certificates", "fonts", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types",
		"nsswitch.conf", "passwd", "pki", "protocols", "resolv.conf", "services", "ssl",
	} {
		all = append(all, "--ro-bind-try", "/etc/"+name, "/etc/"+name)
	}
	all = append(all, "--proc", "/proc", "--dev", "/dev", "--size", fmt.Sprint(c.MemoryMiB<<20), "--tmpfs", "/tmp")
	for _, path := range c.Read {
		all = append(all, "--ro-bind", path, path)
	}
	for _, path := range c.Write {
		path = expand(path, ws)
		all = append(all, "--bind", path, path)
	}
	return append(all, "--chdir", "/tmp")
}

// makeWritable creates a folder of a server if there is none.
func makeWritable(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		return os.Chown(path, nobody, nobody)
	}
	return nil
}

// nobody is the user and group of sandboxes if we are root.
const nobody = 65534

// Read implements io.Reader. Its errors end the session.
func (p *process) Read(b []byte) (int, error) {
	n, err := p.out.Read(b)
	if limit := p.check(b[:n]); limit != nil {
		return 0, p.base.fail(limit)
	}
	if err != nil {
		return n, p.base.fail(errors.Join(errExited, err))
	}
	return n, nil
}

func (p *process) check(b []byte) error {
	var values, lines int64
	for _, char := range b {
		if char == '\n' {
			if p.scan.depth > 0 || p.scan.inString {
				return fmt.Errorf("%w: a message has more than one line", errLimit)
			}
			lines++
			p.line = 0
			continue
		}
		if p.line++; p.line > maxBytes {
			return fmt.Errorf("%w: it sends a line of more than %d bytes", errLimit, maxBytes)
		}
		v, err := p.scan.next(char)
		if err != nil {
			return err
		}
		values += v
	}
	switch {
	case p.base.bytes.Add(int64(len(b))) > maxProcessBytes:
		return fmt.Errorf("%w: it sends more than %d bytes", errLimit, maxProcessBytes)
	case p.base.values.Add(values) > maxValues:
		return fmt.Errorf("%w: it sends more than %d JSON values", errLimit, maxValues)
	case p.base.events.Add(lines) > maxEvents:
		return fmt.Errorf("%w: it sends more than %d messages", errLimit, maxEvents)
	}
	return nil
}

// maxProcessBytes bounds what a process sends between the beginnings of two operations.
const maxProcessBytes = 4 * maxBytes

// Write implements io.Writer. A process that does not read is given up.
func (p *process) Write(b []byte) (int, error) {
	_ = p.in.SetWriteDeadline(time.Now().Add(writeTimeout)) // pipes have deadlines
	return p.in.Write(b)
}

// Close ends the process, and returns when it has ended.
func (p *process) Close() error {
	p.closing.Do(func() {
		_ = p.in.Close() // asks it to end
		t := time.NewTimer(exitGrace)
		defer t.Stop()
		select {
		case <-p.exited:
		case <-t.C:
		}
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // also what it may have left behind
		<-p.exited
		p.closePipes()
	})
	return nil
}

// logErrors logs the server's standard error, within bounds and without the secrets in its
// environment.
func (p *process) logErrors(secrets []string, log *slog.Logger) {
	hide, longest := hide(secrets), 0
	for _, s := range secrets {
		longest = max(longest, len(s))
	}
	// A secret that begins in the part of a line that is logged is read to its end.
	r := bufio.NewReaderSize(p.errors, maxErrorLine+longest)
	minute, lines := time.Now(), 0
	for {
		line, more, err := r.ReadLine()
		text := visible.Text(string(line))
		for more && err == nil {
			_, more, err = r.ReadLine()
		}
		if err != nil && text == "" {
			return
		}
		if hide != nil {
			text = hide(text)
		}
		if time.Since(minute) > time.Minute {
			minute, lines = time.Now(), 0
		}
		switch lines++; {
		case lines <= maxErrorLines:
			log.InfoContext(p.base.ctx, "MCP server says", "text", clip(text, maxErrorLine))
		case lines == maxErrorLines+1:
			log.InfoContext(p.base.ctx, "MCP server says more than is logged")
		}
	}
}
