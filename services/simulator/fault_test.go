package simulator_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/services/simulator"
)

// raw sends a request over a socket of its own and returns all bytes of the
// answer and the error that ended it.
func raw(t *testing.T, s *server, p provider, body string) (string, error) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	head := "POST " + p.path + " HTTP/1.1\r\nHost: simulator\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n"
	for k, v := range p.header {
		head += k + ": " + v + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"+body); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	return string(b), err
}

// TestConnectionFaults looks at faults of the connection as a socket sees them.
func TestConnectionFaults(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{},
		"reset", `rules: [{then: [{say: half}, {wait: 1ms}, {fail: reset}]}]`,
		"reset-first", `rules: [{then: [{fail: reset}]}]`,
		"drop", `rules: [{then: [{say: half}, {fail: drop}]}]`,
		"drop-first", `rules: [{then: [{fail: drop}]}]`,
		"cut", `rules: [{then: [{say: half}, {fail: cut}]}]`,
		"cut-first", `rules: [{then: [{fail: cut}]}]`,
		"cut-late", `rules: [{then: [{say: half}, {fail: {kind: cut, late: true}}]}]`,
		"cut-torn", `rules: [{then: [{say: half}, {fail: {kind: cut, torn: true}}]}]`,
		"reset-late", `rules: [{then: [{say: half}, {fail: {kind: reset, late: true}}]}]`,
		"drop-torn", `rules: [{then: [{say: half}, {fail: {kind: drop, torn: true}}]}]`,
		"whole", `rules: [{then: [{say: half}]}]`,
	)
	const terminator = "\r\n0\r\n\r\n"
	cases := []struct {
		script     string
		reset      bool // ends with a TCP reset
		terminated bool // the body has its clean end
		has        string
		empty      bool
		stops      bool // says why it stops
		torn       bool // ends within an event
	}{
		{script: "whole", terminated: true, has: "half", stops: true},
		{script: "reset", reset: true, has: "half"},
		{script: "reset-first", reset: true, empty: true},
		{script: "drop", has: "half"},
		{script: "drop-first", empty: true},
		{script: "cut", terminated: true, has: "half"},
		{script: "cut-first", terminated: true, has: "200 OK"},
		{script: "cut-late", terminated: true, has: "half", stops: true},
		{script: "cut-torn", terminated: true, has: "half", torn: true},
		{script: "reset-late", reset: true, has: "half", stops: true},
		{script: "drop-torn", has: "half", torn: true},
	}
	for _, p := range providers() {
		for _, c := range cases {
			t.Run(p.name+"/"+c.script, func(t *testing.T) {
				t.Parallel()
				got, err := raw(t, s, p, request(p, "sim/"+c.script, "hi", true))
				if reset := errors.Is(err, syscall.ECONNRESET); reset != c.reset || err != nil && !reset {
					t.Errorf("the connection ended with %v, want a reset: %t", err, c.reset)
				}
				if ends := strings.HasSuffix(got, terminator); ends != c.terminated {
					t.Errorf("clean end = %t, want %t; received:\n%s", ends, c.terminated, got)
				}
				if !strings.Contains(got, c.has) || c.empty && got != "" {
					t.Errorf("received %q, want it to hold %q (empty: %t)", got, c.has, c.empty)
				}
				if stops := strings.Contains(got, `"end_turn"`) || strings.Contains(got, `"finish_reason":"stop"`); stops != c.stops {
					t.Errorf("it says why it stops = %t, want %t; received:\n%s", stops, c.stops, got)
				}
				body := strings.TrimSuffix(strings.TrimSuffix(got, "0\r\n\r\n"), "\r\n")
				if torn := body != "" && !strings.HasSuffix(body, "\n\n") && !strings.HasSuffix(body, "\r\n"); torn != c.torn {
					t.Errorf("it ends within an event = %t, want %t; received:\n%q", torn, c.torn, got)
				}
				last := strings.Contains(got, "message_stop") || strings.Contains(got, "[DONE]")
				if want := c.script == "whole"; last != want {
					t.Errorf("the last event came = %t, want %t", last, want)
				}
			})
		}
	}
}

// TestBrokenArguments checks that a call can stop in the middle of its arguments.
func TestBrokenArguments(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{}, "broken", `rules: [{then: [{call: {tool: t, args: '{"a":"hello world"}', break: 9, chunk: all}}]}]`)
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			_, _, body := s.ask(t, p, request(p, "sim/broken", "hi", true))
			if !strings.Contains(body, `"{\"a\":\"hel"`) || strings.Contains(body, "world") || !strings.Contains(body, `"tool_`) {
				t.Errorf("received %s, want a call with the first 9 characters of its arguments", body)
			}
		})
	}
}

// TestWholeFaults breaks answers that are not streamed.
func TestWholeFaults(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{},
		"cut", `rules: [{then: [{say: "some words"}, {fail: cut}]}]`,
		"drop", `rules: [{then: [{say: "some words"}, {fail: {kind: drop, in_stream: true}}]}]`,
		"late", `rules: [{then: [{say: "some words"}, {fail: overloaded}]}]`,
	)
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			got, err := raw(t, s, p, request(p, "sim/cut", "hi", false))
			if err != nil || !strings.Contains(got, "200 OK") || !strings.HasSuffix(got, "\r\n0\r\n\r\n") {
				t.Errorf("cut: received %q, %v, want half of a 200 with a clean end", got, err)
			}
			got, err = raw(t, s, p, request(p, "sim/drop", "hi", false))
			if err != nil || !strings.Contains(got, "200 OK") || strings.HasSuffix(got, "\r\n0\r\n\r\n") {
				t.Errorf("drop: received %q, %v, want half of a 200 without a clean end", got, err)
			}
			if status, _, body := s.ask(t, p, request(p, "sim/late", "hi", false)); status < 500 || strings.Contains(body, "some words") {
				t.Errorf("late: %d %s, want an error status and no text", status, body)
			}
		})
	}
}

// TestOddBorders checks that the bytes go out in the pieces that were asked for,
// and are the same as without.
func TestOddBorders(t *testing.T) {
	t.Parallel()
	const rules = `rules: [{then: [{say: "wörld \U0001F600"}, {call: {tool: t, args: {a: é}}}]}]`
	s := start(t, simulator.Config{}, "odd", "wire: {write: 3}\n"+rules, "crlf", "wire: {crlf: true}\n"+rules, "even", rules)
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			normal := func(name, s string) string {
				s = strings.ReplaceAll(s, "sim/"+name, "sim/x")
				return ids.ReplaceAllString(s, "ID")
			}
			_, _, even := s.ask(t, p, request(p, "sim/even", "hi", true))
			_, _, odd := s.ask(t, p, request(p, "sim/odd", "hi", true))
			if normal("odd", odd) != normal("even", even) {
				t.Errorf("with odd borders the bytes are\n%s\nwant\n%s", odd, even)
			}
			_, _, crlf := s.ask(t, p, request(p, "sim/crlf", "hi", true))
			if got, want := normal("crlf", crlf), strings.ReplaceAll(normal("even", even), "\n", "\r\n"); got != want {
				t.Errorf("with CRLF the bytes are\n%q\nwant\n%q", got, want)
			}
			got, err := raw(t, s, p, request(p, "sim/odd", "hi", true))
			if err != nil {
				t.Fatal(err)
			}
			_, chunks, _ := strings.Cut(got, "\r\n\r\n")
			sizes := chunkSizes(t, chunks)
			for i, n := range sizes[:len(sizes)-2] {
				if n > 3 {
					t.Errorf("piece %d has %d bytes, want at most 3", i, n)
				}
			}
		})
	}
}

// chunkSizes reads the sizes of the chunks of a chunked body.
func chunkSizes(t *testing.T, body string) []int {
	t.Helper()
	r := bufio.NewReader(strings.NewReader(body))
	var sizes []int
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("chunk %d: %v", len(sizes), err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(line), 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, int(n))
		if _, err := r.Discard(int(n) + 2); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return sizes
		}
	}
}

// TestTimes checks that a fault happens as often as it says and then no more, per
// conversation or per script.
func TestTimes(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{},
		"twice", `rules: [{then: [{fail: {kind: overloaded, times: 2}}, {fail: {kind: rate_limit, times: 1, retry_after: '3'}}, {say: hello}]}]`,
		"script", `rules: [{then: [{fail: {kind: server_error, times: 2, scope: script}}, {say: hello}]}]`,
	)
	p := providers()[0]
	statuses := func(script string, texts ...string) string {
		var got []string
		for _, text := range texts {
			status, _, _ := s.ask(t, p, request(p, "sim/"+script, text, true))
			got = append(got, strconv.Itoa(status))
		}
		return strings.Join(got, " ")
	}
	if got, want := statuses("twice", "a", "a", "a", "a", "a"), "529 529 429 200 529"; got != want {
		t.Errorf("the same question five times = %s, want %s", got, want)
	}
	if got, want := statuses("twice", "b", "c", "b", "c"), "529 529 529 529"; got != want {
		t.Errorf("two conversations by turns = %s, want %s", got, want)
	}
	if got, want := statuses("script", "a", "b", "c", "a"), "500 500 200 200"; got != want {
		t.Errorf("scope script = %s, want %s", got, want)
	}
	if err := s.PutScript("script", `rules: [{then: [{fail: {kind: server_error, times: 1, scope: script}}, {say: hello}]}]`); err != nil {
		t.Fatal(err)
	}
	if got, want := statuses("script", "a", "a"), "500 200"; got != want {
		t.Errorf("after a new text of the script = %s, want %s", got, want)
	}
}

// TestErrorFirst checks that an error inside a 200 is the first event, or comes
// after the beginning when something is done before it.
func TestErrorFirst(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{},
		"first", `rules: [{then: [{fail: {kind: overloaded, in_stream: true}}]}]`,
		"begun", `rules: [{then: [{wait: 0s}, {fail: overloaded}]}]`,
	)
	p := providers()[0]
	status, _, body := s.ask(t, p, request(p, "sim/first", "hi", true))
	if status != http.StatusOK || !strings.HasPrefix(body, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"") {
		t.Errorf("first: %d %q, want a 200 that begins with the error event", status, body)
	}
	status, _, body = s.ask(t, p, request(p, "sim/begun", "hi", true))
	if status != http.StatusOK || !strings.HasPrefix(body, "event: message_start") || !strings.Contains(body, "event: error") {
		t.Errorf("begun: %d %q, want a 200 with message_start, then the error event", status, body)
	}
}

// TestClientLeaves checks that an answer ends at once when its client goes,
// wherever it waits, and that the journal knows when.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"delay":   `rules: [{then: [{say: "now "}, {say: {text: later, delay: 5m}}]}]`,
		"wait":    `rules: [{then: [{say: "now "}, {wait: 5m}, {say: later}]}]`,
		"stall":   `rules: [{then: [{say: "now "}, {fail: stall}]}]`,
		"trickle": `rules: [{wire: {write: 1, every: 1ms}, then: [{say: "now "}, {say: '{{story 10000}}'}]}]`,
		"silence": `rules: [{then: [{fail: {kind: stall, in_stream: true}}]}]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, simulator.Config{Pace: 1}, name, script)
			p := providers()[0]
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			resp := s.post(ctx, t, p, request(p, "sim/"+name, "hi", true))
			defer func() { _ = resp.Body.Close() }()
			if name != "silence" {
				if _, err := resp.Body.Read(make([]byte, 10)); err != nil {
					t.Fatal(err)
				}
			}
			before := s.Streams(t.Context(), 0)
			if before.Open != 1 {
				t.Fatalf("open answers = %d, want 1", before.Open)
			}
			begin := time.Now()
			cancel()
			after := s.Streams(t.Context(), before.Version)
			if after.Open != 0 || after.ClientLeft != 1 || len(after.Cuts) != 1 {
				t.Fatalf("after the client left: %+v, want none open and one cut", after)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it took %v to notice that the client left", took)
			}
			got := s.Requests(name)
			if len(got) != 1 || got[0].Ended != "client_left" || got[0].EndedAt == nil {
				t.Errorf("the journal says %+v, want one request that the client left", got)
			}
		})
	}
}

// TestStallEnds checks that a stall of a given length is survived.
func TestStallEnds(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{}, "stall", `rules: [{then: [{fail: {kind: stall, for: 30ms}}, {say: "a "}, {fail: {kind: stall, for: 30ms}}, {say: b}]}]`)
	for _, p := range providers() {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprint(p.name, stream), func(t *testing.T) {
				t.Parallel()
				begin := time.Now()
				status, _, body := s.ask(t, p, request(p, "sim/stall", "hi", stream))
				if status != http.StatusOK || !strings.Contains(body, "end_turn") && !strings.Contains(body, `"stop"`) {
					t.Errorf("got %d %s, want a whole answer", status, body)
				}
				if took := time.Since(begin); took < 60*time.Millisecond {
					t.Errorf("took %v, want at least 60ms", took)
				}
			})
		}
	}
}

// TestClose checks that answers under way are broken off, not ended well.
func TestClose(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{Pace: 1}, "long", `rules: [{then: [{say: "now "}, {wait: 5m}, {say: later}]}]`)
	p := providers()[0]
	resp := s.post(t.Context(), t, p, request(p, "sim/long", "hi", true))
	defer func() { _ = resp.Body.Close() }()
	s.Close()
	if b, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("after Close the body ended with %v, want an unexpected end; read %q", err, b)
	}
	if status, _, body := s.ask(t, p, request(p, "sim/long", "hi", true)); status != 529 {
		t.Errorf("a request after Close = %d %s, want 529", status, body)
	}
}

// TestHTTP2 checks that streams and broken connections work over HTTP/2 too,
// where there is no connection to take over.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	sim, err := simulator.New(simulator.Config{}, simulator.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.PutScript("drop", `rules: [{then: [{say: half}, {fail: drop}]}]`); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(sim)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		srv.Close()
	})
	s := &server{Simulator: sim, URL: srv.URL, client: &http.Client{Transport: transport}}
	p := providers()[0]
	if _, _, body := s.ask(t, p, request(p, "m", "hello", true)); !strings.Contains(body, "message_stop") {
		t.Errorf("over HTTP/2 the answer is %s", body)
	}
	resp := s.post(t.Context(), t, p, request(p, "sim/drop", "hi", true))
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil || !strings.Contains(string(b), "half") {
		t.Errorf("a dropped stream = %q, %v, want its first half and an error", b, err)
	}
	if got := sim.Requests("drop"); len(got) != 1 || got[0].Ended != "broken" {
		t.Errorf("the journal says %+v, want it broken", got)
	}
}
