package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// RunPath is the path of one run.
type RunPath struct {
	ID string `path:"id" format:"uuid" doc:"The run's id."`
}

func (a *API) runs() {
	handle(a, huma.Operation{
		OperationID: "get-run", Method: http.MethodGet, Path: "/api/runs/{id}",
		Tags: []string{"Runs"}, Summary: "Read a run with its steps and tool calls",
	}, access{role: identity.Viewer}, a.getRun)

	watch := huma.Operation{
		OperationID: "watch-run", Method: http.MethodGet, Path: "/api/runs/{id}/events",
		Tags: []string{"Runs"}, Summary: "Watch one run, from its beginning or from an event on",
		Description: "The stream ends after the run's end. An id that is the run's last answers 204.",
	}
	watch.Responses = map[string]*huma.Response{
		"200": a.streamResponse(),
		"204": {Description: "The run has ended, and its last event is the one that was named."},
	}
	handle(a, watch, access{role: identity.Viewer, urlToken: true}, a.watchRun)
}

// RunDetails is a run with what it did.
type RunDetails struct {
	Run       Run        `json:"run"`
	Steps     []Step     `json:"steps" nullable:"false"`
	ToolCalls []ToolCall `json:"tool_calls" nullable:"false"`
}

func (a *API) getRun(ctx context.Context, in *RunPath) (*struct{ Body RunDetails }, error) {
	run, err := parseID[id.Run]("id", in.ID)
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run.String()})
	if err != nil {
		return nil, err
	}
	d := RunDetails{Run: viewRun(res.GetRun()), Steps: make([]Step, len(res.GetSteps())), ToolCalls: make([]ToolCall, len(res.GetToolCalls()))}
	for i, s := range res.GetSteps() {
		d.Steps[i] = viewStep(s)
	}
	for i, c := range res.GetToolCalls() {
		d.ToolCalls[i] = viewToolCall(c)
	}
	return &struct{ Body RunDetails }{d}, nil
}

func (a *API) watchRun(ctx context.Context, in *struct {
	RunPath
	WatchInput
},
) (*reply, error) {
	want, err := parseID[id.Run]("id", in.ID)
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: want.String()})
	if err != nil {
		return nil, err
	}
	run := res.GetRun()
	at, known := feed.ParsePosition(in.cursor())
	known = known && at.Run == run.GetOrdinal()
	if known && hasEnded(run) && at.Number == run.GetLastEvent() {
		return &reply{func(hc huma.Context) { hc.SetStatus(http.StatusNoContent) }}, nil
	}
	session, err := parseID[id.Session]("session", run.GetSessionId())
	if err != nil {
		return nil, err
	}
	s, err := a.openStream(ctx, session)
	if err != nil {
		return nil, err
	}
	s.run = run
	return s.reply(s.resumeRun(in.cursor() != "", known, at))
}

// resumeRun places a run's viewer behind an event of it or, without a cursor, at
// its beginning.
func (s *stream) resumeRun(cursor, known bool, at feed.Position) error {
	switch {
	case !cursor:
		return s.replay(feed.Follow{})
	case known && (!hasEnded(s.run) || at.Number <= s.run.GetLastEvent()):
		found, err := s.viewer.After(s.ctx, at)
		if err != nil {
			return err
		}
		if found {
			s.viewer.FollowRun(s.run, feed.Follow{})
			return nil
		}
		// The log does not have it any more, and nothing has happened since.
		if s.run.LastEvent != nil && s.run.GetLastEvent() == at.Number {
			s.viewer.FollowRun(s.run, feed.Follow{})
			return s.viewer.Restart(s.ctx, feed.Snapshot{Contents: feed.ContentsOf(nil, s.run)})
		}
	}
	if s.run.LastEvent == nil {
		s.viewer.FollowRun(s.run, feed.Follow{})
		return s.snapshot() // the id was none of this run's: say what there is
	}
	return s.replayFromRow(feed.Follow{})
}
