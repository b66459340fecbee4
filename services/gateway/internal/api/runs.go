package api

import (
	"context"
	"net/http"
	"strings"

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
	handle(a, op("list-runs", "GET /api/runs", "Runs", "List the runs of all sessions, newest first"), viewers, a.listRuns)
	handle(a, op("get-run", "GET /api/runs/{id}", "Runs", "Read a run with its steps and tool calls"), viewers, a.getRun)
	handle(a, op("get-run-trace", "GET /api/runs/{id}/trace", "Runs", "Read when what happened in a run",
		about("The trace has the attempts of each step's model call and the events of the run without their content. It is read from a copy of the "+
			"run's events that is a moment behind and kept for about a day; later it is empty.")), viewers, a.getTrace)
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

// RunItem is a run in a list.
type RunItem struct {
	Run
	SessionTitle *string `json:"session_title" doc:"Null until the session has a title."`
}

type runsOutputBody struct {
	Runs       []RunItem `json:"runs" nullable:"false"`
	NextCursor *string   `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listRuns(ctx context.Context, in *struct {
	ServicePage
	States  []string `query:"state" maxItems:"6" enum:"queued,running,waiting,done,failed,cancelled" doc:"States, separated by commas. Absent: all."`
	Session string   `query:"session_id" maxLength:"36" doc:"Only runs of this session."`
},
) (*runsOutputBody, error) {
	req := &agentv1.ListRunsRequest{PageToken: in.Cursor, PageSize: in.Limit, SessionId: in.Session}
	for _, state := range in.States {
		v, known := agentv1.RunState_value["RUN_STATE_"+strings.ToUpper(state)]
		if !known || v == 0 {
			return nil, invalid("state: want queued, running, waiting, done, failed or cancelled")
		}
		req.States = append(req.States, agentv1.RunState(v))
	}
	if in.Session != "" {
		if _, err := parseID[id.Session]("session_id", in.Session); err != nil {
			return nil, err
		}
	}
	res, err := a.cfg.Runs.ListRuns(ctx, req)
	return &runsOutputBody{
		each(res.GetRuns(), func(r *agentv1.Run) RunItem { return RunItem{viewRun(r), orNull(r.GetSessionTitle())} }), orNull(res.GetNextPageToken()),
	}, err
}

// RunTrace says when what happened in a run.
type RunTrace struct {
	Attempts  []Attempt `json:"attempts" nullable:"false"`
	Moments   []Moment  `json:"moments" nullable:"false" doc:"In the order of the log."`
	Truncated bool      `json:"truncated" doc:"The run goes on, but its log is too long to be read at once."`
}

// Attempt is one try of a step's model call.
type Attempt struct {
	StepIndex     int32   `json:"step_index"`
	Claim         int64   `json:"claim" doc:"The number of the claim under which it was made, from 1. It grows when another worker takes the run over, and when a run goes on that was parked."`
	StartedAt     string  `json:"started_at" format:"date-time"`
	FirstOutputAt *string `json:"first_output_at" format:"date-time" doc:"Null if it has said nothing."`
	EndedAt       *string `json:"ended_at" format:"date-time" doc:"When the answer was complete; of a void attempt, its last sign. Null while it goes on."`
	VoidReason    *string `json:"void_reason" doc:"Why what it said was discarded; null if it was not."`
}

// Moment is an event of the run log without its content; consecutive deltas of one kind are one.
type Moment struct {
	Kind       string  `json:"kind" example:"text-delta"`
	Claim      int64   `json:"claim"`
	StepIndex  int32   `json:"step_index"`
	Number     int64   `json:"number" doc:"The number of the first event in the run."`
	Count      int32   `json:"count" doc:"How many events this stands for."`
	Time       string  `json:"time" format:"date-time"`
	Until      *string `json:"until" format:"date-time" doc:"The time of the last event; null if this stands for one."`
	Detail     string  `json:"detail,omitempty" doc:"The name of the tool, the reason or the like."`
	ToolCallID *string `json:"tool_call_id"`
}

func (a *API) getTrace(ctx context.Context, in *RunPath) (*RunTrace, error) {
	res, err := a.cfg.Runs.GetTrace(ctx, &agentv1.GetTraceRequest{Id: in.ID.String()})
	return answer(res, err, func(res *agentv1.GetTraceResponse) RunTrace {
		return RunTrace{each(res.GetAttempts(), viewAttempt), each(res.GetMoments(), viewMoment), res.GetTruncated()}
	})
}

func viewAttempt(t *agentv1.Attempt) Attempt {
	return Attempt{
		t.GetStepIndex(), t.GetEpoch(), stamp(t.GetStartedAt()), stampOrNull(t.GetFirstOutputAt()), stampOrNull(t.GetEndedAt()), orNull(t.GetVoidReason()),
	}
}

func viewMoment(m *agentv1.Moment) Moment {
	return Moment{
		strings.ReplaceAll(m.GetKind(), "_", "-"), m.GetEpoch(), m.GetStepIndex(), m.GetNumber(), m.GetCount(), stamp(m.GetTime()), stampOrNull(m.GetUntil()),
		m.GetDetail(), orNull(m.GetToolCallId()),
	}
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
