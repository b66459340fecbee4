package agentrunner_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/proto/signalbox/agent/v1/agentv1connect"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"
	agentrunner "signalbox.dev/services/agent-runner"
)

// patient is the timeout of every wait in a test.
const patient = 20 * time.Second

// world is agent-runner with a real Postgres and NATS, and a fake tool executor and model
// provider that the test scripts.
type world struct {
	t        *testing.T
	nats     *natsd.Server
	db       *pgtest.Database
	keys     map[string]identity.Key
	broker   *httptest.Server
	accounts *fakeBroker
	tools    *executor
	model    *model
	logs     slog.Handler // of the runners; nil for the test's output

	workspace     id.Workspace
	conversations agentv1connect.ConversationServiceClient
	runs          agentv1connect.RunServiceClient
	models        agentv1connect.ModelServiceClient
	usage         agentv1connect.UsageServiceClient
	presets       agentv1connect.PresetServiceClient
	approvals     agentv1connect.ApprovalServiceClient
	audit         agentv1connect.AuditServiceClient
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, nats: natstest.New(t), db: pgtest.New(t, agentrunner.Migrations()), keys: map[string]identity.Key{},
		workspace: id.New[id.Workspace](),
	}
	for _, s := range []string{subject.Gateway, subject.AgentRunner} {
		k, err := identity.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		w.keys[s] = k
	}
	w.model = &model{t: t}
	w.newBroker()
	w.tools = newExecutor(w)
	return w
}

// runner is one replica.
type runner struct {
	url     string
	stop    context.CancelFunc
	ended   chan error
	metrics *prometheus.Registry
}

func fast(cfg *agentrunner.Config) {
	cfg.ModelBackoff = time.Millisecond
	cfg.TitleModel = "off"                                    // models answer as scripted, call by call
	cfg.Beat, cfg.Lease = 100*time.Millisecond, 2*time.Second // so long that a busy machine loses no claim
}

// start runs a replica. The first one receives the test's calls.
func (w *world) start(change ...func(*agentrunner.Config)) *runner {
	w.t.Helper()
	var cfg agentrunner.Config
	err := conf.Load(&cfg, []string{
		"DATABASE_URL=x", "SERVICE_KEY=x", "TRUSTED_KEYS=x", "TOOL_EXECUTOR_URL=" + w.tools.url, "CREDENTIAL_BROKER_URL=" + w.broker.URL,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range append([]func(*agentrunner.Config){fast}, change...) {
		c(&cfg)
	}
	listener, err := httpserver.Listen(w.t.Context(), "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	verifier, err := identity.NewVerifier(subject.AgentRunner, map[string]string{subject.Gateway: w.keys[subject.Gateway].Public()})
	if err != nil {
		w.t.Fatal(err)
	}
	metrics := prometheus.NewRegistry()
	s, err := agentrunner.New(cfg, agentrunner.Deps{
		Log: slog.New(cmp.Or[slog.Handler](w.logs, slog.NewTextHandler(w.t.Output(), nil))), DB: w.db.Open(w.t, agentrunner.Migrations()),
		Bus: natstest.Bus(w.t, w.nats, subject.AgentRunner), Listener: listener, Verifier: verifier,
		Signer: identity.NewSigner(subject.AgentRunner, w.keys[subject.AgentRunner]), Registerer: metrics,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	r := &runner{url: "http://" + listener.Addr().String(), stop: cancel, ended: make(chan error, 1), metrics: metrics}
	go func() { r.ended <- s.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.ended:
			if err != nil {
				w.t.Errorf("Run = %v, want nil after a drain", err)
			}
		case <-time.After(patient):
			w.t.Error("Run did not end")
		}
		r.ended <- nil
	})
	if w.conversations == nil {
		w.connect(r)
	}
	return r
}

func (w *world) connect(r *runner) {
	w.t.Helper()
	options, err := rpc.Client{Signer: identity.NewSigner(subject.Gateway, w.keys[subject.Gateway]), Audience: subject.AgentRunner}.ClientOptions()
	if err != nil {
		w.t.Fatal(err)
	}
	w.conversations = agentv1connect.NewConversationServiceClient(http.DefaultClient, r.url, options...)
	w.runs = agentv1connect.NewRunServiceClient(http.DefaultClient, r.url, options...)
	w.models = agentv1connect.NewModelServiceClient(http.DefaultClient, r.url, options...)
	w.approvals = agentv1connect.NewApprovalServiceClient(http.DefaultClient, r.url, options...)
	w.audit = agentv1connect.NewAuditServiceClient(http.DefaultClient, r.url, options...)
	w.usage = agentv1connect.NewUsageServiceClient(http.DefaultClient, r.url, options...)
	w.presets = agentv1connect.NewPresetServiceClient(http.DefaultClient, r.url, options...)
}

// as returns a context with an identity in the world's workspace.
func (w *world) as(role identity.Role) context.Context {
	return identity.With(w.t.Context(), identity.Actor{Workspace: w.workspace, Member: id.Must[id.Member]("0198a000-0000-7000-8000-000000000001"), Role: role})
}

func (w *world) session(req *agentv1.CreateSessionRequest) string {
	w.t.Helper()
	res, err := w.conversations.CreateSession(w.as(identity.Editor), req)
	if err != nil {
		w.t.Fatalf("CreateSession: %v", err)
	}
	return res.GetSession().GetId()
}

func (w *world) submit(session, text string, change ...func(*agentv1.SubmitRequest)) *agentv1.SubmitResponse {
	w.t.Helper()
	content, _ := json.Marshal(text) // a string always marshals
	req := &agentv1.SubmitRequest{SessionId: session, ContentJson: string(content)}
	for _, c := range change {
		c(req)
	}
	res, err := w.conversations.Submit(w.as(identity.Editor), req)
	if err != nil {
		w.t.Fatalf("Submit: %v", err)
	}
	return res
}

func (w *world) look(session string) *agentv1.GetSessionResponse {
	w.t.Helper()
	res, err := w.conversations.GetSession(w.as(identity.Viewer), &agentv1.GetSessionRequest{Id: session})
	if err != nil {
		w.t.Fatalf("GetSession: %v", err)
	}
	return res
}

func (w *world) run(runID string) *agentv1.GetRunResponse {
	w.t.Helper()
	res, err := w.runs.GetRun(w.as(identity.Viewer), &agentv1.GetRunRequest{Id: runID})
	if err != nil {
		w.t.Fatalf("GetRun: %v", err)
	}
	return res
}

// spent is the recorded usage of a run.
func (w *world) spent(runID string) (booked string) {
	w.t.Helper()
	err := w.db.Open(w.t, agentrunner.Migrations()).InWorkspace(w.t.Context(), w.workspace, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT string_agg(format('wasted %s: %s in %s out, estimated %s, costs %s', wasted::text, input_tokens, output_tokens, estimated::text, cost_micros),
				'; ' ORDER BY wasted)
			FROM usage WHERE run_id = $1`, runID).Scan(&booked)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return booked
}

// viewer receives a session's events as a gateway does.
type viewer struct {
	t      *testing.T
	events chan *runv1.Event
}

func (w *world) watch(session string) *viewer {
	w.t.Helper()
	v := &viewer{w.t, make(chan *runv1.Event, 10_000)}
	b := natstest.Bus(w.t, w.nats, subject.Gateway)
	sid := id.Must[id.Session](session)
	_, err := b.Subscribe(subject.Live(subject.Partition(sid, 4), w.workspace, sid), func(_ context.Context, m *bus.Message) {
		ev, err := bus.Decode[*runv1.Event](m)
		if err != nil {
			v.t.Errorf("event on %s: %v", m.Subject, err)
			return
		}
		v.events <- ev
	})
	if err == nil {
		err = b.Flush(w.t.Context())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// until returns the events up to the first one for which last returns true.
func (v *viewer) until(last func(*runv1.Event) bool) []*runv1.Event {
	v.t.Helper()
	var seen []*runv1.Event
	timeout := time.After(patient)
	for {
		select {
		case ev := <-v.events:
			seen = append(seen, ev)
			if last(ev) {
				return seen
			}
		case <-timeout:
			v.t.Fatalf("the awaited event did not come; seen:\n%s", strings.Join(lines(seen), "\n"))
		}
	}
}

func isEnd(ev *runv1.Event) bool { return ev.GetDone() != nil || ev.GetError() != nil }

// lines formats the events that a reader accepts. Consecutive deltas of one kind are one line.
func lines(events []*runv1.Event) []string {
	var out []string
	last := ""
	for _, ev := range events {
		line, kind := describe(ev)
		if kind != "" && kind == last {
			out[len(out)-1] += line
			continue
		}
		last = kind
		out = append(out, kind+line)
	}
	return out
}

func describe(ev *runv1.Event) (line, delta string) {
	p := fmt.Sprintf("%d ", ev.GetRunOrdinal())
	switch b := ev.GetBody().(type) {
	case *runv1.Event_TextDelta:
		return b.TextDelta.GetDelta(), p + "text "
	case *runv1.Event_ReasoningDelta:
		return b.ReasoningDelta.GetDelta(), p + "reasoning "
	case *runv1.Event_ToolCallDelta:
		return b.ToolCallDelta.GetDelta(), p + "tool-delta "
	case *runv1.Event_UserMessage:
		return p + "user " + b.UserMessage.GetContentJson(), ""
	case *runv1.Event_RunStart:
		return p + "start", ""
	case *runv1.Event_ToolCallStart:
		return p + "tool-start " + b.ToolCallStart.GetToolName(), ""
	case *runv1.Event_ToolCallComplete:
		return p + "call " + b.ToolCallComplete.GetToolCallId() + " " + b.ToolCallComplete.GetToolName() + " " + b.ToolCallComplete.GetArgsJson(), ""
	case *runv1.Event_ToolResult:
		return fmt.Sprintf("%sresult %s %s %v", p, b.ToolResult.GetToolCallId(), b.ToolResult.GetResultJson(), b.ToolResult.GetIsError()), ""
	case *runv1.Event_ToolApprovalRequest:
		return fmt.Sprintf("%sask %s %s %v", p, b.ToolApprovalRequest.GetToolCallId(), b.ToolApprovalRequest.GetArgsJson(), b.ToolApprovalRequest.GetOutcomeUnknown()), ""
	case *runv1.Event_ToolApprovalResponse:
		return fmt.Sprintf("%sanswer %s %s %s", p, b.ToolApprovalResponse.GetToolCallId(), b.ToolApprovalResponse.GetDecision(), b.ToolApprovalResponse.GetReason()), ""
	case *runv1.Event_ToolClientRequest:
		return fmt.Sprintf("%sclient %s %s %s", p, b.ToolClientRequest.GetToolCallId(), b.ToolClientRequest.GetArgsJson(), b.ToolClientRequest.GetReason()), ""
	case *runv1.Event_Source:
		return p + "source " + b.Source.GetUrl() + " " + b.Source.GetTitle(), ""
	case *runv1.Event_Citation:
		return fmt.Sprintf("%scitation %s %q %d", p, b.Citation.GetUrl(), b.Citation.GetText(), b.Citation.GetEnd()), ""
	case *runv1.Event_StepComplete:
		return fmt.Sprintf("%sstep %d %s %d/%d", p, ev.GetStepIndex(), b.StepComplete.GetFinishReason(), b.StepComplete.GetTokensIn(), b.StepComplete.GetTokensOut()), ""
	case *runv1.Event_StepRetry:
		return fmt.Sprintf("%sretry %d", p, ev.GetStepIndex()), ""
	case *runv1.Event_SessionTitle:
		return p + "title " + b.SessionTitle.GetTitle(), ""
	case *runv1.Event_Compaction:
		return fmt.Sprintf("%scompaction %d %d messages", p, ev.GetStepIndex(), b.Compaction.GetMessages()), ""
	case *runv1.Event_Waiting:
		return fmt.Sprintf("%swaiting %d %s", p, ev.GetStepIndex(), b.Waiting.GetReason()), ""
	case *runv1.Event_Done:
		return fmt.Sprintf("%sdone %s %q %d", p, b.Done.GetFinishReason(), b.Done.GetText(), b.Done.GetSteps()), ""
	case *runv1.Event_Error:
		return p + "error " + b.Error.GetCode(), ""
	default:
		return fmt.Sprintf("%s%T", p, b), ""
	}
}

// checkDense fails unless each run's events are numbered 0, 1, 2 … for a reader that ignores
// older epochs and known numbers.
func checkDense(t *testing.T, events []*runv1.Event) {
	t.Helper()
	type cursor struct{ epoch, next int64 }
	at := map[string]cursor{}
	for _, ev := range events {
		c := at[ev.GetRunId()]
		if ev.GetEpoch() < c.epoch || ev.GetNumber() < c.next {
			continue
		}
		if ev.GetNumber() != c.next {
			t.Errorf("event %d of run %d comes after %d", ev.GetNumber(), ev.GetRunOrdinal(), c.next-1)
		}
		at[ev.GetRunId()] = cursor{ev.GetEpoch(), ev.GetNumber() + 1}
	}
}

// model is a provider that speaks the Anthropic protocol. It answers each call with the next
// of the test's answers.
type model struct {
	t *testing.T

	mu       sync.Mutex // guards what follows
	name     string     // of the provider; empty for anthropic
	answers  []func(*answer)
	requests []json.RawMessage
}

// as makes the model another provider's.
func (m *model) as(provider string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.name = provider
}

func (m *model) provider() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(m.name, "anthropic")
}

// answer is one streamed answer.
type answer struct {
	w       http.ResponseWriter
	r       *http.Request
	request json.RawMessage
	blocks  int
	stop    string
}

func (m *model) then(answers ...func(*answer)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers = append(m.answers, answers...)
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		m.t.Errorf("the request is no JSON: %v", err)
	}
	m.mu.Lock()
	m.requests = append(m.requests, body)
	var f func(*answer)
	if len(m.answers) > 0 {
		f, m.answers = m.answers[0], m.answers[1:]
	}
	m.mu.Unlock()
	if r.URL.Path != "/egress/"+m.provider()+"/v1/messages" || f == nil {
		m.t.Errorf("unexpected model call: %s %s", r.URL.Path, body)
		http.Error(w, "unexpected", http.StatusTeapot)
		return
	}
	f(&answer{w: w, r: r, request: body, stop: "end_turn"})
}

func (m *model) asked() []json.RawMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]json.RawMessage{}, m.requests...)
}

// await waits until c is closed or has a value, but no longer than ctx. Handlers of a test use it: a
// server's Close waits for them, also when the test has failed.
func await[T any](ctx context.Context, c <-chan T) {
	select {
	case <-c:
	case <-ctx.Done():
	}
}

func (a *answer) event(name, format string, args ...any) {
	fmt.Fprintf(a.w, "event: %s\ndata: %s\n\n", name, fmt.Sprintf(format, args...))
	_ = http.NewResponseController(a.w).Flush() // a cut connection shows in the next write
}

func (a *answer) begin() {
	a.w.Header().Set("Content-Type", "text/event-stream")
	a.event("message_start", `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":1}}}`)
}

func (a *answer) text(pieces ...string) {
	a.event("content_block_start", `{"type":"content_block_start","index":%d,"content_block":{"type":"text","text":""}}`, a.blocks)
	for _, p := range pieces {
		j, _ := json.Marshal(p) // a string always marshals
		a.event("content_block_delta", `{"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%s}}`, a.blocks, j)
	}
	a.event("content_block_stop", `{"type":"content_block_stop","index":%d}`, a.blocks)
	a.blocks++
}

func (a *answer) call(callID, name, args string) {
	a.event("content_block_start", `{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":%q,"name":%q,"input":{}}}`, a.blocks, callID, name)
	a.event("content_block_delta", `{"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":%q}}`, a.blocks, args)
	a.event("content_block_stop", `{"type":"content_block_stop","index":%d}`, a.blocks)
	a.blocks++
	a.stop = "tool_use"
}

func (a *answer) end() {
	a.event("message_delta", `{"type":"message_delta","delta":{"stop_reason":%q,"stop_sequence":null},"usage":{"output_tokens":5}}`, a.stop)
	a.event("message_stop", `{"type":"message_stop"}`)
}

// says answers with text, calls with one tool call.
func says(pieces ...string) func(*answer) {
	return func(a *answer) {
		a.begin()
		a.text(pieces...)
		a.end()
	}
}

func calls(calls ...[3]string) func(*answer) {
	return func(a *answer) {
		a.begin()
		for _, c := range calls {
			a.call(c[0], c[1], c[2])
		}
		a.end()
	}
}

func fails(status int, body string) func(*answer) {
	return func(a *answer) {
		a.w.Header().Set("Content-Type", "application/json")
		a.w.WriteHeader(status)
		fmt.Fprint(a.w, body)
	}
}

const overloaded = `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`

// authOf returns the handler options of a service that agent-runner calls.
func (w *world) authOf(service string) []connect.HandlerOption {
	w.t.Helper()
	verifier, err := identity.NewVerifier(service, map[string]string{subject.AgentRunner: w.keys[subject.AgentRunner].Public()})
	if err != nil {
		w.t.Fatal(err)
	}
	options, err := rpc.Server{Verifier: verifier, Log: slog.New(slog.DiscardHandler)}.HandlerOptions()
	if err != nil {
		w.t.Fatal(err)
	}
	return options
}

// serve serves a handler as services do.
func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// executor is a tool executor: it consumes the queue, runs the test's tools once per key, and
// keeps and announces the outcomes.
type executor struct {
	toolv1connect.UnimplementedToolServiceHandler
	w   *world
	bus *bus.Bus
	url string

	mu        sync.Mutex // guards what follows
	tools     map[string]func(ctx context.Context, c *toolv1.Call) string
	specs     map[string]*toolv1.Tool // what a tool is, besides its name
	unknown   int                     // so many calls end with an unknown outcome
	outcomes  map[string]*toolv1.Outcome
	ran       map[string]int
	inHand    map[string]bool
	lose      int  // so many messages are acked and forgotten
	silent    bool // outcomes are not announced
	away      int  // so many calls of ListTools are refused
	gone      bool // outcomes cannot be read
	cancelled chan string
}

func newExecutor(w *world) *executor {
	w.t.Helper()
	e := &executor{
		w: w, bus: natstest.Bus(w.t, w.nats, subject.ToolExecutor), tools: map[string]func(context.Context, *toolv1.Call) string{},
		specs: map[string]*toolv1.Tool{}, outcomes: map[string]*toolv1.Outcome{}, ran: map[string]int{}, inHand: map[string]bool{}, cancelled: make(chan string, 10),
	}
	mux := http.NewServeMux()
	mux.Handle(toolv1connect.NewToolServiceHandler(e, w.authOf(subject.ToolExecutor)...))
	e.url = serve(w.t, mux).URL
	if _, err := e.bus.Subscribe(subject.AllToolCancels, func(_ context.Context, m *bus.Message) { e.cancelled <- m.Subject }); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- e.bus.Consume(ctx, bus.ConsumeConfig{Stream: subject.Tools, Consumer: subject.Executors, Slots: 16, Handler: e.handle, DrainTimeout: time.Second})
	}()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Consume = %v", err)
		}
	})
	return e
}

func (e *executor) add(name string, f func(ctx context.Context, c *toolv1.Call) string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tools[name] = f
}

func (e *executor) handle(ctx context.Context, d *bus.Delivery) error {
	c, err := bus.Decode[*toolv1.Call](&d.Message)
	if err != nil {
		return err
	}
	e.mu.Lock()
	known, tool := e.outcomes[c.GetKey()], e.tools[c.GetToolName()]
	e.lose--
	superfluous := e.lose >= 0 || known == nil && e.inHand[c.GetKey()]
	e.inHand[c.GetKey()] = e.inHand[c.GetKey()] || !superfluous
	e.mu.Unlock()
	if superfluous {
		return nil
	}
	if known == nil {
		known = &toolv1.Outcome{
			Key: c.GetKey(), RunId: c.GetRunId(), ToolCallId: c.GetToolCallId(), ToolName: c.GetToolName(),
			State: toolv1.OutcomeState_OUTCOME_STATE_OK, ResultJson: tool(ctx, c), DurationMs: 1,
		}
		e.mu.Lock()
		if e.unknown > 0 {
			e.unknown--
			known.State, known.ResultJson = toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN, `{"error":"unknown"}`
		}
		e.outcomes[c.GetKey()] = known
		e.ran[c.GetToolCallId()]++
		e.mu.Unlock()
	}
	if e.silent {
		return nil
	}
	return e.bus.Nudge(ctx, subject.ToolDone(id.Must[id.Run](c.GetRunId())), known)
}

func (e *executor) timesRan(callID string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ran[callID]
}

func (e *executor) ListTools(context.Context, *toolv1.ListToolsRequest) (*toolv1.ListToolsResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.away > 0 {
		e.away--
		return nil, fault.New(fault.Unavailable, "away")
	}
	res := &toolv1.ListToolsResponse{}
	for name := range e.tools {
		tool := &toolv1.Tool{
			Name: name, Description: "Test.", InputSchemaJson: `{"type":"object"}`, Available: true, Always: true, Effect: toolv1.Effect_EFFECT_PURE,
		}
		if name == "web_search" {
			tool.Source = "provider"
		}
		if spec := e.specs[name]; spec != nil {
			proto.Merge(tool, spec)
		}
		res.Tools = append(res.Tools, tool)
	}
	return res, nil
}

func (e *executor) GetOutcomes(_ context.Context, req *toolv1.GetOutcomesRequest) (*toolv1.GetOutcomesResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return nil, fault.New(fault.Unavailable, "gone")
	}
	res := &toolv1.GetOutcomesResponse{}
	for _, k := range req.GetKeys() {
		if o := e.outcomes[k]; o != nil {
			res.Outcomes = append(res.Outcomes, proto.CloneOf(o))
		}
	}
	return res, nil
}
