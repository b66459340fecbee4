package editing_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const clientsDir = "../yclients"

// npm is a Node program with npm clients, which executes commands (see clients.mjs). It is safe for
// concurrent use.
type npm struct {
	t  *testing.T // the one that started it
	in io.WriteCloser

	mu      sync.Mutex // guards the rest
	next    int
	waiting map[int]chan answer
	ended   error // set when the program has ended
}

// answer is the result of a command.
type answer struct {
	status
	err error
}

// status is a client's view of the document and its connection.
type status struct {
	Client    uint64
	Text, XML string
	Scope     string
	Synced    bool
	Unsynced  int
	Peers     map[string]peer
	Update    []byte
	Canonical []byte // of the command canonical only
	Ends      []struct {
		Code   int
		Reason string
	}
	Told   []map[string]string
	Lapsed []uint64 // peers that the client timed out
}

// String formats the status for messages.
func (s status) String() string {
	s.Update, s.Canonical = nil, nil
	b, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// codes returns the close codes in order.
func (s status) codes() (codes []int) {
	for _, e := range s.Ends {
		codes = append(codes, e.Code)
	}
	return codes
}

// denied returns the reason of the last refusal of a document by Hocuspocus.
func (s status) denied() (why string) {
	for _, t := range s.Told {
		why = cmp.Or(t["denied"], why)
	}
	return why
}

// writer returns the client and the state of the user with that name.
func (s status) writer(name string) (client string, p peer) {
	for client, p := range s.Peers {
		if p.User.Name == name && p.Caret != nil {
			return client, p
		}
	}
	return "", peer{}
}

// peer is a client's awareness state.
type peer struct {
	Name string
	User struct {
		Name, Color string
		Run         string `json:"run_id"`
	}
	Caret *struct {
		Text string
		At   int
	}
}

// startNPM starts the program, which ends with the test.
func startNPM(t *testing.T) *npm {
	t.Helper()
	if _, err := os.Stat(filepath.Join(clientsDir, "node_modules", ".installed")); err != nil {
		t.Fatal("the npm clients are not installed: run `make clients`")
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "node", "clients.mjs")
	cmd.Dir = clientsDir
	var complaints strings.Builder
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start node: %v", err)
	}
	n := &npm{t: t, in: in, waiting: map[int]chan answer{}}
	done := make(chan error, 1)
	go func() { done <- errors.Join(n.read(out), cmd.Wait()) }()
	t.Cleanup(func() {
		in.Close()
		if err := <-done; err != nil {
			t.Errorf("the program with the npm clients: %v", err)
		}
		if t.Failed() {
			t.Logf("the npm clients said:\n%s", &complaints)
		}
	})
	return n
}

// read delivers answers until the program ends.
func (n *npm) read(out io.Reader) error {
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			n.end()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var a struct {
			status
			N     int
			Error string
		}
		if err := json.Unmarshal(line, &a); err != nil || a.N == 0 {
			n.t.Errorf("the npm clients printed: %s (%v)", line, err)
			continue
		}
		got := answer{status: a.status}
		if a.Error != "" {
			got.err = errors.New(a.Error)
		}
		n.mu.Lock()
		c := n.waiting[a.N]
		delete(n.waiting, a.N)
		n.mu.Unlock()
		if c != nil {
			c <- got
		}
	}
}

// end fails all waiting commands.
func (n *npm) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = errors.New("the program with the npm clients has ended")
	for _, c := range n.waiting {
		c <- answer{err: n.ended}
	}
	n.waiting = nil
}

type args = map[string]any

// send sends a command; the channel gets its answer.
func (n *npm) send(client, deed string, with args) (<-chan answer, error) {
	q := args{"id": client, "do": deed}
	maps.Copy(q, with)
	c := make(chan answer, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended != nil {
		return nil, n.ended
	}
	n.next++
	q["n"] = n.next
	line, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	n.waiting[n.next] = c
	_, err = n.in.Write(append(line, '\n'))
	return c, err
}

// client is an npm client with a document open. It belongs to its test's goroutine.
type client struct {
	t       *testing.T
	n       *npm
	id      string
	kind    string
	gateway int
}

func (c *client) String() string {
	return fmt.Sprintf("%s %s on gateway %d", c.kind, c.id, c.gateway+1)
}

// begin sends a command to the client; the returned function waits for the answer.
func (c *client) begin(deed string, with args) (wait func() status) {
	c.t.Helper()
	got, err := c.n.send(c.id, deed, with)
	if err != nil {
		c.t.Fatal(err)
	}
	return func() status {
		c.t.Helper()
		select {
		case a := <-got:
			if a.err != nil {
				c.t.Fatalf("%v: %s %v: %v", c, deed, with, a.err)
			}
			return a.status
		case <-time.After(timeout):
			if deed == "state" {
				c.t.Fatalf("%v does not answer", c)
			}
			c.t.Fatalf("not within %v: %v: %s %v; it is %v", timeout, c, deed, with, c.do("state", nil))
		}
		panic("not reached")
	}
}

// do sends a command to the client and waits for the answer.
func (c *client) do(deed string, with args) status { c.t.Helper(); return c.begin(deed, with)() }

// until waits until the client has this status.
func (c *client) until(with args) status { c.t.Helper(); return c.do("until", with) }

// opened waits until client and server are in sync.
func (c *client) opened() *client {
	c.t.Helper()
	c.until(args{"synced": true, "settled": true})
	return c
}
