package farend_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/farend"
	"signalbox.dev/services/e2e/world"
)

const script = `
rules:
  - name: done
    when: {user: '^use (?P<tool>\w+)$', result: {}}
    then: [{say: 'end'}]
  - name: use
    when: {user: '^use (?P<tool>\w+)$'}
    then: [{call: {tool: '{{.match.tool}}', args: {}}}]
`

// TestKilledExecutors kills both executors (kill -9) while calls of each kind of effect are at the
// same point, restarts them, and checks the outcomes of the calls. Package kill has the random
// kills of single executors.
func TestKilledExecutors(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds and starts a whole cluster")
	}
	r := newRig(t)
	for name, at := range map[string]farend.Point{"before the effect": farend.Received, "after the effect": farend.Done} {
		hold := r.far.Hold(at)
		runs := map[string]string{} // tool → run
		for _, tool := range []string{"test_pure", "test_keyed", "test_verify", "test_unsafe"} {
			runs[tool] = r.use(t, tool)
		}
		var keys []string
		for range runs {
			select {
			case key := <-hold.Reached():
				keys = append(keys, key)
			case <-r.ctx.Done():
				t.Fatalf("%s: %d of %d calls reached the far end", name, len(keys), len(runs))
			}
		}
		r.killBoth(t)
		hold.Release()
		for tool, run := range runs {
			call, want := r.end(t, run), "ok"
			if tool == "test_unsafe" {
				want = "unknown"
			}
			if state, result := orNothing(call.State), orNothing(call.Result); state != want || state == "unknown" && !strings.Contains(result, "not known whether") {
				t.Errorf("killed %s: %s ended %s with %s, want %s", name, tool, state, result, want)
			}
		}
		for _, key := range keys {
			got, want := r.far.Get(key), 1
			if got.Kind == "pure" {
				want = 0
			}
			if got.Effects != want {
				t.Errorf("killed %s: %+v, want %d effects", name, got, want)
			}
		}
	}
}

func orNothing(s *string) string {
	if s == nil {
		return "nothing"
	}
	return *s
}

// rig is a cluster whose tools use a far end.
type rig struct {
	ctx       context.Context //nolint:containedctx // the time of the whole test
	far       *farend.Server
	client    world.Client
	executors []*world.Proc
}

func newRig(t *testing.T) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	r := &rig{ctx: ctx, far: farend.New()}
	web := httptest.NewServer(r.far)
	t.Cleanup(func() {
		r.far.Close()
		web.Close()
	})
	dir := t.TempDir()
	programs := filepath.Join(dir, "bin")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := world.Build(ctx, programs); err != nil {
		t.Fatal(err)
	}
	w, err := world.Start(ctx, world.Options{
		Dir: dir, Programs: programs, Partitions: 4,
		Program: func(service string, _ int) string {
			if service != subject.ToolExecutor {
				return ""
			}
			return filepath.Join(programs, "tool-executor-farends")
		},
		Env: func(string, int) []string { return []string{"FAR_END_URL=" + web.URL} },
	})
	if w != nil {
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Errorf("Close = %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := w.PutScript(ctx, "tools", script); err != nil {
		t.Fatal(err)
	}
	who, err := w.NewMember(ctx, "", "editor")
	if err != nil {
		t.Fatal(err)
	}
	r.client = w.Client(0, who)
	r.executors = []*world.Proc{w.Replica(subject.ToolExecutor, 1), w.Replica(subject.ToolExecutor, 2)}
	return r
}

// use starts a run that calls a tool.
func (r *rig) use(t *testing.T, tool string) (run string) {
	t.Helper()
	var made struct {
		Session struct{ ID string }
	}
	err := r.client.Call(r.ctx, world.Request{
		Method: http.MethodPost, Path: "/api/sessions", Body: map[string]any{"model": "sim/tools", "tools": []string{tool}},
	}, &made)
	if err != nil {
		t.Fatal(err)
	}
	started, err := r.client.Submit(r.ctx, made.Session.ID, world.Sending{Content: fmt.Sprintf("use %s", tool)})
	if err != nil {
		t.Fatal(err)
	}
	return started.ID
}

// killBoth kills and restarts the executors.
func (r *rig) killBoth(t *testing.T) {
	t.Helper()
	for _, p := range r.executors {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range r.executors {
		if err := p.Restart(); err != nil {
			t.Fatal(err)
		}
	}
}

// end waits for the end of a run and returns its only call.
func (r *rig) end(t *testing.T, id string) world.ToolCall {
	t.Helper()
	for {
		run, err := r.client.Run(r.ctx, id)
		if err == nil && run.Ended() && len(run.ToolCalls) == 1 {
			return run.ToolCalls[0]
		}
		if r.ctx.Err() != nil {
			t.Fatalf("run %s has not ended: %+v, %v\n%s", id, run, err, r.executors[0].Tail(4000))
		}
		<-time.After(20 * time.Millisecond)
	}
}
