package execute_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/execute"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
)

const (
	pure   = toolv1.Effect_EFFECT_PURE
	sameTx = toolv1.Effect_EFFECT_SAME_TX
	keyed  = toolv1.Effect_EFFECT_KEYED
	verify = toolv1.Effect_EFFECT_VERIFY
	unsafe = toolv1.Effect_EFFECT_UNSAFE

	ok        = toolv1.OutcomeState_OUTCOME_STATE_OK
	failed    = toolv1.OutcomeState_OUTCOME_STATE_ERROR
	unknown   = toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN
	cancelled = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
)

func TestCallRunsOnce(t *testing.T) {
	t.Parallel()
	end := newRemoteSide()
	var actor identity.Actor
	w := newWorld(t, newFake("act", unsafe, func(ctx context.Context, c tool.Call) (tool.Result, error) {
		actor, _ = identity.From(ctx)
		end.again(c.Key)
		return tool.Object(map[string]any{"args": c.Args, "zone": c.Timezone}), nil
	}))
	one, two := w.start(t, nil), w.start(t, nil)
	c := w.call("act", `{"n":1}`)
	c.Timezone = "Europe/Berlin"
	for _, e := range []*executor{one, one, two} {
		if err := e.Handle(t.Context(), c); err != nil {
			t.Fatalf("Handle = %v", err)
		}
	}
	o := w.ended(t, c, ok, "")
	if effects, runs := end.count(c.GetKey()); effects != 1 || runs != 1 {
		t.Errorf("three deliveries had %d effects in %d runs, want one", effects, runs)
	}
	want := &toolv1.Outcome{
		Key: c.GetKey(), RunId: c.GetRunId(), ToolCallId: "toolu_1", ToolName: "act", State: ok,
		ResultJson: `{"args":{"n":1},"zone":"Europe/Berlin"}`, Summary: "a summary", DurationMs: o.GetDurationMs(),
	}
	if diff := cmp.Diff(want, o, protocmp.Transform()); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]*toolv1.Outcome{want, want}, one.said.get(), protocmp.Transform()); diff != "" {
		t.Errorf("announced by the first (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]*toolv1.Outcome{want}, two.said.get(), protocmp.Transform()); diff != "" {
		t.Errorf("announced by the second (-want +got):\n%s", diff)
	}
	if actor.Workspace != w.ws || actor.Run != w.run || actor.Role != identity.Editor || actor.Member.String() != c.GetMemberId() {
		t.Errorf("the tool ran for %+v", actor)
	}
	// The same key in another workspace is another call.
	stranger := proto.CloneOf(c)
	stranger.WorkspaceId = id.New[id.Workspace]().String()
	if err := one.Handle(t.Context(), stranger); err != nil {
		t.Fatal(err)
	}
	if _, runs := end.count(c.GetKey()); runs != 2 {
		t.Errorf("the same key in another workspace was not run")
	}
}

func TestEndsWithoutARun(t *testing.T) {
	t.Parallel()
	end := newRemoteSide()
	act := newFake("act", unsafe, func(_ context.Context, c tool.Call) (tool.Result, error) {
		end.again(c.Key)
		return tool.Object("done"), nil
	})
	away := newFake("away", pure, act.run)
	away.available = tool.Availability{Reason: "Calendar is not connected", ConnectURL: "https://example.com/connect", Cause: &tool.Cause{Code: tool.NotConnected, Service: "google"}}
	broken := newFake("broken", pure, act.run)
	broken.available = tool.Availability{Reason: "no browser"}
	refused := newFake("refused", pure, func(context.Context, tool.Call) (tool.Result, error) {
		f := fault.Coded(fault.Conflict, tool.RateLimited, "Google is busy")
		f.Err = &tool.Cause{Code: tool.RateLimited, Service: "google"}
		return tool.Result{}, f
	})
	w := newWorld(t, act, away, broken, refused)
	e := w.start(t, nil)
	for name, tt := range map[string]struct {
		call      func() *toolv1.Call
		state     toolv1.OutcomeState
		errorType string
		says      string
	}{
		"unknown tool":              {func() *toolv1.Call { return w.call("nothing", `{}`) }, failed, "unknown_tool", `there is no tool \"nothing\"`},
		"odd name":                  {func() *toolv1.Call { return w.call("a\x00\"b", `{}`) }, failed, "unknown_tool", "there is no tool"},
		"wrong args":                {func() *toolv1.Call { return w.call("act", `{"n":"x"}`) }, failed, "invalid_arguments", "arguments.n: must be integer, not string"},
		"no object":                 {func() *toolv1.Call { return w.call("act", `[]`) }, failed, "invalid_arguments", "must be a JSON object"},
		"no JSON":                   {func() *toolv1.Call { return w.call("act", `{"n":`) }, failed, "invalid_arguments", "not valid JSON"},
		"too large":                 {func() *toolv1.Call { return w.call("act", strings.Repeat(" ", 1<<20)+"{}") }, failed, "invalid_arguments", "at most 1048576"},
		"unavailable":               {func() *toolv1.Call { return w.call("away", `{}`) }, failed, "unavailable", "https://example.com/connect"},
		"unavailable, for programs": {func() *toolv1.Call { return w.call("away", `{}`) }, failed, "unavailable", `,"code":"NOT_CONNECTED","service":"google"}`},
		"refused, for programs":     {func() *toolv1.Call { return w.call("refused", `{}`) }, failed, "rate_limited", `{"error":"Google is busy","code":"RATE_LIMITED","service":"google"}`},
		"unavailable without a cause": {
			func() *toolv1.Call { return w.call("broken", `{}`) }, failed, "unavailable",
			`{"error":"broken cannot be used: no browser","code":"UNAVAILABLE","reason":"no browser"}`,
		},
		"too late": {func() *toolv1.Call {
			c := w.call("act", `{}`)
			c.Deadline = timestamppb.New(time.Now().Add(-time.Second))
			return c
		}, failed, "timeout", "had no effect"},
	} {
		c := tt.call()
		if err := e.Handle(t.Context(), c); err != nil {
			t.Errorf("%s: Handle = %v", name, err)
			continue
		}
		if o := w.ended(t, c, tt.state, tt.errorType); !strings.Contains(o.GetResultJson(), tt.says) || !strings.HasPrefix(o.GetResultJson(), `{"error":`) {
			t.Errorf("%s: result %s, want an error with %q", name, o.GetResultJson(), tt.says)
		}
	}
	if _, runs := end.count(id.New[id.Operation]().String()); runs != 0 {
		t.Errorf("the tool was run %d times, want never", runs)
	}
}

func TestUndecodableCallIsDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.start(t, nil)
	for name, break1 := range map[string]func(*toolv1.Call){
		"key":       func(c *toolv1.Call) { c.Key = "x" },
		"workspace": func(c *toolv1.Call) { c.WorkspaceId = "" },
		"run":       func(c *toolv1.Call) { c.RunId = "1" },
		"session":   func(c *toolv1.Call) { c.SessionId = "" },
		"member":    func(c *toolv1.Call) { c.MemberId = "" },
		"role":      func(c *toolv1.Call) { c.Role = "god" },
		"call id":   func(c *toolv1.Call) { c.ToolCallId = strings.Repeat("x", 600) },
	} {
		c := w.call("act", `{}`)
		break1(c)
		if err := e.Handle(t.Context(), c); err == nil {
			t.Errorf("a call with a broken %s was acked", name)
		}
	}
}

func TestTwoExecutorsAtOnce(t *testing.T) {
	t.Parallel()
	end := newRemoteSide()
	w := newWorld(t, newFake("act", unsafe, func(_ context.Context, c tool.Call) (tool.Result, error) {
		end.again(c.Key)
		return tool.Object("done"), nil
	}))
	executors := []*executor{w.start(t, nil), w.start(t, nil), w.start(t, nil)}
	for range 20 {
		c := w.call("act", `{}`)
		var wg sync.WaitGroup
		for _, e := range executors {
			wg.Go(func() {
				for range 2 { // redelivered at once, whatever was answered
					_ = e.Handle(t.Context(), c)
				}
			})
		}
		wg.Wait()
		if effects, _ := end.count(c.GetKey()); effects != 1 {
			t.Fatalf("three executors had %d effects, want one", effects)
		}
		w.ended(t, c, ok, "")
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	act, begun := blocking("act", sameTx)
	w := newWorld(t, act)
	e := w.start(t, nil)
	first, second, other := w.call("act", `{}`), w.call("act", `{}`), w.call("act", `{}`)
	other.RunId = id.New[id.Run]().String()
	var wg sync.WaitGroup
	for _, c := range []*toolv1.Call{first, second, other} {
		wg.Go(func() {
			if err := e.Handle(t.Context(), c); err != nil {
				t.Errorf("Handle = %v", err)
			}
		})
		receive(t, begun)
	}
	// A cancel of one call of the run.
	if err := e.Cancel(&toolv1.Cancel{RunId: w.run.String(), Keys: []string{first.GetKey()}}); err != nil {
		t.Fatal(err)
	}
	awaitOutcome(t, w, first)
	if o := w.ended(t, first, unknown, "cancelled"); !strings.Contains(o.GetResultJson(), "not known whether it took effect") {
		t.Errorf("result = %s, want it to say what is not known", o.GetResultJson())
	}
	if o := w.outcome(t, second); o != nil {
		t.Errorf("the call that was not meant ended with %v", o)
	}
	// A cancel of the whole run, including later calls.
	if err := e.Cancel(&toolv1.Cancel{RunId: w.run.String()}); err != nil {
		t.Fatal(err)
	}
	awaitOutcome(t, w, second)
	late := w.call("act", `{}`)
	if err := e.Handle(t.Context(), late); err != nil {
		t.Errorf("Handle of a late call = %v", err)
	}
	if o := w.ended(t, late, cancelled, "cancelled"); !strings.Contains(o.GetResultJson(), "before it started") {
		t.Errorf("result = %s", o.GetResultJson())
	}
	if o := w.outcome(t, other); o != nil {
		t.Errorf("the call of another run ended with %v", o)
	}
	if err := e.Cancel(&toolv1.Cancel{RunId: other.GetRunId()}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := e.Cancel(&toolv1.Cancel{RunId: "x"}); err == nil {
		t.Error("Cancel of no run worked")
	}
}

func awaitOutcome(t *testing.T, w *world, c *toolv1.Call) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); w.outcome(t, c) == nil; {
		if time.Now().After(until) {
			t.Fatal("no outcome in 10 s")
		}
	}
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	slow, _ := blocking("slow", pure)
	slow.spec.Deadline = 50 * time.Millisecond
	effective, _ := blocking("effective", sameTx)
	effective.spec.Deadline = time.Second // so that it starts before, on a busy machine too
	patient, _ := blocking("patient", pure)
	w := newWorld(t, slow, effective, patient)
	e := w.start(t, nil)
	for name, tt := range map[string]struct {
		state toolv1.OutcomeState
		says  string
	}{
		"slow":      {failed, "try again, or continue without it"},
		"effective": {unknown, "not known whether it took effect"},
		"patient":   {failed, "did not end in time"},
	} {
		c := w.call(name, `{}`)
		if name == "patient" { // the caller's own deadline
			c.Deadline = timestamppb.New(time.Now().Add(time.Second))
		}
		if err := e.Handle(t.Context(), c); err != nil {
			t.Errorf("%s: Handle = %v", name, err)
		}
		if o := w.ended(t, c, tt.state, "timeout"); !strings.Contains(o.GetResultJson(), tt.says) {
			t.Errorf("%s: result = %s, want %q", name, o.GetResultJson(), tt.says)
		}
	}
	// An executor began, and then the call timed out: only a pure tool certainly had no effect.
	c := w.call("effective", `{}`)
	c.Deadline = timestamppb.New(time.Now().Add(-time.Second))
	stop(t, w.dead(t, c), c)
	if err := e.Handle(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w.ended(t, c, unknown, "timeout")
}

func TestToolDoesNotReturn(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	deaf := newFake("deaf", pure, func(context.Context, tool.Call) (tool.Result, error) {
		<-stop
		return tool.Object("late"), nil
	})
	deaf.spec.Deadline = time.Second // so that it starts before, on a busy machine too
	w := newWorld(t, deaf, newFake("act", pure, func(context.Context, tool.Call) (tool.Result, error) { return tool.Object("done"), nil }))
	e := w.start(t, func(c *execute.Config) { c.Slots = 2 })
	c := w.call("deaf", `{}`)
	if err := e.Handle(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w.ended(t, c, failed, "timeout")
	if !strings.Contains(e.log.String(), "does not return") {
		t.Error("nothing is logged about a tool that does not return")
	}
	// It keeps its slot: with a second one the executor is full.
	if err := e.Handle(t.Context(), w.call("deaf", `{}`)); err != nil {
		t.Fatal(err)
	}
	if err := e.Handle(t.Context(), w.call("act", `{}`)); err == nil {
		t.Error("a call was admitted while hanging tools have all slots")
	}
	close(stop)
	if err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	c = w.call("act", `{}`)
	if err := e.Handle(t.Context(), c); err != nil {
		t.Fatalf("Handle after the tools let go = %v", err)
	}
	w.ended(t, c, ok, "")
}

func TestSlots(t *testing.T) {
	t.Parallel()
	act, begun := blocking("act", pure)
	w := newWorld(t, act)
	e := w.start(t, func(c *execute.Config) { c.Slots, c.PerWorkspace = 3, 2 })
	var wg sync.WaitGroup
	begin := func(c *toolv1.Call) {
		wg.Go(func() {
			if err := e.Handle(t.Context(), c); err != nil {
				t.Errorf("Handle = %v", err)
			}
		})
		receive(t, begun)
	}
	begin(w.call("act", `{}`))
	begin(w.call("act", `{}`))
	for range 100 {
		if err := e.Handle(t.Context(), w.call("act", `{}`)); err == nil {
			t.Fatal("a third call of the workspace was admitted")
		}
	}
	// Another workspace does not wait.
	elsewhere := w.call("act", `{}`)
	elsewhere.WorkspaceId = id.New[id.Workspace]().String()
	begin(elsewhere)
	full := w.call("act", `{}`)
	full.WorkspaceId = id.New[id.Workspace]().String()
	if err := e.Handle(t.Context(), full); err == nil {
		t.Error("a fourth call was admitted to three slots")
	}
	if err := e.Handle(t.Context(), elsewhere); err != nil || len(begun) != 0 {
		t.Errorf("Handle of a call that is running = %v, and began it %d times more, want its message acked", err, len(begun))
	}
	if err := e.Cancel(&toolv1.Cancel{RunId: w.run.String()}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if o := w.outcome(t, full); o != nil {
		t.Errorf("a call that was turned away has the outcome %v", o)
	}
}

// A free slot goes to the workspace that has none, not to the call that came first.
func TestSlotsAreFair(t *testing.T) {
	t.Parallel()
	begun, stop := make(chan id.Workspace, 16), make(chan struct{})
	w := newWorld(t, newFake("act", pure, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		actor, _ := identity.From(ctx)
		begun <- actor.Workspace
		select {
		case <-stop:
		case <-ctx.Done():
		}
		return tool.Object("done"), nil
	}))
	e := w.start(t, func(c *execute.Config) { c.Slots, c.PerWorkspace, c.Wait = 1, 1, patience })
	var wg sync.WaitGroup
	defer wg.Wait()
	handle := func(c *toolv1.Call) {
		wg.Go(func() {
			if err := e.Handle(t.Context(), c); err != nil {
				t.Errorf("Handle = %v", err)
			}
		})
	}
	handle(w.call("act", `{}`))
	receive(t, begun)
	const flood = 5
	for range flood {
		handle(w.call("act", `{}`))
	}
	elsewhere, other := w.call("act", `{}`), id.New[id.Workspace]()
	elsewhere.WorkspaceId = other.String()
	for e.Waiting() < flood && !t.Failed() {
		runtime.Gosched()
	}
	handle(elsewhere)
	for e.Waiting() < flood+1 && !t.Failed() {
		runtime.Gosched()
	}
	stop <- struct{}{}
	if ws := receive(t, begun); ws != other {
		t.Error("the next call is one of the flood, want the other workspace's")
	}
	close(stop)
	for range flood {
		receive(t, begun)
	}
}

func TestErrorsOfTools(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		effect    toolv1.Effect
		err       error
		state     toolv1.OutcomeState
		errorType string
		says      string
	}{
		{"invalid", sameTx, fault.New(fault.Invalid, "id: is wrong"), failed, "invalid", "id: is wrong"},
		{"coded", sameTx, fault.Coded(fault.Conflict, "NOT_FOUND_TEXT", "0 matches"), failed, "not_found_text", "0 matches"},
		{"forbidden", sameTx, fault.New(fault.Forbidden, "this needs the role editor; yours is viewer"), failed, "forbidden", "yours is viewer"},
		{"internal", pure, errors.New("secret dsn"), failed, "internal", "internal error; try again"},
		{"internal with an effect", sameTx, errors.New("secret dsn"), unknown, "internal", "not known whether"},
		{"unavailable", pure, fault.New(fault.Unavailable, "it is unavailable"), failed, "timeout", "did not end in time"},
		{"unavailable with an effect", sameTx, fault.New(fault.Unavailable, "it is unavailable"), unknown, "timeout", "not known whether"},
		{"unavailable, effect unknown", unsafe, fault.New(fault.Unavailable, "it is unavailable"), unknown, "unavailable", "it is unavailable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			act := newFake("act", tt.effect, func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{}, tt.err })
			act.spec.Deadline = 2 * time.Second // also for the start, on a busy machine
			w := newWorld(t, act)
			c := w.call("act", `{}`)
			if err := w.start(t, nil).Handle(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			o := w.ended(t, c, tt.state, tt.errorType)
			if !strings.Contains(o.GetResultJson(), tt.says) || strings.Contains(o.GetResultJson(), "secret") {
				t.Errorf("result = %s, want %q", o.GetResultJson(), tt.says)
			}
		})
	}
}

func TestRemoteSideRecovers(t *testing.T) {
	t.Parallel()
	tries := 0
	w := newWorld(t, newFake("act", sameTx, func(context.Context, tool.Call) (tool.Result, error) {
		if tries++; tries < 3 {
			return tool.Result{}, fault.New(fault.Unavailable, "restarting")
		}
		return tool.Object("done"), nil
	}))
	c := w.call("act", `{}`)
	if err := w.start(t, nil).Handle(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w.ended(t, c, ok, "")
}

func TestPanic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newFake("act", pure, func(context.Context, tool.Call) (tool.Result, error) { panic("ouch") }))
	e := w.start(t, nil)
	c := w.call("act", `{}`)
	if err := e.Handle(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if o := w.ended(t, c, failed, "internal"); strings.Contains(o.GetResultJson(), "ouch") {
		t.Errorf("result = %s tells of the panic", o.GetResultJson())
	}
	if log := e.log.String(); !strings.Contains(log, "ouch") || !strings.Contains(log, "execute_test.go") {
		t.Errorf("the log has no panic with its stack:\n%s", log)
	}
}

func TestOutputCap(t *testing.T) {
	t.Parallel()
	for _, effect := range []toolv1.Effect{pure, keyed} {
		big := newFake("big", effect, func(context.Context, tool.Call) (tool.Result, error) {
			return tool.Object(strings.Repeat("x", 64<<10)), nil
		})
		big.spec.Less = "use a page_token"
		w := newWorld(t, big)
		c := w.call("big", `{}`)
		if err := w.start(t, nil).Handle(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		o := w.ended(t, c, failed, "output_too_large")
		if !strings.Contains(o.GetResultJson(), "over the limit of 65536: use a page_token") || strings.Contains(o.GetResultJson(), "it took effect") != (effect == keyed) {
			t.Errorf("%v: result = %s", effect, o.GetResultJson())
		}
	}
}

// unsteady is a ledger whose database is unavailable for a while.
type unsteady struct {
	*ledger.Ledger
	mu       sync.Mutex // guards failures
	failures int
}

func (u *unsteady) Record(ctx context.Context, ws id.Workspace, attempt int, o *toolv1.Outcome, by id.Member) error {
	u.mu.Lock()
	u.failures--
	away := u.failures >= 0
	u.mu.Unlock()
	if away {
		return fault.New(fault.Unavailable, "the database is away")
	}
	return u.Ledger.Record(ctx, ws, attempt, o, by)
}

func TestDatabaseUnavailableAfterTheRun(t *testing.T) {
	t.Parallel()
	end := newRemoteSide()
	w := newWorld(t, newFake("act", unsafe, func(_ context.Context, c tool.Call) (tool.Result, error) {
		end.again(c.Key)
		return tool.Object("done"), nil
	}))
	var u *unsteady
	e := w.start(t, func(c *execute.Config) {
		u = &unsteady{Ledger: ledger.New(w.db, "unsteady", patience), failures: 2}
		c.Ledger, c.RecordFor = u, 2*time.Second
	})
	c := w.call("act", `{}`)
	if err := e.Handle(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w.ended(t, c, ok, "")

	// After too long an outage the message is redelivered and the outcome is unknown.
	u.mu.Lock()
	u.failures = 1000
	u.mu.Unlock()
	c = w.call("act", `{}`)
	if err := e.Handle(t.Context(), c); err == nil {
		t.Error("Handle acked what it could not record")
	}
	u.mu.Lock()
	u.failures = 0
	u.mu.Unlock()
	if err := e.Handle(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w.ended(t, c, unknown, "unknown_outcome")
	if effects, _ := end.count(c.GetKey()); effects != 1 {
		t.Errorf("%d effects, want one", effects)
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	for _, effect := range []toolv1.Effect{pure, sameTx, unsafe} {
		act, begun := blocking("act", effect)
		w := newWorld(t, act)
		leaving := w.start(t, nil)
		c := w.call("act", `{}`)
		ctx, stop := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- leaving.Handle(ctx, c) }()
		receive(t, begun)
		stop(bus.ErrDraining)
		err := receive(t, ended)
		if effect == unsafe {
			if err != nil {
				t.Errorf("%v: Handle = %v, want the unknown outcome recorded", effect, err)
			}
			w.ended(t, c, unknown, "unknown_outcome")
			continue
		}
		if !errors.Is(err, bus.ErrDraining) {
			t.Errorf("%v: Handle = %v, want the call handed on", effect, err)
		}
		// The next executor need not wait for the lease.
		act2 := newFake("act", effect, func(context.Context, tool.Call) (tool.Result, error) { return tool.Object("done"), nil })
		next := w.with(act2).start(t, nil)
		if err := next.Handle(t.Context(), c); err != nil {
			t.Errorf("%v: Handle of the next = %v", effect, err)
		}
		w.ended(t, c, ok, "")
	}
}

func TestEachCallIsLoggedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newFake("act", pure, func(context.Context, tool.Call) (tool.Result, error) { return tool.Object("the answer"), nil }))
	e := w.start(t, nil)
	c := w.call("act", `{"n":4711}`)
	for range 3 {
		if err := e.Handle(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	log := strings.TrimSpace(e.log.String())
	var line map[string]any
	if err := json.Unmarshal([]byte(log), &line); err != nil {
		t.Fatalf("the log is not one line: %v\n%s", err, log)
	}
	delete(line, "time")
	delete(line, "duration_ms")
	want := map[string]any{
		"level": "INFO", "msg": "tool call", "tool": "act", "workspace": w.ws.String(), "session": c.GetSessionId(), "run": c.GetRunId(),
		"key": c.GetKey(), "tool_call_id": "toolu_1", "ok": true, "bytes": float64(len(`{"result":"the answer"}`)), "error_type": "", "attempt": 1.0,
	}
	if diff := cmp.Diff(want, line); diff != "" {
		t.Errorf("log line (-want +got):\n%s", diff)
	}
	if strings.Contains(log, "4711") || strings.Contains(log, "the answer") {
		t.Errorf("the log holds arguments or results: %s", log)
	}
}

func BenchmarkDispatch(b *testing.B) {
	w := newWorld(b, newFake("act", pure, func(context.Context, tool.Call) (tool.Result, error) { return tool.Object("done"), nil }))
	e := w.start(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Handle(b.Context(), w.call("act", `{"n":1}`)); err != nil {
			b.Fatal(err)
		}
	}
}

// TestEffectsAreAudited has calls that may have had an effect in the audit, and no others.
func TestEffectsAreAudited(t *testing.T) {
	t.Parallel()
	run := func(context.Context, tool.Call) (tool.Result, error) { return tool.Object("done"), nil }
	fails := func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{}, errors.New("broken") }
	w := newWorld(t, newFake("act", keyed, run), newFake("break", unsafe, fails), newFake("look", pure, run))
	e := w.start(t, nil)
	act, broken := w.call("act", `{"n":4711}`), w.call("break", `{"n":1}`)
	broken.MemberId = act.GetMemberId()
	for _, c := range []*toolv1.Call{act, act, w.call("act", `not JSON`), w.call("look", `{"n":1}`), broken, w.call("unknown", `{"n":1}`)} {
		if err := e.Handle(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	var got string
	err := w.db.InWorkspace(t.Context(), w.ws, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT string_agg(concat_ws(' ', action, tool_name, member_id = @member), ', ' ORDER BY sequence)
			FROM mcp_audit WHERE workspace_id = @workspace`,
			pg.Args{"workspace": w.ws, "member": act.GetMemberId()}).Scan(&got)
	})
	if want := "call-done act t, call-unknown break t"; err != nil || got != want {
		t.Errorf("the audit has %q (%v), want %q", got, err, want)
	}
}
