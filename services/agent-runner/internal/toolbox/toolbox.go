// Package toolbox is agent-runner's client of tool-executor: it lists the tools and waits for
// the outcomes of calls.
//
// The executor records an outcome in its database and announces it on ctl.tool.<run>, where
// the message may be lost. So a Waiter also polls for outcomes every two seconds. A Waiter
// belongs to the goroutine that works on the run. Outcomes of calls without a waiter are
// dropped. The executor tells on the same subject how far a call is.
package toolbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"
)

const (
	pollInterval  = 2 * time.Second
	pollTimeout   = 5 * time.Second
	catalogueTTL  = 10 * time.Second
	maxCatalogues = 1024
	maxBuffered   = 256 // outcomes for one waiter; further ones are polled
	maxProgress   = 16  // reports for one waiter; further ones are dropped
)

// Bus is the part of *bus.Bus that the toolbox needs.
type Bus interface {
	Subscribe(subj string, fn func(ctx context.Context, m *bus.Message)) (*bus.Subscription, error)
	Nudge(ctx context.Context, subj string, m proto.Message) error
}

// Toolbox is safe for concurrent use.
type Toolbox struct {
	client toolv1connect.ToolServiceClient
	bus    Bus
	log    *slog.Logger

	mu         sync.Mutex // guards waiters and catalogues
	waiters    map[string]*Waiter
	catalogues map[id.Workspace]catalogue
}

type catalogue struct {
	tools []*toolv1.Tool
	until time.Time
}

// New returns a toolbox. It receives outcomes after Start.
func New(client toolv1connect.ToolServiceClient, b Bus, log *slog.Logger) *Toolbox {
	return &Toolbox{client: client, bus: b, log: log, waiters: map[string]*Waiter{}, catalogues: map[id.Workspace]catalogue{}}
}

// Start subscribes to outcomes and progress. The subscription ends with the bus.
func (t *Toolbox) Start() error {
	_, err := t.bus.Subscribe(subject.AllToolDone, func(ctx context.Context, m *bus.Message) {
		if err := t.receive(m); err != nil {
			t.log.WarnContext(ctx, "message about a tool call not decoded", "error", err)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe to outcomes: %w", err)
	}
	return nil
}

// progressSchema tells reports of progress from outcomes.
var progressSchema = string((&toolv1.Progress{}).ProtoReflect().Descriptor().FullName())

func (t *Toolbox) receive(m *bus.Message) error {
	if m.Schema() == progressSchema {
		p, err := bus.Decode[*toolv1.Progress](m)
		if err != nil {
			return err
		}
		if w := t.waiter(p.GetRunId()); w != nil {
			offer(w.progress, p)
		}
		return nil
	}
	o, err := bus.Decode[*toolv1.Outcome](m)
	if err != nil {
		return err
	}
	if w := t.waiter(o.GetRunId()); w != nil {
		offer(w.outcomes, o)
	}
	return nil
}

func (t *Toolbox) waiter(run string) *Waiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiters[run]
}

// offer drops v if the waiter is slow: it polls for outcomes, and can do without progress.
func offer[T any](to chan<- T, v T) {
	select {
	case to <- v:
	default:
	}
}

// Catalogue returns the tools of the context's workspace, at most ten seconds old, or older
// if the executor cannot be reached.
func (t *Toolbox) Catalogue(ctx context.Context) ([]*toolv1.Tool, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	known, ok := t.catalogues[actor.Workspace]
	t.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.tools, nil
	}
	return t.refresh(ctx, actor.Workspace)
}

// Names returns the names of the tools of the context's workspace, from Catalogue or, with
// fresh, from the executor.
func (t *Toolbox) Names(ctx context.Context, fresh bool) ([]string, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	get := t.Catalogue
	if fresh {
		get = func(ctx context.Context) ([]*toolv1.Tool, error) { return t.refresh(ctx, actor.Workspace) }
	}
	tools, err := get(ctx)
	names := make([]string, len(tools))
	for i, tool := range tools {
		names[i] = tool.GetName()
	}
	return names, err
}

// refresh reads a workspace's tools from the executor. If the executor cannot be reached, it
// returns the last known ones.
func (t *Toolbox) refresh(ctx context.Context, ws id.Workspace) ([]*toolv1.Tool, error) {
	t.mu.Lock()
	known, ok := t.catalogues[ws]
	t.mu.Unlock()
	res, err := t.client.ListTools(ctx, &toolv1.ListToolsRequest{})
	if err != nil {
		if ok {
			t.log.WarnContext(ctx, "catalogue of tools not refreshed", "error", err)
			return known.tools, nil
		}
		return nil, fmt.Errorf("list tools: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.catalogues) >= maxCatalogues {
		clear(t.catalogues)
	}
	t.catalogues[ws] = catalogue{res.GetTools(), time.Now().Add(catalogueTTL)}
	return res.GetTools(), nil
}

// ErrUnreachable means that no executor has answered for too long.
var ErrUnreachable = errors.New("no executor can be reached")

// Waiter receives the outcomes of one run.
type Waiter struct {
	t        *Toolbox
	run      id.Run
	patience time.Duration
	outcomes chan *toolv1.Outcome
	progress chan *toolv1.Progress
	failing  time.Time // when the first of the last polls failed; zero if an executor has answered since
}

// Listen returns a waiter for the outcomes of a run, which waits that long for an executor that
// answers. Call it before the first call is dispatched. A run has one waiter in a process at a
// time. The caller closes it.
func (t *Toolbox) Listen(run id.Run, patience time.Duration) *Waiter {
	w := &Waiter{t: t, run: run, patience: patience, outcomes: make(chan *toolv1.Outcome, maxBuffered), progress: make(chan *toolv1.Progress, maxProgress)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiters[run.String()] = w
	return w
}

// Close ends the waiter.
func (w *Waiter) Close() {
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	if w.t.waiters[w.run.String()] == w {
		delete(w.t.waiters, w.run.String())
	}
}

// Await calls got once for each key's outcome, in the order of arrival. It returns when it has
// all outcomes, when got fails, when ctx ends, which carries the run's identity, or with
// ErrUnreachable when the waiter's patience is over, also over several calls. With poll it polls
// at once, because the outcomes may have been recorded before. Meanwhile it calls
// heard with the progress of calls that have no outcome yet.
func (w *Waiter) Await(ctx context.Context, keys []id.Operation, poll bool, got func(*toolv1.Outcome) error, heard func(*toolv1.Progress) error) error {
	missing := make(map[string]bool, len(keys))
	for _, k := range keys {
		missing[k.String()] = true
	}
	take := func(o *toolv1.Outcome) error {
		if !missing[o.GetKey()] {
			return nil
		}
		delete(missing, o.GetKey())
		w.failing = time.Time{}
		return got(o)
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	if poll {
		if err := w.poll(ctx, missing, take); err != nil {
			return err
		}
	}
	for len(missing) > 0 {
		var err error
		select {
		case o := <-w.outcomes: // takes precedence over polling
			if err := take(o); err != nil {
				return err
			}
			continue
		default:
		}
		select {
		case o := <-w.outcomes:
			err = take(o)
		case p := <-w.progress:
			if missing[p.GetKey()] {
				w.failing = time.Time{}
				err = heard(p)
			}
		case <-tick.C:
			err = w.poll(ctx, missing, take)
		case <-ctx.Done():
			return fmt.Errorf("wait for tools: %w", context.Cause(ctx))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// poll reads the missing outcomes from the executor. A failure is logged, because the next
// tick polls again, until the waiter's patience is over.
func (w *Waiter) poll(ctx context.Context, missing map[string]bool, take func(*toolv1.Outcome) error) error {
	req := &toolv1.GetOutcomesRequest{}
	for k := range missing {
		req.Keys = append(req.Keys, k)
	}
	asking, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	res, err := w.t.client.GetOutcomes(asking, req)
	switch {
	case err == nil:
		w.failing = time.Time{}
	case ctx.Err() != nil || errors.Is(err, context.Canceled):
		return nil
	default:
		w.t.log.WarnContext(ctx, "outcomes not read", "error", err)
		if w.failing.IsZero() {
			w.failing = time.Now()
		}
		if time.Since(w.failing) >= w.patience {
			w.failing = time.Time{}
			return fmt.Errorf("wait for tools: %w", ErrUnreachable)
		}
		return nil
	}
	for _, o := range res.GetOutcomes() {
		if err := take(o); err != nil {
			return err
		}
	}
	return nil
}

// Cancel asks the executors to stop a run's calls. The message may be lost; then the calls end
// at their deadlines.
func (t *Toolbox) Cancel(ctx context.Context, run id.Run) {
	err := t.bus.Nudge(ctx, subject.ToolCancel(run), &toolv1.Cancel{RunId: run.String()})
	if err != nil {
		t.log.WarnContext(ctx, "cancel of running tools not sent", "run", run, "error", err)
	}
}
