package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/dialect"
	"signalbox.dev/services/gateway/internal/feed"
)

func (a *API) agui() {
	register(a, op("ag-ui", "POST /api/ag-ui", "AG-UI", "Run an agent as clients of AG-UI do", maxBody(limitMessage), answers(map[string]*huma.Response{"200": {
		Description: "The events of the run.",
		Content:     map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}}},
		Headers:     map[string]*huma.Header{"X-Session-Id": {Description: "The thread's session.", Schema: &huma.Schema{Type: huma.TypeString}}},
	}}), about("Speaks the Agent-User Interaction Protocol 1.0. A thread is a session, and a run that waits for approval ends with an interrupt, which the next request answers.")),
		editors, a.runAgent)
}

// AGUIInput is the body of POST /api/ag-ui, the protocol's RunAgentInput.
type AGUIInput struct {
	ThreadID string          `json:"threadId" doc:"A session's id, or a text of the client's choice, with which the first run creates a session of the caller, as in POST /api/chat."`
	RunID    string          `json:"runId" doc:"A request that is repeated with the same id gets the same run."`
	Messages []AGUIMessage   `json:"messages" nullable:"false" doc:"The last one is answered. The others become the history of a new session; an existing one has its own."`
	Tools    []AGUITool      `json:"tools,omitempty" nullable:"true" doc:"Tools that the client runs."`
	Context  []AGUIContext   `json:"context,omitempty" nullable:"true" doc:"What the agent is told with the instructions."`
	Resume   []AGUIAnswer    `json:"resume,omitempty" nullable:"true" doc:"Answers to all interrupts of the run that waits."`
	Props    *AGUIProperties `json:"forwardedProps,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler. The protocol has more fields, none of which is a
// misspelling of one of these.
func (b *AGUIInput) UnmarshalJSON(data []byte) error {
	type plain AGUIInput
	return json.Unmarshal(data, (*plain)(b)) //nolint:wrapcheck // decodeJSON reads it
}

// AGUIMessage is a message.
type AGUIMessage struct {
	ID         string          `json:"id"`
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content,omitempty" doc:"A string, or parts of the types text, image and document."`
	ToolCallID string          `json:"toolCallId,omitempty"`
	Error      string          `json:"error,omitempty"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"toolCalls,omitempty"`
}

// AGUITool is a tool that the client runs.
type AGUITool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

// AGUIContext is information for the agent.
type AGUIContext struct {
	Description string `json:"description"`
	Value       string `json:"value"`
}

// AGUIAnswer answers an interrupt.
type AGUIAnswer struct {
	InterruptID string `json:"interruptId"`
	Status      string `json:"status" enum:"resolved,cancelled"`
	Payload     *struct {
		Approved *bool  `json:"approved,omitempty"`
		Outcome  string `json:"outcome,omitempty" enum:"happened,repeat" doc:"Instead of approved, to the question whether a call took effect: happened, or repeat to run the call again."`
		Reason   string `json:"reason,omitempty"`
	} `json:"payload,omitempty"`
}

// AGUIProperties are the gateway's own options.
type AGUIProperties struct {
	Preset       string `json:"preset,omitempty" doc:"Of a new session."`
	OnDisconnect string `json:"on_disconnect,omitempty" enum:"stop,continue" default:"stop" doc:"What happens to the run if the client disconnects before its end."`
}

// aguiPart is a part of a message.
type aguiPart struct {
	Type   string `json:"type"`
	Text   string `json:"text"`
	Source struct {
		Type     string `json:"type"`
		Value    string `json:"value"`
		MimeType string `json:"mimeType"`
	} `json:"source"`
}

func (p *aguiPart) convert(where string) (any, error) {
	switch {
	case p.Type == "text":
		return textPart{"text", p.Text}, nil
	case p.Type != "image" && p.Type != "document":
	case p.Source.Type == "data":
		return filePart{Type: "file", MediaType: p.Source.MimeType, Data: p.Source.Value}, nil
	case p.Source.Type == "url":
		f, err := fileOf(where+".source.value", map[string]string{"image": "image", "document": "application"}[p.Type], p.Source.Value, "")
		if p.Source.MimeType != "" {
			f.MediaType = p.Source.MimeType
		}
		return f, err
	}
	return nil, fault.Coded(fault.Invalid, "NOT_SUPPORTED", "%s: want text, or an image or document with data or a URL", where)
}

// parts reads a message's content.
func (m *AGUIMessage) parts(where string) ([]any, error) {
	var text string
	if len(m.Content) == 0 || json.Unmarshal(m.Content, &text) == nil {
		return []any{textPart{"text", text}}, nil
	}
	var parts []aguiPart
	if json.Unmarshal(m.Content, &parts) != nil || len(parts) > maxParts {
		return nil, invalid("%s: want a string or at most %d parts", where, maxParts)
	}
	var out []any
	for i := range parts {
		p, err := parts[i].convert(fmt.Sprintf("%s[%d]", where, i))
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// transcript returns the messages as a conversation.
func (b *AGUIInput) transcript() (*transcript, error) {
	t := &transcript{}
	for i := range b.Messages {
		m, where := &b.Messages[i], fmt.Sprintf("messages[%d]", i)
		if slices.Contains([]string{"activity", "reasoning"}, m.Role) {
			continue // for people
		}
		parts, err := m.parts(where + ".content")
		if err != nil {
			return nil, err
		}
		text, isText := onlyText(parts)
		switch {
		case m.Role == "user":
			err = t.ask(where+".content", parts)
		case !isText:
			err = invalid("%s.content: want a string", where)
		case m.Role == "system", m.Role == "developer":
			t.instructions = append(t.instructions, text)
		case m.Role == "tool":
			t.result(m.ToolCallID, text)
		case m.Role == "assistant":
			if text != "" {
				t.add("assistant", textPart{"text", text})
			}
			for _, c := range m.ToolCalls {
				if err := t.call(where+".toolCalls", c.ID, c.Function.Name, c.Function.Arguments); err != nil {
					return nil, err
				}
			}
		default:
			err = invalid("%s.role: %q is unknown", where, clip(m.Role))
		}
		if err != nil {
			return nil, err
		}
	}
	for _, c := range b.Context {
		t.instructions = append(t.instructions, c.Description+": "+c.Value)
	}
	return t, nil
}

// results returns the results at the end of the messages by the calls' ids. step is that of the
// message with the calls, if it is one of the run.
func (b *AGUIInput) results(run string) (out map[string]*agentv1.SendToolResultRequest, step *int32) {
	out = map[string]*agentv1.SendToolResultRequest{}
	for i := len(b.Messages) - 1; i >= 0; i-- {
		m := &b.Messages[i]
		if m.Role != "tool" {
			if of, n, ok := dialect.AGUIStep(m.ID); ok && of == run {
				step = &n
			}
			break
		}
		r := &agentv1.SendToolResultRequest{ToolCallId: m.ToolCallID, Result: &agentv1.SendToolResultRequest_OutputJson{OutputJson: string(m.Content)}}
		if m.Error != "" {
			r.Result = &agentv1.SendToolResultRequest_Error{Error: m.Error}
		}
		out[m.ToolCallID] = r
	}
	return out, step
}

type aguiInput struct {
	Body AGUIInput
}

func (a *API) runAgent(ctx context.Context, in *aguiInput) (*reply, error) {
	b := &in.Body
	if b.ThreadID == "" || b.RunID == "" {
		return nil, invalid("threadId and runId are required")
	}
	if err := checkClientID("threadId", b.ThreadID); err != nil {
		return nil, err
	}
	if err := checkClientID("runId", b.RunID); err != nil {
		return nil, err
	}
	if b.Props == nil {
		b.Props = &AGUIProperties{}
	}
	if !slices.Contains([]string{"", "stop", "continue"}, b.Props.OnDisconnect) {
		return nil, invalid("forwardedProps.on_disconnect: %q is unknown: use stop or continue", clip(b.Props.OnDisconnect))
	}
	n := len(b.Messages)
	if len(b.Resume) > 0 || n > 0 && b.Messages[n-1].Role == "tool" {
		return a.resumeAgent(ctx, b)
	}
	t, err := b.transcript()
	if err != nil {
		return nil, err
	}
	if len(t.turns) == 0 || t.turns[len(t.turns)-1].role != "user" {
		return nil, invalid("messages: want one of the user at the end, results of tool calls, or resume")
	}
	send := SendMessage{Content: t.turns[len(t.turns)-1].content, IdempotencyKey: "ag-ui:" + b.RunID}
	for _, tool := range b.Tools {
		if len(tool.Parameters) == 0 {
			tool.Parameters = json.RawMessage(`{"type":"object"}`)
		}
		send.ClientTools = append(send.ClientTools, ClientTool{tool.Name, tool.Description, tool.Parameters})
	}
	req, err := send.submission(idempotencyKey{})
	if err != nil {
		return nil, err
	}
	if req.SessionId, err = a.openThread(ctx, b, t); err != nil {
		return nil, err
	}
	s, res, err := a.submitAsStream(ctx, req)
	if err != nil {
		if b.stops() && res.GetCreated() {
			a.stopRunOf(ctx, res)
			err = a.runStopped(ctx, err)
		}
		return nil, err
	}
	s.once = b.stops() && res.GetCreated() // another request may stream a run that was there before
	reader := &dialect.Reader{Fold: dialect.AGUI{Thread: b.ThreadID, Run: b.RunID}, Resumed: -1}
	if res.GetCreated() {
		err = s.begin(feed.Follow{Reader: reader})
	} else {
		reader.Resumed = resumed(res.GetRun())
		err = s.replay(feed.Follow{Reader: reader})
	}
	return s.answerAGUI(b, err)
}

// answerAGUI answers with the stream.
func (s *stream) answerAGUI(b *AGUIInput, err error) (*reply, error) {
	s.headers = http.Header{"X-Session-Id": {s.run.GetSessionId()}}
	if b.stops() {
		s.left = s.stopRun
	}
	return s.reply(err)
}

// stops reports whether the run is stopped if the client disconnects.
func (b *AGUIInput) stops() bool { return b.Props.OnDisconnect != "continue" }

// openThread returns the session of a thread, and creates it for the first run.
func (a *API) openThread(ctx context.Context, b *AGUIInput, t *transcript) (string, error) {
	instructions := strings.Join(t.instructions, "\n\n")
	if err := checkSessionFields(nil, nil, nil, &instructions, nil); err != nil {
		return "", err
	}
	res, err := a.findChat(ctx, b.ThreadID)
	session := res.GetSession()
	switch {
	case fault.KindOf(err) == fault.NotFound:
		if err := checkText("forwardedProps.preset", b.Props.Preset, 64); err != nil {
			return "", err
		}
		history, err := t.history()
		if err != nil {
			return "", err
		}
		made, err := a.cfg.Conversations.CreateSession(ctx, &agentv1.CreateSessionRequest{
			Preset: b.Props.Preset, SystemPrompt: instructions, History: history, IdempotencyKey: chatKey + b.ThreadID,
		})
		return made.GetSession().GetId(), err
	case err != nil:
		return "", err
	case instructions != "" && instructions != session.GetSystemPrompt():
		_, err = a.cfg.Conversations.UpdateSession(ctx, &agentv1.UpdateSessionRequest{Id: session.GetId(), SystemPrompt: &instructions})
	}
	return session.GetId(), err
}

// resumeAgent passes results of client tools and a person's answers on, and streams what follows
// them.
func (a *API) resumeAgent(ctx context.Context, b *AGUIInput) (*reply, error) {
	found, err := a.findChat(ctx, b.ThreadID)
	if err != nil {
		return nil, err
	}
	res, err := a.currentRun(ctx, found)
	if err != nil {
		return nil, err
	}
	given, err := b.answers(res, found.GetSession())
	if err != nil {
		return nil, err
	}
	if len(given.decisions) > 0 && callerOf(ctx).IsKey() {
		return nil, fault.Coded(fault.Forbidden, "PERSON_NEEDED", "an API key cannot answer approval requests: use a person's token")
	}
	var accepted accepted
	for _, r := range given.results {
		_, err := a.cfg.Conversations.SendToolResult(ctx, r)
		if err := accepted.add(r.GetToolCallId(), err); err != nil {
			return nil, err
		}
	}
	for _, d := range given.decisions {
		_, err := a.cfg.Approvals.Decide(ctx, d)
		if err := accepted.add(d.GetToolCallId(), err); err != nil {
			return nil, err
		}
	}
	if accepted.call == "" {
		return nil, accepted.late
	}
	// What the run says now decides at which pause the response ends.
	if res, err = a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: res.GetRun().GetId()}); err != nil {
		return nil, err
	}
	session, err := parseID[id.Session]("session", found.GetSession().GetId())
	if err != nil {
		return nil, err
	}
	s, err := a.openStream(ctx, session)
	if err != nil {
		return nil, err
	}
	s.run = res.GetRun()
	reader := &dialect.Reader{Fold: dialect.AGUI{Thread: b.ThreadID, Run: b.RunID}, AfterCall: accepted.call, Resumed: resumed(s.run)}
	err = s.replay(feed.Follow{Reader: reader})
	s.once = err == nil && b.stops() && given.awaited // another request may stream what follows a repeated answer
	return s.answerAGUI(b, err)
}

// currentRun returns the active run of a session or, if there is none, the last one.
func (a *API) currentRun(ctx context.Context, found *agentv1.GetSessionResponse) (*agentv1.GetRunResponse, error) {
	run := found.GetActiveRun()
	if run == nil {
		last, err := a.cfg.Runs.ListRuns(ctx, &agentv1.ListRunsRequest{SessionId: found.GetSession().GetId(), PageSize: 1})
		if err != nil {
			return nil, err
		}
		if len(last.GetRuns()) == 0 {
			return nil, nothingWaits()
		}
		run = last.GetRuns()[0]
	}
	return a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run.GetId()})
}

func nothingWaits() error {
	return fault.Coded(fault.Conflict, "NOTHING_WAITS", "no run of this thread waits for an answer: send a message of the user")
}

// aguiAnswers is what a request answers.
type aguiAnswers struct {
	results   []*agentv1.SendToolResultRequest
	decisions []*agentv1.DecideRequest
	awaited   bool // the run waits for them; otherwise they repeat earlier answers
}

func (a *aguiAnswers) none() bool { return len(a.results)+len(a.decisions) == 0 }

// answers returns the answers that the run waits for, none of which may be missing. If there is
// none, the request repeats earlier ones, whose response was lost: agent-runner refuses those that
// differ from what it has recorded.
func (b *AGUIInput) answers(res *agentv1.GetRunResponse, session *agentv1.Session) (*aguiAnswers, error) {
	var missing error
	run, awaited, repeated := res.GetRun(), &aguiAnswers{awaited: true}, &aguiAnswers{}
	given, step := b.results(run.GetId())
	ofClient := func(tool string) bool {
		return slices.Contains(session.GetClientTools(), tool) || slices.ContainsFunc(b.Tools, func(t AGUITool) bool { return t.Name == tool })
	}
	for _, c := range res.GetToolCalls() {
		id, p := c.GetToolCallId(), c.GetApproval()
		forClient, forPerson := c.GetClientUntil() != nil, p != nil && p.GetDecision() == agentv1.Decision_DECISION_UNSPECIFIED && !hasEnded(run)
		r, answer := given[id], b.answerTo(c)
		to := repeated
		if forClient || forPerson {
			to = awaited
		}
		switch {
		case r != nil && (forClient || ofClient(c.GetToolName()) && step != nil && *step == c.GetStepIndex()):
			r.SessionId, r.RunId, r.StepIndex = run.GetSessionId(), run.GetId(), step
			to.results = append(to.results, r)
		case answer != nil:
			d, err := answer.decide(c)
			if err != nil {
				return nil, err
			}
			d.SessionId, d.RunId = run.GetSessionId(), run.GetId()
			to.decisions = append(to.decisions, d)
		case forClient:
			missing = invalid("messages: the result of the tool call %q is missing", id)
		case forPerson:
			missing = invalid("resume: the interrupt about the tool call %q is not answered", id)
		}
	}
	switch {
	case missing != nil && (!awaited.none() || repeated.none()):
		return nil, missing
	case !awaited.none():
		return awaited, nil
	case repeated.none():
		return nil, nothingWaits()
	}
	return repeated, nil
}

// answerTo returns the answer to the question about a call, or nil.
func (b *AGUIInput) answerTo(c *agentv1.ToolCall) *AGUIAnswer {
	p := c.GetApproval()
	for i := range b.Resume {
		if p != nil && dialect.IsQuestion(b.Resume[i].InterruptID, c.GetToolCallId(), p.GetExpiresAt(), p.GetQuestion() == agentv1.Question_QUESTION_OUTCOME) {
			return &b.Resume[i]
		}
	}
	return nil
}

// decide returns the answer as one about a call.
func (r *AGUIAnswer) decide(c *agentv1.ToolCall) (*agentv1.DecideRequest, error) {
	d := &agentv1.DecideRequest{ToolCallId: c.GetToolCallId(), AskedAt: c.GetApproval().GetAskedAt()}
	var err error
	if d.Decision, err = r.decision(); err != nil {
		return nil, err
	}
	if r.Payload != nil {
		d.Reason = r.Payload.Reason
	}
	return d, checkText("resume: payload.reason", d.Reason, 1000)
}

// decision converts an answer. Cancelling refuses a call, but says nothing about one that ran.
func (r *AGUIAnswer) decision() (agentv1.Decision, error) {
	resolved := r.Status == "resolved" && r.Payload != nil
	switch {
	case dialect.AsksOutcome(r.InterruptID):
		if !resolved || r.Payload.Outcome == "" {
			return 0, fault.Coded(fault.Invalid, "OUTCOME_NEEDED", "resume: it is unknown whether the tool call took effect, which an approval or a cancellation does not answer: "+
				`want the status resolved with payload.outcome "happened", or "repeat" to run it again`)
		}
		return oneOf[agentv1.Decision]("resume: payload.outcome", r.Payload.Outcome, "DECISION_", agentv1.Decision_value, "happened", "repeat")
	case r.Status == "cancelled":
		return agentv1.Decision_DECISION_REFUSED, nil
	case !resolved || r.Payload.Approved == nil:
		return 0, invalid("resume: want the status resolved with payload.approved, or cancelled")
	}
	return decisionOf(*r.Payload.Approved), nil
}
