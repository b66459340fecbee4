package execute_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/execute"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
	"signalbox.dev/services/tool-executor/migrations"
)

func TestMain(m *testing.M) {
	// The test server of Postgres runs as long as the process.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch"),
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch.func1"))
}

func schema() pg.Migrations {
	return pg.Migrations{Schema: "tools", Role: "signalbox_tools", FS: migrations.FS}
}

// world is what executors share: a ledger's table, the presences, tools, and the workspace of
// one run.
type world struct {
	db    *pg.DB
	alive *presence
	tools []tool.Tool
	ws    id.Workspace
	run   id.Run
}

func newWorld(t testing.TB, tools ...tool.Tool) *world {
	t.Helper()
	return &world{
		db: pgtest.New(t, schema()).Open(t, schema()), alive: &presence{names: map[string]bool{}},
		tools: tools, ws: id.New[id.Workspace](), run: id.New[id.Run](),
	}
}

// with returns the same world for executors with other tools.
func (w *world) with(tools ...tool.Tool) *world {
	other := *w
	other.tools = tools
	return &other
}

// presence has the names of live executors.
type presence struct {
	mu    sync.Mutex // guards names
	names map[string]bool
}

func (p *presence) set(name string, here bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names[name] = here
}

func (p *presence) Absent(_ context.Context, names []string) (absent []string, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range names {
		if !p.names[n] {
			absent = append(absent, n)
		}
	}
	return absent, nil
}

// executor is one process.
type executor struct {
	*execute.Executor
	name   string
	ledger *ledger.Ledger
	said   *announcements
	log    *lines
}

// patience is a lease that no test waits for, and the bound of what tests wait for.
const patience = time.Minute

func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came in time")
		panic("not reached")
	}
}

// start returns an executor that keeps its leases until the test ends. change may be nil.
func (w *world) start(t testing.TB, change func(*execute.Config)) *executor {
	t.Helper()
	catalogue, err := tool.NewCatalogue(w.tools...)
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := execute.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	e := &executor{name: "executor/" + uuid.NewString(), said: &announcements{}, log: &lines{}}
	e.ledger = ledger.New(w.db, e.name, patience)
	w.alive.set(e.name, true)
	cfg := execute.Config{
		Catalogue: catalogue, Ledger: e.ledger, Presence: w.alive, Announce: e.said.add, Report: func(context.Context, *toolv1.Progress) {}, Log: slog.New(slog.NewJSONHandler(e.log, nil)), Metrics: metrics,
		Slots: 16, PerWorkspace: 8, Waiting: 8, Wait: time.Millisecond, Renew: 20 * time.Millisecond, Quiet: 60 * time.Millisecond, Lease: patience, SweepEvery: 10 * time.Millisecond,
		Grace: 50 * time.Millisecond, RecordFor: 5 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	e.Executor = execute.New(cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { e.KeepLeases(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		limited, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		if err := e.Wait(limited); err != nil {
			t.Errorf("Wait = %v", err)
		}
	})
	return e
}

// sweep lets an executor take over calls until the test ends.
func (e *executor) sweep(t testing.TB) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { e.Sweep(ctx, time.Second) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// dead returns the ledger of an executor that has claimed the call and died.
func (w *world) dead(t testing.TB, c *toolv1.Call) *ledger.Ledger {
	t.Helper()
	l := ledger.New(w.db, "dead/"+uuid.NewString(), patience)
	effect := pure
	for _, x := range w.tools {
		if s := x.Spec(); s.Name == c.GetToolName() {
			effect = s.Effect
		}
	}
	work, err := proto.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	claim, err := l.Claim(t.Context(), ledger.Call{
		Ref: ref(t, c), Run: w.run, Session: id.Must[id.Session](c.GetSessionId()), ToolName: c.GetToolName(), Effect: effect, Work: work,
	})
	if err != nil || claim.Attempt != 1 {
		t.Fatalf("Claim = %+v, %v", claim, err)
	}
	return l
}

// stop releases the first claim of a call, so that its next delivery claims it again.
func stop(t testing.TB, l *ledger.Ledger, c *toolv1.Call) {
	t.Helper()
	if err := l.Release(t.Context(), ref(t, c), 1); err != nil {
		t.Fatal(err)
	}
}

// call returns a new call of a tool.
func (w *world) call(name, args string) *toolv1.Call {
	return &toolv1.Call{
		Key: id.New[id.Operation]().String(), WorkspaceId: w.ws.String(), SessionId: id.New[id.Session]().String(), RunId: w.run.String(),
		MemberId: id.New[id.Member]().String(), Role: "editor", ToolCallId: "toolu_1", ToolName: name, ArgsJson: args,
		Deadline: timestamppb.New(time.Now().Add(time.Minute)),
	}
}

func ref(t testing.TB, c *toolv1.Call) ledger.Ref {
	t.Helper()
	return ledger.Ref{Workspace: id.Must[id.Workspace](c.GetWorkspaceId()), Key: id.Must[id.Operation](c.GetKey())}
}

// outcome returns the recorded outcome of a call, or nil.
func (w *world) outcome(t testing.TB, c *toolv1.Call) *toolv1.Outcome {
	t.Helper()
	all, err := ledger.New(w.db, "reader", time.Second).Outcomes(t.Context(), id.Must[id.Workspace](c.GetWorkspaceId()), []id.Operation{id.Must[id.Operation](c.GetKey())})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		return nil
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(all[0].GetResultJson()), &fields); err != nil || fields == nil {
		t.Errorf("result %q is not a JSON object: %v", all[0].GetResultJson(), err)
	}
	return all[0]
}

// ended checks the recorded outcome of a call.
func (w *world) ended(t testing.TB, c *toolv1.Call, state toolv1.OutcomeState, errorType string) *toolv1.Outcome {
	t.Helper()
	o := w.outcome(t, c)
	if o.GetState() != state || o.GetErrorType() != errorType {
		t.Errorf("outcome of %s = %v %q %s, want %v %q", c.GetToolName(), o.GetState(), o.GetErrorType(), o.GetResultJson(), state, errorType)
	}
	return o
}

// announcements are an executor's announced outcomes.
type announcements struct {
	mu  sync.Mutex // guards all
	all []*toolv1.Outcome
}

func (a *announcements) add(_ context.Context, o *toolv1.Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, o)
}

func (a *announcements) get() []*toolv1.Outcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all
}

// lines records log lines.
type lines struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// remoteSide is a remote side that counts effects and runs by key.
type remoteSide struct {
	mu      sync.Mutex // guards the rest
	effects map[id.Operation]int
	runs    int
}

func newRemoteSide() *remoteSide { return &remoteSide{effects: map[id.Operation]int{}} }

// once has an effect only the first time for a key.
func (f *remoteSide) once(key id.Operation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs++
	f.effects[key] = 1
}

// again has an effect every time.
func (f *remoteSide) again(key id.Operation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs++
	f.effects[key]++
}

func (f *remoteSide) count(key string) (effects, runs int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.effects[id.Must[id.Operation](key)], f.runs
}

// fake is a tool made of functions.
type fake struct {
	spec      tool.Spec
	run       func(ctx context.Context, c tool.Call) (tool.Result, error)
	available tool.Availability
}

func (f *fake) Spec() tool.Spec                                           { return f.spec }
func (f *fake) Available(context.Context) tool.Availability               { return f.available }
func (f *fake) Run(ctx context.Context, c tool.Call) (tool.Result, error) { return f.run(ctx, c) }
func (f *fake) Summary(json.RawMessage) string                            { return "a summary" }

// checked is a fake that implements tool.Verifier.
type checked struct {
	fake
	verify func(ctx context.Context, c tool.Call) (tool.Result, bool, error)
}

func (c *checked) Verify(ctx context.Context, call tool.Call) (tool.Result, bool, error) {
	return c.verify(ctx, call)
}

const anyArgs = `{"type":"object","properties":{"n":{"type":"integer"}}}`

func newFake(name string, effect toolv1.Effect, run func(context.Context, tool.Call) (tool.Result, error)) *fake {
	return &fake{
		spec: tool.Spec{Name: name, Description: "a tool of a test", InputSchema: json.RawMessage(anyArgs), Effect: effect},
		run:  run, available: tool.Availability{Available: true},
	}
}

// blocking returns a tool that waits until its context ends, and a channel that receives when
// it has begun.
func blocking(name string, effect toolv1.Effect) (f *fake, begun chan struct{}) {
	begun = make(chan struct{}, 16)
	return newFake(name, effect, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	}), begun
}
