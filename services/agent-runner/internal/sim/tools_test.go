package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"
	"signalbox.dev/services/agent-runner/internal/clienttool"
)

// executors is the state that tool executors share: their ledger in Postgres, and the remote
// sides of their tools. The world's lock guards it.
type executors struct {
	away     bool // their door, not they themselves
	ledger   map[string]*ledgerRow
	happened map[string]int // effects at the far ends, by key
}

type ledgerRow struct {
	attempt int
	owner   *executor
	claimed time.Time
	outcome *toolv1.Outcome
}

// toolNames are the tools, each named after its effect.
var toolNames = [...]string{"pure", "same_tx", "keyed", "verify", "unsafe"}

// needApproval are the tools that need a person's approval in worlds that have such tools.
var needApproval = map[string]bool{"verify": true, "unsafe": true}

// clientTool is a tool that people's clients run, in worlds that have tools that need approval.
const clientTool = "client"

var clientTools = []clienttool.Tool{{Name: clientTool, InputSchema: json.RawMessage(`{"type":"object"}`)}}

func effectOf(tool string) toolv1.Effect {
	return toolv1.Effect(toolv1.Effect_value["EFFECT_"+strings.ToUpper(tool)])
}

// toolClient is a runner's client of the executors.
type toolClient struct {
	toolv1connect.ToolServiceClient
	w *world
	p *process
}

// ListTools implements toolv1connect.ToolServiceClient.
func (c toolClient) ListTools(ctx context.Context, _ *toolv1.ListToolsRequest) (*toolv1.ListToolsResponse, error) {
	if err := c.call(ctx, "list tools", func() {}); err != nil {
		return nil, err
	}
	res := &toolv1.ListToolsResponse{}
	for _, name := range toolNames {
		res.Tools = append(res.Tools, &toolv1.Tool{Name: name, InputSchemaJson: `{"type":"object"}`, Effect: effectOf(name), Always: true, DeadlineMs: 6000, NeedsApproval: c.w.shape.asks && needApproval[name]})
	}
	return res, nil
}

// GetOutcomes implements toolv1connect.ToolServiceClient.
func (c toolClient) GetOutcomes(ctx context.Context, req *toolv1.GetOutcomesRequest) (*toolv1.GetOutcomesResponse, error) {
	slices.Sort(req.Keys)
	var found []*toolv1.Outcome // not read once the caller has left
	err := c.call(ctx, "outcomes", func() {
		for _, k := range req.GetKeys() {
			if row := c.w.executors.ledger[k]; row != nil && row.outcome != nil {
				found = append(found, row.outcome)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return &toolv1.GetOutcomesResponse{Outcomes: found}, nil
}

func (c toolClient) call(ctx context.Context, what string, do func()) error {
	name := c.p.name + " " + what
	return c.w.request(ctx, c.p, request{name: name, lo: time.Millisecond, hi: 10 * time.Millisecond, do: func() error {
		if c.w.executors.away || c.w.pg.away || c.w.pg.hangs {
			c.w.note(name, "away")
			return fault.Wrap(connect.NewError(connect.CodeUnavailable, errors.New("connection refused")), fault.Unavailable, "tool-executor is away")
		}
		c.w.note(name)
		do()
		return nil
	}})
}

// executor is one tool-executor.
type executor struct {
	w *world
	p *process
	// cancelled has the runs whose calls are cancelled. The world's lock guards it.
	cancelled map[string]chan struct{}
	inHand    map[string]bool // calls, by key. The world's lock guards it
}

func (w *world) startExecutor(p *process) {
	e := &executor{w, p, map[string]chan struct{}{}, map[string]bool{}}
	_, _ = wire{w, p}.Subscribe(subject.AllToolCancels, func(_ context.Context, m *bus.Message) {
		if c, err := bus.Decode[*toolv1.Cancel](m); err == nil {
			w.locked(func() {
				if wanted := e.wanted(c.GetRunId()); !closed(wanted) {
					close(wanted)
				}
			})
		}
	})
	doors := make(chan struct{})
	p.work.Go(func() {
		defer close(doors)
		p.consume(subject.Tools, make(chan struct{}, 4), e.handle)
	})
	p.work.Go(func() {
		<-doors
		close(p.left)
	})
}

func (e *executor) wanted(run string) chan struct{} {
	if e.cancelled[run] == nil {
		e.cancelled[run] = make(chan struct{})
	}
	return e.cancelled[run]
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

const (
	executorLease = 8 * time.Second
	// onItsWay is how long after an executor's death its last request may arrive.
	onItsWay = time.Second
)

// busy reports whether an executor other than e may be working on the call.
func (r *ledgerRow) busy(e *executor, key string) bool {
	switch o := r.owner; {
	case o == nil || o == e:
		return e.inHand[key]
	case o.p.dead:
		return time.Since(o.p.died) < onItsWay
	default:
		return o.inHand[key] || time.Since(r.claimed) < executorLease
	}
}

// handle handles a call like tool-executor, in short: it claims the call, runs it, and records
// and announces the outcome. A call that was begun before is treated by its effect.
func (e *executor) handle(ctx context.Context, m *bus.Message, _ int, _ <-chan struct{}) error {
	call, err := bus.Decode[*toolv1.Call](m)
	if err != nil {
		return err
	}
	key := call.GetKey()
	attempt := 0
	var done *toolv1.Outcome // not read once the caller has left
	err = e.w.transact(ctx, e.p, "claim call "+key, func() error {
		e.w.checkPlanned(call)
		attempt, done = e.claim(key)
		return nil
	})
	switch {
	case err != nil:
		return err
	case done != nil:
		e.announce(ctx, done)
		return nil
	case attempt == 0:
		return bus.RetryAfter(time.Second, errors.New("another executor is at work on the call"))
	}
	e.w.locked(func() { e.inHand[key] = true })
	defer func() { e.w.locked(func() { delete(e.inHand, key) }) }()
	o := e.perform(ctx, call, attempt)
	if o == nil {
		return bus.RetryAfter(20*time.Millisecond, errors.New("handed on"))
	}
	for try := 0; ; try++ {
		err = e.w.transact(context.WithoutCancel(ctx), e.p, "record call "+key, func() error {
			row := e.w.executors.ledger[key]
			if row.owner == e && row.attempt == attempt && row.outcome == nil {
				row.outcome = o
				return nil
			}
			return errLost
		})
		if err == nil || errors.Is(err, errLost) || errors.Is(err, errDead) || try > 50 {
			break
		}
		if e.p.sleep(200*time.Millisecond) != nil {
			return err
		}
	}
	if err != nil {
		return bus.RetryAfter(time.Second, err)
	}
	e.announce(ctx, o)
	return nil
}

var errLost = errors.New("the call is somebody else's now")

// claim is ledger.Claim.
func (e *executor) claim(key string) (attempt int, done *toolv1.Outcome) {
	row := e.w.executors.ledger[key]
	if row == nil || e.w.plant == runsTwice {
		row = &ledgerRow{}
		e.w.executors.ledger[key] = row
	}
	switch {
	case row.outcome != nil:
		return 0, row.outcome
	case row.busy(e, key):
		return 0, nil
	}
	row.attempt++
	row.owner, row.claimed = e, time.Now()
	return row.attempt, nil
}

func (e *executor) announce(ctx context.Context, o *toolv1.Outcome) {
	if run, err := id.Parse[id.Run](o.GetRunId()); err == nil {
		_ = wire{e.w, e.p}.Nudge(ctx, subject.ToolDone(run), o)
	}
}

// perform runs a call. It returns nil if the call must be handed over.
func (e *executor) perform(ctx context.Context, call *toolv1.Call, attempt int) *toolv1.Outcome {
	key, effect := call.GetKey(), effectOf(call.GetToolName())
	o := &toolv1.Outcome{Key: key, RunId: call.GetRunId(), ToolCallId: call.GetToolCallId(), ToolName: call.GetToolName()}
	ended := func(state toolv1.OutcomeState, errorType string) *toolv1.Outcome {
		o.State, o.ErrorType, o.ResultJson = state, errorType, fmt.Sprintf(`{"error":%q}`, errorType)
		return o
	}
	var cancelled chan struct{}
	e.w.locked(func() { cancelled = e.wanted(call.GetRunId()) })
	late := time.Now().After(call.GetDeadline().AsTime())
	switch again := attempt > 1 && effect != toolv1.Effect_EFFECT_PURE; {
	case closed(cancelled):
		return ended(toolv1.OutcomeState_OUTCOME_STATE_CANCELLED, "cancelled")
	case late && again, again && effect == toolv1.Effect_EFFECT_UNSAFE:
		return ended(toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN, "unknown_outcome")
	case late:
		return ended(toolv1.OutcomeState_OUTCOME_STATE_ERROR, "timeout")
	case again && effect == toolv1.Effect_EFFECT_VERIFY:
		var found bool
		if e.far(ctx, key, func() { found = e.w.executors.happened[key] > 0 }) != nil {
			return nil
		}
		if found {
			return e.succeeded(o)
		}
	}
	var fails bool
	var wait time.Duration
	name := "run " + key
	e.w.locked(func() {
		fails = e.w.chance(name, 0.1)
		wait = e.w.moment(e.w.between(name, time.Millisecond, 600*time.Millisecond))
		if e.w.chance(name, 0.15) {
			wait = e.w.moment(e.w.between(name, time.Second, 5*time.Second))
		}
	})
	select {
	case <-time.After(wait):
	case <-cancelled:
		return ended(toolv1.OutcomeState_OUTCOME_STATE_CANCELLED, "cancelled")
	case <-ctx.Done():
		return nil
	}
	if fails {
		return ended(toolv1.OutcomeState_OUTCOME_STATE_ERROR, "refused")
	}
	if err := e.far(ctx, key, func() { e.happen(key, effect) }); err != nil {
		if effect == toolv1.Effect_EFFECT_UNSAFE {
			return ended(toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN, "unknown_outcome")
		}
		return nil
	}
	return e.succeeded(o)
}

// far calls a remote side. The executor may die before the reply.
func (e *executor) far(ctx context.Context, key string, do func()) error {
	return e.w.request(ctx, e.p, request{name: "far end " + key, lo: time.Millisecond, hi: 30 * time.Millisecond, do: func() error {
		e.w.note("far end", key)
		do()
		return nil
	}})
}

func (e *executor) happen(key string, effect toolv1.Effect) {
	keyed := effect == toolv1.Effect_EFFECT_KEYED || effect == toolv1.Effect_EFFECT_SAME_TX
	if keyed && e.w.executors.happened[key] > 0 {
		return // the far end knows the key
	}
	e.w.executors.happened[key]++
}

func (e *executor) succeeded(o *toolv1.Outcome) *toolv1.Outcome {
	o.State, o.ResultJson = toolv1.OutcomeState_OUTCOME_STATE_OK, fmt.Sprintf(`{"result":%q}`, o.GetKey())
	return o
}
