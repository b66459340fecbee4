package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
)

// stopping is a separate world, because its runners are killed and its tools hang. TestStop sets
// how it is started.
var stopping = &sharedWorld{name: "stopping"}

// talkative is the script of an answer that takes long.
const talkative = `
rules:
  - then:
      - say: {text: "one two three four five six seven eight nine ten", delay: 5ms}
      - wait: 50s
      - say: "and the end"
`

// TestStop stops runs in each state, through the gateway that does not serve the viewer, and
// checks what the provider sees of it.
func TestStop(t *testing.T) {
	t.Parallel()
	far := newHangingEnd(t)
	stopping.start = far.start
	w := stopping.up(t).World
	ctx, cancel := context.WithTimeout(t.Context(), 2*timeout)
	defer cancel()
	owner, err := w.NewMember(ctx, "", "owner")
	if err != nil {
		t.Fatal(err)
	}
	s := &stopTest{T: t, w: w, ctx: ctx, here: w.Client(0, owner), there: w.Client(1, owner), script: "stop-" + id.New[id.Run]().String()[24:]}
	if err := w.PutScript(ctx, s.script, talkative); err != nil {
		t.Fatal(err)
	}
	s.whileSpeaking()
	s.whileQueued()
	s.whileToolRuns(far)
	s.whileRecovering()
}

type stopTest struct {
	*testing.T
	w           *world.World
	ctx         context.Context //nolint:containedctx // of the one test that this is
	here, there world.Client
	script      string
}

// speaking returns a run whose model is in the middle of its answer.
func (s *stopTest) speaking() (session string, run world.Run, stream *world.Stream) {
	s.Helper()
	session, err := s.here.NewSession(s.ctx, "sim/"+s.script)
	if err != nil {
		s.Fatal(err)
	}
	if run, err = s.here.Submit(s.ctx, session, world.Sending{Content: "go on"}); err != nil {
		s.Fatal(err)
	}
	if stream, err = s.here.Watch(s.ctx, world.RunEvents(run.ID), ""); err != nil {
		s.Fatal(err)
	}
	for {
		e, err := stream.Next()
		if err != nil {
			s.Fatalf("the answer did not begin: %v", err)
		}
		if e.Type == "text-delta" {
			return session, run, stream
		}
	}
}

// end reads a stream to its clean end and returns its last event.
func (s *stopTest) end(stream *world.Stream) (last string) {
	s.Helper()
	defer stream.Close()
	for {
		e, err := stream.Next()
		if errors.Is(err, io.EOF) {
			return last
		}
		if err != nil {
			s.Fatalf("the stream was cut after %s: %v", last, err)
		}
		last = e.Type + " " + string(e.Data)
	}
}

func (s *stopTest) stopped(run world.Run) {
	s.Helper()
	got, err := s.there.Run(s.ctx, run.ID)
	if err != nil || got.State != "cancelled" || got.FinishReason == nil || *got.FinishReason != "cancelled" {
		s.Errorf("run %s after the stop: %+v, %v, want it cancelled", run.ID, got, err)
	}
}

// cuts returns when the client cut the answers of this test's script.
func (s *stopTest) cuts() (cuts []time.Time) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.w.Simulator+"/simulator/streams", nil)
	if err != nil {
		s.Fatal(err)
	}
	res, err := s.w.HTTP.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	var streams struct {
		Cuts []struct {
			Script string
			At     time.Time
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&streams); err != nil {
		s.Fatal(err)
	}
	for _, c := range streams.Cuts {
		if c.Script == s.script {
			cuts = append(cuts, c.At)
		}
	}
	return cuts
}

// awaitCut waits until the n-th answer was cut, and returns when that was.
func (s *stopTest) awaitCut(n int) time.Time {
	s.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if cuts := s.cuts(); len(cuts) >= n {
			return cuts[n-1]
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			s.Fatal("the provider's stream goes on after the stop")
		}
	}
}

// whileSpeaking checks that the provider's connection is closed, that the viewer on the other
// gateway sees the end, and that the text so far is kept and marked.
func (s *stopTest) whileSpeaking() {
	const times = 20
	took := make([]time.Duration, times)
	before := s.cuts()
	for i := range times {
		session, run, stream := s.speaking()
		begin := time.Now()
		if err := s.there.Cancel(s.ctx, session); err != nil {
			s.Fatal(err)
		}
		took[i] = s.awaitCut(len(before) + i + 1).Sub(begin)
		if last := s.end(stream); !strings.HasPrefix(last, "done ") || !strings.Contains(last, `"cancelled"`) {
			s.Errorf("the stream ends with %s, want done, cancelled", last)
		}
		s.stopped(run)
		messages, err := s.there.Messages(s.ctx, session)
		if err != nil || len(messages) != 2 || !strings.HasPrefix(messages[1].Text(), "one") {
			s.Errorf("after the stop there are %d messages, %v, want the question and the partial answer", len(messages), err)
		}
	}
	slices.Sort(took)
	s.Logf("from the request to the provider's closed socket: p50 %s, max %s of %d", took[times/2], took[times-1], times)
}

// whileQueued checks that a stop also ends the queued run, and that the provider gets no request
// for it.
func (s *stopTest) whileQueued() {
	session, run, stream := s.speaking()
	defer stream.Close()
	queued, err := s.here.Submit(s.ctx, session, world.Sending{Content: "and then"})
	if err != nil {
		s.Fatal(err)
	}
	before := s.cuts()
	if err := s.there.Cancel(s.ctx, session); err != nil {
		s.Fatal(err)
	}
	s.awaitCut(len(before) + 1)
	s.end(stream)
	s.stopped(run)
	s.stopped(queued)
}

// whileRecovering checks that a stop of a run without a runner is obeyed by the runner that takes
// it over: the provider is not called again.
func (s *stopTest) whileRecovering() {
	session, run, stream := s.speaking()
	defer stream.Close()
	victims := make([]*world.Proc, 2)
	for i := range victims { // either may have it
		victims[i] = s.w.Replica(subject.AgentRunner, i+1)
		if err := victims[i].Kill(); err != nil {
			s.Fatal(err)
		}
	}
	// The conversation service is part of agent-runner too: the stop is accepted after the restart.
	for _, v := range victims {
		if err := v.Restart(); err != nil {
			s.Fatal(err)
		}
		if err := v.Ready(s.ctx); err != nil {
			s.Fatal(err)
		}
	}
	asked := s.requests()
	if err := s.there.Cancel(s.ctx, session); err != nil {
		s.Fatal(err)
	}
	if last := s.end(stream); !strings.HasPrefix(last, "done ") || !strings.Contains(last, `"cancelled"`) {
		s.Errorf("the stream of a run that was recovering ends with %s, want done, cancelled", last)
	}
	s.stopped(run)
	if again := s.requests(); again != asked {
		s.Errorf("the provider got %d more requests after the stop, want none", again-asked)
	}
}

// requests returns the number of the provider's requests with this test's script.
func (s *stopTest) requests() int {
	s.Helper()
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, fmt.Sprintf("%s/simulator/requests?script=%s&limit=1000", s.w.Simulator, s.script), nil)
	if err != nil {
		s.Fatal(err)
	}
	res, err := s.w.HTTP.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	var out struct{ Requests []struct{} }
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		s.Fatal(err)
	}
	return len(out.Requests)
}
