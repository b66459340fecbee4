package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/dialect"
	"signalbox.dev/services/gateway/internal/feed"
)

func (a *API) responses() {
	const tag = "OpenAI"
	register(a, op("openai-respond", "POST /v1/responses", tag, "Create a response", maxBody(limitMessage), answers(openAIAnswer("The response, or with stream its events.")),
		about("previous_response_id continues that response's session or a copy of it up to that response, if the session has gone on since or its instructions are others. The developer's messages stay, as in all responses that follow. Without background the run is stopped if the client disconnects.")),
		editors.openAI(), a.respond)
	register(a, op("openai-get-response", "GET /v1/responses/{id}", tag, "Read a response, or watch it from its beginning or after an event", answers(openAIAnswer("The response, or with stream its events.")),
		about("Events have the same bytes and the same sequence numbers in every answer. They are kept for a day: after that, a response that follows the results of tool calls gets 410, as resuming after an event does.")), viewers.openAI(), a.getResponse)
	register(a, op("openai-cancel-response", "POST /v1/responses/{id}/cancel", tag, "Stop a response", answers(openAIAnswer("The response."))), editors.openAI(), a.cancelResponse)
}

// CreateResponse is the body of POST /v1/responses.
type CreateResponse struct {
	Model        string          `json:"model,omitempty" doc:"The name of a preset. Absent with previous_response_id or conversation: that of the session." example:"workspace"`
	Input        json.RawMessage `json:"input" doc:"A string, or items: messages, function_call and function_call_output."`
	Instructions string          `json:"instructions,omitempty" doc:"They hold for this response only."`
	Stream       bool            `json:"stream,omitempty"`
	Background   bool            `json:"background,omitempty" doc:"The run goes on if the client disconnects. Without stream the answer comes at once."`

	PreviousResponseID string          `json:"previous_response_id,omitempty"`
	Conversation       json.RawMessage `json:"conversation,omitempty" doc:"The id of a session to continue, or an object with it."`

	Tools      []OpenAITool    `json:"tools,omitempty" nullable:"true"`
	ToolChoice json.RawMessage `json:"tool_choice,omitempty" doc:"auto or none."`
	Text       *struct {
		Format *OpenAIFormat `json:"format,omitempty"`
	} `json:"text,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler, as for ChatCompletion.
func (b *CreateResponse) UnmarshalJSON(data []byte) error {
	type plain CreateResponse
	return json.Unmarshal(data, (*plain)(b)) //nolint:wrapcheck // decodeJSON reads it
}

// responseInputItem is an item of the input.
type responseInputItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

// transcript returns the input as a conversation.
func (b *CreateResponse) transcript() (*transcript, error) {
	t := &transcript{}
	var text string
	if json.Unmarshal(b.Input, &text) == nil && len(b.Input) > 0 && string(b.Input) != "null" {
		return t, t.ask("input", []any{textPart{"text", text}})
	}
	var items []responseInputItem
	if err := json.Unmarshal(b.Input, &items); err != nil {
		return nil, invalid("input: want a string or an array of items")
	}
	for i, item := range items {
		if err := t.addItem(fmt.Sprintf("input[%d]", i), &item); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *transcript) addItem(where string, item *responseInputItem) error {
	switch item.Type {
	case "", "message":
		return t.say(where, item.Role, item.Content)
	case "reasoning", "mcp_call": // what the agent did by itself, given back
		return nil
	case "function_call":
		return t.call(where, item.CallID, item.Name, item.Arguments)
	case "function_call_output":
		text, err := resultText(where+".output", item.Output)
		if err != nil {
			return err
		}
		t.result(item.CallID, text)
		return nil
	}
	return fault.Coded(fault.Invalid, "NOT_SUPPORTED", "%s.type: %q is not supported: use message, function_call or function_call_output", where, clip(item.Type))
}

func (a *API) respond(ctx context.Context, in *struct {
	Idempotent
	Body CreateResponse
},
) (*reply, error) {
	b := &in.Body
	t, err := b.transcript()
	if err != nil {
		return nil, err
	}
	r := &openAIRequest{key: in.Key.text, preset: b.Model, stream: b.Stream, background: b.Background, fold: dialect.Responses{Whole: !b.Stream}}
	r.instructions = withDeveloper(b.Instructions, t.instructions)
	if b.Text != nil {
		if r.format, err = b.Text.Format.format(); err != nil {
			return nil, err
		}
	}
	if r.tools, err = clientTools(b.Tools, b.ToolChoice); err != nil {
		return nil, err
	}
	if err := a.continueFrom(ctx, r, b, t); err != nil {
		return nil, err
	}
	return a.answerOpenAI(ctx, r, t)
}

// continueFrom finds the session of previous_response_id or conversation.
func (a *API) continueFrom(ctx context.Context, r *openAIRequest, b *CreateResponse, t *transcript) error {
	var previous *agentv1.Run
	switch {
	case b.PreviousResponseID != "":
		res, part, err := a.findResponse(ctx, "previous_response_id", b.PreviousResponseID)
		if err != nil {
			return err
		}
		previous = res.GetRun()
		r.session = previous.GetSessionId()
		results, of, err := t.results()
		if err != nil {
			return err
		}
		if len(results) > 0 {
			if of.Run != previous.GetId() || of.Part != part+1 {
				return invalid("previous_response_id: the results are of the calls of another response")
			}
			return a.keepsInstructions(ctx, r, b, t)
		}
	case len(b.Conversation) > 0 && string(b.Conversation) != "null":
		var object struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(b.Conversation, &r.session) != nil && json.Unmarshal(b.Conversation, &object) != nil {
			return invalid("conversation: want a session's id, or an object with it")
		}
		r.session = cmp.Or(r.session, object.ID)
		if _, err := parseID[id.Session]("conversation", r.session); err != nil {
			return err
		}
	default:
		return nil
	}
	if len(t.turns) != 1 {
		return invalid("input: the session has the conversation so far: want one message of the user, or the results of tool calls")
	}
	found, err := a.cfg.Conversations.GetSession(ctx, &agentv1.GetSessionRequest{Id: r.session, WithoutMessages: true})
	if err != nil {
		return err
	}
	session := found.GetSession()
	if b.Model != "" && b.Model != session.GetPreset() {
		return invalid("model: the session's is %s; leave model out, or start without the earlier response", session.GetPreset())
	}
	r.previous = previous
	switch changes := b.instruct(r, t, session); {
	case previous != nil && r.instructions != session.GetSystemPrompt():
		return a.fork(ctx, r) // the session keeps its own
	case changes:
		return fault.Coded(fault.Invalid, "NOT_SUPPORTED", "conversation: the session keeps its instructions: leave instructions and developer messages out, or use previous_response_id")
	}
	return nil
}

// keepsInstructions refuses instructions with which a run cannot go on.
func (a *API) keepsInstructions(ctx context.Context, r *openAIRequest, b *CreateResponse, t *transcript) error {
	if b.Instructions == "" && len(t.instructions) == 0 {
		return nil
	}
	found, err := a.cfg.Conversations.GetSession(ctx, &agentv1.GetSessionRequest{Id: r.session, WithoutMessages: true})
	if err == nil && b.instruct(r, t, found.GetSession()) {
		err = fault.Coded(fault.Invalid, "NOT_SUPPORTED", "instructions: the response that called the tools goes on with its own: send the same ones or none, and no developer messages, with the results of tool calls")
	}
	return err
}

// instruct sets the instructions of a response that continues a session, and reports whether the
// request has some that are not the session's.
func (b *CreateResponse) instruct(r *openAIRequest, t *transcript, session *agentv1.Session) bool {
	r.instructions = withDeveloper(b.Instructions, append(developerOf(session.GetSystemPrompt()), t.instructions...))
	return r.instructions != session.GetSystemPrompt() && (b.Instructions != "" || len(t.instructions) > 0)
}

// Marks around what developers' messages say in a session's instructions. The messages stay when a
// response that continues the session brings other instructions.
const (
	developerStart = "<developer_messages>\n"
	developerEnd   = "\n</developer_messages>"
)

func withDeveloper(instructions string, messages []string) string {
	if len(messages) == 0 {
		return instructions
	}
	text := developerStart + strings.Join(messages, "\n\n") + developerEnd
	if instructions == "" {
		return text
	}
	return instructions + "\n\n" + text
}

// developerOf returns the messages in a session's instructions as one, or none.
func developerOf(instructions string) []string {
	_, text, ok := strings.Cut(instructions, developerStart)
	if !ok {
		return nil
	}
	return []string{strings.TrimSuffix(text, developerEnd)}
}

// fork makes the request one to a copy of the session up to the previous response. Repeated with the
// same idempotency key, it finds the same copy.
func (a *API) fork(ctx context.Context, r *openAIRequest) error {
	if err := checkSessionFields(nil, nil, nil, &r.instructions, nil); err != nil {
		return err
	}
	res, err := a.cfg.Conversations.ForkSession(ctx, &agentv1.ForkSessionRequest{SessionId: r.session, RunId: r.previous.GetId(), Archived: true, IdempotencyKey: r.key})
	if err != nil {
		return err
	}
	r.session, r.previous = res.GetSession().GetId(), nil
	if r.instructions != res.GetSession().GetSystemPrompt() {
		_, err = a.cfg.Conversations.UpdateSession(ctx, &agentv1.UpdateSessionRequest{Id: r.session, SystemPrompt: &r.instructions})
	}
	return err
}

// findResponse returns the run that a response's id names, and the part of it.
func (a *API) findResponse(ctx context.Context, field, response string) (*agentv1.GetRunResponse, int, error) {
	run, part, ok := dialect.ParseResponseID(response)
	if !ok {
		return nil, 0, fault.New(fault.NotFound, "%s: there is no response %q", field, clip(response))
	}
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run})
	if fault.KindOf(err) == fault.NotFound {
		err = fault.New(fault.NotFound, "%s: there is no response %q", field, clip(response))
	}
	return res, part, err
}

// ResponsePath is the path of a response.
type ResponsePath struct {
	ID string `path:"id" maxLength:"100" doc:"The response's id."`
}

func (a *API) getResponse(ctx context.Context, in *struct {
	ResponsePath
	Stream        bool  `query:"stream"`
	StartingAfter int64 `query:"starting_after" default:"-1" minimum:"-1" doc:"With stream: the sequence number of the last event that the client has."`
},
) (*reply, error) {
	res, part, err := a.findResponse(ctx, "id", in.ID)
	if err != nil {
		return nil, err
	}
	r := &openAIRequest{fold: dialect.Responses{Whole: !in.Stream}, stream: in.Stream, background: true}
	if in.Stream {
		return a.readPart(ctx, r, res.GetRun(), part, in.StartingAfter+1)
	}
	return a.responseNow(ctx, res.GetRun(), part, hasEnded(res.GetRun()))
}

// responseNow answers with the response as it is or, with wait, at its end.
func (a *API) responseNow(ctx context.Context, run *agentv1.Run, part int, wait bool) (*reply, error) {
	session, err := parseID[id.Session]("session", run.GetSessionId())
	if err != nil {
		return nil, err
	}
	s, err := a.openStream(ctx, session)
	if err != nil {
		return nil, err
	}
	defer s.count.Close()
	defer s.viewer.Close()
	s.run, s.headers = run, http.Header{"X-Session-Id": {run.GetSessionId()}}
	reader := &dialect.Reader{Fold: dialect.Responses{Whole: true}, Part: part, Resumed: -1}
	if run.GetState() != agentv1.RunState_RUN_STATE_QUEUED || wait {
		if err := s.replay(feed.Follow{Reader: reader}); err != nil {
			return nil, err
		}
		data := s.opening
		if !s.over {
			data, s.over, err = s.viewer.All(s.ctx, wait) //nolint:contextcheck // it ends with the request
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return nil, err
			}
		}
		if len(data) > 0 {
			return s.json(data), nil
		}
		if reader.State != nil && reader.State.Pauses()+1 < part {
			return nil, fault.New(fault.NotFound, "there is no such response")
		}
	}
	return s.json(dialect.ResponseSoFar(reader.State, run.GetId(), part, run.GetCreatedAt().GetSeconds())), nil
}

func (a *API) cancelResponse(ctx context.Context, in *struct {
	ResponsePath
	Repeatable
},
) (*reply, error) {
	res, part, err := a.findResponse(ctx, "id", in.ID)
	if err != nil {
		return nil, err
	}
	run := res.GetRun()
	if !hasEnded(run) {
		if _, err := a.cfg.Conversations.Cancel(ctx, &agentv1.CancelRequest{SessionId: run.GetSessionId(), RunId: run.GetId()}); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return a.responseNow(ctx, run, part, true)
}
