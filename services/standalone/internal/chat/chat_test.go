package chat_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/process"
	"signalbox.dev/services/standalone/internal/chat"
)

// server is a fake gateway that answers each connection with the next of answers.
type server struct {
	mu      sync.Mutex // guards what follows
	answers []func(w http.ResponseWriter)
	seen    []string
	keys    map[string]bool
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Content        string
		IdempotencyKey string `json:"idempotency_key"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body) // a GET has none
	s.mu.Lock()
	s.seen = append(s.seen, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Last-Event-ID")))
	if body.IdempotencyKey != "" {
		s.keys[body.IdempotencyKey] = true
	}
	answer := refuse(http.StatusTeapot, "there is no further answer")
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	s.mu.Unlock()
	answer(w)
}

func stream(cut bool, events ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ":\n")
		for _, ev := range events {
			id, rest, _ := strings.Cut(ev, " ")
			kind, data, _ := strings.Cut(rest, " ")
			fmt.Fprintf(w, "event: %s\ndata: %s\nid: %s\n\n", kind, data, id)
		}
		_ = http.NewResponseController(w).Flush() // an abort would drop what is buffered
		if cut {
			panic(http.ErrAbortHandler)
		}
	}
}

func refuse(status int, text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":%q}`, text)
	}
}

func talk(t *testing.T, answers ...func(http.ResponseWriter)) (shown string, s *server, err error) {
	t.Helper()
	s = &server{answers: answers, keys: map[string]bool{}}
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	var out strings.Builder
	terminal := &chat.Terminal{
		Client:  &chat.Client{URL: ts.URL, Flags: " --data there", HTTP: ts.Client(), Notice: func(string, ...any) {}},
		Session: "s", Out: &out,
	}
	err = terminal.Say(t.Context(), "hi")
	return out.String(), s, err
}

// At a terminal all but the answer itself is dim.
func TestPlainColours(t *testing.T) {
	t.Parallel()
	ts := httptest.NewServer(&server{keys: map[string]bool{}, answers: []func(http.ResponseWriter){
		stream(false, `1-1 reasoning-delta {"delta":"hm"}`, `1-2 text-delta {"delta":"Hello"}`, `1-3 tool-call-complete {"toolName":"t","args":{}}`, `1-4 done {"finishReason":"stop","steps":1}`),
	}})
	t.Cleanup(ts.Close)
	var out strings.Builder
	terminal := &chat.Terminal{Client: &chat.Client{URL: ts.URL, HTTP: ts.Client()}, Session: "s", Out: &out, Style: chat.Style{Colours: true}}
	if err := terminal.Say(t.Context(), "hi"); err != nil {
		t.Fatal(err)
	}
	want := "\x1b[2mhm\x1b[22m\nHello\n\x1b[2m→ t {}\x1b[22m\n\x1b[2m[stop, 1 step, 0 tokens in, 0 out]\x1b[22m\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// While the connection is broken, each reason is reported once.
func TestNotice(t *testing.T) {
	t.Parallel()
	s := &server{keys: map[string]bool{}, answers: []func(http.ResponseWriter){
		refuse(http.StatusServiceUnavailable, "away"), refuse(http.StatusServiceUnavailable, "away"), refuse(http.StatusServiceUnavailable, "full"),
		stream(false, `1-1 done {"finishReason":"stop","steps":1}`),
	}}
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	var told []string
	client := &chat.Client{URL: ts.URL, HTTP: ts.Client(), Notice: func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }}
	if err := client.Send(t.Context(), "s", "hi", func(chat.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"connection broken (away), resuming", "connection broken (full), resuming"}, told); diff != "" {
		t.Error(diff)
	}
}

// Everything is shown once, even if the connection breaks several times.
func TestResume(t *testing.T) {
	t.Parallel()
	shown, s, err := talk(t,
		stream(true), // before the first event: the message is sent again, under the same key
		refuse(http.StatusServiceUnavailable, "in a moment"),
		stream(true, `4-2 text-delta {"delta":"Hel"}`),
		stream(true, `4-3 text-delta {"delta":"lo\n"}`),
		stream(false, `5-0 user-message {"content":"other"}`, `4-4 tool-call-complete {"toolName":"t","args":{"a":1}}`, `4-5 tool-result {"toolName":"t","result":"{}","isError":true}`,
			`4-6 done {"finishReason":"stop","steps":1,"totalTokensIn":3,"totalTokensOut":4}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	want := "Hello\n→ t {\"a\":1}\n✗ t {}\n[stop, 1 step, 3 tokens in, 4 out]\n"
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Error(diff)
	}
	wantSeen := []string{
		"POST /api/sessions/s/messages", "POST /api/sessions/s/messages", "POST /api/sessions/s/messages",
		"GET /api/sessions/s/events 4-2", "GET /api/sessions/s/events 4-3",
	}
	if diff := cmp.Diff(wantSeen, s.seen); diff != "" {
		t.Error(diff)
	}
	if len(s.keys) != 1 {
		t.Errorf("%d idempotency keys were used, want one", len(s.keys))
	}
}

// A simulated answer is marked, and explained once.
func TestSimulated(t *testing.T) {
	t.Parallel()
	shown, _, err := talk(t, stream(false, `1-0 user-message {"content":"hi"}`, `1-1 run-start {"provider":"simulator","simulated":true}`,
		`1-2 text-delta {"delta":"Hello"}`, `1-3 run-start {"provider":"simulator","simulated":true}`, `1-4 done {"finishReason":"stop","steps":1,"simulated":true}`))
	want := "[simulated: a script answers, not a model. `signalbox accounts add anthropic --data there` adds an account]\nHello\n[simulated, stop, 1 step, 0 tokens in, 0 out]\n"
	if diff := cmp.Diff(want, shown); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// The sender of a message gets no run-start: the end of the answer says that it is simulated.
func TestSimulatedEnd(t *testing.T) {
	t.Parallel()
	shown, _, err := talk(t, stream(false, `1-1 text-delta {"delta":"Hello"}`, `1-2 done {"finishReason":"stop","steps":1,"simulated":true}`))
	if want := "Hello\n[simulated, stop, 1 step, 0 tokens in, 0 out]\n"; shown != want || err != nil {
		t.Errorf("shows %q, %v, want %q", shown, err, want)
	}
}

func TestWaiting(t *testing.T) {
	t.Parallel()
	shown, _, err := talk(t, stream(false, `1-2 waiting {"reason":"All accounts are limited.","until":"2026-11-23T16:00:00Z"}`, `1-3 done {"finishReason":"stop","steps":1}`))
	want := "… waiting: All accounts are limited. 2026-11-23T16:00:00Z\n[stop, 1 step, 0 tokens in, 0 out]\n"
	if diff := cmp.Diff(want, shown); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	if _, _, err := talk(t, refuse(http.StatusForbidden, "not yours")); err == nil || !strings.Contains(err.Error(), "not yours") {
		t.Errorf("Say = %v, want what the server said", err)
	}
	shown, _, err := talk(t, stream(false, `1-2 error {"error":"The model provider is overloaded."}`))
	if want := "error: The model provider is overloaded.\n"; !errors.Is(err, process.ErrShown) || shown != want {
		t.Errorf("Say shows %q and returns %v, want %q once", shown, err, want)
	}
}

// A call that another client runs is shown, and nobody is asked about it.
func TestClientTool(t *testing.T) {
	t.Parallel()
	shown, _, err := talk(t, stream(false, `1-2 tool-client-request {"toolCallId":"c1","toolName":"locate","args":{},"expiresAt":"2026-11-23T16:00:00Z"}`,
		`1-3 waiting {"reason":"a tool call waits for a client's result","until":"2026-11-23T16:00:00Z","forClient":true}`, `1-4 done {"finishReason":"stop","steps":1}`))
	want := "… locate runs in the client that declared it, and waits for its result until 2026-11-23T16:00:00Z\n" +
		"… waiting: a tool call waits for a client's result 2026-11-23T16:00:00Z\n[stop, 1 step, 0 tokens in, 0 out]\n"
	if err != nil || shown != want {
		t.Errorf("Say shows %q and returns %v, want %q", shown, err, want)
	}
}

// A person is asked about a tool call that waits, and answers with y or n.
func TestApproval(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		event, typed, want string
	}{
		"refuse":  {`{"toolCallId":"c1","toolName":"send","args":{"to":"x"},"reason":"it sends"}`, "maybe\nn, wrong list\n", `{"approved":false,"reason":"wrong list"}`},
		"approve": {`{"runId":"r1","toolCallId":"c1","toolName":"send","args":{"to":"x"},"reason":"it sends"}`, "y\n", `{"approved":true,"run_id":"r1"}`},
		"repeat":  {`{"toolCallId":"c1","toolName":"send","args":{"to":"x"},"outcomeUnknown":true}`, "no\n", `{"outcome":"repeat"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got string
			ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/api/sessions/s/approvals/c1" {
					b, _ := io.ReadAll(r.Body)
					got = string(b)
					fmt.Fprint(w, `{}`)
					return
				}
				stream(false, "1-1 tool-approval-request "+tt.event, `1-2 waiting {"reason":"a person","forPerson":true}`,
					`1-3 tool-approval-response {"toolCallId":"c1","toolName":"send","decision":"refused"}`, `1-4 done {"finishReason":"stop"}`)(w)
			}))
			t.Cleanup(ts.Close)
			var out strings.Builder
			terminal := &chat.Terminal{Client: &chat.Client{URL: ts.URL, HTTP: ts.Client(), Notice: func(string, ...any) {}}, Session: "s", Out: &out}
			if err := terminal.Talk(t.Context(), strings.NewReader("hi\n"+tt.typed), ""); err != nil {
				t.Fatal(err)
			}
			if got != tt.want || !strings.Contains(out.String(), `? send {"to":"x"}`) {
				t.Errorf("the answer was %s, want %s; the person saw:\n%s", got, tt.want, out.String())
			}
		})
	}
}
