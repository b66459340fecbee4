package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"signalbox.dev/pkg/sse"

	"signalbox.dev/services/e2e/world"
)

type stageKey struct{}

// stage holds the state of one story: its people and their open streams.
type stage struct {
	world   *sharedWorld
	people  map[string]world.Member
	streams map[string]*stream
	last    []byte // the body of the last response
}

// cast creates the people of a story: an owner and a viewer of one workspace, and
// an owner of another.
func (s *stage) cast(env *testscript.Env) error {
	for _, p := range []struct{ name, of, role string }{{"owner", "", "owner"}, {"viewer", "owner", "viewer"}, {"stranger", "", "owner"}} {
		m, err := s.world.newMember(s.people[p.of].Workspace, p.role)
		if err != nil {
			return err
		}
		s.people[p.name] = m
		env.Setenv(strings.ToUpper(p.name)+"_TOKEN", m.Token)
		env.Setenv(strings.ToUpper(p.name)+"_WORKSPACE", m.Workspace)
	}
	env.Setenv("GATEWAY1", s.world.Gateways[0])
	env.Setenv("GATEWAY2", s.world.Gateways[1])
	env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
	return nil
}

func (s *stage) close() {
	for _, st := range s.streams {
		st.cut()
	}
}

var commands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"api":    func(ts *testscript.TestScript, neg bool, args []string) { stageOf(ts).api(ts, neg, args) },
	"get":    func(ts *testscript.TestScript, neg bool, args []string) { stageOf(ts).get(ts, neg, args) },
	"stream": func(ts *testscript.TestScript, _ bool, args []string) { stageOf(ts).stream(ts, args) },
	"await":  func(ts *testscript.TestScript, _ bool, args []string) { stageOf(ts).await(ts, args) },
	"cut":    func(ts *testscript.TestScript, _ bool, args []string) { stageOf(ts).named(ts, args[0]).cut() },
	"ended":  func(ts *testscript.TestScript, neg bool, args []string) { stageOf(ts).ended(ts, neg, args) },
	"show":   func(ts *testscript.TestScript, _ bool, args []string) { stageOf(ts).show(ts, args) },
	"same":   func(ts *testscript.TestScript, _ bool, args []string) { stageOf(ts).same(ts, args) },
	"lastid": func(ts *testscript.TestScript, _ bool, args []string) { stageOf(ts).lastID(ts, args) },
}

func stageOf(ts *testscript.TestScript) *stage { return ts.Value(stageKey{}).(*stage) }

// request is the arguments of api and stream:
// [-as person] [-on gateway] [-H 'Name: value'] METHOD PATH [BODY]
type request struct {
	as, method, path, body string
	on                     int
	header                 http.Header
}

func parse(ts *testscript.TestScript, args []string) request {
	r := request{as: "owner", on: 1, header: http.Header{}}
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "-as":
			r.as = args[1]
		case "-on":
			n, err := strconv.Atoi(args[1])
			ts.Check(err)
			r.on = n
		case "-H":
			name, value, _ := strings.Cut(args[1], ": ")
			r.header.Add(name, value)
		default:
			ts.Fatalf("unknown flag %s", args[0])
		}
		args = args[2:]
	}
	if len(args) < 2 {
		ts.Fatalf("usage: [-as person] [-on gateway] [-H header] METHOD PATH [BODY]")
	}
	r.method, r.path = args[0], args[1]
	if len(args) > 2 {
		r.body = args[2]
		if name, ok := strings.CutPrefix(r.body, "@"); ok {
			r.body = ts.ReadFile(name)
		}
	}
	return r
}

func (s *stage) do(ctx context.Context, ts *testscript.TestScript, r request) *http.Response {
	req, err := http.NewRequestWithContext(ctx, r.method, s.world.Gateways[r.on-1]+r.path, strings.NewReader(r.body))
	ts.Check(err)
	if r.as != "nobody" {
		m, ok := s.people[r.as]
		if !ok {
			ts.Fatalf("this story has no %s", r.as)
		}
		req.Header.Set("Authorization", "Bearer "+m.Token)
		req.Header.Set("X-Workspace-Id", m.Workspace)
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(req.Header, r.header)
	res, err := http.DefaultClient.Do(req)
	ts.Check(err)
	return res
}

// api sends a request and prints status and body. It expects success, or with ! an error.
func (s *stage) api(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	res := s.do(ctx, ts, parse(ts, args))
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	ts.Check(err)
	s.last = body
	fmt.Fprintf(ts.Stdout(), "%d %s\n", res.StatusCode, bytes.TrimSpace(body))
	if ok := res.StatusCode/100 == 2; ok == neg {
		ts.Fatalf("%s: %d %s", strings.Join(args, " "), res.StatusCode, body)
	}
}

// get stores a value of the last response's JSON in a variable: get NAME path.to.it;
// without a NAME it prints it.
func (s *stage) get(ts *testscript.TestScript, neg bool, args []string) {
	var v any
	dec := json.NewDecoder(bytes.NewReader(s.last))
	dec.UseNumber()
	ts.Check(dec.Decode(&v))
	for step := range strings.SplitSeq(args[len(args)-1], ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[step]
		case []any:
			i, err := strconv.Atoi(step)
			ts.Check(err)
			if i < 0 {
				i += len(x)
			}
			if i < 0 || i >= len(x) {
				ts.Fatalf("no item %s in %s", step, s.last)
			}
			v = x[i]
		default:
			v = nil
		}
	}
	if (v == nil) != neg {
		ts.Fatalf("%s is %v in %s", args[len(args)-1], v, s.last)
	}
	text, ok := v.(string)
	if !ok {
		b, err := json.Marshal(v)
		ts.Check(err)
		text = string(b)
	}
	if len(args) > 1 {
		ts.Setenv(args[0], text)
		return
	}
	fmt.Fprintln(ts.Stdout(), text)
}

// stream is an event stream that is being read.
type stream struct {
	cancel context.CancelFunc

	mu      sync.Mutex // guards the rest
	events  []sse.Event
	err     error // why reading ended: io.EOF for a clean end
	changed chan struct{}
}

func (s *stage) stream(ts *testscript.TestScript, args []string) {
	name := args[0]
	ctx, cancel := context.WithCancel(context.Background())
	r := parse(ts, args[1:])
	if r.header.Get("Accept") == "" {
		r.header.Set("Accept", "text/event-stream")
	}
	res := s.do(ctx, ts, r) //nolint:bodyclose // the goroutine that reads the stream closes it
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(res.Body) // for the message only
		cancel()
		ts.Fatalf("stream: %d %s", res.StatusCode, body)
	}
	if old := s.streams[name]; old != nil {
		old.cut()
	}
	st := &stream{cancel: cancel, changed: make(chan struct{})}
	s.streams[name] = st
	go st.read(res.Body)
}

func (st *stream) read(body io.ReadCloser) {
	defer body.Close()
	r := sse.NewReader(body, 4<<20)
	for {
		ev, err := r.Next()
		st.mu.Lock()
		if err == nil {
			st.events = append(st.events, sse.Event{Type: ev.Type, ID: bytes.Clone(ev.ID), Data: bytes.Clone(ev.Data)})
		} else {
			st.err = err
		}
		close(st.changed)
		st.changed = make(chan struct{})
		st.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (st *stream) cut() { st.cancel() }

// until waits until ok returns true for the events read so far.
func (st *stream) until(ok func(events []sse.Event, err error) bool) bool {
	deadline := time.After(timeout)
	for {
		st.mu.Lock()
		fine, ended, changed := ok(st.events, st.err), st.err != nil, st.changed
		st.mu.Unlock()
		if fine || ended {
			return fine
		}
		select {
		case <-changed:
		case <-deadline:
			return false
		}
	}
}

func (s *stage) named(ts *testscript.TestScript, name string) *stream {
	st := s.streams[name]
	if st == nil {
		ts.Fatalf("unknown stream %s", name)
	}
	return st
}

// await waits for the n-th event of a type: await NAME TYPE [N]
func (s *stage) await(ts *testscript.TestScript, args []string) {
	n := 1
	if len(args) > 2 {
		var err error
		n, err = strconv.Atoi(args[2])
		ts.Check(err)
	}
	st := s.named(ts, args[0])
	ok := st.until(func(events []sse.Event, _ error) bool {
		found := 0
		for _, ev := range events {
			if ev.Type == args[1] {
				found++
			}
		}
		return found >= n
	})
	if !ok {
		ts.Fatalf("%s did not arrive on %s, which got:\n%s", args[1], args[0], strings.Join(st.lines(), "\n"))
	}
}

// ended waits for a stream's clean end, or with ! for a broken one.
func (s *stage) ended(ts *testscript.TestScript, neg bool, args []string) {
	st := s.named(ts, args[0])
	st.until(func(_ []sse.Event, err error) bool { return err != nil })
	st.mu.Lock()
	defer st.mu.Unlock()
	if clean := errors.Is(st.err, io.EOF); clean == neg {
		ts.Fatalf("stream %s ended with %v", args[0], st.err)
	}
}

// show prints a stream's events, with consecutive deltas as one.
func (s *stage) show(ts *testscript.TestScript, args []string) {
	fmt.Fprintln(ts.Stdout(), strings.Join(s.named(ts, args[0]).lines(), "\n"))
}

// same compares two streams event by event: same A B [TYPE]. With a type, it begins at the first
// event of that type.
func (s *stage) same(ts *testscript.TestScript, args []string) {
	texts := make([]string, 2)
	for i := range texts {
		st := s.named(ts, args[i])
		st.mu.Lock()
		on := len(args) < 3
		for _, ev := range st.events {
			if on = on || ev.Type == args[2]; on {
				texts[i] += fmt.Sprintf("%s %s %s\n", ev.ID, ev.Type, ev.Data)
			}
		}
		st.mu.Unlock()
	}
	if texts[0] != texts[1] || texts[0] == "" {
		ts.Fatalf("the streams differ:\n--- %s\n%s\n--- %s\n%s", args[0], texts[0], args[1], texts[1])
	}
}

// lastID stores the id of a stream's last event in a variable: lastid NAME VARIABLE
func (s *stage) lastID(ts *testscript.TestScript, args []string) {
	st := s.named(ts, args[0])
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.events) == 0 {
		ts.Fatalf("stream %s has no event", args[0])
	}
	ts.Setenv(args[1], string(st.events[len(st.events)-1].ID))
}

// lines formats events for stories: the type, and the important fields of the data.
func (st *stream) lines() []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	var out []string
	last := ""
	for _, ev := range st.events {
		var d map[string]any
		if err := json.Unmarshal(ev.Data, &d); err != nil {
			out = append(out, fmt.Sprintf("%s NOT JSON %s", ev.Type, ev.Data))
			continue
		}
		if strings.HasSuffix(ev.Type, "-delta") && ev.Type == last {
			out[len(out)-1] += fmt.Sprint(d["delta"])
			continue
		}
		last = ev.Type
		line := ev.Type
		for _, key := range []string{"delta", "toolName", "args", "result", "isError", "stepIndex", "finishReason", "error", "code", "content"} {
			v, ok := d[key]
			if !ok {
				continue
			}
			text, isText := v.(string)
			if !isText {
				b, _ := json.Marshal(v) // it came from JSON
				text = string(b)
			}
			line += " " + text
		}
		out = append(out, line)
	}
	return out
}
