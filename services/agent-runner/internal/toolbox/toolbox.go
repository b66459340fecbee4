// Package toolbox is agent-runner's view of tool-executor: which tools there are,
// and how calls ended.
//
// An outcome is a row at the executor. It announces itself on ctl.tool.<run>,
// where it may be lost, so whoever waits also asks for the rows every two
// seconds. A Waiter belongs to the goroutine that works on the run; nothing is kept
// for calls that nobody waits for.
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
	askEvery      = 2 * time.Second
	askTimeout    = 5 * time.Second
	catalogueGood = 10 * time.Second
	maxCatalogues = 1024
	announcements = 256 // buffered for one waiter; what is more is asked for
)

// Bus is where outcomes are announced: *bus.Bus, whose contracts these are.
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
	waiters    map[string]chan *toolv1.Outcome
	catalogues map[id.Workspace]catalogue
}

type catalogue struct {
	tools []*toolv1.Tool
	until time.Time
}

// New returns a toolbox. Nothing is heard before Start.
func New(client toolv1connect.ToolServiceClient, b Bus, log *slog.Logger) *Toolbox {
	return &Toolbox{client: client, bus: b, log: log, waiters: map[string]chan *toolv1.Outcome{}, catalogues: map[id.Workspace]catalogue{}}
}

// Start listens for outcomes. The subscription ends with the bus.
func (t *Toolbox) Start() error {
	_, err := t.bus.Subscribe(subject.AllToolDone, func(ctx context.Context, m *bus.Message) {
		outcome, err := bus.Decode[*toolv1.Outcome](m)
		if err != nil {
			t.log.WarnContext(ctx, "announcement of an outcome not understood", "error", err)
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		select {
		case t.waiters[outcome.GetRunId()] <- outcome:
		default: // nobody waits here, or is slow: the row is asked for
		}
	})
	if err != nil {
		return fmt.Errorf("listen for outcomes: %w", err)
	}
	return nil
}

// Catalogue returns the tools of the context's workspace, at most ten seconds old.
// When the executor cannot be reached, an older one is better than none.
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

// Names returns the names of the tools of the context's workspace, as Catalogue does or,
// with fresh, as of now.
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

// refresh asks for a workspace's tools. When the executor cannot be reached, what it said
// before is better than nothing.
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
	t.catalogues[ws] = catalogue{res.GetTools(), time.Now().Add(catalogueGood)}
	return res.GetTools(), nil
}

// Waiter hears the outcomes of one run.
type Waiter struct {
	t     *Toolbox
	run   id.Run
	heard chan *toolv1.Outcome
}

// Listen begins to hear the outcomes of a run, before its first call is
// dispatched so that none is missed. A run has one waiter in a process at a time;
// Close ends it.
func (t *Toolbox) Listen(run id.Run) *Waiter {
	w := &Waiter{t, run, make(chan *toolv1.Outcome, announcements)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiters[run.String()] = w.heard
	return w
}

// Close ends the waiter.
func (w *Waiter) Close() {
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	if w.t.waiters[w.run.String()] == w.heard {
		delete(w.t.waiters, w.run.String())
	}
}

// Await calls got once for each key's outcome, in the order in which they arrive,
// and returns when it has them all, when got fails, or with ctx, which carries the
// run's identity. With ask it begins by asking: the calls are another claim's.
func (w *Waiter) Await(ctx context.Context, keys []id.Operation, ask bool, got func(*toolv1.Outcome) error) error {
	missing := make(map[string]bool, len(keys))
	for _, k := range keys {
		missing[k.String()] = true
	}
	take := func(o *toolv1.Outcome) error {
		if !missing[o.GetKey()] {
			return nil
		}
		delete(missing, o.GetKey())
		return got(o)
	}
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	if ask {
		if err := w.t.ask(ctx, missing, take); err != nil {
			return err
		}
	}
	for len(missing) > 0 {
		var err error
		select {
		case o := <-w.heard: // before anything is asked
			if err := take(o); err != nil {
				return err
			}
			continue
		default:
		}
		select {
		case o := <-w.heard:
			err = take(o)
		case <-tick.C:
			err = w.t.ask(ctx, missing, take)
		case <-ctx.Done():
			return fmt.Errorf("wait for tools: %w", context.Cause(ctx))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ask reads the rows of what is missing. An executor that cannot be reached is
// asked again at the next tick.
func (t *Toolbox) ask(ctx context.Context, missing map[string]bool, take func(*toolv1.Outcome) error) error {
	req := &toolv1.GetOutcomesRequest{}
	for k := range missing {
		req.Keys = append(req.Keys, k)
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := t.client.GetOutcomes(asking, req)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			t.log.WarnContext(ctx, "outcomes not read", "error", err)
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

// Cancel asks the executors to stop a run's calls. It is a nudge: what does not
// hear it ends at its deadline.
func (t *Toolbox) Cancel(ctx context.Context, run id.Run) {
	err := t.bus.Nudge(ctx, subject.ToolCancel(run), &toolv1.Cancel{RunId: run.String()})
	if err != nil {
		t.log.WarnContext(ctx, "running tools not told to stop", "run", run, "error", err)
	}
}
