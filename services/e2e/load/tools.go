package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"signalbox.dev/services/e2e/world"
)

// parallelCalls is the number of calls in one step of the script parallel.
const parallelCalls = 20

// calling returns a script that makes n calls in its first step.
func calling(n int) string {
	return "rules:\n  - when: {turn: 2}\n    then:\n      - say: done\n  - then:\n" +
		strings.Repeat("      - call: {tool: get_current_datetime, args: {}}\n", n)
}

// toolCalls measures what viewers see of tools: the time from a call to its result, alone and
// with a thousand other calls, and from a person's approval to the next event and the result.
func toolCalls(ctx context.Context, b *bench) error {
	w, err := b.world(ctx, world.Options{Replicas: 1})
	if err != nil {
		return err
	}
	defer quietly(w.Close)
	for name, script := range map[string]string{"busy": busy, "parallel": calling(parallelCalls), "once": calling(1)} {
		if err := w.PutScript(ctx, name, script); err != nil {
			return err
		}
	}
	members, err := w.NewMembers(ctx, "", "owner", 50)
	if err != nil {
		return err
	}
	c := w.Client(0, members[0])
	var alone callTimes
	for range b.times(50) + 1 {
		if err := alone.watch(ctx, c, "sim/busy"); err != nil {
			return err
		}
	}
	times := alone.all[stepsOfBusy:] // without the first run
	b.figure("call to result of a pure tool, one call at a time, p50", milliseconds(times.quantile(0.5)), "ms")
	b.figure("call to result of a pure tool, one call at a time, p99", milliseconds(times.quantile(0.99)), "ms")
	if err := parallel(ctx, b, w, members); err != nil {
		return err
	}
	return approvals(ctx, b, c)
}

// parallel measures rounds in which every member has a run that makes parallelCalls calls.
func parallel(ctx context.Context, b *bench, w *world.World, members []world.Member) error {
	var times callTimes
	var rate sample
	for round := range b.times(10) + 1 {
		one := callTimes{}
		var group sync.WaitGroup
		errs := make(chan error, len(members))
		for _, m := range members {
			group.Go(func() {
				if err := one.watch(ctx, w.Client(0, m), "sim/parallel"); err != nil {
					errs <- err
				}
			})
		}
		group.Wait()
		close(errs)
		if err := <-errs; err != nil {
			return err
		}
		if round > 0 {
			times.all = append(times.all, one.all...)
			rate = append(rate, one.last.Sub(one.first)/time.Duration(len(one.all)))
		}
	}
	calls := len(members) * parallelCalls
	b.figure(fmt.Sprintf("%d calls at once, from the first call to the last result", calls), 1/rate.quantile(0.5).Seconds(), "1/s")
	b.figure(fmt.Sprintf("call to result with %d calls at once, p50", calls), milliseconds(times.all.quantile(0.5)), "ms")
	b.figure(fmt.Sprintf("call to result with %d calls at once, p99", calls), milliseconds(times.all.quantile(0.99)), "ms")
	return nil
}

// callTimes are the times from calls to their results, as viewers saw them.
type callTimes struct {
	mu          sync.Mutex // guards the rest
	all         sample
	first, last time.Time // of a call, and of a result
}

// watch has a message answered and records the times of the calls.
func (t *callTimes) watch(ctx context.Context, c world.Client, model string) error {
	session, err := c.NewSession(ctx, model)
	if err != nil {
		return err
	}
	called := map[string]time.Time{}
	return follow(ctx, c, session, func(kind, call string) {
		now := time.Now()
		t.mu.Lock()
		defer t.mu.Unlock()
		switch kind {
		case "tool-call-complete":
			called[call] = now
			if t.first.IsZero() {
				t.first = now
			}
		case "tool-result":
			t.all = append(t.all, now.Sub(called[call]))
			t.last = now
		}
	})
}

// follow sends a message and passes the kinds of the run's events, and the calls that they are
// about, to take.
func follow(ctx context.Context, c world.Client, session string, take func(kind, call string)) error {
	stream, err := c.Send(ctx, session, world.Sending{Content: "go"})
	if err != nil {
		return err
	}
	defer quietly(stream.Close)
	for {
		e, err := stream.Next()
		if err != nil {
			return fmt.Errorf("the run did not end: %w", err)
		}
		var about struct {
			ToolCallID string `json:"toolCallId"`
		}
		if strings.HasPrefix(e.Type, "tool-") {
			if err := json.Unmarshal(e.Data, &about); err != nil {
				return err
			}
		}
		take(e.Type, about.ToolCallID)
		switch e.Type {
		case "error":
			return fmt.Errorf("the run failed: %s", e.Data)
		case "done":
			return nil
		}
	}
}

// approvals measures from the request that approves a call to the next event and to the result.
func approvals(ctx context.Context, b *bench, c world.Client) error {
	rule := map[string]any{"tool": "get_current_datetime", "effect": "ask"}
	if err := c.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/approval-rules", Body: rule}, nil); err != nil {
		return err
	}
	var next, result sample
	for range b.times(200) + 1 {
		session, err := c.NewSession(ctx, "sim/once")
		if err != nil {
			return err
		}
		var asked string
		var approved time.Time
		decided := make(chan error, 1)
		err = follow(ctx, c, session, func(kind, call string) {
			switch kind {
			case "tool-approval-request":
				asked = call
			case "waiting":
				approved = time.Now()
				go func() {
					_, err := c.Decide(ctx, session, asked, map[string]any{"approved": true})
					decided <- err
				}()
			case "tool-approval-response":
				next = append(next, time.Since(approved))
			case "tool-result":
				result = append(result, time.Since(approved))
			}
		})
		if err == nil {
			err = <-decided
		}
		if err != nil {
			return fmt.Errorf("approve a call: %w", err)
		}
	}
	for _, q := range []struct {
		name string
		s    sample
	}{{"approval to the next event", next[1:]}, {"approval to the call's result", result[1:]}} {
		b.figure(q.name+", p50", milliseconds(q.s.quantile(0.5)), "ms")
		b.figure(q.name+", p99", milliseconds(q.s.quantile(0.99)), "ms")
	}
	return nil
}
