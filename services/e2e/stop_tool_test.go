package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/farend"
	"signalbox.dev/services/e2e/world"
)

// usesTool calls the tool named in the message, and would then answer.
const usesTool = `
rules:
  - when: {user: '^use (?P<tool>\w+)$', result: {}}
    then: [{say: 'the end'}]
  - when: {user: '^use (?P<tool>\w+)$'}
    then: [{call: {tool: '{{.match.tool}}', args: {}}}]
`

// hangingEnd is a far end that accepts requests and never answers. It records when clients close
// them.
type hangingEnd struct {
	far  *farend.Server
	hold *farend.Hold
	url  string

	mu     sync.Mutex // guards closed
	closed map[string]chan time.Time
}

func newHangingEnd(t *testing.T) *hangingEnd {
	t.Helper()
	h := &hangingEnd{far: farend.New(), closed: map[string]chan time.Time{}}
	h.hold = h.far.Hold(farend.Received)
	web := httptest.NewServer(h)
	h.url = web.URL
	t.Cleanup(func() {
		h.far.Close()
		web.Close()
	})
	return h
}

// ServeHTTP implements http.Handler.
func (h *hangingEnd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20)) // completely: otherwise the server does not notice that the client leaves
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	// The operation is in the body of a tool that acts, and in the query of one that reads.
	asked := string(body) + r.URL.RawQuery
	forget := context.AfterFunc(r.Context(), func() {
		now := time.Now()
		h.mu.Lock()
		defer h.mu.Unlock()
		for operation, c := range h.closed {
			if strings.Contains(asked, operation) {
				c <- now
				delete(h.closed, operation)
			}
		}
	})
	defer forget()
	h.far.ServeHTTP(w, r)
}

// whenClosed returns a channel with the time at which the client closes an operation's request.
func (h *hangingEnd) whenClosed(operation string) <-chan time.Time {
	c := make(chan time.Time, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed[operation] = c
	return c
}

// start starts a world whose tools use the far end.
func (h *hangingEnd) start(ctx context.Context, o world.Options) (*world.World, error) {
	o.Program = func(service string, _ int) string {
		if service != subject.ToolExecutor {
			return ""
		}
		return filepath.Join(o.Programs, "tool-executor-farends")
	}
	o.Env = func(service string, _ int) []string {
		if service != subject.ToolExecutor {
			return nil
		}
		return []string{"FAR_END_URL=" + h.url}
	}
	return world.Start(ctx, o)
}

// whileToolRuns checks that the request of a hanging tool is closed, whatever its effect, that the
// run ends, and that its model is not called again.
func (s *stopTest) whileToolRuns(far *hangingEnd) {
	const times = 24
	own := *s
	s = &own
	s.script += "-tool"
	if err := s.w.PutScript(s.ctx, s.script, usesTool); err != nil {
		s.Fatal(err)
	}
	asked := s.requests()
	took := make([]time.Duration, times)
	tools := []string{"test_pure", "test_keyed", "test_verify", "test_unsafe"}
	for i := range times {
		run, session, operation := s.using(far, tools[i%len(tools)])
		stream, err := s.here.Watch(s.ctx, world.RunEvents(run.ID), "")
		if err != nil {
			s.Fatal(err)
		}
		closed := far.whenClosed(operation)
		begin := time.Now()
		if err := s.there.Cancel(s.ctx, session); err != nil {
			s.Fatal(err)
		}
		select {
		case at := <-closed:
			took[i] = at.Sub(begin)
		case <-time.After(2 * time.Second):
			s.Fatalf("the request of %s was still open 2 s after the stop, want it closed within 250 ms", tools[i%len(tools)])
		}
		if last := s.end(stream); !strings.HasPrefix(last, "done ") || !strings.Contains(last, `"cancelled"`) {
			s.Errorf("the stream of a run that used %s ends with %s, want done, cancelled", tools[i%len(tools)], last)
		}
		s.stopped(run)
	}
	if again := s.requests() - asked; again != times {
		s.Errorf("the provider got %d requests, want one for each of %d runs", again, times)
	}
	slices.Sort(took)
	s.Logf("from the request to the tool's closed socket: p50 %s, p99 %s, max %s of %d", took[times/2], took[times*99/100], took[times-1], times)
}

// using returns a run whose tool call has reached the far end.
func (s *stopTest) using(far *hangingEnd, tool string) (run world.Run, session, operation string) {
	s.Helper()
	var made struct{ Session struct{ ID string } }
	err := s.here.Call(s.ctx, world.Request{
		Method: http.MethodPost, Path: "/api/sessions", Body: map[string]any{"model": "sim/" + s.script, "tools": []string{tool}},
	}, &made)
	if err != nil {
		s.Fatal(err)
	}
	session = made.Session.ID
	if run, err = s.here.Submit(s.ctx, session, world.Sending{Content: fmt.Sprintf("use %s", tool)}); err != nil {
		s.Fatal(err)
	}
	select {
	case operation = <-far.hold.Reached():
	case <-s.ctx.Done():
		s.Fatalf("no call of %s reached the far end", tool)
	}
	return run, session, operation
}
