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

// openAI makes the errors of an operation those of OpenAI's API.
func (a access) openAI() access {
	a.likeOpenAI = true
	return a
}

// OpenAIError is the form of errors that OpenAI's clients know.
type OpenAIError struct {
	Error OpenAIProblem `json:"error"`
}

// OpenAIProblem says what was wrong.
type OpenAIProblem struct {
	Message string  `json:"message"`
	Type    string  `json:"type" example:"invalid_request_error"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// asOpenAI returns the error in OpenAI's form.
func (e *Error) asOpenAI() OpenAIError {
	kind := "invalid_request_error"
	switch {
	case e.status == http.StatusUnauthorized:
		kind = "authentication_error"
	case e.status == http.StatusForbidden:
		kind = "permission_error"
	case e.status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case e.status >= http.StatusInternalServerError:
		kind = "server_error"
	}
	return OpenAIError{OpenAIProblem{Message: e.Message, Type: kind, Code: orNull(strings.ToLower(e.Code))}}
}

// MarshalJSON implements json.Marshaler.
func (e *Error) MarshalJSON() ([]byte, error) {
	if e.likeOpenAI {
		return marshal(e.asOpenAI())
	}
	type plain Error
	return marshal((*plain)(e))
}

func (a *API) openAIOperations() {
	const tag = "OpenAI"
	handle(a, op("openai-list-models", "GET /v1/models", tag, "List the agents as models", about("A model is a preset of the workspace: an agent with its instructions, tools and model.")), viewers.openAI(), a.openAIModels)
	handle(a, op("openai-get-model", "GET /v1/models/{model}", tag, "Read a model"), viewers.openAI(), a.openAIModel)
	register(a, op("openai-chat", "POST /v1/chat/completions", tag, "Create a chat completion", maxBody(limitMessage), answers(openAIAnswer("A chat.completion, or with stream its chunks.")),
		about("Fields that this API does not describe, such as temperature, are ignored: the agent decides. A request is a run of a session of its own, in the archive, unless X-Session-Id names one. "+
			"If the client disconnects, the run is stopped.")),
		editors.openAI(), a.chatCompletions)
	a.responses()
}

// openAIAnswer describes the answer to a request that may ask for a stream.
func openAIAnswer(what string) map[string]*huma.Response {
	return map[string]*huma.Response{"200": {
		Description: what,
		Content: map[string]*huma.MediaType{
			"application/json":  {Schema: &huma.Schema{Type: huma.TypeObject}},
			"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}},
		},
		Headers: map[string]*huma.Header{"X-Session-Id": {Description: "The session.", Schema: &huma.Schema{Type: huma.TypeString}}},
	}}
}

// OpenAIModel is an agent as a model.
type OpenAIModel struct {
	ID      string `json:"id" example:"workspace"`
	Object  string `json:"object" enum:"model"`
	Created int64  `json:"created" doc:"Always 0."`
	OwnedBy string `json:"owned_by" doc:"workspace, or signalbox for what ships with it."`
}

func viewOpenAIModel(p *agentv1.Preset) OpenAIModel {
	owner := "signalbox"
	if p.GetOwn() {
		owner = "workspace"
	}
	return OpenAIModel{p.GetName(), "model", 0, owner}
}

type openAIModelsOutputBody struct {
	Object string        `json:"object" enum:"list"`
	Data   []OpenAIModel `json:"data" nullable:"false"`
}

func (a *API) openAIModels(ctx context.Context, _ *struct{}) (*openAIModelsOutputBody, error) {
	res, err := a.cfg.Presets.ListPresets(ctx, &agentv1.ListPresetsRequest{})
	return &openAIModelsOutputBody{"list", each(res.GetPresets(), viewOpenAIModel)}, err
}

func (a *API) openAIModel(ctx context.Context, in *struct {
	Model string `path:"model" maxLength:"64" doc:"The name of a preset."`
},
) (*OpenAIModel, error) {
	res, err := a.cfg.Presets.ListPresets(ctx, &agentv1.ListPresetsRequest{})
	if err != nil {
		return nil, err
	}
	p, err := findModel(res.GetPresets(), in.Model)
	return answer(p, err, viewOpenAIModel)
}

func findModel(presets []*agentv1.Preset, name string) (*agentv1.Preset, error) {
	var names []string
	for _, p := range presets {
		if p.GetName() == name {
			return p, nil
		}
		names = append(names, p.GetName())
	}
	return nil, fault.Coded(fault.NotFound, "MODEL_NOT_FOUND", "there is no model %q: a model is a preset of the workspace, one of %s", clip(name), strings.Join(names, ", "))
}

// OpenAIFormat is the form of an answer: text, json_object or json_schema.
type OpenAIFormat struct {
	Type   string          `json:"type" enum:"text,json_object,json_schema"`
	Schema json.RawMessage `json:"schema,omitempty" doc:"Of type json_schema, in a response's text.format."`

	JSONSchema *struct {
		Schema json.RawMessage `json:"schema"`
	} `json:"json_schema,omitempty" doc:"Of type json_schema, in a chat completion."`
}

func (f *OpenAIFormat) format() (*ResponseFormat, error) {
	switch {
	case f == nil, f.Type == "text":
		return nil, nil //nolint:nilnil // free text
	case f.Type == "json_object":
		return &ResponseFormat{"json_schema", json.RawMessage(`{"type":"object"}`)}, nil
	case f.Type == "json_schema" && f.JSONSchema != nil && len(f.JSONSchema.Schema) > 0:
		return &ResponseFormat{"json_schema", f.JSONSchema.Schema}, nil
	case f.Type == "json_schema" && len(f.Schema) > 0:
		return &ResponseFormat{"json_schema", f.Schema}, nil
	}
	return nil, invalid("the response format: want the type text, json_object, or json_schema with a schema")
}

// OpenAIFunction is a tool that the client runs.
type OpenAIFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty" doc:"A JSON Schema of type object."`
}

// OpenAITool is a tool that the client runs. Only functions are possible: an agent has its own tools.
type OpenAITool struct {
	Type     string          `json:"type" enum:"function"`
	Function *OpenAIFunction `json:"function,omitempty" doc:"In a chat completion. A response has its fields beside type."`
	OpenAIFunction
}

// clientTools converts tools. choice is auto or none; others cannot be granted.
func clientTools(tools []OpenAITool, choice json.RawMessage) ([]ClientTool, error) {
	switch string(choice) {
	case "", "null", `"auto"`:
	case `"none"`:
		return nil, nil
	default:
		return nil, fault.Coded(fault.Invalid, "NOT_SUPPORTED", "tool_choice: only auto and none are supported")
	}
	var out []ClientTool
	for i, t := range tools {
		f := t.OpenAIFunction
		if t.Function != nil {
			f = *t.Function
		}
		if t.Type != "function" {
			return nil, fault.Coded(fault.Invalid, "NOT_SUPPORTED", "tools[%d].type: only function is supported: the agent has its own tools", i)
		}
		if len(f.Parameters) == 0 || string(f.Parameters) == "null" {
			f.Parameters = json.RawMessage(`{"type":"object"}`)
		}
		out = append(out, ClientTool{f.Name, f.Description, f.Parameters})
	}
	if len(out) > 64 {
		return nil, invalid("tools: more than 64")
	}
	return out, nil
}

// ChatCompletion is the body of POST /v1/chat/completions.
type ChatCompletion struct {
	Model    string               `json:"model" doc:"The name of a preset." example:"workspace"`
	Messages []ChatCompletionTurn `json:"messages" nullable:"false" doc:"The conversation. Its last message is the user's, or the last ones are the results of tool calls of an earlier answer."`
	Stream   bool                 `json:"stream,omitempty"`
	Options  *struct {
		IncludeUsage bool `json:"include_usage,omitempty"`
	} `json:"stream_options,omitempty"`
	Tools          []OpenAITool    `json:"tools,omitempty" nullable:"true"`
	ToolChoice     json.RawMessage `json:"tool_choice,omitempty" doc:"auto or none."`
	ResponseFormat *OpenAIFormat   `json:"response_format,omitempty"`
	N              *int            `json:"n,omitempty" doc:"Always 1."`
}

// UnmarshalJSON implements json.Unmarshaler. OpenAI's API has many more fields, none of which is a
// misspelling of one of these.
func (b *ChatCompletion) UnmarshalJSON(data []byte) error {
	type plain ChatCompletion
	return json.Unmarshal(data, (*plain)(b)) //nolint:wrapcheck // decodeJSON reads it
}

// ChatCompletionTurn is a message.
type ChatCompletionTurn struct {
	Role       string          `json:"role" enum:"system,developer,user,assistant,tool"`
	Content    json.RawMessage `json:"content,omitempty" doc:"A string, or parts: text, image_url and file."`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls,omitempty"`
}

// openAIPart is a part of a message's content, in either of OpenAI's APIs.
type openAIPart struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	Refusal  string          `json:"refusal"`
	ImageURL json.RawMessage `json:"image_url"`
	FileURL  string          `json:"file_url"`
	FileData string          `json:"file_data"`
	Filename string          `json:"filename"`
	File     struct {
		FileData string `json:"file_data"`
		Filename string `json:"filename"`
	} `json:"file"`
}

// convert returns the part as one of ours.
func (p *openAIPart) convert(where string) (any, error) {
	switch p.Type {
	case "text", "input_text", "output_text":
		return textPart{"text", p.Text}, nil
	case "refusal":
		return textPart{"text", p.Refusal}, nil
	case "image_url", "input_image":
		var url string
		var object struct {
			URL string `json:"url"`
		}
		if json.Unmarshal(p.ImageURL, &url) != nil && json.Unmarshal(p.ImageURL, &object) == nil {
			url = object.URL
		}
		return fileOf(where+".image_url", "image", url, "")
	case "file":
		return fileOf(where+".file.file_data", "application", p.File.FileData, p.File.Filename)
	case "input_file":
		if p.FileURL != "" {
			return fileOf(where+".file_url", "application", p.FileURL, p.Filename)
		}
		return fileOf(where+".file_data", "application", p.FileData, p.Filename)
	}
	return nil, fault.Coded(fault.Invalid, "NOT_SUPPORTED", "%s.type: %q is not supported: use text, images or files", where, clip(p.Type))
}

// partsOf reads content: a string or parts.
func partsOf(where string, content json.RawMessage) ([]any, error) {
	if len(content) == 0 || string(content) == "null" {
		return nil, nil
	}
	var text string
	if json.Unmarshal(content, &text) == nil {
		return []any{textPart{"text", text}}, nil
	}
	var parts []openAIPart
	if json.Unmarshal(content, &parts) != nil || len(parts) > maxParts {
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

// say adds a message of a role other than tool.
func (t *transcript) say(where, role string, content json.RawMessage) error {
	parts, err := partsOf(where+".content", content)
	if err != nil {
		return err
	}
	switch role {
	case "system", "developer":
		for _, p := range parts {
			text, ok := p.(textPart)
			if !ok {
				return invalid("%s.content: a %s message has only text", where, role)
			}
			if text.Text != "" {
				t.instructions = append(t.instructions, text.Text)
			}
		}
	case "user":
		return t.ask(where+".content", parts)
	case "assistant":
		for _, p := range parts {
			text, ok := p.(textPart)
			if !ok {
				return invalid("%s.content: an assistant's message has only text", where)
			}
			if text.Text != "" {
				t.add("assistant", text)
			}
		}
	default:
		return invalid("%s.role: %q is unknown", where, clip(role))
	}
	return nil
}

// transcript returns the conversation.
func (b *ChatCompletion) transcript() (*transcript, error) {
	t := &transcript{}
	for i, m := range b.Messages {
		where := fmt.Sprintf("messages[%d]", i)
		if m.Role == "tool" {
			text, err := resultText(where+".content", m.Content)
			if err != nil {
				return nil, err
			}
			t.result(m.ToolCallID, text)
			continue
		}
		if err := t.say(where, m.Role, m.Content); err != nil {
			return nil, err
		}
		for _, c := range m.ToolCalls {
			if err := t.call(where+".tool_calls", c.ID, c.Function.Name, c.Function.Arguments); err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}

// resultText reads a tool's result: a string or parts of text.
func resultText(where string, content json.RawMessage) (string, error) {
	parts, err := partsOf(where, content)
	if err != nil {
		return "", err
	}
	var all []string
	for _, p := range parts {
		text, ok := p.(textPart)
		if !ok {
			return "", invalid("%s: want text", where)
		}
		all = append(all, text.Text)
	}
	return strings.Join(all, ""), nil
}

type chatCompletionInput struct {
	Idempotent
	Session string `header:"X-Session-Id" doc:"Continue this session: only the last message of the request is read."`
	Body    ChatCompletion
}

func (a *API) chatCompletions(ctx context.Context, in *chatCompletionInput) (*reply, error) {
	b := &in.Body
	if b.N != nil && *b.N != 1 {
		return nil, fault.Coded(fault.Invalid, "NOT_SUPPORTED", "n: only 1 is supported")
	}
	t, err := b.transcript()
	if err != nil {
		return nil, err
	}
	r := &openAIRequest{key: in.Key.text, session: in.Session, preset: b.Model, stream: b.Stream, instructions: strings.Join(t.instructions, "\n\n")}
	if r.format, err = b.ResponseFormat.format(); err != nil {
		return nil, err
	}
	if r.tools, err = clientTools(b.Tools, b.ToolChoice); err != nil {
		return nil, err
	}
	r.fold = dialect.ChatCompletions{Usage: b.Stream && b.Options != nil && b.Options.IncludeUsage, Whole: !b.Stream, Final: r.format != nil}
	return a.answerOpenAI(ctx, r, t)
}

// openAIRequest is a request in one of OpenAI's APIs.
type openAIRequest struct {
	key     string // for idempotency; may be empty
	session string // to continue; empty for a new one
	preset  string // of a new session
	// instructions are those of a new session, or of a copy.
	instructions string
	tools        []ClientTool
	format       *ResponseFormat
	fold         dialect.Fold
	stream       bool
	// background lets the run go on if the client leaves.
	background bool
	// previous is the run that the message follows; nil for the session's last one.
	previous *agentv1.Run
}

// once reports whether the answer cannot be asked for again: the same request would be another run.
func (r *openAIRequest) once() bool { return !r.background && r.key == "" }

// answerOpenAI answers the last message of a conversation.
func (a *API) answerOpenAI(ctx context.Context, r *openAIRequest, t *transcript) (*reply, error) {
	results, of, err := t.results()
	if err != nil {
		return nil, err
	}
	if len(results) > 0 {
		run, err := a.sendResults(ctx, of, results)
		if err != nil {
			return nil, err
		}
		if r.background && !r.stream {
			return a.responseNow(ctx, run, of.Part, false)
		}
		return a.readPart(ctx, r, run, of.Part, 0)
	}
	send := SendMessage{Content: t.turns[len(t.turns)-1].content, ResponseFormat: r.format, ClientTools: r.tools, IdempotencyKey: r.key}
	req, err := send.submission(idempotencyKey{})
	if err != nil {
		return nil, err
	}
	if req.SessionId, err = a.openAISession(ctx, r, t); err != nil {
		return nil, err
	}
	s, res, err := a.submitOpenAI(ctx, r, req)
	if err == nil && s == nil {
		return a.responseNow(ctx, res.GetRun(), 1, false)
	}
	switch {
	case err != nil && r.once() && res.GetCreated():
		a.stopRunOf(ctx, res)
		return nil, a.runStopped(ctx, err)
	case err != nil:
		if !r.background {
			a.stopIfLeft(ctx, res)
		}
		return nil, err
	}
	s.once = r.once()
	f := feed.Follow{Reader: &dialect.Reader{Fold: r.fold, Part: 1, Resumed: -1}}
	if res.GetCreated() {
		err = s.begin(f)
	} else {
		err = s.replay(f)
	}
	return s.answerOpenAI(r, err)
}

// submitOpenAI submits the message and, unless nobody waits for the answer, opens a stream. If the
// session has gone on since the previous response, the message goes to a copy.
func (a *API) submitOpenAI(ctx context.Context, r *openAIRequest, req *agentv1.SubmitRequest) (s *stream, res *agentv1.SubmitResponse, err error) {
	if r.previous != nil {
		req.LastOrdinal, req.Mode = new(r.previous.GetOrdinal()), agentv1.SubmitMode_SUBMIT_MODE_REJECT
	}
	if r.background && !r.stream {
		res, err = a.cfg.Conversations.Submit(ctx, req)
	} else {
		s, res, err = a.submitAsStream(ctx, req)
	}
	if err == nil || req.LastOrdinal == nil || fault.From(err).Code != "NOT_THE_LAST" {
		return s, res, err
	}
	if err := a.fork(ctx, r); err != nil {
		return nil, nil, err
	}
	req.SessionId, req.LastOrdinal = r.session, nil
	return a.submitOpenAI(ctx, r, req)
}

// openAISession returns the session that a request names, or creates one with the conversation
// so far. It is archived, since its client keeps the conversation itself.
func (a *API) openAISession(ctx context.Context, r *openAIRequest, t *transcript) (string, error) {
	if r.session != "" {
		session, err := parseID[id.Session]("X-Session-Id", r.session)
		return session.String(), err
	}
	if err := checkText("model", r.preset, 64); err != nil {
		return "", err
	}
	res, err := a.cfg.Presets.ListPresets(ctx, &agentv1.ListPresetsRequest{})
	if err != nil {
		return "", err
	}
	if _, err := findModel(res.GetPresets(), r.preset); err != nil {
		return "", err
	}
	history, err := t.history()
	if err != nil {
		return "", err
	}
	if err := checkSessionFields(nil, nil, nil, &r.instructions, nil); err != nil {
		return "", err
	}
	made, err := a.cfg.Conversations.CreateSession(ctx, &agentv1.CreateSessionRequest{
		Preset: r.preset, SystemPrompt: r.instructions, History: history, Archived: true, IdempotencyKey: r.key,
	})
	return made.GetSession().GetId(), err
}

// sendResults sends the results of a run's client tools, of which none may be missing.
func (a *API) sendResults(ctx context.Context, of dialect.CallRef, results []*agentv1.SendToolResultRequest) (*agentv1.Run, error) {
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: of.Run})
	if err != nil {
		return nil, err
	}
	for _, c := range res.GetToolCalls() {
		if c.GetClientUntil() != nil && !slices.ContainsFunc(results, func(r *agentv1.SendToolResultRequest) bool { return r.GetToolCallId() == c.GetToolCallId() }) {
			return nil, invalid("the result of the tool call %q is missing", dialect.CallRef{Run: of.Run, Part: of.Part, Step: c.GetStepIndex(), Call: c.GetToolCallId()})
		}
	}
	for _, r := range results {
		r.SessionId = res.GetRun().GetSessionId()
		if _, err := a.cfg.Conversations.SendToolResult(ctx, r); err != nil {
			return nil, err
		}
	}
	return res.GetRun(), nil
}

// readPart answers with a part of a run, without its first chunks.
func (a *API) readPart(ctx context.Context, r *openAIRequest, run *agentv1.Run, part int, skip int64) (*reply, error) {
	session, err := parseID[id.Session]("session", run.GetSessionId())
	if err != nil {
		return nil, err
	}
	s, err := a.openStream(ctx, session)
	if err != nil {
		return nil, err
	}
	s.run = run
	return s.answerOpenAI(r, s.replay(feed.Follow{Reader: &dialect.Reader{Fold: r.fold, Part: part, Skip: skip, Resumed: -1}}))
}

// answerOpenAI answers with the stream or, after its end, with its data.
func (s *stream) answerOpenAI(r *openAIRequest, err error) (*reply, error) {
	s.headers = http.Header{"X-Session-Id": {s.run.GetSessionId()}, "Cache-Control": {"no-cache, no-transform"}}
	if !r.background {
		s.left = s.stopRun
	}
	if err != nil || r.stream {
		return s.reply(err)
	}
	defer s.count.Close()
	defer s.viewer.Close()
	data := s.opening
	if !s.over {
		if data, _, err = s.viewer.All(s.ctx, true); err != nil {
			if s.left != nil && (s.once || s.ctx.Err() != nil) {
				s.left()
			}
			if s.once {
				return nil, s.api.runStopped(s.ctx, err)
			}
			return nil, runContinues(s.ctx, err, "wait for the answer", s.run.GetId())
		}
	}
	if len(data) == 0 {
		end, err := s.api.endOf(s.ctx, s.run.GetId())
		if err == nil {
			err = runFailure(end.GetError())
		}
		return nil, err
	}
	return s.json(data), nil
}

// runStopped is the error for a client whose run was stopped because this gateway cannot send its
// answer. OpenAI's clients repeat a request after a 503 by themselves, and what the run has done
// would be done again: the header keeps them from it.
func (a *API) runStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	a.cfg.Log.WarnContext(ctx, "run stopped, because its answer cannot be sent", "error", err)
	return &Error{
		status: http.StatusServiceUnavailable, Code: lossOf(err), header: http.Header{"X-Should-Retry": {"false"}},
		Message: "this gateway cannot wait for the answer at the moment, and has stopped the run: send the message again, if what its tools have done may be done twice. " +
			"The run of a request with an Idempotency-Key, or in AG-UI with on_disconnect continue, goes on",
	}
}

// json returns data, a JSON text, as the answer.
func (s *stream) json(data []byte) *reply {
	headers := s.headers
	return &reply{func(hc huma.Context) {
		for name, values := range headers {
			hc.SetHeader(name, values[0])
		}
		hc.SetHeader("Content-Type", "application/json")
		hc.SetStatus(http.StatusOK)
		_, _ = hc.BodyWriter().Write(data) // fails if the client has left
	}}
}
