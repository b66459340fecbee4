package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// RunPath is the path of one run.
type RunPath struct {
	ID ID[id.Run] `path:"id" format:"uuid" doc:"The run's id."`
}

func (a *API) runs() {
	handle(a, op("get-run", "GET /api/runs/{id}", "Runs", "Read a run with its steps and tool calls"), viewers, a.getRun)
	register(a, op("watch-run", "GET /api/runs/{id}/events", "Runs", "Watch one run, from its beginning or after a given event",
		about("The stream ends with the run. If the given id is that of the run's last event, the answer is 204."),
		answers(map[string]*huma.Response{
			"200": a.streamResponse(),
			"204": {Description: "The run has ended, and the given event is its last."},
		})), viewers.withURLToken(), a.watchRun)
}

// RunDetails is a run with its steps and tool calls.
type RunDetails struct {
	Run       Run        `json:"run"`
	Steps     []Step     `json:"steps" nullable:"false"`
	ToolCalls []ToolCall `json:"tool_calls" nullable:"false"`
}

func (a *API) getRun(ctx context.Context, in *RunPath) (*RunDetails, error) {
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: in.ID.String()})
	return answer(res, err, func(res *agentv1.GetRunResponse) RunDetails {
		return RunDetails{viewRun(res.GetRun()), each(res.GetSteps(), viewStep), each(res.GetToolCalls(), viewToolCall)}
	})
}

func (a *API) watchRun(ctx context.Context, in *struct {
	RunPath
	WatchInput
},
) (*reply, error) {
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: in.ID.String()})
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

// resumeRun positions a run's viewer after one of its events or, without a cursor, at the
// run's beginning.
func (s *stream) resumeRun(cursor, known bool, at feed.Position) error {
	if !cursor {
		return s.replay(feed.Follow{})
	}
	if known && (!hasEnded(s.run) || at.Number <= s.run.GetLastEvent()) {
		found, err := s.viewer.After(s.ctx, at)
		if err != nil {
			return err
		}
		if found {
			s.viewer.FollowRun(s.run, feed.Follow{})
			return nil
		}
	}
	if s.run.LastEvent == nil {
		s.viewer.FollowRun(s.run, feed.Follow{})
		return s.snapshot() // the cursor is not an event of this run
	}
	return s.replayFromRow(feed.Follow{})
}
