package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// SessionPath is the path of one session.
type SessionPath struct {
	ID string `path:"id" format:"uuid" doc:"The session's id."`
}

type sessionOutput struct {
	Body struct {
		Session Session `json:"session"`
	}
}

func showSession(s *agentv1.Session) *sessionOutput {
	out := &sessionOutput{}
	out.Body.Session = viewSession(s)
	return out
}

func (a *API) sessions() {
	handle(a, huma.Operation{
		OperationID: "create-session", Method: http.MethodPost, Path: "/api/sessions", DefaultStatus: http.StatusCreated,
		Tags: []string{"Sessions"}, Summary: "Create a session",
	}, access{role: identity.Editor}, a.createSession)
	handle(a, huma.Operation{
		OperationID: "list-sessions", Method: http.MethodGet, Path: "/api/sessions",
		Tags: []string{"Sessions"}, Summary: "List sessions, newest first",
	}, access{role: identity.Viewer}, a.listSessions)
	handle(a, huma.Operation{
		OperationID: "get-session", Method: http.MethodGet, Path: "/api/sessions/{id}",
		Tags: []string{"Sessions"}, Summary: "Read a session with its messages",
	}, access{role: identity.Viewer}, a.getSession)
	handle(a, huma.Operation{
		OperationID: "update-session", Method: http.MethodPatch, Path: "/api/sessions/{id}",
		Tags: []string{"Sessions"}, Summary: "Change a session",
	}, access{role: identity.Editor}, a.updateSession)
	handle(a, huma.Operation{
		OperationID: "delete-session", Method: http.MethodDelete, Path: "/api/sessions/{id}",
		Tags: []string{"Sessions"}, Summary: "Delete a session and all that belongs to it",
	}, access{role: identity.Editor}, a.deleteSession)
}

// CreateSession is the body of POST /api/sessions.
type CreateSession struct {
	Title        string   `json:"title,omitempty" maxLength:"300"`
	Model        string   `json:"model,omitempty" doc:"The deployment's default when absent." example:"claude-sonnet-4-5-20250929"`
	Provider     string   `json:"provider,omitempty" example:"anthropic"`
	SystemPrompt string   `json:"system_prompt,omitempty" maxLength:"100000"`
	Preset       string   `json:"preset,omitempty" example:"workspace"`
	Tools        []string `json:"tools,omitempty" nullable:"true" doc:"Names of the tools to enable; the preset's when absent."`
	MaxSteps     *int32   `json:"max_steps,omitempty" minimum:"1" maximum:"50"`
}

func (a *API) createSession(ctx context.Context, in *struct {
	Idempotent
	Body *CreateSession `required:"false"`
},
) (*sessionOutput, error) {
	b := CreateSession{}
	if in.Body != nil {
		b = *in.Body
	}
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	if err := checkSessionFields(&b.Title, &b.Model, &b.Provider, &b.SystemPrompt, b.Tools); err != nil {
		return nil, err
	}
	if err := checkText("preset", b.Preset, 64); err != nil {
		return nil, err
	}
	req := &agentv1.CreateSessionRequest{
		Title: b.Title, Model: b.Model, Provider: b.Provider, SystemPrompt: b.SystemPrompt, Preset: b.Preset,
		Tools: selection(b.Tools), IdempotencyKey: key,
	}
	if b.MaxSteps != nil {
		if *b.MaxSteps < 1 || *b.MaxSteps > 50 {
			return nil, invalid("max_steps: want 1 to 50")
		}
		req.MaxSteps = *b.MaxSteps
	}
	res, err := a.cfg.Conversations.CreateSession(ctx, req)
	if err != nil {
		return nil, err
	}
	return showSession(res.GetSession()), nil
}

// checkSessionFields bounds what create and update share; nil is absent.
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

// selection tells no tools from no wish.
func selection(names []string) *agentv1.ToolSelection {
	if names == nil {
		return nil
	}
	return &agentv1.ToolSelection{Names: names}
}

type sessionsOutput struct {
	Body struct {
		Sessions   []Session `json:"sessions" nullable:"false"`
		NextCursor *string   `json:"next_cursor" doc:"The created_at of the last item; null at the end."`
	}
}

func (a *API) listSessions(ctx context.Context, in *struct {
	Cursor   string `query:"cursor" doc:"The created_at of the last item of the page before." example:"2026-11-21T08:00:00.123456Z"`
	Limit    int32  `query:"limit" minimum:"1" maximum:"100" default:"20"`
	Query    string `query:"q" maxLength:"200" doc:"Words that the title contains."`
	Archived bool   `query:"archived"`
},
) (*sessionsOutput, error) {
	req := &agentv1.ListSessionsRequest{Limit: in.Limit, Query: in.Query, Archived: in.Archived}
	if err := checkText("q", in.Query, 200); err != nil {
		return nil, err
	}
	if in.Cursor != "" {
		t, err := time.Parse(time.RFC3339Nano, in.Cursor)
		if err != nil || t.Year() < 1 || t.Year() > 9999 {
			return nil, invalid("cursor: want the created_at of the last item, such as 2026-11-21T08:00:00.123456Z")
		}
		req.Before = timestamppb.New(t)
	}
	res, err := a.cfg.Conversations.ListSessions(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &sessionsOutput{}
	out.Body.Sessions = make([]Session, len(res.GetSessions()))
	for i, s := range res.GetSessions() {
		out.Body.Sessions[i] = viewSession(s)
	}
	if n := len(out.Body.Sessions); res.GetMore() && n > 0 {
		out.Body.NextCursor = &out.Body.Sessions[n-1].CreatedAt
	}
	return out, nil
}

// SessionDetails is a session with what happened in it.
type SessionDetails struct {
	Session     Session `json:"session"`
	Messages    history `json:"messages"`
	ActiveRun   *Run    `json:"active_run" doc:"The run that goes on or waits for its turn; null for none."`
	LastEventID string  `json:"last_event_id" doc:"Follow the session from here: the messages contain what was before."`
}

func viewDetails(res *agentv1.GetSessionResponse, ui bool) (SessionDetails, error) {
	messages, err := viewHistory(res.GetMessages(), ui)
	if err != nil {
		return SessionDetails{}, err
	}
	d := SessionDetails{
		Session: viewSession(res.GetSession()), Messages: messages,
		LastEventID: feed.ContentsOf(res.GetLastEvent(), res.GetActiveRun()).Position().String(),
	}
	if res.GetActiveRun() != nil {
		d.ActiveRun = new(viewRun(res.GetActiveRun()))
	}
	return d, nil
}

func (a *API) getSession(ctx context.Context, in *struct {
	SessionPath
	Format string `query:"format" enum:"ui" doc:"ui gives the messages as UIMessages for useChat."`
},
) (*struct{ Body SessionDetails }, error) {
	session, err := parseID[id.Session]("id", in.ID)
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.Conversations.GetSession(ctx, &agentv1.GetSessionRequest{Id: session.String()})
	if err != nil {
		return nil, err
	}
	d, err := viewDetails(res, in.Format == "ui")
	if err != nil {
		return nil, err
	}
	return &struct{ Body SessionDetails }{d}, nil
}

// UpdateSession is the body of PATCH /api/sessions/{id}. What is absent stays.
type UpdateSession struct {
	Title        *string     `json:"title,omitempty" nullable:"true" maxLength:"300"`
	Archived     *bool       `json:"archived,omitempty" nullable:"true"`
	Model        *string     `json:"model,omitempty" nullable:"true"`
	Provider     *string     `json:"provider,omitempty" nullable:"true"`
	SystemPrompt *string     `json:"system_prompt,omitempty" nullable:"true" maxLength:"100000"`
	Tools        ToolsChange `json:"tools,omitzero"`
}

// ToolsChange is names of tools, null for the preset's again, or absent for no change.
type ToolsChange struct {
	Names []string
	Reset bool
}

// UnmarshalJSON implements json.Unmarshaler; null comes here too.
func (c *ToolsChange) UnmarshalJSON(data []byte) error {
	c.Reset = string(data) == "null"
	return json.Unmarshal(data, &c.Names)
}

// Schema implements huma.SchemaProvider.
func (ToolsChange) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeArray, Nullable: true, Items: &huma.Schema{Type: huma.TypeString},
		Description: "Names of the tools to enable; null goes back to the preset's.",
	}
}

func (a *API) updateSession(ctx context.Context, in *struct {
	SessionPath
	Repeatable
	Body UpdateSession
},
) (*sessionOutput, error) {
	session, err := parseID[id.Session]("id", in.ID)
	if err != nil {
		return nil, err
	}
	if err := in.check(); err != nil {
		return nil, err
	}
	b := in.Body
	if err := checkSessionFields(b.Title, b.Model, b.Provider, b.SystemPrompt, b.Tools.Names); err != nil {
		return nil, err
	}
	res, err := a.cfg.Conversations.UpdateSession(ctx, &agentv1.UpdateSessionRequest{
		Id: session.String(), Title: b.Title, Archived: b.Archived, Model: b.Model, Provider: b.Provider,
		SystemPrompt: b.SystemPrompt, Tools: selection(b.Tools.Names), ResetTools: b.Tools.Reset,
	})
	if err != nil {
		return nil, err
	}
	return showSession(res.GetSession()), nil
}

func (a *API) deleteSession(ctx context.Context, in *struct {
	SessionPath
	Repeatable
},
) (*done, error) {
	session, err := parseID[id.Session]("id", in.ID)
	if err != nil {
		return nil, err
	}
	if err := in.check(); err != nil {
		return nil, err
	}
	if _, err := a.cfg.Conversations.DeleteSession(ctx, &agentv1.DeleteSessionRequest{Id: session.String()}); err != nil {
		return nil, err
	}
	return succeeded(), nil
}
