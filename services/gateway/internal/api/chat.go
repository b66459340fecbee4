package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/dialect"
	"signalbox.dev/services/gateway/internal/feed"
)

// UIVersion selects the chunks that a client of the AI SDK understands.
type UIVersion struct {
	UI     string `query:"ui" enum:"5,6,7" doc:"The major version of the client's npm package ai; absent: 5, whose chunks all versions understand. Approvals need 6 or 7."`
	Header string `header:"X-AI-SDK-Version" enum:"5,6,7" doc:"The same as ui, for clients that cannot change the URL."`
}

func (v UIVersion) version() int {
	n, err := strconv.Atoi(cmp.Or(v.UI, v.Header))
	if err != nil {
		return dialect.UIVersions[0] // neither is given
	}
	return n
}

// HistoryFormat is the form in which a client gets stored messages.
type HistoryFormat struct {
	Format string `query:"format" enum:"ui" doc:"ui returns the messages as UIMessages for useChat."`
	UIVersion
}

// version returns the version of UIMessages, or 0 for messages.
func (f HistoryFormat) version() int {
	if f.Format != "ui" {
		return 0
	}
	return f.UIVersion.version()
}

// ChatMessage is the body of POST /api/chat: what useChat sends, and fields that its body option
// adds.
type ChatMessage struct {
	ID        string            `json:"id" maxLength:"200" doc:"The chat: a session's id, or a text of the client's choice, with which the first message creates a session of the caller."`
	Messages  []json.RawMessage `json:"messages,omitempty" doc:"UIMessages. Only the last one is read: the session has the others."`
	Message   json.RawMessage   `json:"message,omitempty" doc:"The last message, for clients that send only that."`
	Trigger   string            `json:"trigger,omitempty" enum:"submit-message,regenerate-message" doc:"regenerate-message answers an earlier message of the user again; the answers before it stay."`
	MessageID string            `json:"messageId,omitempty" maxLength:"200" doc:"The answer to replace, or the message to answer again; absent with regenerate-message: the last one. With submit-message: the message of the user that the last message replaces, or the assistant's that is continued with answers to approval requests and results of client tools."`

	Preset   string   `json:"preset,omitempty" doc:"The preset of a new session."`
	Model    string   `json:"model,omitempty" doc:"Absent: the session's model."`
	Provider string   `json:"provider,omitempty" doc:"Absent: the session's provider."`
	Tools    []string `json:"tools,omitempty" nullable:"true" doc:"Absent: the session's tools."`
	Mode     string   `json:"mode,omitempty" enum:"queue,steer,reject" default:"queue" doc:"What to do if a run of the session is active, as in POST /api/sessions/{id}/messages. After steer the answer has no text: the message and its effect appear in the response of the run."`
	Timezone string   `json:"timezone,omitempty" doc:"The sender's IANA timezone." example:"Europe/Paris"`

	OnDisconnect string `json:"on_disconnect,omitempty" enum:"continue,stop" default:"continue" doc:"What happens to the run if the client disconnects before its end. stop is for front ends that do not resume: useChat's stop function then stops the run, and so does a broken connection."`

	ClientTools []ClientTool `json:"client_tools,omitempty" nullable:"true" maxItems:"64" doc:"Tools that the client runs. Absent: the session's."`
}

// ChatPath is the path of a chat.
type ChatPath struct {
	ID string `path:"id" maxLength:"1000" doc:"The chat's id, as in POST /api/chat."`
}

func (a *API) chats() {
	const tag = "Chat"
	stream := map[string]*huma.Response{"200": chunkStream()}
	register(a, op("chat", "POST /api/chat", tag, "Send a message as useChat does", maxBody(limitMessage), lastMessageCounts, answers(stream),
		about("Speaks the AI SDK's UI message stream: a front end passes the URL to useChat as its api. The answer is one assistant message whose id is the run's. "+
			"A run does not stop when its viewer disconnects. The stream ends when a tool call waits for its result from the client or, with version 6 or 7, for approval, and the request with the answer continues the message.")),
		editors, a.chat)
	register(a, op("resume-chat", "GET /api/chat/{id}/stream", tag, "Watch the chat's active run from its beginning",
		about("The id is that of a chat or the X-Workflow-Run-Id of an earlier answer. Chunks have the same bytes and the same numbers in every answer."),
		answers(map[string]*huma.Response{
			"200": chunkStream(),
			"204": {Description: "No run of the chat is active."},
			"410": {Description: "The run's beginning is no longer kept, so that its chunks cannot be counted.", Content: errorContent(a.huma.OpenAPI().Components.Schemas)},
		})), viewers, a.resumeChat)
	handle(a, op("stop-chat", "DELETE /api/chat/{id}/stream", tag, "Stop the chat's active run",
		about("Because a run goes on without viewers, the client's own stop function only disconnects.")), editors, a.stopChat)
}

// Limits of the ids that clients choose. They become part of idempotency keys.
const (
	maxChatID   = 200
	chatKey     = "chat:"
	runIDPrefix = "run_"
)

func checkClientID(field, s string) error {
	var key idempotencyKey
	if err := key.UnmarshalText([]byte(s)); err != nil || len(s) > maxChatID {
		return invalid("%s: want at most %d printable ASCII characters", field, maxChatID)
	}
	return nil
}

// uiMessage is a message of useChat.
type uiMessage struct {
	ID    string   `json:"id"`
	Role  string   `json:"role"`
	Parts []uiPart `json:"parts"`
}

type uiPart struct {
	Type       string          `json:"type"`
	Text       string          `json:"text"`
	MediaType  string          `json:"mediaType"`
	URL        string          `json:"url"`
	Filename   string          `json:"filename"`
	State      string          `json:"state"`
	ToolName   string          `json:"toolName"` // of a dynamic-tool; the type has that of others
	ToolCallID string          `json:"toolCallId"`
	Output     json.RawMessage `json:"output"`
	ErrorText  string          `json:"errorText"`
	Metadata   struct {
		Signalbox struct {
			StepIndex *int32 `json:"stepIndex"`
		} `json:"signalbox"`
	} `json:"callProviderMetadata"`
	Approval *struct {
		ID       string `json:"id"`
		Approved *bool  `json:"approved"`
		Reason   string `json:"reason"`
	} `json:"approval"`
}

// tool returns the name of the part's tool, or "".
func (p *uiPart) tool() string {
	if name, ok := strings.CutPrefix(p.Type, "tool-"); ok {
		return name
	}
	return p.ToolName
}

// last returns the message to act on.
func (b *ChatMessage) last() (*uiMessage, error) {
	raw := b.Message
	if len(b.Messages) > 0 {
		raw = b.Messages[len(b.Messages)-1]
	}
	if len(raw) == 0 || string(raw) == "null" {
		return nil, invalid("messages is required: want UIMessages, of which the last one is from the user")
	}
	var m uiMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, invalid("messages: the last one is not a UIMessage: %s", clip(err.Error()))
	}
	return &m, checkClientID("messages: the id of the last one", m.ID)
}

// content converts a user's message.
func (m *uiMessage) content() (Content, error) {
	parts := []any{}
	for i, p := range m.Parts {
		switch {
		case p.Type == "text":
			parts = append(parts, textPart{"text", p.Text})
		case p.Type == "file":
			parts = append(parts, filePart{"file", p.MediaType, p.URL, p.Filename})
		case strings.HasPrefix(p.Type, "data-"): // the front end's own
		default:
			return Content{}, invalid("messages: parts[%d].type of the last one: %q is not supported: use text or file", i, clip(p.Type))
		}
	}
	var (
		raw []byte
		err error
	)
	if text, ok := onlyText(parts); ok {
		raw, err = marshal(text)
	} else {
		raw, err = marshal(parts)
	}
	if err != nil {
		return Content{}, fmt.Errorf("convert a UIMessage: %w", err)
	}
	c := Content{raw}
	return c, c.check()
}

type chatInput struct {
	UIVersion
	Body ChatMessage
}

func (a *API) chat(ctx context.Context, in *chatInput) (*reply, error) {
	b := &in.Body
	if b.ID == "" {
		return nil, invalid("id is required: the chat's id; with WorkflowChatTransport, add it in prepareSendMessagesRequest")
	}
	if err := checkClientID("id", b.ID); err != nil {
		return nil, err
	}
	if err := checkClientID("messageId", b.MessageID); err != nil {
		return nil, err
	}
	if !slices.Contains([]string{"", "continue", "stop"}, b.OnDisconnect) {
		return nil, invalid("on_disconnect: %q is unknown: use continue or stop", clip(b.OnDisconnect))
	}
	if b.Trigger == "regenerate-message" {
		return a.chatRegenerate(ctx, in)
	}
	m, err := b.last()
	if err != nil {
		return nil, err
	}
	switch m.Role {
	case "user":
		return a.chatSubmit(ctx, in, m)
	case "assistant":
		return a.chatAnswer(ctx, in, m)
	}
	return nil, invalid("messages: the last one has the role %q: want user, or assistant with answers to approval requests or results of client tools", clip(m.Role))
}

// chatSubmit submits a user's message and streams the run. The message's id is its idempotency
// key, so that a request that is repeated replays the run.
func (a *API) chatSubmit(ctx context.Context, in *chatInput, m *uiMessage) (*reply, error) {
	b := &in.Body
	content, err := m.content()
	if err != nil {
		return nil, err
	}
	send := b.send(content)
	edits := m.ID != "" && m.ID == b.MessageID
	if m.ID != "" && !edits {
		send.IdempotencyKey = chatKey + m.ID
	}
	req, err := send.submission(idempotencyKey{})
	if err != nil {
		return nil, err
	}
	session, err := a.openChat(ctx, b)
	if err != nil {
		return nil, err
	}
	req.SessionId = session.String()
	if !edits {
		return a.chatRun(ctx, in, req)
	}
	edit := proto.CloneOf(req)
	edit.Edit, edit.ContentJson = &agentv1.Edit{ContentJson: req.GetContentJson()}, ""
	res, err := a.chatBranch(ctx, in, edit, chatRefs(m.ID, "user"), &edit.Edit.Of)
	if fault.KindOf(err) == fault.NotFound { // the message never arrived
		req.IdempotencyKey = chatKey + m.ID
		return a.chatRun(ctx, in, req)
	}
	return res, err
}

// chatBranch is chatRun for a request about the first of the references that is to a message. of is
// the request's field.
func (a *API) chatBranch(ctx context.Context, in *chatInput, req *agentv1.SubmitRequest, refs []*agentv1.MessageRef, of **agentv1.MessageRef) (res *reply, err error) {
	for _, ref := range refs {
		*of = ref
		if res, err = a.chatRun(ctx, in, req); fault.KindOf(err) != fault.NotFound {
			break
		}
	}
	return res, err
}

// send returns the message that the request asks for.
func (b *ChatMessage) send(content Content) *SendMessage {
	return &SendMessage{
		Content: content, Model: b.Model, Provider: b.Provider, Tools: b.Tools, Mode: b.Mode, Timezone: b.Timezone, ClientTools: b.ClientTools,
	}
}

// chatRegenerate has a message of the user answered again, and streams the run.
func (a *API) chatRegenerate(ctx context.Context, in *chatInput) (*reply, error) {
	b := &in.Body
	role := "assistant"
	if m, err := b.last(); err == nil && m.ID == b.MessageID {
		role = m.Role
	}
	req, err := b.send(Content{}).request(idempotencyKey{})
	if err != nil {
		return nil, err
	}
	found, err := a.findChat(ctx, b.ID)
	if err != nil {
		return nil, err
	}
	req.SessionId, req.Regenerate = found.GetSession().GetId(), &agentv1.Regenerate{}
	return a.chatBranch(ctx, in, req, chatRefs(b.MessageID, role), &req.Regenerate.Of)
}

// chatRefs returns what a message's id in a chat may refer to: a stored id or, for an answer, that of
// its run, and the id that the client chose, which may be a UUID too. A client that has edited a
// message still has its first id, so that the id stands for whichever sibling is current.
func chatRefs(text, role string) []*agentv1.MessageRef {
	if text == "" {
		return []*agentv1.MessageRef{nil} // the last message
	}
	chosen := &agentv1.MessageRef{By: &agentv1.MessageRef_IdempotencyKey{IdempotencyKey: chatKey + text}, Current: true}
	_, err := id.Parse[id.Message](text)
	switch {
	case err != nil:
		return []*agentv1.MessageRef{chosen}
	case role == "assistant":
		return []*agentv1.MessageRef{{By: &agentv1.MessageRef_RunId{RunId: text}}}
	}
	return []*agentv1.MessageRef{{By: &agentv1.MessageRef_MessageId{MessageId: text}, Current: true}, chosen}
}

// chatRun submits a message and streams the run.
func (a *API) chatRun(ctx context.Context, in *chatInput, req *agentv1.SubmitRequest) (*reply, error) {
	session, err := parseID[id.Session]("session", req.GetSessionId())
	if err != nil {
		return nil, err
	}
	stops := in.Body.OnDisconnect == "stop"
	s, res, err := a.submitAsStream(ctx, req)
	if err != nil {
		if stops {
			a.stopIfLeft(ctx, res)
		}
		return nil, err
	}
	s.chunks = &chunks{session: session}
	if stops {
		s.left = s.stopRun
	}
	reader := &dialect.Reader{Fold: dialect.UIStream{Version: in.version()}, Resumed: -1}
	switch {
	case res.GetRun().GetUserMessageId() != "" && res.GetRun().GetUserMessageId() != res.GetMessageId():
		// The message steers a run, which another response shows.
		s.opening, s.over = []byte("data: {\"type\":\"finish\"}\n\ndata: [DONE]\n\n"), true
	case !res.GetCreated():
		reader.Resumed = resumed(res.GetRun())
		err = s.replay(feed.Follow{Reader: reader})
	default:
		err = s.begin(feed.Follow{Reader: reader})
	}
	return s.reply(err)
}

// resumed is the number of the last event of a run's log whose pause is over.
func resumed(run *agentv1.Run) int64 {
	if run.LastEvent == nil {
		return -1
	}
	if run.GetState() == agentv1.RunState_RUN_STATE_WAITING {
		return run.GetLastEvent() - 1
	}
	return run.GetLastEvent()
}

// chatAnswer passes a person's answers to approval requests and the results of client tools on, and
// streams what follows them.
func (a *API) chatAnswer(ctx context.Context, in *chatInput, m *uiMessage) (*reply, error) {
	decided, err := m.decisions()
	if err != nil {
		return nil, err
	}
	switch {
	case len(decided) > 0 && in.version() < 6:
		return nil, invalid("ui: approvals in the message need version 6 or 7 of the AI SDK: add ?ui=7 to the URL")
	case len(decided) > 0 && callerOf(ctx).IsKey():
		return nil, fault.Coded(fault.Forbidden, "PERSON_NEEDED", "an API key cannot answer approval requests: use a person's token")
	}
	runID, err := parseID[id.Run]("messages: the id of the last one", m.ID)
	if err != nil {
		return nil, err
	}
	found, err := a.findChat(ctx, in.Body.ID)
	if err != nil {
		return nil, err
	}
	res, err := a.runOf(ctx, runID, found)
	if err != nil {
		return nil, err
	}
	results := m.results(clientCalls(res.GetToolCalls(), found.GetSession(), in.Body.ClientTools))
	if len(decided)+len(results) == 0 {
		return nil, invalid("messages: the last one is the assistant's and answers nothing that the run waits for: send a message of the user")
	}
	var accepted accepted
	for _, r := range results {
		r.SessionId, r.RunId = found.GetSession().GetId(), runID.String()
		_, err := a.cfg.Conversations.SendToolResult(ctx, r)
		if err := accepted.add(r.GetToolCallId(), err); err != nil {
			return nil, err
		}
	}
	for _, d := range decided {
		err := d.bind(res.GetToolCalls())
		if err == nil {
			d.SessionId, d.RunId = found.GetSession().GetId(), runID.String()
			_, err = a.cfg.Approvals.Decide(ctx, d.DecideRequest)
		}
		if err := accepted.add(d.GetToolCallId(), err); err != nil {
			return nil, err
		}
	}
	if accepted.call == "" {
		return nil, accepted.late
	}
	if res, err = a.runOf(ctx, runID, found); err != nil { // what it says now decides at which pause the response ends
		return nil, err
	}
	return a.streamRun(ctx, res.GetRun(), chatPart{version: in.version(), call: accepted.call, stops: in.Body.OnDisconnect == "stop"})
}

// accepted is what agent-runner has accepted of a message's answers. A message repeats what it has
// answered before, and what comes too late must not keep the rest from being heard: a conflict is
// an error only if nothing else is accepted.
type accepted struct {
	call string // the last one whose answer was accepted
	late error  // the first conflict
}

// add records the outcome of an answer, and returns its error unless that is a conflict.
func (a *accepted) add(call string, err error) error {
	switch {
	case fault.KindOf(err) == fault.Conflict:
		a.late = cmp.Or(a.late, err)
		return nil
	case err == nil:
		a.call = call
	}
	return err
}

// clientCalls returns a function that reports whether the client runs a call.
func clientCalls(calls []*agentv1.ToolCall, session *agentv1.Session, declared []ClientTool) func(p *uiPart) bool {
	return func(p *uiPart) bool {
		return slices.Contains(session.GetClientTools(), p.tool()) ||
			slices.ContainsFunc(declared, func(t ClientTool) bool { return t.Name == p.tool() }) ||
			slices.ContainsFunc(calls, func(c *agentv1.ToolCall) bool { return c.GetToolCallId() == p.ToolCallID && c.GetClientUntil() != nil })
	}
}

// results returns the results of client tools in the last step of an assistant's message.
func (m *uiMessage) results(byClient func(*uiPart) bool) []*agentv1.SendToolResultRequest {
	var out []*agentv1.SendToolResultRequest
	for i := range m.Parts {
		switch p := &m.Parts[i]; {
		case p.Type == "step-start":
			out = nil
		case p.ToolCallID == "" || p.State != "output-available" && p.State != "output-error" || !byClient(p):
		default:
			r := &agentv1.SendToolResultRequest{ToolCallId: p.ToolCallID, StepIndex: p.Metadata.Signalbox.StepIndex}
			if p.State == "output-error" {
				r.Result = &agentv1.SendToolResultRequest_Error{Error: cmp.Or(p.ErrorText, "the tool failed")}
			} else {
				r.Result = &agentv1.SendToolResultRequest_OutputJson{OutputJson: cmp.Or(string(p.Output), "null")}
			}
			out = append(out, r)
		}
	}
	return out[:min(len(out), maxParts)]
}

// runOf returns a run of a session.
func (a *API) runOf(ctx context.Context, run id.Run, of *agentv1.GetSessionResponse) (*agentv1.GetRunResponse, error) {
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run.String()})
	if err != nil {
		return nil, err
	}
	if res.GetRun().GetSessionId() != of.GetSession().GetId() {
		return nil, fault.New(fault.NotFound, "there is no such run in this chat")
	}
	return res, nil
}

// chatDecision is the answer to a question in an assistant's message.
type chatDecision struct {
	*agentv1.DecideRequest

	approval string // the question's id
}

// bind makes the answer one to the question that its id names, and no other.
func (d *chatDecision) bind(calls []*agentv1.ToolCall) error {
	for _, c := range calls {
		p := c.GetApproval()
		if p != nil && c.GetToolCallId() == d.GetToolCallId() && dialect.IsQuestion(d.approval, c.GetToolCallId(), p.GetExpiresAt(), p.GetQuestion() == agentv1.Question_QUESTION_OUTCOME) {
			d.AskedAt = p.GetAskedAt()
			return nil
		}
	}
	return fault.Coded(fault.Conflict, "APPROVAL_CHANGED", "another question was asked about this call: read the chat again")
}

// decisions returns the answers in an assistant's message. They name the calls; the arguments
// that count are those that agent-runner has.
func (m *uiMessage) decisions() ([]chatDecision, error) {
	var out []chatDecision
	for i, p := range m.Parts {
		if p.State != "approval-responded" {
			continue
		}
		if p.Approval == nil || p.Approval.Approved == nil || p.ToolCallID == "" {
			return nil, invalid("messages: parts[%d] of the last one: want toolCallId and approval.approved", i)
		}
		if err := checkText("messages: approval.reason", p.Approval.Reason, 1000); err != nil {
			return nil, err
		}
		d := &agentv1.DecideRequest{ToolCallId: p.ToolCallID, Decision: decisionOf(*p.Approval.Approved), Reason: p.Approval.Reason}
		if dialect.AsksOutcome(p.Approval.ID) {
			var err error
			if d.Decision, err = outcomeIn(*p.Approval.Approved, p.Approval.Reason); err != nil {
				return nil, err
			}
			d.Reason = ""
		}
		out = append(out, chatDecision{d, p.Approval.ID})
	}
	if len(out) > maxParts {
		return nil, invalid("messages: more than %d answers", maxParts)
	}
	return out, nil
}

// decisionOf converts the answer to the question whether a call may run.
func decisionOf(approved bool) agentv1.Decision {
	if approved {
		return agentv1.Decision_DECISION_APPROVED
	}
	return agentv1.Decision_DECISION_REFUSED
}

// outcomeIn converts the answer to the question whether a call took effect. An approval has no field
// for the outcome, so its reason has to name the choice: approving or refusing alone does not say it.
func outcomeIn(approved bool, reason string) (agentv1.Decision, error) {
	switch {
	case approved && reason == "repeat":
		return agentv1.Decision_DECISION_REPEAT, nil
	case !approved && reason == "happened":
		return agentv1.Decision_DECISION_HAPPENED, nil
	}
	return 0, fault.Coded(fault.Invalid, "OUTCOME_NEEDED", "messages: it is unknown whether the tool call took effect, which an approval or a refusal does not answer: "+
		`if it did, answer with approved: false and the reason "happened"; to run it again, with approved: true and the reason "repeat"`)
}

// findChat returns the session of a chat, without its messages.
func (a *API) findChat(ctx context.Context, chat string) (*agentv1.GetSessionResponse, error) {
	if session, err := id.Parse[id.Session](chat); err == nil {
		res, err := a.cfg.Conversations.GetSession(ctx, &agentv1.GetSessionRequest{Id: session.String(), WithoutMessages: true})
		if err == nil || fault.KindOf(err) != fault.NotFound {
			return res, err
		}
	}
	return a.cfg.Conversations.GetSession(ctx, &agentv1.GetSessionRequest{IdempotencyKey: chatKey + chat, WithoutMessages: true})
}

// openChat returns the session of a chat, and creates it for the first message.
func (a *API) openChat(ctx context.Context, b *ChatMessage) (id.Session, error) {
	res, err := a.findChat(ctx, b.ID)
	session := res.GetSession()
	if fault.KindOf(err) == fault.NotFound {
		if err := checkText("preset", b.Preset, 64); err != nil {
			return id.Session{}, err
		}
		var made *agentv1.CreateSessionResponse
		made, err = a.cfg.Conversations.CreateSession(ctx, &agentv1.CreateSessionRequest{Preset: b.Preset, IdempotencyKey: chatKey + b.ID})
		session = made.GetSession()
	}
	if err != nil {
		return id.Session{}, err
	}
	return parseID[id.Session]("session", session.GetId())
}

var noContent = &reply{func(hc huma.Context) { hc.SetStatus(http.StatusNoContent) }}

func (a *API) resumeChat(ctx context.Context, in *struct {
	ChatPath
	UIVersion
	StartIndex int64 `query:"startIndex" doc:"Leave out this number of chunks. Negative: send this number of the chunks so far, and those that follow; X-Workflow-Stream-Tail-Index then is the index of the last chunk so far."`
},
) (*reply, error) {
	if run, call, ok := parseWorkflowID(in.ID); ok {
		res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run.String()})
		if err != nil {
			return nil, err
		}
		return a.streamRun(ctx, res.GetRun(), chatPart{version: in.version(), call: call, start: in.StartIndex})
	}
	if err := checkClientID("id", in.ID); err != nil {
		return nil, err
	}
	found, err := a.findChat(ctx, in.ID)
	switch {
	case fault.KindOf(err) == fault.NotFound:
		return noContent, nil // it begins with its first message
	case err != nil:
		return nil, err
	case found.GetActiveRun() == nil:
		return noContent, nil
	}
	return a.streamRun(ctx, found.GetActiveRun(), chatPart{version: in.version(), start: in.StartIndex})
}

// workflowID identifies a response for WorkflowChatTransport: the run and, if the response follows
// the answer about a call, that call.
func workflowID(run, call string) string {
	if call == "" {
		return runIDPrefix + run
	}
	return runIDPrefix + run + "." + call
}

func parseWorkflowID(s string) (run id.Run, call string, ok bool) {
	rest, ok := strings.CutPrefix(s, runIDPrefix)
	text, call, _ := strings.Cut(rest, ".")
	run, err := id.Parse[id.Run](text)
	return run, call, ok && err == nil
}

// chatPart is the part of a run that a response shows: from its beginning or, with a call, from what
// follows the answer about it.
type chatPart struct {
	version int
	call    string
	start   int64 // chunks to leave out or, if negative, to send of those so far
	stops   bool  // the run, if the client disconnects
}

// streamRun streams a part of a run.
func (a *API) streamRun(ctx context.Context, run *agentv1.Run, p chatPart) (*reply, error) {
	session, err := parseID[id.Session]("session", run.GetSessionId())
	if err != nil {
		return nil, err
	}
	s, err := a.openStream(ctx, session)
	if err != nil {
		return nil, err
	}
	s.run, s.chunks = run, &chunks{session: session, call: p.call}
	if p.stops {
		s.left = s.stopRun
	}
	reader := func(skip int64) *dialect.Reader {
		return &dialect.Reader{Fold: dialect.UIStream{Version: p.version}, AfterCall: p.call, Skip: skip, Resumed: resumed(run)}
	}
	start := p.start
	if start < 0 {
		count, err := s.countChunks(reader(math.MaxInt64))
		if err != nil {
			return s.reply(err)
		}
		s.chunks.tail = strconv.FormatInt(count-1, 10)
		start = max(0, count+start)
	}
	return s.reply(s.replay(feed.Follow{Reader: reader(start)}))
}

// countChunks returns how many chunks the stream's run has so far. The caller positions the viewer
// again.
func (s *stream) countChunks(r *dialect.Reader) (int64, error) {
	if err := s.replay(feed.Follow{Reader: r}); err != nil {
		return 0, err
	}
	err := s.viewer.Skim(s.ctx)
	return r.Count(), err
}

func (a *API) stopChat(ctx context.Context, in *struct {
	ChatPath
	Repeatable
},
) (*cancelOutputBody, error) {
	if err := checkClientID("id", in.ID); err != nil {
		return nil, err
	}
	found, err := a.findChat(ctx, in.ID)
	if fault.KindOf(err) == fault.NotFound {
		return &cancelOutputBody{true, []string{}}, nil
	}
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.Conversations.Cancel(ctx, &agentv1.CancelRequest{SessionId: found.GetSession().GetId()})
	return &cancelOutputBody{true, append([]string{}, res.GetRunIds()...)}, err
}

// stopIfLeft stops a run that was just created if its client has left before its stream began.
func (a *API) stopIfLeft(ctx context.Context, res *agentv1.SubmitResponse) {
	if res.GetCreated() && ctx.Err() != nil {
		a.stopRunOf(ctx, res)
	}
}

func (a *API) stopRunOf(ctx context.Context, res *agentv1.SubmitResponse) {
	(&stream{api: a, ctx: ctx, run: res.GetRun()}).stopRun() //nolint:contextcheck // it outlives the client, which may have left
}

// stopRun stops the stream's run, whose client has left or cannot get the answer.
func (s *stream) stopRun() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), stopTimeout)
	defer cancel()
	_, err := s.api.cfg.Conversations.Cancel(ctx, &agentv1.CancelRequest{SessionId: s.run.GetSessionId(), RunId: s.run.GetId()})
	if err != nil {
		s.api.cfg.Log.WarnContext(ctx, "run not stopped, whose client has left or gets no answer", "run", s.run.GetId(), "error", err)
	}
}

const stopTimeout = 10 * time.Second

// chunks makes a stream a UI message stream.
type chunks struct {
	session id.Session
	call    string // that the response follows
	tail    string // index of the last chunk, if the client asked for a part of the tail
}

func (c *chunks) setHeaders(h http.Header, run string) {
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Vercel-Ai-Ui-Message-Stream", "v1")
	h.Set("X-Session-Id", c.session.String())
	if run != "" {
		h.Set("X-Workflow-Run-Id", workflowID(run, c.call))
	}
	if c.tail != "" {
		h.Set("X-Workflow-Stream-Tail-Index", c.tail)
	}
}

// rebuild makes the opening of a stream from the rows, because the log no longer has the run's
// beginning.
func (s *stream) rebuild(f feed.Follow) error {
	r := f.Reader
	if r.Part > 1 {
		return &Error{status: http.StatusGone, Message: "what followed the results of tool calls is no longer kept as a response: its messages are in GET /api/sessions/" + s.run.GetSessionId(), Code: "STREAM_GONE"}
	}
	if r.Skip > 0 {
		return &Error{status: http.StatusGone, Message: "the beginning of this run is no longer kept: read the session's messages, or begin at the first chunk", Code: "STREAM_GONE"}
	}
	snap, err := s.viewer.Snapshot(s.ctx)
	if err != nil {
		return err
	}
	res, err := s.api.cfg.Runs.GetRun(s.ctx, &agentv1.GetRunRequest{Id: s.run.GetId()})
	if err != nil {
		return err
	}
	s.run = res.GetRun()
	var history struct{ Messages []Message }
	if err := json.Unmarshal(snap.Data, &history); err != nil {
		return fmt.Errorf("read a snapshot: %w", err)
	}
	var stored []dialect.Stored
	answered := false
	for _, m := range history.Messages {
		if of := m.RunID != nil && *m.RunID == s.run.GetId(); of || m.ID == s.run.GetUserMessageId() {
			answered = answered || of && m.Role == "assistant"
			stored = append(stored, dialect.Stored{ID: m.ID, Role: m.Role, RunID: *m.RunID, Content: m.Content, Simulated: m.Simulated, Model: s.run.GetModel()})
		}
	}
	if !answered && hasEnded(s.run) && s.run.GetSteps() > 0 {
		return &Error{status: http.StatusGone, Message: "this answer is on another branch, and its stream is no longer kept: switch to its branch and read the session's messages", Code: "STREAM_GONE"}
	}
	waits := int64(-1)
	if s.run.GetState() == agentv1.RunState_RUN_STATE_WAITING {
		waits = s.run.GetLastEvent()
	}
	step, asked := askedIn(res, r.AfterCall)
	events, err := dialect.Rebuild(s.run.GetId(), s.run.GetOrdinal(), stored, step, asked, waits)
	if err != nil {
		return err
	}
	if hasEnded(s.run) {
		events = append(events, feed.EndOf(s.run))
	}
	r.Fold, r.Resumed = dialect.Private(r.Fold), resumed(s.run)
	for _, e := range events {
		if e.Time == nil {
			e.Time = s.run.GetCreatedAt()
		}
		var none []dialect.Encoding
		if s.opening, s.over = r.Next(s.opening, e, &none); s.over {
			return nil
		}
	}
	s.viewer.FollowRun(s.run, f)
	return s.viewer.Restart(s.ctx, snap)
}

// askedIn returns the calls of a run's last step that has some, with what they ask people and
// clients, and their results. call is one that has been answered.
func askedIn(res *agentv1.GetRunResponse, call string) (step int32, asked []dialect.Asked) {
	for _, c := range res.GetToolCalls() {
		step = max(step, c.GetStepIndex())
	}
	for _, c := range res.GetToolCalls() {
		if c.GetStepIndex() != step {
			continue
		}
		a := dialect.Asked{Call: c.GetToolCallId(), Tool: c.GetToolName(), Args: c.GetArgsJson(), Result: c.GetOutcome()}
		p := c.GetApproval()
		switch {
		case c.GetClientUntil() != nil:
			a.Question, a.Until = dialect.OfClient, c.GetClientUntil()
		case p == nil && a.Call == call: // only a client can have answered about it
			a.Question, a.Decision = dialect.OfClient, "answered"
		case p != nil && p.GetDecision() != agentv1.Decision_DECISION_RULE:
			a.Question, a.Until, a.Reason, a.OutcomeUnknown = dialect.OfPerson, p.GetExpiresAt(), p.GetReason(), p.GetQuestion() == agentv1.Question_QUESTION_OUTCOME
			a.Decision, a.DecisionReason = enumName(p.GetDecision()), p.GetDecisionReason()
		}
		asked = append(asked, a)
	}
	return step, asked
}

// addQuestions marks the calls of a waiting run in its UIMessage.
func addQuestions(messages []dialect.UIMessage, res *agentv1.GetRunResponse, version int) {
	i := slices.IndexFunc(messages, func(m dialect.UIMessage) bool { return m.ID == res.GetRun().GetId() })
	if i < 0 {
		return
	}
	step, asked := askedIn(res, "")
	for _, a := range asked {
		switch {
		case a.Decision != "":
		case a.Question == dialect.OfClient:
			messages[i].AskClient(a.Call, step)
		case a.Question == dialect.OfPerson && version >= 6:
			messages[i].Ask(a.Call, a.Reason, a.Until, a.OutcomeUnknown)
		}
	}
}
