package execute_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/e2e/farend"
	"signalbox.dev/services/tool-executor/internal/execute"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// soon and late are values of Spec.Settle: one that a test waits for, and one that it never
// reaches.
const (
	soon = 20 * time.Millisecond
	late = patience
)

// TestDeathAroundACall kills an executor at each point around a call, for each effect, and
// checks what another executor does: there is at most one effect, the outcome is ok only if
// there is one, and unknown if it cannot be known.
func TestDeathAroundACall(t *testing.T) {
	t.Parallel()
	points := []struct {
		name   string
		at     moment
		hold   []farend.Point // requests are held there, and it dies when its own is
		lands  string         // when the held request continues: before the takeover, or after
		settle time.Duration
		blind  toolv1.OutcomeState // of an unsafe call
		sent   bool                // the effect is there, also for an unsafe call
	}{
		{name: "before it starts", at: setClaim, settle: soon, blind: unknown},
		{name: "in flight, landing at once", hold: []farend.Point{farend.Received}, lands: "before", settle: late, blind: unknown, sent: true},
		{name: "in flight, landing late", hold: []farend.Point{farend.Received}, lands: "after", settle: late, blind: unknown, sent: true},
		{name: "after the effect, before the answer", hold: []farend.Point{farend.Done}, lands: "after", settle: late, blind: unknown, sent: true},
		{name: "after the answer, before the record", at: beforeRecord, settle: late, blind: unknown, sent: true},
		{name: "after the record, before the announcement", at: recorded, settle: late, blind: ok, sent: true},
		{name: "after the announcement, before the ack", at: announced, settle: late, blind: ok, sent: true},
	}
	for _, effect := range effects {
		for _, p := range points {
			t.Run(fmt.Sprintf("%v %s", effect, p.name), func(t *testing.T) {
				t.Parallel()
				r := newRemote(t)
				w := newWorld(t)
				var hold *farend.Hold
				for _, at := range p.hold {
					hold = r.Hold(at)
					defer hold.Release()
				}
				victim := w.newMortal(t, r, effect, p.settle, p.at, false)
				c := w.call("act", `{}`)
				_, bury := victim.handle(t, c)
				if hold != nil {
					receive(t, hold.Reached())
					victim.kill()
				}
				receive(t, victim.died)
				if p.lands == "before" {
					hold.Release()
				}
				heir := w.with(r.tool(effect, alone(t), p.settle)).start(t, nil)
				heir.sweep(t)
				if p.lands == "after" {
					awaitHeir(t, w, r, hold, c)
					hold.Release()
				}
				awaitOutcome(t, w, c)

				state, want := ok, farend.Operation{Effects: 1}
				switch effect {
				case pure:
					want.Effects = 0
				case unsafe:
					state = p.blind
					if !p.sent {
						want.Effects = 0
					}
				}
				o := w.outcome(t, c)
				if o.GetState() != state {
					t.Errorf("outcome = %v %s, want %v", o.GetState(), o.GetResultJson(), state)
				}
				if state == unknown && (o.GetErrorType() != "unknown_outcome" || !strings.Contains(o.GetResultJson(), "not known whether")) {
					t.Errorf("outcome = %q %s, want one that tells the model that it is unknown", o.GetErrorType(), o.GetResultJson())
				}
				// The message is redelivered to any executor, and a zombie's outcome is refused.
				if err := heir.Handle(t.Context(), c); err != nil {
					t.Errorf("Handle of a call that is done = %v", err)
				}
				bury()
				for until := time.Now().Add(10 * time.Second); len(heir.said.get()) == 0; {
					if time.Now().After(until) {
						t.Fatal("the outcome was not announced in 10 s")
					}
					<-time.After(time.Millisecond)
				}
				got := r.Get(c.GetKey())
				// A request that was held takes effect a moment after its release.
				for until := time.Now().Add(10 * time.Second); got.Effects < want.Effects && time.Now().Before(until); got = r.Get(c.GetKey()) {
					<-time.After(time.Millisecond)
				}
				if got.Effects != want.Effects {
					t.Errorf("%d effects in %d requests, want %d", got.Effects, got.Requests, want.Effects)
				}
				if diff := cmp.Diff(o, w.outcome(t, c), protocmp.Transform()); diff != "" {
					t.Errorf("the outcome changed (-before +after):\n%s", diff)
				}
			})
		}
	}
}

// awaitHeir waits until the executor that took the call over has done what it can while a
// request is held: verified, sent its own request, or ended the call as unknown.
func awaitHeir(t *testing.T, w *world, r *remote, hold *farend.Hold, c *toolv1.Call) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); {
		select {
		case <-r.lookups:
			return
		case <-hold.Reached():
			return
		case <-time.After(time.Millisecond):
		}
		if w.outcome(t, c) != nil {
			return
		}
	}
	t.Fatal("nobody took the call over in 10 s")
}

// TestStopped stops an executor (SIGSTOP), and lets it continue after others have taken its
// call over.
func TestStopped(t *testing.T) {
	t.Parallel()
	const quick = 100 * time.Millisecond // how long the others wait for a silent executor
	for _, effect := range effects {
		t.Run(fmt.Sprintf("%v before it starts", effect), func(t *testing.T) {
			t.Parallel()
			r := newRemote(t)
			w := newWorld(t)
			zombie := w.newMortal(t, r, effect, soon, setClaim, true)
			c := w.call("act", `{}`)
			ended, _ := zombie.handle(t, c)
			receive(t, zombie.died)
			mine := r.tool(effect, alone(t), soon)
			mine.spec.Deadline = time.Second // and so long for what may still come
			heir := w.with(mine).start(t, func(c *execute.Config) { c.Lease = quick })
			heir.sweep(t)
			awaitOutcome(t, w, c)
			before := r.Get(c.GetKey())
			zombie.goOn()
			if err := receive(t, ended); err == nil {
				t.Error("Handle of the zombie = nil: it acked what another one has done")
			}
			after := r.Get(c.GetKey())
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the zombie began after it had lost its claim (-before +after):\n%s", diff)
			}
			switch effect {
			case verify, unsafe: // it could still have sent its request
				w.ended(t, c, unknown, "unknown_outcome")
			default:
				w.ended(t, c, ok, "")
			}
			if len(zombie.said.get()) != 0 {
				t.Errorf("the zombie announced %v", zombie.said.get())
			}
		})
		t.Run(fmt.Sprintf("%v in flight", effect), func(t *testing.T) {
			t.Parallel()
			r := newRemote(t)
			w := newWorld(t)
			hold := r.Hold(farend.Received)
			defer hold.Release()
			zombie := w.newMortal(t, r, effect, soon, never, true)
			c := w.call("act", `{}`)
			ended, _ := zombie.handle(t, c)
			receive(t, hold.Reached())
			zombie.kill() // it does not renew, and is present
			heir := w.with(r.tool(effect, alone(t), soon)).start(t, func(c *execute.Config) { c.Lease = quick })
			heir.sweep(t)
			awaitHeir(t, w, r, hold, c)
			hold.Release()
			awaitOutcome(t, w, c)
			zombie.goOn()
			if err := receive(t, ended); err == nil {
				t.Error("Handle of the zombie = nil: it acked what another one has done")
			}
			state, want := ok, 1
			if effect == unsafe {
				state = unknown
			}
			if effect == pure {
				want = 0
			}
			if o := w.outcome(t, c); o.GetState() != state {
				t.Errorf("outcome = %v %s, want %v", o.GetState(), o.GetResultJson(), state)
			}
			if got := r.Get(c.GetKey()); got.Effects != want {
				t.Errorf("%d effects in %d requests, want %d", got.Effects, got.Requests, want)
			}
		})
	}
}

// When a stopped executor dies, "not found" becomes certain and the call is run.
func TestStoppedThenDead(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	w := newWorld(t)
	zombie := w.newMortal(t, r, verify, soon, setClaim, true)
	c := w.call("act", `{}`)
	zombie.handle(t, c)
	receive(t, zombie.died)
	heir := w.with(r.tool(verify, alone(t), soon)).start(t, func(c *execute.Config) { c.Lease = 100 * time.Millisecond })
	heir.sweep(t)
	for range 3 { // looked up, not found, and not run
		select {
		case <-r.lookups:
		case <-time.After(10 * time.Second):
			t.Fatal("it was not looked up again in 10 s")
		}
	}
	if got := r.Get(c.GetKey()).Requests; got != 0 {
		t.Errorf("%d requests while another executor may still send its own, want none", got)
	}
	w.alive.set(zombie.name, false)
	awaitOutcome(t, w, c)
	w.ended(t, c, ok, "")
	if got := r.Get(c.GetKey()); got.Effects != 1 {
		t.Errorf("%d effects, want 1", got.Effects)
	}
}

func TestLostClaimEndsTheTool(t *testing.T) {
	t.Parallel()
	blocked, begun := blocking("act", keyed)
	w := newWorld(t, blocked)
	e := w.start(t, nil)
	c := w.call("act", `{}`)
	ended := make(chan error, 1)
	go func() { ended <- e.Handle(t.Context(), c) }()
	receive(t, begun)
	other := ledger.New(w.db, "other", patience)
	for { // it renews in between
		open, err := other.Open(t.Context())
		if err != nil || len(open) != 1 {
			t.Fatalf("Open = %v, %v", open, err)
		}
		if _, err := other.TakeOver(t.Context(), open[0]); err == nil {
			break
		} else if !errors.Is(err, ledger.ErrLost) {
			t.Fatal(err)
		}
	}
	if err := receive(t, ended); err == nil {
		t.Error("Handle of a lost call was acked")
	}
	if o := w.outcome(t, c); o != nil {
		t.Errorf("outcome of a lost call: %v", o)
	}
}

// A call that another executor works on is neither run again nor taken over.
func TestCallOfAnotherExecutor(t *testing.T) {
	t.Parallel()
	blocked, begun := blocking("act", unsafe)
	w := newWorld(t, blocked)
	e, other := w.start(t, nil), w.start(t, func(c *execute.Config) { c.Lease = 500 * time.Millisecond })
	other.sweep(t)
	c := w.call("act", `{}`)
	ended := make(chan error, 1)
	go func() { ended <- e.Handle(t.Context(), c) }()
	receive(t, begun)
	for until := time.Now().Add(time.Second); time.Now().Before(until); {
		for _, x := range []*executor{e, other} {
			if err := x.Handle(t.Context(), c); err != nil {
				t.Fatalf("Handle of a call that is running = %v", err)
			}
			if o := w.outcome(t, c); o != nil {
				t.Fatalf("a call that is running has the outcome %v", o)
			}
		}
	}
	if len(begun) != 0 {
		t.Fatal("a call that is running was begun again")
	}
	if err := e.Cancel(&toolv1.Cancel{RunId: w.run.String()}); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, ended); err != nil {
		t.Errorf("Handle = %v", err)
	}
	w.ended(t, c, unknown, "cancelled")
}

func TestVerifyThatCannotTell(t *testing.T) {
	t.Parallel()
	end := newRemoteSide()
	broken := &checked{
		fake: *newFake("broken", verify, func(_ context.Context, c tool.Call) (tool.Result, error) {
			end.again(c.Key)
			return tool.Object("done"), nil
		}),
		verify: func(context.Context, tool.Call) (tool.Result, bool, error) {
			return tool.Result{}, false, errors.New("no idea")
		},
	}
	away := &checked{fake: broken.fake, verify: func(context.Context, tool.Call) (tool.Result, bool, error) {
		return tool.Result{}, false, fault.New(fault.Unavailable, "it is unavailable")
	}}
	away.spec.Name, away.spec.Deadline, away.spec.Settle = "away", 100*time.Millisecond, soon
	w := newWorld(t, broken, away)
	e := w.start(t, nil)
	for _, name := range []string{"broken", "away"} {
		c := w.call(name, `{}`)
		stop(t, w.dead(t, c), c)
		if err := e.Handle(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		w.ended(t, c, unknown, "unknown_outcome")
		if _, runs := end.count(c.GetKey()); runs != 0 {
			t.Errorf("%s: what could not be verified was run %d times", name, runs)
		}
	}
}

// After the remote side breaks off in the middle of a request, the call is verified before it is
// run again, if the tool can verify.
func TestRemoteSideBreaksOff(t *testing.T) {
	t.Parallel()
	broke := fault.New(fault.Unavailable, "it broke off")
	for _, tt := range []struct {
		effect  toolv1.Effect
		done    bool // the request that broke off took effect
		state   toolv1.OutcomeState
		effects int
	}{
		{keyed, true, ok, 1},
		{keyed, false, ok, 1},
		{verify, true, ok, 1},
		{verify, false, ok, 1},
		{unsafe, true, unknown, 1},
		{unsafe, false, unknown, 0},
	} {
		t.Run(fmt.Sprintf("%v %v", tt.effect, tt.done), func(t *testing.T) {
			t.Parallel()
			end := newRemoteSide()
			first := true
			act := &checked{fake: *newFake("act", tt.effect, func(_ context.Context, c tool.Call) (tool.Result, error) {
				broken := first
				first = false
				if !broken || tt.done {
					if tt.effect == keyed {
						end.once(c.Key)
					} else {
						end.again(c.Key)
					}
				}
				if broken {
					return tool.Result{}, broke
				}
				return tool.Object("done"), nil
			})}
			act.spec.Settle = soon
			act.verify = func(_ context.Context, c tool.Call) (tool.Result, bool, error) {
				effects, _ := end.count(c.Key.String())
				return tool.Object("found"), effects > 0, nil
			}
			w := newWorld(t, act)
			c := w.call("act", `{}`)
			if err := w.start(t, nil).Handle(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if o := w.outcome(t, c); o.GetState() != tt.state {
				t.Errorf("outcome = %v %s, want %v", o.GetState(), o.GetResultJson(), tt.state)
			}
			if effects, _ := end.count(c.GetKey()); effects != tt.effects {
				t.Errorf("%d effects, want %d", effects, tt.effects)
			}
		})
	}
}

// An error of the second run says nothing about the first one, unless the tool has verified that
// the first one had no effect.
func TestErrorsOfARepeatedCall(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		effect toolv1.Effect
		break1 func(f *fake, c *toolv1.Call)
		state  toolv1.OutcomeState
		typ    string
	}{
		{"refused, keyed", keyed, nil, unknown, "forbidden"},
		{"refused, same_tx", sameTx, nil, failed, "forbidden"},
		{"refused, verify", verify, nil, failed, "forbidden"},
		{"refused, pure", pure, nil, failed, "forbidden"},
		{"unavailable", keyed, func(f *fake, _ *toolv1.Call) { f.available = tool.Availability{} }, unknown, "unavailable"},
		{"unavailable, pure", pure, func(f *fake, _ *toolv1.Call) { f.available = tool.Availability{} }, failed, "unavailable"},
		{"gone", keyed, func(f *fake, _ *toolv1.Call) { f.spec.Name = "other" }, unknown, "unknown_tool"},
		{"with another schema", keyed, func(f *fake, _ *toolv1.Call) { f.spec.InputSchema = []byte(`{"type":"object","required":["m"]}`) }, unknown, "invalid_arguments"},
		{"more dangerous now", pure, func(f *fake, _ *toolv1.Call) { f.spec.Effect = unsafe }, unknown, "unknown_outcome"},
		{"thought safer now", unsafe, func(f *fake, _ *toolv1.Call) { f.spec.Effect = pure }, unknown, "unknown_outcome"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			act := &checked{
				fake: *newFake("act", tt.effect, func(context.Context, tool.Call) (tool.Result, error) {
					return tool.Result{}, fault.New(fault.Forbidden, "not any more")
				}),
				verify: func(context.Context, tool.Call) (tool.Result, bool, error) { return tool.Result{}, false, nil },
			}
			act.spec.Settle = soon
			w := newWorld(t, act)
			c := w.call("act", `{}`)
			stop(t, w.dead(t, c), c)
			if tt.break1 != nil {
				tt.break1(&act.fake, c)
			}
			if err := w.start(t, nil).Handle(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			o := w.ended(t, c, tt.state, tt.typ)
			if tt.state == unknown && !strings.Contains(o.GetResultJson(), "not known whether") {
				t.Errorf("result = %s, want it to say what is not known", o.GetResultJson())
			}
		})
	}
}

func TestKeyOfAnotherRequest(t *testing.T) {
	t.Parallel()
	end := newRemoteSide()
	w := newWorld(t, newFake("act", keyed, func(_ context.Context, c tool.Call) (tool.Result, error) {
		end.again(c.Key)
		return tool.Object(map[string]any{"args": c.Args}), nil
	}))
	e := w.start(t, nil)
	c := w.call("act", `{"n":1}`)
	if err := e.Handle(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string]string{"spaced": `{ "n": 1 }`, "changed": `{"n":2}`} {
		again := w.call("act", args)
		again.Key = c.GetKey()
		if err := e.Handle(t.Context(), again); (err == nil) != (name == "spaced") {
			t.Errorf("Handle of the same key, arguments %s = %v", name, err)
		}
	}
	other := w.call("other", `{"n":1}`)
	other.Key = c.GetKey()
	if err := e.Handle(t.Context(), other); !errors.Is(err, ledger.ErrReused) {
		t.Errorf("Handle of the same key for another tool = %v, want ErrReused", err)
	}
	if effects, _ := end.count(c.GetKey()); effects != 1 {
		t.Errorf("%d effects, want 1", effects)
	}
	if o := w.ended(t, c, ok, ""); o.GetResultJson() != `{"args":{"n":1}}` {
		t.Errorf("result = %s, want the first one's", o.GetResultJson())
	}
}
