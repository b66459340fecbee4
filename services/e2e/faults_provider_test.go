package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
)

// providerFault is an error or an oddity of a model provider, with the expected result of the
// run: a complete answer, or an error that says what happened.
type providerFault struct {
	name     string
	then     string // the script's actions
	rules    string // rules before it, as YAML lines
	wire     string // the script's wire setting
	dialects string // empty for all

	code    string // of the run's error; empty for the complete answer
	says    string // the error's message, or a part of it
	limit   string // the finish reason of a run that reached a limit and keeps the text so far
	asked   int    // the number of requests to the provider
	retries int    // the number of step-retry events
	refused bool   // a tool call was not executed
	atLeast time.Duration
}

// The complete answer of every script, and the parts before and after most faults.
const (
	wholeAnswer = "One two three four five."
	begun       = `{say: 'One two '}`
	rest        = `{say: 'three four five.'}`
)

// stepTime is the timeout of a model call in this test.
const stepTime = 16 * time.Second

// A fault happens before the answer, in the middle of it, or after its text.
func first(fault string) string     { return "[" + fault + ", " + begun + ", " + rest + "]" }
func midway(fault string) string    { return "[" + begun + ", " + fault + ", " + rest + "]" }
func lastThing(fault string) string { return "[" + begun + ", " + rest + ", " + fault + "]" }

func providerFaults() []providerFault {
	const chats, claude = "openai openrouter", "anthropic"
	return []providerFault{
		{name: "nothing", then: "[" + begun + ", " + rest + "]", asked: 1},

		{name: "429 with retry-after", then: first(`{fail: {kind: rate_limit, retry_after: '1', times: 1}}`), asked: 2, atLeast: time.Second},
		{name: "429 without retry-after", then: first(`{fail: {kind: rate_limit, times: 2}}`), asked: 3},
		{name: "429 that asks for too much", then: first(`{fail: {kind: rate_limit, retry_after: '3600'}}`), code: "MODEL_RATE_LIMIT", says: "It asks to wait 1h0m0s.", asked: 1},
		{name: "429 forever", then: first(`{fail: rate_limit}`), code: "MODEL_RATE_LIMIT", asked: 3},
		{name: "overloaded", then: first(`{fail: {kind: overloaded, times: 1}}`), asked: 2},
		{name: "overloaded forever", then: first(`{fail: overloaded}`), code: "MODEL_OVERLOADED", asked: 3},
		{name: "500", then: first(`{fail: {kind: server_error, times: 1}}`), asked: 2},
		{name: "500 forever", then: first(`{fail: server_error}`), code: "MODEL_SERVER", asked: 3},
		{name: "504 forever", then: first(`{fail: timeout}`), code: "MODEL_TIMEOUT", asked: 3},
		{name: "a refused credential", then: first(`{fail: unauthorized}`), code: "MODEL_AUTH", asked: 1},
		{name: "no credit", then: first(`{fail: no_credit}`), code: "MODEL_QUOTA", asked: 1},
		{name: "an unknown model", then: first(`{fail: not_found}`), code: "MODEL_NOT_FOUND", asked: 1},
		{name: "a refused request", then: first(`{fail: invalid}`), code: "MODEL_INVALID_REQUEST", asked: 1},
		{name: "a request that is too large", then: first(`{fail: too_large}`), code: "MODEL_TOO_LARGE", asked: 1},

		{name: "an error as the first event", then: first(`{fail: {kind: overloaded, in_stream: true, times: 1}}`), asked: 2},
		{name: "an error as the first event forever", then: first(`{fail: {kind: rate_limit, in_stream: true}}`), code: "MODEL_RATE_LIMIT", asked: 3},
		{name: "an error midway", then: midway(`{fail: {kind: overloaded, times: 1}}`), asked: 2, retries: 1},
		{name: "an error midway forever", then: midway(`{fail: {kind: rate_limit}}`), code: "MODEL_RATE_LIMIT", asked: 3, retries: 2},
		{name: "an error behind the reason to stop", then: lastThing(`{fail: {kind: rate_limit, late: true, times: 1}}`), asked: 2, retries: 1},

		{name: "silence before the headers", then: first(`{fail: {kind: stall, times: 1}}`), asked: 2},
		{name: "silence before the headers forever", then: first(`{fail: stall}`), code: "MODEL_TIMEOUT", asked: 3},
		{name: "silence before the first event", then: first(`{fail: {kind: stall, in_stream: true, times: 1}}`), asked: 2},
		{name: "silence before the first event forever", then: first(`{fail: {kind: stall, in_stream: true}}`), code: "MODEL_TIMEOUT", asked: 3},
		{name: "silence before the first word", then: first(`{wait: 0s}, {fail: {kind: stall, times: 1}}`), asked: 2},
		{name: "silence midway", then: midway(`{fail: {kind: stall, times: 1}}`), asked: 2, retries: 1},
		{name: "silence midway forever", then: midway(`{fail: stall}`), code: "MODEL_TIMEOUT", asked: 3, retries: 2},
		{name: "silence in an event", then: midway(`{fail: {kind: stall, torn: true, times: 1}}`), asked: 2, retries: 1},
		{name: "silence that ends", then: midway(`{fail: {kind: stall, for: 500ms}}`), asked: 1, atLeast: 500 * time.Millisecond},

		{name: "a reset at first", then: first(`{fail: {kind: reset, times: 1}}`), asked: 2},
		{name: "a reset at first forever", then: first(`{fail: reset}`), code: "MODEL_NETWORK", asked: 3},
		{name: "a reset midway", then: midway(`{fail: {kind: reset, times: 1}}`), asked: 2, retries: 1},
		{name: "a reset midway forever", then: midway(`{fail: reset}`), code: "MODEL_NETWORK", asked: 3, retries: 2},
		{name: "a reset before the last event", then: lastThing(`{fail: {kind: reset, late: true, times: 1}}`), asked: 2, retries: 1},
		{name: "a dropped connection midway", then: midway(`{fail: {kind: drop, times: 1}}`), asked: 2, retries: 1},
		{name: "a dropped connection midway forever", then: midway(`{fail: {kind: drop, torn: true}}`), code: "MODEL_TRUNCATED", asked: 3, retries: 2},

		{name: "a clean end at first", then: first(`{fail: {kind: cut, times: 1}}`), asked: 2},
		{name: "a clean end at first forever", then: first(`{fail: cut}`), code: "MODEL_TRUNCATED", asked: 3},
		{name: "a clean end midway", then: midway(`{fail: {kind: cut, times: 1}}`), asked: 2, retries: 1},
		{name: "a clean end midway forever", then: midway(`{fail: cut}`), code: "MODEL_TRUNCATED", asked: 3, retries: 2},
		{name: "a clean end in an event", then: midway(`{fail: {kind: cut, torn: true, times: 1}}`), asked: 2, retries: 1},
		{name: "a clean end behind the text", then: lastThing(`{fail: cut}`), code: "MODEL_TRUNCATED", asked: 3, retries: 2},
		// With Anthropic, only the last event says that the answer is complete; in the other
		// dialect the finish reason does, and many servers omit [DONE].
		{name: "no message_stop", then: lastThing(`{fail: {kind: cut, late: true}}`), dialects: claude, code: "MODEL_TRUNCATED", asked: 3, retries: 2},
		{name: "no [DONE]", then: lastThing(`{fail: {kind: cut, late: true}}`), dialects: chats, asked: 1},
		{name: "[DONE] without a reason to stop", then: lastThing(`{event: {data: '[DONE]'}}, {fail: cut}`), dialects: chats, code: "MODEL_TRUNCATED", asked: 3, retries: 2},

		{name: "half of a call", then: `[{say: 'One two '}, {call: {tool: doc_list, args: {query: 'three four five'}, break: 10}}, {fail: cut}]`, code: "MODEL_TRUNCATED", asked: 3, retries: 2},
		// A call with truncated arguments is not executed: the model gets an error and repeats it.
		{
			name: "half of the arguments", asked: 2, refused: true,
			then:  `[{call: {tool: doc_list, args: {query: 'three four five'}, break: 10}}, {stop: max_tokens}]`,
			rules: `  - {when: {result: {error: true}}, then: [{say: '` + wholeAnswer + `'}]}` + "\n",
		},
		{name: "JSON that is none", then: midway(`{event: {name: content_block_delta, data: '{"type":"content_block_delta","choices":[{'}}`), code: "MODEL_SERVER", asked: 3, retries: 2},

		{name: "padding", wire: `{padding: true}`, then: midway(`{wait: 1ms}`), asked: 1},
		{name: "pings and comments", wire: `{pings: 1, comments: 1}`, then: midway(`{wait: 1ms}`), asked: 1},
		{name: "CRLF", wire: `{crlf: true}`, then: midway(`{wait: 1ms}`), asked: 1},
		{name: "a byte at a time", wire: `{write: 1, every: 200us}`, then: midway(`{wait: 1ms}`), asked: 1},
		{name: "CRLF in odd pieces", wire: `{crlf: true, write: 3}`, then: midway(`{wait: 1ms}`), asked: 1},
		{name: "a character at a time", then: `[{say: {text: '` + wholeAnswer + `', chunk: 1, delay: 20ms}}]`, asked: 1},
		{name: "a trickle without end", then: `[{say: {text: '` + strings.Repeat("on and ", 1000) + `', delay: 250ms}}]`, limit: "max-step-time", asked: 1, atLeast: stepTime},
		{name: "blocks that take turns", then: `[{interleave: [{think: {text: 'Let me count to five.', chunk: 2}}, {say: {text: '` + wholeAnswer + `', chunk: 3}}]}]`, asked: 1},
		{name: "an unknown event", then: midway(`{event: {name: tomorrow, data: '{"type":"tomorrow"}'}}`), asked: 1},
	}
}

// TestProviderFaults checks that each fault of a provider, in each dialect, results in a
// complete answer or a clear error through the real chain: provider, credential-broker,
// agent-runner, gateway. Text from failed attempts is retracted, its cost is counted, and a
// truncated answer is never presented as complete.
//
//nolint:paralleltest // rows are played again one by one
func TestProviderFaults(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*timeout)
	defer cancel()
	f := startFaulty(ctx, t)
	dialects := []string{"anthropic", "openai", "openrouter"}

	// All at once, because most of them wait, and each for another member, because a member
	// may not have so many streams.
	var wg sync.WaitGroup
	results := make(map[string]*faultResult)
	owners, err := f.NewMembers(ctx, "", "owner", len(providerFaults())*len(dialects))
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range providerFaults() {
		for _, dialect := range dialects {
			if row.dialects == "" || strings.Contains(row.dialects, dialect) {
				r := &faultResult{row: row, dialect: dialect, script: fmt.Sprintf("fault-%d-%s", i, dialect)}
				r.Client = f.Client(0, owners[len(results)])
				results[dialect+"/"+row.name] = r
				wg.Go(func() { r.err = f.play(ctx, r) })
			}
		}
	}
	wg.Wait()
	again := maxAgain
	for name, r := range results {
		t.Run(name, func(t *testing.T) {
			if wrong := r.check(); len(wrong) > 0 && again > 0 {
				again--
				t.Logf("among all others: %s\n%s", r, strings.Join(wrong, "\n"))
				r = &faultResult{row: r.row, dialect: r.dialect, script: r.script + "-again", Client: r.Client}
				r.err = f.play(ctx, r)
			}
			t.Log(r)
			if wrong := r.check(); len(wrong) > 0 {
				t.Error(strings.Join(wrong, "\n"))
			}
		})
	}
}

// maxAgain is how many rows may be played again, alone: on a busy machine, the short timeouts of
// faulty can expire where the provider has no fault.
const maxAgain = 5

// faulty is a world with short timeouts: of the runner for the headers, of the broker within a
// stream.
type faulty struct {
	*world.World
	db   *pgx.Conn
	dbMu sync.Mutex // guards db
}

func startFaulty(ctx context.Context, t *testing.T) *faulty {
	t.Helper()
	settings := map[string][]string{
		world.SimulatorName: {"SIMULATOR_REQUESTS=2000"}, // enough to count all of them
		subject.AgentRunner: {
			"AGENT_RUNNER_STEP_TIME=" + stepTime.String(), "AGENT_RUNNER_MODEL_BACKOFF=50ms", "AGENT_RUNNER_MAX_RETRY_AFTER=10s", "AGENT_RUNNER_FIRST_BYTE=3s", "AGENT_RUNNER_IDLE=20s",
		},
		subject.CredentialBroker: {
			"CREDENTIAL_BROKER_HEADERS_TIMEOUT=20s", "CREDENTIAL_BROKER_GATE_TIMEOUT=500ms", "CREDENTIAL_BROKER_FIRST_EVENT_TIMEOUT=3s", "CREDENTIAL_BROKER_IDLE_TIMEOUT=3s",
		},
	}
	w, err := world.Start(ctx, world.Options{
		Dir: t.TempDir(), Programs: bin, Replicas: 1, LogLevel: "debug",
		Env: func(service string, _ int) []string { return settings[service] },
	})
	if w != nil {
		t.Cleanup(func() { //nolint:contextcheck // it has to end whatever became of the test
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{World: w}
	if f.db, err = pgx.Connect(ctx, w.Database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.db.Close(context.WithoutCancel(ctx)) }) // it was only read
	return f
}

// faultResult is the result of a row in one dialect.
type faultResult struct {
	world.Client
	row             providerFault
	dialect, script string

	got     world.Run
	seen    string // the viewer's text at the end
	last    string // event
	retries int
	stored  string // of the assistant's messages
	marked  bool   // as truncated
	waste   int64  // tokens
	asked   int
	took    time.Duration
	err     error
}

// simulatorOf returns the simulator with a provider's protocol.
func simulatorOf(dialect string) string {
	if dialect == "anthropic" {
		return "simulator"
	}
	return "simulator-" + dialect
}

func (f *faulty) play(ctx context.Context, r *faultResult) error {
	script := "rules:\n" + r.row.rules + "  - then: " + r.row.then + "\n"
	if r.row.wire != "" {
		script = "wire: " + r.row.wire + "\n" + script
	}
	if err := f.PutScript(ctx, r.script, script); err != nil {
		return err
	}
	var made struct{ Session struct{ ID string } }
	body := map[string]any{"model": "sim/" + r.script, "provider": simulatorOf(r.dialect)}
	if err := r.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/sessions", Body: body}, &made); err != nil {
		return err
	}
	start := time.Now()
	s, err := r.Send(ctx, made.Session.ID, world.Sending{Content: "Count to five."})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := r.watch(s); err != nil {
		return err
	}
	r.took = time.Since(start)
	if r.got, err = r.Run(ctx, s.Run); err != nil {
		return err
	}
	messages, err := r.Messages(ctx, made.Session.ID)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if m.Role == "assistant" {
			r.stored += m.Text()
			r.marked = r.marked || bytes.Contains(m.Content, []byte(`"cancelled":true`))
		}
	}
	if err := f.waste(ctx, r); err != nil {
		return err
	}
	r.asked, err = f.asked(ctx, r.script)
	return err
}

// watch reads the events as a viewer does: step-retry retracts the text of the step.
func (r *faultResult) watch(s *world.Stream) error {
	for {
		ev, err := s.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.last = ev.Type + " " + string(ev.Data)
		switch ev.Type {
		case "text-delta":
			var d struct{ Delta string }
			if err := json.Unmarshal(ev.Data, &d); err != nil {
				return err
			}
			r.seen += d.Delta
		case "step-retry":
			r.retries++
			r.seen = ""
		}
	}
}

func (f *faulty) waste(ctx context.Context, r *faultResult) error {
	f.dbMu.Lock()
	defer f.dbMu.Unlock()
	return f.db.QueryRow(ctx,
		`select coalesce(sum(wasted_input_tokens + wasted_output_tokens), 0)::bigint from agent.steps where run_id = $1::uuid`, r.got.ID).Scan(&r.waste)
}

func (f *faulty) asked(ctx context.Context, script string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/simulator/requests?script=%s&limit=100", f.Simulator, script), nil)
	if err != nil {
		return 0, err
	}
	res, err := f.HTTP.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var out struct{ Requests []struct{} }
	err = json.NewDecoder(res.Body).Decode(&out)
	return len(out.Requests), err
}

func (r *faultResult) String() string {
	return fmt.Sprintf("%s in %s: %s", r.got.State, r.took.Round(time.Millisecond), r.last)
}

// check returns what is wrong.
func (r *faultResult) check() (wrong []string) {
	if r.err != nil {
		return []string{r.err.Error()}
	}
	switch {
	case r.row.limit != "":
		wrong = r.checkLimit()
	case r.row.code != "":
		wrong = r.checkError()
	default:
		wrong = r.checkAnswer()
	}
	if r.asked != r.row.asked || r.retries != r.row.retries {
		wrong = append(wrong, fmt.Sprintf("the provider got %d requests with %d step-retries, want %d and %d", r.asked, r.retries, r.row.asked, r.row.retries))
	}
	if r.row.refused != (len(r.got.ToolCalls) == 1) {
		wrong = append(wrong, fmt.Sprintf("the run has the tool calls %+v", r.got.ToolCalls))
	}
	for _, c := range r.got.ToolCalls {
		if !r.row.refused || c.State == nil || *c.State != "error" || c.Result == nil || !strings.Contains(*c.Result, "not a JSON object") {
			wrong = append(wrong, fmt.Sprintf("the call %+v was executed", c))
		}
	}
	if r.waste == 0 && r.row.retries > 0 || r.waste > 0 && r.row.code == "" && r.asked == 1 {
		wrong = append(wrong, fmt.Sprintf("%d tokens are counted as waste after %d step-retries and %d calls", r.waste, r.row.retries, r.asked))
	}
	if r.took < r.row.atLeast || r.took > timeout {
		wrong = append(wrong, fmt.Sprintf("it took %s, want at least %s and less than %s", r.took, r.row.atLeast, timeout))
	}
	return wrong
}

func (r *faultResult) checkAnswer() (wrong []string) {
	if r.got.State != "done" || r.got.FinishReason == nil || *r.got.FinishReason != "stop" || r.got.Error != nil {
		wrong = append(wrong, fmt.Sprintf("the run is %+v, want it done", r.got))
	}
	if r.seen != wholeAnswer || r.stored != wholeAnswer || r.got.Text != wholeAnswer {
		wrong = append(wrong, fmt.Sprintf("the viewer has %q, the session %q, the run %q, want %q", r.seen, r.stored, r.got.Text, wholeAnswer))
	}
	if !strings.HasPrefix(r.last, "done ") || r.marked {
		wrong = append(wrong, fmt.Sprintf("the last event is %s, want done", r.last))
	}
	return wrong
}

// checkLimit checks that the text so far is kept, with the finish reason of a limit.
func (r *faultResult) checkLimit() (wrong []string) {
	if r.got.State != "done" || r.got.FinishReason == nil || *r.got.FinishReason != r.row.limit {
		wrong = append(wrong, fmt.Sprintf("the run is %+v, want it ended by %s", r.got, r.row.limit))
	}
	if r.seen == "" || r.stored != r.seen || !r.marked || !strings.Contains(r.last, r.row.limit) {
		wrong = append(wrong, fmt.Sprintf("the viewer has %q, the session %q and the last event is %s, want the same, and %s", r.seen, r.stored, r.last, r.row.limit))
	}
	return wrong
}

func (r *faultResult) checkError() (wrong []string) {
	if r.got.State != "failed" || r.got.Error == nil || r.got.Error.Code != r.row.code || r.got.Error.Message == "" || !strings.Contains(r.got.Error.Message, r.row.says) {
		wrong = append(wrong, fmt.Sprintf("the run is %+v with the error %+v, want it failed with %s", r.got, r.got.Error, r.row.code))
	}
	if r.stored != "" || r.got.Text != "" {
		wrong = append(wrong, fmt.Sprintf("the session keeps %q and the run %q of a truncated answer", r.stored, r.got.Text))
	}
	if !strings.HasPrefix(r.last, "error ") || !strings.Contains(r.last, r.row.code) {
		wrong = append(wrong, fmt.Sprintf("the last event is %s, want the error %s", r.last, r.row.code))
	}
	return wrong
}
