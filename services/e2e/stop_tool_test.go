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

// usesTool calls the tool that it is told to, and would speak of the result.
const usesTool = `
rules:
  - when: {user: '^use (?P<tool>\w+)$', result: {}}
    then: [{say: 'the end'}]
  - when: {user: '^use (?P<tool>\w+)$'}
    then: [{call: {tool: '{{.match.tool}}', args: {}}}]
`

// hangingEnd is a far end that takes requests and never answers. It knows when
// their clients have closed them.
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
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20)) // to its end: only then the server sees the client leave
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	// The body of one that acts, the query of one that reads: both have the operation.
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

// whenClosed gives the moment at which the client of an operation closes its request.
func (h *hangingEnd) whenClosed(operation string) <-chan time.Time {
	c := make(chan time.Time, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed[operation] = c
	return c
}

// start starts a world whose tools act upon the far end.
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

// The request of a tool that hangs is closed, whatever its effect, and the run ends;
// its model is not asked again.
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
			s.Fatalf("the request of %s is open 2 s after the stop, want it closed within 250 ms", tools[i%len(tools)])
		}
		if last := s.end(stream); !strings.HasPrefix(last, "done ") || !strings.Contains(last, `"cancelled"`) {
			s.Errorf("the stream of a run that used %s ends with %s, want done, cancelled", tools[i%len(tools)], last)
		}
		s.stopped(run)
	}
	if again := s.requests() - asked; again != times {
		s.Errorf("the provider was asked %d times, want once for each of %d runs", again, times)
	}
	slices.Sort(took)
	s.Logf("from the request to the tool's closed socket: p50 %s, p99 %s, max %s of %d", took[times/2], took[times*99/100], took[times-1], times)
}

// using is a run whose call of a tool has come to the far end.
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
		s.Fatalf("no call of %s came to the far end", tool)
	}
	return run, session, operation
}
