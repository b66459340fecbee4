package mcpserver

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

func (s *server) addTools(m *mcp.Server) {
	tool(s, m, "list_documents", "Lists the workspace's documents, most recently changed first.", reads, s.listDocuments)
	tool(s, m, "read_document", "Reads a document as Markdown.", reads, s.readDocument)
	tool(s, m, "create_document", "Creates a document from Markdown.", writes, s.createDocument)
	tool(s, m, "edit_document", "Replaces a text in a document. The text must occur exactly once, unless replace_all is set.", changes, s.editDocument)
	tool(s, m, "append_to_document", "Adds Markdown at the end of a document.", writes, s.appendToDocument)
	tool(s, m, "list_sessions", "Lists the workspace's sessions (conversations with agents), newest first.", reads, s.listSessions)
	tool(s, m, "read_session", "Reads the newest messages of a session, oldest first; with before, earlier ones.", reads, s.readSession)
	tool(s, m, "start_run", "Gives an agent of the workspace a message and waits for its answer, a while at most. Without session_id it starts a new session.", writes, s.startRun)
	tool(s, m, "get_run", "Returns the state of a run and, when it has ended, its answer.", reads, s.getRun)
}

type listInput struct {
	Query     string `json:"query,omitempty" jsonschema:"words that the name or title must contain"`
	Limit     int32  `json:"limit,omitempty" jsonschema:"1 to 100; 20 if absent"`
	PageToken string `json:"page_token,omitempty" jsonschema:"next_page_token of the previous page"`
}

type document struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	UpdatedAt string `json:"updated_at"`
}

type documentList struct {
	Documents     []document `json:"documents"`
	NextPageToken string     `json:"next_page_token,omitempty"`
}

func viewDocument(d *documentv1.Document) document {
	return document{d.GetId(), d.GetName(), stamp(d.GetUpdatedAt())}
}

func (s *server) listDocuments(ctx context.Context, in listInput) (documentList, error) {
	res, err := s.cfg.Documents.List(ctx, &documentv1.ListRequest{Query: in.Query, PageSize: in.Limit, PageToken: in.PageToken})
	out := documentList{Documents: []document{}, NextPageToken: res.GetNextPageToken()}
	for _, d := range res.GetDocuments() {
		out.Documents = append(out.Documents, viewDocument(d))
	}
	return out, err
}

type documentInput struct {
	ID string `json:"id" jsonschema:"the document's id"`
}

type documentContent struct {
	document

	Content string `json:"content"`
}

func (s *server) readDocument(ctx context.Context, in documentInput) (documentContent, error) {
	res, err := s.cfg.Documents.Read(ctx, &documentv1.ReadRequest{Id: in.ID})
	if err != nil {
		return documentContent{}, err
	}
	return documentContent{viewDocument(res.GetDocument()), res.GetMarkdown()}, nil
}

// repeatable is the part of a tool's input that makes the call happen once.
type repeatable struct {
	Key string `json:"idempotency_key,omitempty" jsonschema:"repeating the call with the same key returns the first call's result and changes nothing more; at most 255 printable ASCII characters"`
}

// operation returns the key that the services take; empty without one.
func (s *server) operation(ctx context.Context, kind string, in repeatable) (string, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return "", err
	}
	return s.cfg.OperationKey(actor, "mcp "+kind, in.Key)
}

type createInput struct {
	repeatable

	Name    string `json:"name" jsonschema:"1 to 200 characters"`
	Content string `json:"content,omitempty" jsonschema:"Markdown"`
}

func (s *server) createDocument(ctx context.Context, in createInput) (document, error) {
	key, err := s.operation(ctx, "create_document", in.repeatable)
	if err != nil {
		return document{}, err
	}
	res, err := s.cfg.Documents.Create(ctx, &documentv1.CreateRequest{Name: in.Name, Markdown: in.Content, OperationKey: key})
	if err != nil {
		return document{}, err
	}
	return viewDocument(res.GetDocument()), nil
}

type editInput struct {
	ID         string `json:"id" jsonschema:"the document's id"`
	OldText    string `json:"old_text" jsonschema:"the text to replace, as it is in the Markdown"`
	NewText    string `json:"new_text" jsonschema:"the text to put in its place"`
	ReplaceAll bool   `json:"replace_all,omitempty" jsonschema:"replace every occurrence"`
}

type edited struct {
	Replacements int32 `json:"replacements"`
}

func (s *server) editDocument(ctx context.Context, in editInput) (edited, error) {
	res, err := s.cfg.Documents.Edit(ctx, &documentv1.EditRequest{Id: in.ID, OldText: in.OldText, NewText: in.NewText, ReplaceAll: in.ReplaceAll})
	return edited{res.GetReplacements()}, err
}

type appendInput struct {
	repeatable

	ID      string `json:"id" jsonschema:"the document's id"`
	Content string `json:"content" jsonschema:"Markdown"`
}

func (s *server) appendToDocument(ctx context.Context, in appendInput) (document, error) {
	key, err := s.operation(ctx, "append_to_document "+in.ID, in.repeatable)
	if err != nil {
		return document{}, err
	}
	res, err := s.cfg.Documents.Append(ctx, &documentv1.AppendRequest{Id: in.ID, Markdown: in.Content, OperationKey: key})
	if err != nil {
		return document{}, err
	}
	return viewDocument(res.GetDocument()), nil
}

type session struct {
	ID        string `json:"id"`
	Title     string `json:"title"`
	Model     string `json:"model"`
	UpdatedAt string `json:"updated_at"`
}

type sessionList struct {
	Sessions []session `json:"sessions"`
	More     bool      `json:"more"`
}

type sessionsInput struct {
	Query string `json:"query,omitempty" jsonschema:"words that the title must contain"`
	Limit int32  `json:"limit,omitempty" jsonschema:"1 to 100; 20 if absent"`
}

func (s *server) listSessions(ctx context.Context, in sessionsInput) (sessionList, error) {
	res, err := s.cfg.Conversations.ListSessions(ctx, &agentv1.ListSessionsRequest{Query: in.Query, Limit: in.Limit})
	out := sessionList{Sessions: []session{}, More: res.GetMore()}
	for _, v := range res.GetSessions() {
		out.Sessions = append(out.Sessions, session{v.GetId(), v.GetTitle(), v.GetModel(), stamp(v.GetUpdatedAt())})
	}
	return out, err
}

type sessionInput struct {
	ID     string `json:"id" jsonschema:"the session's id"`
	Limit  int32  `json:"limit,omitempty" jsonschema:"about how many messages, 1 to 100; 100 if absent"`
	Before int64  `json:"before,omitempty" jsonschema:"earlier of the previous answer; the newest messages if absent"`
}

// maxMessages is the most messages of a session that one call asks for.
const maxMessages = 100

type message struct {
	Role string `json:"role"`
	Text string `json:"text"`
	At   string `json:"at"`
}

type sessionMessages struct {
	session

	Messages []message `json:"messages"`
	Earlier  int64     `json:"earlier,omitempty" jsonschema:"there are earlier messages: repeat the call with it as before"`
}

func (s *server) readSession(ctx context.Context, in sessionInput) (sessionMessages, error) {
	if in.Limit < 0 || in.Limit > maxMessages {
		return sessionMessages{}, fault.New(fault.Invalid, "limit must be 1 to %d", maxMessages)
	}
	if in.Limit == 0 {
		in.Limit = maxMessages
	}
	res, err := s.cfg.Conversations.GetSession(ctx, &agentv1.GetSessionRequest{Id: in.ID, Limit: in.Limit, Before: in.Before})
	if err != nil {
		return sessionMessages{}, err
	}
	v := res.GetSession()
	out := sessionMessages{session{v.GetId(), v.GetTitle(), v.GetModel(), stamp(v.GetUpdatedAt())}, []message{}, res.GetEarlier()}
	for _, m := range res.GetMessages() {
		if t := text(m.GetContentJson()); t != "" {
			out.Messages = append(out.Messages, message{m.GetRole(), t, stamp(m.GetCreatedAt())})
		}
	}
	return out, nil
}

type startInput struct {
	repeatable

	Message     string `json:"message" jsonschema:"what the agent is asked to do"`
	SessionID   string `json:"session_id,omitempty" jsonschema:"the session to continue; a new one if absent"`
	Preset      string `json:"preset,omitempty" jsonschema:"the kind of agent of a new session, such as workspace"`
	WaitSeconds *int32 `json:"wait_seconds,omitempty" jsonschema:"how long to wait for the answer, 0 to 50; 50 if absent"`
}

type runInput struct {
	RunID       string `json:"run_id" jsonschema:"the run's id"`
	WaitSeconds *int32 `json:"wait_seconds,omitempty" jsonschema:"how long to wait for its end, 0 to 50; 0 if absent"`
}

type runState struct {
	RunID     string `json:"run_id"`
	SessionID string `json:"session_id"`
	State     string `json:"state" jsonschema:"queued, running, waiting (for a person or a client), done, failed or cancelled"`
	Ended     bool   `json:"ended"`
	Answer    string `json:"answer,omitempty"`
	Error     string `json:"error,omitempty"`
}

// maxWait bounds the wait for a run: clients give up on a request after a minute.
const maxWait = 50 * time.Second

func waitOf(seconds *int32, otherwise time.Duration) (time.Duration, error) {
	if seconds == nil {
		return otherwise, nil
	}
	wait := time.Duration(*seconds) * time.Second
	if *seconds < 0 || *seconds > int32(maxWait/time.Second) {
		return 0, fault.New(fault.Invalid, "wait_seconds must be 0 to %d", maxWait/time.Second)
	}
	return wait, nil
}

func (s *server) startRun(ctx context.Context, in startInput) (runState, error) {
	wait, err := waitOf(in.WaitSeconds, maxWait)
	if err != nil {
		return runState{}, err
	}
	if strings.TrimSpace(in.Message) == "" {
		return runState{}, fault.New(fault.Invalid, "message must not be empty")
	}
	key, err := s.operation(ctx, "start_run", in.repeatable)
	if err != nil {
		return runState{}, err
	}
	waiting, done, err := s.waiting(ctx, wait)
	if err != nil {
		return runState{}, err
	}
	defer done()
	if in.SessionID == "" {
		res, err := s.cfg.Conversations.CreateSession(ctx, &agentv1.CreateSessionRequest{Preset: in.Preset, IdempotencyKey: key})
		if err != nil {
			return runState{}, err
		}
		in.SessionID = res.GetSession().GetId()
	}
	content, err := json.Marshal(in.Message)
	if err != nil {
		return runState{}, err
	}
	res, err := s.cfg.Conversations.Submit(ctx, &agentv1.SubmitRequest{SessionId: in.SessionID, ContentJson: string(content), IdempotencyKey: key})
	if err != nil {
		return runState{}, err
	}
	return s.await(waiting, res.GetRun().GetId(), wait)
}

func (s *server) getRun(ctx context.Context, in runInput) (runState, error) {
	wait, err := waitOf(in.WaitSeconds, 0)
	if err != nil {
		return runState{}, err
	}
	waiting, done, err := s.waiting(ctx, wait)
	if err != nil {
		return runState{}, err
	}
	defer done()
	return s.await(waiting, in.RunID, wait)
}

// waiting counts a call that waits as one of its caller's open streams, until done is called. The
// context that it returns ends with the request and with the caller's permission.
func (s *server) waiting(ctx context.Context, wait time.Duration) (waiting context.Context, done func(), err error) {
	if wait == 0 {
		return ctx, func() {}, nil
	}
	c, _ := ctx.Value(callerKey{}).(caller) // authorize has set it
	waiting, stream, err := s.cfg.Streams.Add(c.ctx, c.principal)
	if err != nil {
		return nil, nil, err
	}
	return waiting, stream.Close, nil
}

const (
	firstPoll = 100 * time.Millisecond
	lastPoll  = time.Second
)

// await returns the state of a run when it has ended or needs a person, or after the wait.
func (s *server) await(ctx context.Context, run string, wait time.Duration) (runState, error) {
	until := time.Now().Add(wait)
	for pause := firstPoll; ; pause = min(2*pause, lastPoll) {
		res, err := s.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run})
		if err != nil {
			return runState{}, err
		}
		out := viewRun(res.GetRun())
		if left := time.Until(until); out.Ended || out.State == "waiting" || left <= 0 {
			return out, nil
		} else if pause > left {
			pause = left
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return runState{}, context.Cause(ctx)
		}
	}
}

func viewRun(r *agentv1.Run) runState {
	out := runState{
		RunID: r.GetId(), SessionID: r.GetSessionId(), Answer: r.GetText(), Error: r.GetErrorMessage(),
		State: strings.ToLower(strings.TrimPrefix(r.GetState().String(), "RUN_STATE_")),
	}
	switch r.GetState() {
	case agentv1.RunState_RUN_STATE_DONE, agentv1.RunState_RUN_STATE_FAILED, agentv1.RunState_RUN_STATE_CANCELLED:
		out.Ended = true
	}
	return out
}
