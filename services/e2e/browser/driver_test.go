package browser_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// driver is the program that controls the browser. It is safe for concurrent use; the commands of
// one page are executed in order.
type driver struct {
	t    testing.TB
	in   io.WriteCloser
	done chan error // receives the program's error

	mu      sync.Mutex // guards the rest
	next    int
	waiting map[int]chan answer
	ended   error
}

type answer struct {
	ID    int             `json:"id"`
	OK    json.RawMessage `json:"ok"`
	Error string          `json:"error"`
}

// drive starts the program, which ends with the test.
func drive(t testing.TB) *driver {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "node", "drive.mjs")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start node, which drives the browser: %v", err)
	}
	d := &driver{t: t, in: in, done: make(chan error, 1), waiting: map[int]chan answer{}}
	go d.read(out, cmd)
	t.Cleanup(func() {
		_ = in.Close() // the program may have ended
		if err := <-d.done; err != nil {
			t.Errorf("the program that drives the browser: %v", err)
		}
	})
	return d
}

func (d *driver) read(out io.Reader, cmd *exec.Cmd) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			d.t.Errorf("the driver printed %q", lines.Text())
			continue
		}
		d.mu.Lock()
		c := d.waiting[a.ID]
		delete(d.waiting, a.ID)
		d.mu.Unlock()
		if c != nil {
			c <- a
		}
	}
	err := errors.Join(lines.Err(), cmd.Wait())
	d.mu.Lock()
	d.ended = errors.New("the program that drives the browser has ended")
	for _, c := range d.waiting {
		c <- answer{Error: d.ended.Error()}
	}
	d.waiting = nil
	d.mu.Unlock()
	d.done <- err
}

// do executes a command in a page and decodes its result into out, unless out is nil.
func (d *driver) do(page, deed string, with, out any) error {
	d.mu.Lock()
	if d.ended != nil {
		d.mu.Unlock()
		return d.ended
	}
	d.next++
	id, c := d.next, make(chan answer, 1)
	d.waiting[id] = c
	b, err := json.Marshal(map[string]any{"id": id, "page": page, "do": deed, "with": with})
	if err == nil {
		_, err = d.in.Write(append(b, '\n'))
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	a := <-c
	if a.Error != "" {
		return fmt.Errorf("%s: %s: %s", page, deed, a.Error)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(a.OK, out)
}

// page is a person's browser page with a document.
type page struct {
	t    testing.TB
	d    *driver
	name string
}

// open opens a document in a page, through a gateway.
func (d *driver) open(name, gateway, document string, who world.Member) *page {
	d.t.Helper()
	p := &page{d.t, d, name}
	p.must("open", map[string]any{
		"gateway": gateway, "document": document,
		"params": map[string]string{"token": who.Token, "workspace_id": who.Workspace},
		"user":   map[string]string{"name": name, "color": "#2a6"},
	})
	p.until("synced", true)
	return p
}

func (p *page) must(deed string, with any) {
	p.t.Helper()
	if err := p.d.do(p.name, deed, with, nil); err != nil {
		var closed, errs, text json.RawMessage
		_ = p.d.do(p.name, "call", map[string]any{"call": "closed", "args": []any{}}, &closed) // to explain
		_ = p.d.do(p.name, "call", map[string]any{"call": "errors", "args": []any{}}, &errs)
		_ = p.d.do(p.name, "call", map[string]any{"call": "text", "args": []any{}}, &text)
		p.t.Fatalf("%v\nconnections of %s were closed with %s, its errors are %s, it shows %s", err, p.name, closed, errs, text)
	}
}

// until waits for a function of window.page to return something.
func (p *page) until(call string, is any) {
	p.t.Helper()
	p.must("until", map[string]any{"call": call, "is": is})
}

// see waits until the page shows a text.
func (p *page) see(text string) { p.t.Helper(); p.must("see", map[string]any{"text": text}) }

// caret places the caret after a text; write types there, with a pause in ms between keys.
func (p *page) caret(behind string) { p.t.Helper(); p.call("caret", nil, behind) }

func (p *page) write(text string, pause int) {
	p.t.Helper()
	p.must("type", map[string]any{"text": text, "delay": pause})
}

// call calls a function of window.page.
func (p *page) call(name string, out any, args ...any) {
	p.t.Helper()
	if err := p.d.do(p.name, "call", map[string]any{"call": name, "args": args}, out); err != nil {
		p.t.Fatal(err)
	}
}

func (p *page) json() string {
	p.t.Helper()
	var raw json.RawMessage
	p.call("json", &raw)
	return string(raw)
}

func (p *page) wrote() (n int) {
	p.t.Helper()
	p.call("wrote", &n)
	return n
}
