package browser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"
)

// relayCommand is the first argument of a process that is to be a relay.
const relayCommand = "browser-relay"

// relayAddr is where the browser finds the proxy in its network namespace.
const relayAddr = "127.0.0.1:3128"

// relayReady is set in a program that calls Relay. Others, such as tests, would start all over
// in the place of a relay.
var relayReady bool //nolint:gochecknoglobals // about the program

// Relay turns this process into the one that starts a browser inside its network namespace, if
// the arguments say so, and does not return then. Programs that run browsers call it first. The
// namespace has only a loopback interface; the relay forwards connections from there to the
// proxy's Unix socket outside.
func Relay() {
	relayReady = true
	if len(os.Args) < 4 || os.Args[1] != relayCommand {
		return
	}
	if err := relay(os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "browser relay:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func relay(socket string, command []string) error {
	l, err := net.Listen("tcp", relayAddr)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				time.Sleep(10 * time.Millisecond) //nolint:forbidigo // no file descriptor is left
				continue
			}
			go forward(c, socket)
		}
	}()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{os.NewFile(3, "commands"), os.NewFile(4, "events")}
	if err := cmd.Start(); err != nil {
		return err
	}
	// The browser has its own copies, and notices when the other ends are closed.
	err = errors.Join(cmd.ExtraFiles[0].Close(), cmd.ExtraFiles[1].Close())
	return errors.Join(err, cmd.Wait())
}

func forward(c net.Conn, socket string) {
	defer c.Close()
	p, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer p.Close()
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(p, c); done <- struct{}{} }()
	go func() { _, _ = io.Copy(c, p); done <- struct{}{} }()
	<-done
}
