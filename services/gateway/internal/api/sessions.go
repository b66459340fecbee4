package api

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// SessionPath is the path of one session.
type SessionPath struct {
	ID ID[id.Session] `path:"id" format:"uuid" doc:"The session's id."`
}

// Session is a conversation.
type Session struct {
	ID           string    `json:"id" format:"uuid"`
	WorkspaceID  string    `json:"workspace_id" format:"uuid"`
	CreatedBy    string    `json:"created_by" format:"uuid"`
	Title        *string   `json:"title" doc:"Null until the first message sets it."`
	Model        string    `json:"model" example:"claude-sonnet-4-5-20250929"`
	Provider     string    `json:"provider" example:"anthropic"`
	SystemPrompt *string   `json:"system_prompt"`
	Preset       string    `json:"preset" example:"workspace"`
	Tools        *[]string `json:"tools" nullable:"true" doc:"Names of the enabled tools, or beginnings with an asterisk, and with a dash in front those that are left out; null: the preset's tools."`
	MaxSteps     *int32    `json:"max_steps" doc:"Null: the preset's limit."`
	ClientTools  []string  `json:"client_tools" nullable:"false" doc:"Names of the tools that clients run."`
	Archived     bool      `json:"archived"`
	ForkedFrom   *string   `json:"forked_from" format:"uuid" doc:"The session that it is a fork of, which may be deleted."`
	CreatedAt    string    `json:"created_at" format:"date-time"`
	UpdatedAt    string    `json:"updated_at" format:"date-time"`

	State string `json:"state" enum:"idle,queued,running,waiting" doc:"The state of the session's open run; idle if it has none. A run waits for a person's approval or for a client's result."`
	Match string `json:"match,omitempty" doc:"With q: the passage of the newest message that has its words; absent if only the title has them."`

	LastRun *SessionRun `json:"last_run,omitempty" doc:"In lists: the newest run that has begun; absent if none has."`
}

// SessionRun is how far a run of a session has come.
type SessionRun struct {
	ID    string `json:"id" format:"uuid"`
	State string `json:"state" enum:"running,waiting,done,failed,cancelled"`
	Steps int32  `json:"steps" doc:"Number of committed steps."`
}

func viewSession(s *agentv1.Session) Session {
	v := Session{
		ID: s.GetId(), WorkspaceID: s.GetWorkspaceId(), CreatedBy: s.GetCreatedBy(), Title: orNull(s.GetTitle()),
		Model: s.GetModel(), Provider: s.GetProvider(), SystemPrompt: orNull(s.GetSystemPrompt()), Preset: s.GetPreset(),
		MaxSteps: orNull(s.GetMaxSteps()), ClientTools: append([]string{}, s.GetClientTools()...), Archived: s.GetArchived(), ForkedFrom: orNull(s.GetForkedFrom()), CreatedAt: stamp(s.GetCreatedAt()), UpdatedAt: stamp(s.GetUpdatedAt()),
		State: cmp.Or(s.GetState(), "idle"), Match: s.GetMatch(),
	}
	if s.GetTools() != nil {
		v.Tools = new(append([]string{}, s.GetTools().GetNames()...))
	}
	if r := s.GetLastRun(); r != nil {
		v.LastRun = &SessionRun{r.GetId(), cmp.Or(enumName(r.GetState()), "running"), r.GetSteps()}
	}
	return v
}

type sessionOutputBody struct {
	Session Session `json:"session"`
}

func sessionBody(s *agentv1.Session) sessionOutputBody { return sessionOutputBody{viewSession(s)} }

func (a *API) sessions() {
	handle(a, op("create-session", "POST /api/sessions", "Sessions", "Create a session", created), editors, a.createSession)
	handle(a, op("list-sessions", "GET /api/sessions", "Sessions", "List sessions, the newest or the most recently changed first"), viewers, a.listSessions)
	handle(a, op("get-session", "GET /api/sessions/{id}", "Sessions", "Read a session with its messages"), viewers, a.getSession)
	handle(a, op("list-messages", "GET /api/sessions/{id}/messages", "Messages", "List the messages of a session's current branch, the newest page first",
		about("Each page is in the order of the conversation. The first one has the messages that wait, too. With run_id, the list has the messages of one run, "+
			"on whichever branch they are.")), viewers, a.listMessages)
	handle(a, op("update-session", "PATCH /api/sessions/{id}", "Sessions", "Change a session"), editors, a.updateSession)
	handle(a, op("compact-session", "POST /api/sessions/{id}/compact", "Sessions", "Summarize the conversation before the next answer",
		about("The next message's run first makes a summary of the older messages, which the model gets in their place. Without this, it does so when the "+
			"conversation comes near the end of the model's context window.")), editors, a.compactSession)
	handle(a, op("delete-session", "DELETE /api/sessions/{id}", "Sessions", "Delete a session and everything that belongs to it"), editors, a.deleteSession)
}

// CreateSession is the body of POST /api/sessions.
type CreateSession struct {
	Title        string   `json:"title,omitempty" maxLength:"300"`
	Model        string   `json:"model,omitempty" doc:"Absent: the deployment's default." example:"claude-sonnet-4-5-20250929"`
	Provider     string   `json:"provider,omitempty" example:"anthropic"`
	SystemPrompt string   `json:"system_prompt,omitempty" maxLength:"100000"`
	Preset       string   `json:"preset,omitempty" example:"workspace"`
	Tools        []string `json:"tools,omitempty" nullable:"true" doc:"Names of the tools to enable, or beginnings with an asterisk, such as mcp__linear__*. A dash in front leaves tools out: with *, or of the preset's tools if nothing else is named. Absent: the preset's tools."`
	MaxSteps     *int32   `json:"max_steps,omitempty" minimum:"1" maximum:"50"`

	ClientTools []ClientTool `json:"client_tools,omitempty" nullable:"true" maxItems:"64" doc:"Tools that clients run."`
}

func (a *API) createSession(ctx context.Context, in *struct {
	Idempotent
	Body *CreateSession `required:"false"`
},
) (*sessionOutputBody, error) {
	b := CreateSession{}
	if in.Body != nil {
		b = *in.Body
	}
	if err := checkSessionFields(&b.Title, &b.Model, &b.Provider, &b.SystemPrompt, b.Tools); err != nil {
		return nil, err
	}
	if err := checkText("preset", b.Preset, 64); err != nil {
		return nil, err
	}
	req := &agentv1.CreateSessionRequest{
		Title: b.Title, Model: b.Model, Provider: b.Provider, SystemPrompt: b.SystemPrompt, Preset: b.Preset,
		Tools: selection(b.Tools), IdempotencyKey: in.Key.text, ClientTools: declared(b.ClientTools),
	}
	if b.MaxSteps != nil {
		if *b.MaxSteps < 1 || *b.MaxSteps > 50 {
			return nil, invalid("max_steps: want 1 to 50")
		}
		req.MaxSteps = *b.MaxSteps
	}
	res, err := a.cfg.Conversations.CreateSession(ctx, req)
	return answer(res.GetSession(), err, sessionBody)
}

// checkSessionFields bounds the fields that create and update have in common. A nil field is
// absent.
func checkSessionFields(title, model, provider, prompt *string, tools []string) error {
	for _, f := range [...]struct {
		name  string
		value *string
		limit int
	}{{"title", title, 300}, {"model", model, 200}, {"provider", provider, 64}, {"system_prompt", prompt, 100_000}} {
		if f.value == nil {
			continue
		}
		if err := checkText(f.name, *f.value, f.limit); err != nil {
			return err
		}
	}
	return checkTools(tools)
}

// selection distinguishes an empty list of tools from none given.
func selection(names []string) *agentv1.ToolSelection {
	if names == nil {
		return nil
	}
	return &agentv1.ToolSelection{Names: names}
}

type sessionsOutputBody struct {
	Sessions   []Session `json:"sessions" nullable:"false"`
	NextCursor *string   `json:"next_cursor" doc:"Null at the end. In the order created, the created_at of the last item."`
}

func (a *API) listSessions(ctx context.Context, in *struct {
	Cursor   string `query:"cursor" maxLength:"100" doc:"next_cursor of the previous page; in the order created, the created_at of its last item. A time always continues in the order created, whatever order is." example:"2026-11-21T08:00:00.123456Z"`
	Limit    int32  `query:"limit" minimum:"1" maximum:"100" default:"20"`
	Query    string `query:"q" maxLength:"200" doc:"At most 16 words that the title contains, or with which words of one message begin."`
	Archived bool   `query:"archived"`
	State    string `query:"state" enum:"idle,queued,running,waiting" doc:"Only sessions in this state."`
	Order    string `query:"order" enum:"created,updated" default:"created" doc:"created: the newest first. updated: the most recently changed first; a session that changes while the pages are read moves to the first page, and is not on a later one again."`
},
) (*sessionsOutputBody, error) {
	req := &agentv1.ListSessionsRequest{Limit: in.Limit, Query: in.Query, Archived: in.Archived, State: in.State, ByUpdate: in.Order == "updated"}
	if err := checkText("q", in.Query, 200); err != nil {
		return nil, err
	}
	before, err := time.Parse(time.RFC3339Nano, in.Cursor)
	switch {
	case in.Cursor == "":
	case err == nil && before.Year() >= 1 && before.Year() <= 9999:
		// An agent-runner that does not know the order by update has sent the previous page in the order created.
		// With order=updated this can go once no such agent-runner is served.
		req.Before, req.ByUpdate = timestamppb.New(before), false
	case req.GetByUpdate():
		req.PageToken = in.Cursor
	default:
		return nil, invalid("cursor: want the created_at of the last item, such as 2026-11-21T08:00:00.123456Z")
	}
	res, err := a.cfg.Conversations.ListSessions(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &sessionsOutputBody{Sessions: each(res.GetSessions(), viewSession), NextCursor: orNull(res.GetNextPageToken())}
	if n := len(out.Sessions); out.NextCursor == nil && res.GetMore() && n > 0 {
		out.NextCursor = &out.Sessions[n-1].CreatedAt
	}
	return out, nil
}

// SessionDetails is a session with its messages and its active run.
type SessionDetails struct {
	Session     Session `json:"session"`
	Messages    history `json:"messages"`
	ActiveRun   *Run    `json:"active_run" doc:"The active run or, if there is none, the first queued one; null if there is neither."`
	LastEventID string  `json:"last_event_id" doc:"Pass it to the events endpoint: the messages contain everything up to this event."`

	Summary *Summary `json:"summary" doc:"What the model is told in place of the first messages, which are too long for it; null if it gets all messages."`

	NextSiblings []string `json:"next_siblings" nullable:"false" doc:"Ids of the messages of other branches that follow the last message of this one, oldest first: the next message will be their sibling. Empty unless the session has just been switched to another branch."`

	StoppedRuns []StoppedRun `json:"stopped_runs" nullable:"false" doc:"The runs that ended in another way than with a complete answer, in order."`

	Runs []RunFigures `json:"runs" nullable:"false" doc:"What the runs of the messages took."`

	MessagesCursor *string `json:"messages_cursor" doc:"With limit: the cursor of GET /api/sessions/{id}/messages for the messages before these; null if there are none."`

	UnavailableTools []UnavailableTool `json:"unavailable_tools" nullable:"false" doc:"Tools of the session that cannot be used now, or not with its model. Empty if the tools could not be listed."`
}

// RunFigures is what a run took so far.
type RunFigures struct {
	RunID      string  `json:"run_id" format:"uuid"`
	Usage      Usage   `json:"usage"`
	CostMicros *int64  `json:"cost_micros" doc:"As in Run."`
	StartedAt  *string `json:"started_at" format:"date-time"`
	EndedAt    *string `json:"ended_at" format:"date-time"`

	ToolCalls []CallFigures `json:"tool_calls" nullable:"false" doc:"The tool calls that have ended and whose duration is known, or about which a person was asked."`
}

// CallFigures is what a tool call took, and a person's answer to the last question about it.
type CallFigures struct {
	StepIndex      int32   `json:"step_index"`
	ToolCallID     string  `json:"tool_call_id"`
	DurationMS     int64   `json:"duration_ms" doc:"How long the tool ran; of a client's tool, the time from its call to its result. 0 if that is unknown or it did not run."`
	Decision       *string `json:"decision" enum:"approved,refused,expired,happened,repeat" doc:"Null if nobody was asked."`
	DecisionReason *string `json:"decision_reason"`
	DecidedBy      *string `json:"decided_by" format:"uuid" doc:"Null if nobody answered in time."`
	DecidedAt      *string `json:"decided_at" format:"date-time"`
}

func viewFigures(r *agentv1.RunFigures) RunFigures {
	return RunFigures{
		r.GetRunId(), viewUsage(r.GetUsage()), r.CostMicros, stampOrNull(r.GetStartedAt()), stampOrNull(r.GetEndedAt()),
		each(r.GetCalls(), func(c *agentv1.CallFigures) CallFigures {
			return CallFigures{
				c.GetStepIndex(), c.GetToolCallId(), c.GetDurationMs(), orNull(enumName(c.GetDecision())), orNull(c.GetDecisionReason()),
				orNull(c.GetDecidedBy()), stampOrNull(c.GetDecidedAt()),
			}
		}),
	}
}

// Summary stands for the first messages of a session in the model's prompt.
type Summary struct {
	Messages  int32  `json:"messages" doc:"How many messages it stands for."`
	Text      string `json:"text"`
	CreatedAt string `json:"created_at" format:"date-time"`
}

// StoppedRun says why a run ended without a complete answer, in the words of its last event.
type StoppedRun struct {
	RunID         string    `json:"run_id" format:"uuid"`
	UserMessageID string    `json:"user_message_id" format:"uuid"`
	State         string    `json:"state" enum:"done,failed,cancelled"`
	FinishReason  string    `json:"finish_reason" doc:"As in the event done, such as cancelled, max-steps, length or budget-tokens; error if the run failed."`
	FinishDetail  string    `json:"finish_detail,omitempty" doc:"For people: which budget is spent and when it begins anew, and the like."`
	Error         *RunError `json:"error,omitempty"`
	Steps         int32     `json:"steps" doc:"How many steps it made."`
	EndedAt       *string   `json:"ended_at" format:"date-time"`
}

func viewStopped(r *agentv1.Run) StoppedRun {
	v := viewRun(r)
	return StoppedRun{v.ID, v.UserMessageID, v.State, cmp.Or(r.GetFinishReason(), "error"), v.FinishDetail, v.Error, v.Steps, v.EndedAt}
}

// viewDetails converts the messages for a version of the AI SDK, unless ui is 0.
func viewDetails(res *agentv1.GetSessionResponse, ui int) (SessionDetails, error) {
	messages, err := viewHistory(res.GetMessages(), res.GetStoppedRuns(), ui)
	if err != nil {
		return SessionDetails{}, err
	}
	d := SessionDetails{
		Session: viewSession(res.GetSession()), Messages: messages,
		LastEventID:      feed.ContentsOf(res.GetLastEvent(), res.GetActiveRun()).Position().String(),
		NextSiblings:     append([]string{}, res.GetNextSiblings()...),
		UnavailableTools: each(res.GetUnavailableTools(), viewUnavailable), StoppedRuns: each(res.GetStoppedRuns(), viewStopped),
		Runs: each(res.GetRuns(), viewFigures), MessagesCursor: cursorBefore(res),
	}
	if res.GetActiveRun() != nil {
		d.ActiveRun = new(viewRun(res.GetActiveRun()))
	}
	if m := res.GetSummary(); m != nil {
		d.Summary = &Summary{m.GetMessages(), m.GetText(), stamp(m.GetCreatedAt())}
	}
	return d, nil
}

func (a *API) getSession(ctx context.Context, in *struct {
	SessionPath
	Limit int32 `query:"limit" minimum:"1" maximum:"1000" doc:"Return the newest messages: so many, and a few more, so that the first one is not in the middle of an answer. All messages if absent."`
	HistoryFormat
},
) (*SessionDetails, error) {
	res, err := a.cfg.Conversations.GetSession(ctx, &agentv1.GetSessionRequest{Id: in.ID.String(), Limit: in.Limit})
	if err != nil {
		return nil, err
	}
	ui := in.version()
	d, err := viewDetails(res, ui)
	if err == nil && ui > 0 && res.GetActiveRun().GetState() == agentv1.RunState_RUN_STATE_WAITING {
		var waits *agentv1.GetRunResponse
		waits, err = a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: res.GetActiveRun().GetId()})
		addQuestions(d.Messages.ui, waits, ui)
	}
	return &d, err
}

type messagesOutputBody struct {
	Messages    history      `json:"messages"`
	StoppedRuns []StoppedRun `json:"stopped_runs" nullable:"false" doc:"The runs of these messages that ended in another way than with a complete answer, in order."`
	Runs        []RunFigures `json:"runs" nullable:"false" doc:"What the runs of these messages took."`
	NextCursor  *string      `json:"next_cursor" doc:"For the messages before these; null at the beginning of the session."`
}

func (a *API) listMessages(ctx context.Context, in *struct {
	SessionPath
	Cursor string `query:"cursor" maxLength:"20" doc:"next_cursor of the previous page, or messages_cursor of the session."`
	Limit  int32  `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"A few more are returned, so that the first one is not in the middle of an answer."`
	Run    string `query:"run_id" maxLength:"36" doc:"Only the messages of this run, and the one that it answers: all of them on one page, whatever limit is, also those that an edit or another answer replaced. Not with cursor."`
	HistoryFormat
},
) (*messagesOutputBody, error) {
	var before int64
	if in.Cursor != "" {
		var err error
		if before, err = strconv.ParseInt(in.Cursor, 10, 64); err != nil || before < 1 {
			return nil, invalid("cursor is not one that this API has returned")
		}
	}
	req := &agentv1.GetSessionRequest{Id: in.ID.String(), Limit: in.Limit, Before: before}
	if in.Run != "" {
		if _, err := parseID[id.Run]("run_id", in.Run); err != nil {
			return nil, err
		}
		if in.Cursor != "" {
			return nil, invalid("cursor: the messages of a run are on one page")
		}
		req.RunId, req.Limit = in.Run, 0
	}
	res, err := a.cfg.Conversations.GetSession(ctx, req)
	if err != nil {
		return nil, err
	}
	if res.GetRunId() != req.GetRunId() {
		return nil, fault.New(fault.Unavailable, "to list the messages of one run needs a newer agent-runner")
	}
	messages, err := viewHistory(res.GetMessages(), res.GetStoppedRuns(), in.version())
	return &messagesOutputBody{messages, each(res.GetStoppedRuns(), viewStopped), each(res.GetRuns(), viewFigures), cursorBefore(res)}, err
}

// cursorBefore returns the cursor of the messages before those of an answer, or nil.
func cursorBefore(res *agentv1.GetSessionResponse) *string {
	if res.GetEarlier() == 0 {
		return nil
	}
	return new(strconv.FormatInt(res.GetEarlier(), 10))
}

// UpdateSession is the body of PATCH /api/sessions/{id}. Absent fields keep their values.
type UpdateSession struct {
	Title        *string     `json:"title,omitempty" nullable:"true" maxLength:"300"`
	Archived     *bool       `json:"archived,omitempty" nullable:"true"`
	Model        *string     `json:"model,omitempty" nullable:"true"`
	Provider     *string     `json:"provider,omitempty" nullable:"true"`
	SystemPrompt *string     `json:"system_prompt,omitempty" nullable:"true" maxLength:"100000"`
	Tools        ToolsChange `json:"tools,omitzero"`

	ClientTools []ClientTool `json:"client_tools,omitempty" nullable:"true" maxItems:"64" doc:"Tools that clients run; an empty list removes them."`
}

// ToolsChange is a list of tools, null to return to the preset's, or absent for no change.
type ToolsChange struct {
	Names []string
	Reset bool
}

// UnmarshalJSON implements json.Unmarshaler. It is called for null too.
func (c *ToolsChange) UnmarshalJSON(data []byte) error {
	c.Reset = string(data) == "null"
	return json.Unmarshal(data, &c.Names)
}

// Schema implements huma.SchemaProvider.
func (ToolsChange) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeArray, Nullable: true, Items: &huma.Schema{Type: huma.TypeString},
		Description: "Names of the tools to enable, or beginnings with an asterisk, and with a dash in front those to leave out; null restores the preset's tools.",
	}
}

func (a *API) updateSession(ctx context.Context, in *struct {
	SessionPath
	Repeatable
	Body UpdateSession
},
) (*sessionOutputBody, error) {
	b := in.Body
	if err := checkSessionFields(b.Title, b.Model, b.Provider, b.SystemPrompt, b.Tools.Names); err != nil {
		return nil, err
	}
	res, err := a.cfg.Conversations.UpdateSession(ctx, &agentv1.UpdateSessionRequest{
		Id: in.ID.String(), Title: b.Title, Archived: b.Archived, Model: b.Model, Provider: b.Provider,
		SystemPrompt: b.SystemPrompt, Tools: selection(b.Tools.Names), ResetTools: b.Tools.Reset,
		ClientTools: declared(b.ClientTools),
	})
	return answer(res.GetSession(), err, sessionBody)
}

func (a *API) compactSession(ctx context.Context, in *struct {
	SessionPath
	Repeatable
},
) (*Success, error) {
	_, err := a.cfg.Conversations.CompactSession(ctx, &agentv1.CompactSessionRequest{Id: in.ID.String()})
	return succeeded(), err
}

func (a *API) deleteSession(ctx context.Context, in *struct {
	SessionPath
	Repeatable
},
) (*Success, error) {
	_, err := a.cfg.Conversations.DeleteSession(ctx, &agentv1.DeleteSessionRequest{Id: in.ID.String()})
	return succeeded(), err
}
