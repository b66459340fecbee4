package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway"
)

// wipe deletes all data of JetStream.
func (w *world) wipe(t *testing.T) {
	t.Helper()
	nc, err := nats.Connect("", append(w.nats.Options(subject.Admin), nats.CustomInboxPrefix(subject.InboxPrefix(subject.Admin)))...)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for p := range partitions {
		if err := js.DeleteStream(t.Context(), subject.EventStream(p)); err != nil {
			t.Fatal(err)
		}
	}
	w.runner.mu.Lock()
	w.runner.streams++
	w.runner.mu.Unlock()
	natstest.Apply(t, w.nats, natstest.Topology(t))
}

func TestJetStreamLosesEverything(t *testing.T) {
	t.Parallel()
	t.Run("and the run goes on", func(t *testing.T) {
		t.Parallel()
		withBothTransports(t, func(t *testing.T, w *world) {
			in := w.gateway(t)
			session := in.newSession(t, w.owner)
			viewer := in.open(t, w.owner, "GET", eventsOf(session), "")
			sender := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`)
			run := w.runner.latest(t, session, 1)
			run.begin(t)
			run.say(t, "a", "b")
			viewer.next(t)
			viewer.next(t)
			viewer.next(t)
			viewer.next(t)
			w.wipe(t)
			run.say(t, "c")
			run.step(t, "abc")
			run.end(t)
			want := []string{"text-delta 1-2", "text-delta 1-3", "text-delta 1-4", "step-complete 1-5", "done 1-6"}
			if diff := cmp.Diff(want, ids(sender.until(t, "done"))); diff != "" {
				t.Errorf("sender's events differ (-want +got):\n%s", diff)
			}
			if err := sender.ended(t); err != nil {
				t.Errorf("stream ended with %v, want a clean end", err)
			}
			if diff := cmp.Diff(want[2:], ids(viewer.until(t, "done"))); diff != "" {
				t.Errorf("viewer's events differ (-want +got):\n%s", diff)
			}
		})
	})
	t.Run("and what the run said", func(t *testing.T) {
		t.Parallel()
		withBothTransports(t, func(t *testing.T, w *world) {
			in := w.gateway(t)
			session := in.newSession(t, w.owner)
			viewer := in.open(t, w.owner, "GET", eventsOf(session), "")
			sender := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`)
			run := w.runner.latest(t, session, 1)
			run.begin(t)
			run.say(t, "a")
			sender.next(t)
			run.event(textDelta("never comes"))
			run.say(t, "b") // a number is missing
			got := sender.next(t)
			if got.name != "snapshot" {
				t.Fatalf("event at the hole = %v, want a snapshot", got)
			}
			// The snapshot contains no committed step, so the events of the open step are sent again.
			run.step(t, "axb")
			run.end(t)
			if diff := cmp.Diff([]string{"text-delta 1-2", "text-delta 1-4", "step-complete 1-5", "done 1-6"}, ids(sender.until(t, "done"))); diff != "" {
				t.Errorf("sender's events after the snapshot differ (-want +got):\n%s", diff)
			}
			viewer.until(t, "snapshot")
			viewer.until(t, "done")
		})
	})
	t.Run("and the end is lost", func(t *testing.T) {
		t.Parallel()
		withBothTransports(t, func(t *testing.T, w *world) {
			in := w.gateway(t)
			session := in.newSession(t, w.owner)
			viewer := in.open(t, w.owner, "GET", eventsOf(session), "")
			sender := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`)
			run := w.runner.latest(t, session, 1)
			run.begin(t)
			run.step(t, "abc")
			run.commitEnd(agentv1.RunState_RUN_STATE_DONE, "stop") // without publishing it
			want := []string{"step-complete 1-2", "done 1-3"}
			if diff := cmp.Diff(want, ids(sender.until(t, "done"))); diff != "" {
				t.Errorf("sender's events differ (-want +got):\n%s", diff)
			}
			if err := sender.ended(t); err != nil {
				t.Errorf("stream ended with %v, want a clean end", err)
			}
			if diff := cmp.Diff(want, ids(viewer.until(t, "done"))[2:]); diff != "" {
				t.Errorf("viewer's events differ (-want +got):\n%s", diff)
			}
			// The id of the synthetic event can be resumed from.
			again := in.open(t, w.owner, "GET", eventsOf(session), "", after("1-3"))
			second := w.gateway(t).open(t, w.owner, "GET", eventsOf(session), "", after("1-3"))
			w.runner.script = func(r *fakeRun) { r.answer(t, "next") }
			call[object](t, in, w.owner, "POST", messagesOf(session), `{"content":"two"}`, http.StatusAccepted, prefer)
			for _, s := range []*stream{again, second} {
				if e := s.next(t); e.id != "2-0" {
					t.Errorf("event after the made-up end = %v, want 2-0", e)
				}
			}
		})
	})
	t.Run("and a failed run is lost", func(t *testing.T) {
		t.Parallel()
		withBothTransports(t, func(t *testing.T, w *world) {
			in := w.gateway(t)
			session := in.newSession(t, w.owner)
			sender := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`)
			run := w.runner.latest(t, session, 1)
			run.set(func() { run.next = 7 })
			run.commitEnd(agentv1.RunState_RUN_STATE_FAILED, "")
			got := sender.until(t, "error")
			if diff := cmp.Diff([]string{"snapshot 1-7", "error 1-7"}, ids(got)); diff != "" {
				t.Errorf("sender's events differ (-want +got):\n%s", diff)
			}
			if err := sender.ended(t); err != nil {
				t.Errorf("stream ended with %v, want a clean end", err)
			}
		})
	})
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testHeartbeat)
}

func testHeartbeat(t *testing.T, w *world) {
	in := w.gateway(t, func(c *gateway.Config) { c.Feed.Heartbeat = 30 * time.Millisecond })
	session := in.newSession(t, w.owner)
	s := in.open(t, w.owner, "GET", eventsOf(session), "")
	eventually(t, "three heartbeats", func() bool { return strings.HasPrefix(s.text(), "retry: 1000\n:\n:\n:\n:\n") })
}

func TestSlowViewer(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testSlowViewer)
}

func testSlowViewer(t *testing.T, w *world) {
	// The client stops for as long as the pieces take, which is not what cuts it here.
	in := w.gateway(t, func(c *gateway.Config) { c.Feed.BehindBytes, c.WriteTimeout = 1<<20, time.Minute })
	session := in.newSession(t, w.owner)

	// A client that does not read.
	slow := in.rawViewer(t, w.owner, session)
	quick := in.open(t, w.owner, "GET", eventsOf(session), "")
	sender := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`)
	run := w.runner.latest(t, session, 1)
	run.begin(t)
	piece := strings.Repeat("x", 64<<10)
	const n = 160 // 10 MiB, more than the sockets' buffers
	for i := range n {
		run.say(t, piece)
		if e := sender.next(t); len(e.data) < len(piece) {
			t.Fatalf("event %d = %.100v, want a piece", i, e)
		}
	}
	run.step(t, "much")
	run.end(t)
	if err := sender.ended(t); err != nil {
		t.Fatalf("quick viewer's stream ended with %v", err)
	}
	if got := len(quick.until(t, "done")); got != n+4 {
		t.Errorf("quick viewer saw %d events, want %d", got, n+4)
	}
	// The slow client now reads the pending events, then a snapshot, then the cut.
	var last string
	for {
		line, err := slow.ReadString('\n')
		if err != nil {
			break
		}
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			last = strings.TrimSpace(name)
		}
	}
	if last != "snapshot" {
		t.Errorf("slow viewer's last event = %q, want a snapshot before the cut", last)
	}
}

// rawViewer watches a session over a connection with small buffers.
func (in *instance) rawViewer(t *testing.T, p person, session string) *bufio.Reader {
	t.Helper()
	addr := strings.TrimPrefix(in.url, "http://")
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(128 << 10)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-Workspace-Id: %s\r\n\r\n", eventsOf(session), addr, p.token, p.workspace)
	r := bufio.NewReaderSize(conn, 64<<10)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == ":\n" { // the stream has started
			return r
		}
	}
}

func TestNATSUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	s := in.open(t, w.owner, "GET", eventsOf(session), "")
	_ = s
	ready := in.send(t, in.request(t, person{}, "GET", "/ready", "", nil))
	if ready.status != http.StatusOK {
		t.Errorf("/ready = %d %s, want 200", ready.status, ready.body)
	}
	w.nats.Shutdown()
	eventually(t, "not ready without NATS", func() bool {
		return in.send(t, in.request(t, person{}, "GET", "/ready", "", nil)).status == http.StatusServiceUnavailable
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	fresh := in.newSession(t, w.owner)
	got := in.send(t, in.request(t, w.owner, "POST", messagesOf(fresh), `{"content":"one"}`, nil).WithContext(ctx))
	if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, `"error"`) {
		t.Errorf("send without NATS = %d %s, want 503", got.status, got.body)
	}
	if len(w.runner.sessions[fresh].runs) != 0 {
		t.Error("the message was submitted, want it refused first")
	}
	w.diskFull.Store(true)
	if got := in.send(t, in.request(t, w.owner, "POST", messagesOf(fresh), `{"content":"one"}`, nil).WithContext(ctx)); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, `"DISK_FULL"`) {
		t.Errorf("send without NATS, with a full disk = %d %s, want 503 that says so", got.status, got.body)
	}
	if got := in.send(t, in.request(t, w.owner, "POST", messagesOf(fresh), `{"content":"one"}`, prefer)); got.status != http.StatusAccepted {
		t.Errorf("async send without NATS = %d %s, want 202: it needs no feed", got.status, got.body)
	}
}

// TestUnreadAnswerIsDropped checks that an answer that the client does not read leaves memory.
func TestUnreadAnswerIsDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.WriteTimeout = time.Second })
	body := `{"name":"d","content":"` + strings.Repeat("x", 10<<20) + `"}` // more than the sockets' buffers
	made := call[map[string]object](t, in, w.owner, "POST", "/api/documents", body, http.StatusCreated)
	addr := strings.TrimPrefix(in.url, "http://")
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(64 << 10)
	}
	fmt.Fprintf(conn, "GET /api/documents/%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-Workspace-Id: %s\r\n\r\n", made["document"]["id"], addr, w.owner.token, w.workspace)
	eventually(t, "the request is over", func() bool { return strings.Contains(in.log.String(), "GET /api/documents/{id}") })
}

// TestClientsDoNotSetTraces checks that a client cannot set a trace's id.
func TestClientsDoNotSetTraces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	const theirs = "0af7651916cd43dd8448eb211c80319c"
	in.send(t, in.request(t, w.owner, "GET", "/api/tools", "", func(r *http.Request) { r.Header.Set("Traceparent", "00-"+theirs+"-b7ad6b7169203331-01") }))
	if len(w.traced.values()) == 0 {
		t.Fatal("the gateway asked nobody")
	}
	for _, got := range w.traced.values() {
		if strings.Contains(got, theirs) {
			t.Errorf("a service was asked under the client's trace: %s", got)
		}
	}
}

func TestBodyTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) {
		// Longer than a request waits on a busy machine: otherwise a connection is cut before the
		// request is served.
		c.BodyTimeout, c.CORSOrigins = 2*time.Second, []string{"*"}
	})
	session := in.newSession(t, w.owner)
	for name, tt := range map[string]struct{ request, token, want string }{
		"that a handler reads":   {"POST /api/sessions", w.owner.token, "HTTP/1.1 400"},
		"of nobody":              {"POST /api/sessions", "nonsense", "HTTP/1.1 401"},
		"for a path that is not": {"POST /api/nothing", w.owner.token, "HTTP/1.1 404"},
		"with a health check":    {"GET /health", "", "HTTP/1.1 200"},
		"with a preflight":       {"OPTIONS /api/sessions", "", "HTTP/1.1 204"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(in.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nOrigin: http://o\r\nAccess-Control-Request-Method: POST\r\n"+
				"Authorization: Bearer %s\r\nX-Workspace-Id: %s\r\n\r\n{", tt.request, tt.token, w.workspace)
			all, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(all), tt.want) || strings.Contains(tt.want, " 4") && !strings.Contains(string(all), `{"error":"`) {
				t.Errorf("answer = %q, %v, want %s and the connection closed", all, err, tt.want)
			}
		})
	}
	t.Run("and a run that takes longer", func(t *testing.T) {
		t.Parallel()
		asJSON := func(r *http.Request) { r.Header.Set("Accept", "application/json") }
		go w.runner.latestOf(t, session, func(r *fakeRun) {
			r.begin(t)
			<-time.After(2500 * time.Millisecond) // longer than a body may take
			r.step(t, "x")
			r.end(t)
		})
		call[object](t, in, w.owner, "POST", messagesOf(session), `{"content":"hi"}`, http.StatusOK, asJSON)
	})
}
