package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// SendMessage is the body of POST /api/sessions/{id}/messages.
type SendMessage struct {
	Content          Content  `json:"content"`
	Model            string   `json:"model,omitempty" doc:"Absent: the session's model."`
	Provider         string   `json:"provider,omitempty" doc:"Absent: the session's provider."`
	Tools            []string `json:"tools,omitempty" nullable:"true" doc:"Absent: the session's tools."`
	Mode             string   `json:"mode,omitempty" enum:"queue,steer,reject" default:"queue" doc:"What to do if a run of the session is active. queue: answer the message after the run. steer: add the message to the run before its next step. reject: refuse the message with 409."`
	CollectToolStats bool     `json:"collect_tool_stats,omitempty"`
	IdempotencyKey   string   `json:"idempotency_key,omitempty" doc:"The same as the header Idempotency-Key."`
	Timezone         string   `json:"timezone,omitempty" doc:"The sender's IANA timezone." example:"Europe/Paris"`

	ResponseFormat *ResponseFormat `json:"response_format,omitempty" doc:"The form of the final answer; free text if absent. Not with the mode steer."`

	ClientTools []ClientTool `json:"client_tools,omitempty" nullable:"true" maxItems:"64" doc:"Tools that clients run. Absent: the session's. Not with the mode steer."`

	EditOf string `json:"edit_of,omitempty" format:"uuid" doc:"A message of the user that this one is another version of. It becomes a sibling of that message, and the current branch ends with it. 409 while a run of the session is active or queued, whatever the mode."`
}

// ResponseFormat asks for an answer that is JSON of a given schema. An answer that is not is
// given back to the model once; if the next one is not either, the run fails with
// RESPONSE_FORMAT.
type ResponseFormat struct {
	Type   string          `json:"type" enum:"json_schema"`
	Schema json.RawMessage `json:"schema" doc:"A JSON Schema without references outside of it, of 64 KiB at most. The provider of a model that can enforces it if each of its objects requires all of its properties and allows no additional ones."`
}

// schema returns the schema of an answer, empty for free text.
func (f *ResponseFormat) schema(mode string) (string, error) {
	switch {
	case f == nil:
		return "", nil
	case f.Type != "json_schema":
		return "", invalid("response_format.type must be json_schema")
	case len(f.Schema) == 0:
		return "", invalid("response_format.schema is required: the JSON Schema that the answer must satisfy")
	case mode == "steer":
		return "", invalid("response_format is not possible with the mode steer: the run answers in the format that it was started with")
	}
	return string(f.Schema), nil
}

type sendInput struct {
	SessionPath
	Idempotent
	Accept string `header:"Accept" hidden:"true"` // the responses document it
	Prefer string `header:"Prefer" doc:"respond-async: answer at once; the run continues without a viewer."`
	Body   SendMessage
}

// reply is an answer that the handler writes itself.
type reply struct {
	Body func(huma.Context)
}

func (a *API) messages() {
	const tag = "Messages"
	register(a, op("send-message", "POST /api/sessions/{id}/messages", tag, "Send a message and watch the answer", maxBody(limitMessage), answers(a.sendResponses()),
		about("Streams the run's events up to its end. A run does not stop when its viewer disconnects: "+
			"resume with GET /api/runs/{id}/events or GET /api/sessions/{id}/events and the last event's id.")), editors, a.sendMessage)
	register(a, op("watch-session", "GET /api/sessions/{id}/events", tag, "Watch a session", answers(map[string]*huma.Response{"200": a.streamResponse()}),
		about("Streams every event of the session from now on or, with the last event's id, every event after it. An unknown or old id is not an error: "+
			"the stream then begins with a snapshot event.")), viewers.withURLToken(), a.watchSession)
	handle(a, op("cancel", "POST /api/sessions/{id}/cancel", tag, "Stop the session's active run, a given run, or all runs"), editors, a.cancel)
	handle(a, op("withdraw-message", "DELETE /api/sessions/{id}/messages/{message_id}", tag, "Remove a message that waits",
		about("A message waits while other runs of the session are active; the run that would have answered it ends as cancelled. 409 with the code MESSAGE_BEGUN once the message is in the conversation.")),
		editors, a.withdrawMessage)
	handle(a, op("move-message", "PATCH /api/sessions/{id}/messages/{message_id}", tag, "Move a message that waits to the end of the queue, or into the active run",
		about("The run that would have answered it ends as cancelled. 409 has the code MESSAGE_BEGUN once the message is in the conversation, and NO_ACTIVE_RUN if there is no run to steer.")),
		editors, a.moveMessage)
}

// delivery is the form in which the sender wants the answer.
type delivery uint8

const (
	streamed delivery = iota // the run's events
	waited                   // one JSON body after the run's end
	async                    // the run, at once
)

func deliveryOf(accept, prefer string) delivery {
	for p := range strings.SplitSeq(prefer, ",") {
		name, _, _ := strings.Cut(p, ";")
		if strings.EqualFold(strings.TrimSpace(name), "respond-async") {
			return async
		}
	}
	if quality(accept, "application/json") > quality(accept, "text/event-stream") {
		return waited
	}
	return streamed
}

// quality returns the quality value of a media type in an Accept header, or 0 if it is not
// named. Wildcards do not count: clients without a preference send them.
func quality(accept, mediaType string) float64 {
	best := 0.0
	for item := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(item, ";")
		if !strings.EqualFold(strings.TrimSpace(name), mediaType) {
			continue
		}
		q := 1.0
		for p := range strings.SplitSeq(params, ";") {
			if k, v, ok := strings.Cut(strings.TrimSpace(p), "="); ok && strings.EqualFold(k, "q") {
				if f, err := strconv.ParseFloat(v, 64); err == nil {
					q = f
				}
			}
		}
		best = max(best, q)
	}
	return best
}

// submission validates a message and returns the request for agent-runner. header is the key of the
// header Idempotency-Key.
func (b *SendMessage) submission(header idempotencyKey) (*agentv1.SubmitRequest, error) {
	if err := b.Content.check(); err != nil {
		return nil, err
	}
	req, err := b.request(header)
	if err != nil || b.EditOf == "" {
		return req, err
	}
	of, err := parseID[id.Message]("edit_of", b.EditOf)
	if err != nil {
		return nil, err
	}
	if b.Mode == "steer" {
		return nil, invalid("edit_of is not possible with the mode steer: an edited message gets a run of its own")
	}
	req.Edit = &agentv1.Edit{Of: &agentv1.MessageRef{By: &agentv1.MessageRef_MessageId{MessageId: of.String()}}, ContentJson: req.GetContentJson()}
	req.ContentJson = ""
	return req, nil
}

// request is submission without the content's validation.
func (b *SendMessage) request(header idempotencyKey) (*agentv1.SubmitRequest, error) {
	if err := checkSessionFields(nil, &b.Model, &b.Provider, nil, b.Tools); err != nil {
		return nil, err
	}
	var key idempotencyKey
	if err := key.UnmarshalText([]byte(b.IdempotencyKey)); err != nil {
		return nil, invalid("idempotency_key: %v", err)
	}
	if header.text != "" && key.text != "" && header != key {
		return nil, invalid("idempotency_key: differs from the header Idempotency-Key: send one of them")
	}
	name := cmp.Or(b.Mode, "queue")
	mode := agentv1.SubmitMode(agentv1.SubmitMode_value["SUBMIT_MODE_"+strings.ToUpper(name)])
	if enumName(mode) != name {
		return nil, invalid("mode: %q is unknown: use queue, steer or reject", clip(b.Mode))
	}
	if err := checkTimezone(b.Timezone); err != nil {
		return nil, err
	}
	schema, err := b.ResponseFormat.schema(name)
	if err != nil {
		return nil, err
	}
	if b.ClientTools != nil && name == "steer" {
		return nil, invalid("client_tools is not possible with the mode steer: the run has the tools that it was started with")
	}
	return &agentv1.SubmitRequest{
		ClientTools: declared(b.ClientTools), ContentJson: string(b.Content.RawMessage), Model: b.Model, Provider: b.Provider, Tools: selection(b.Tools),
		CollectToolStats: b.CollectToolStats, IdempotencyKey: cmp.Or(header.text, key.text), Mode: mode, Timezone: b.Timezone, ResponseSchemaJson: schema,
	}, nil
}

func checkTimezone(s string) error {
	if s == "" {
		return nil
	}
	if _, err := time.LoadLocation(s); err != nil || len(s) > 64 || s == "Local" {
		return invalid("timezone: want an IANA name such as Europe/Paris")
	}
	return nil
}

func (a *API) sendMessage(ctx context.Context, in *sendInput) (*reply, error) {
	req, err := in.Body.submission(in.Key)
	if err != nil {
		return nil, err
	}
	req.SessionId = in.ID.String()
	return a.deliver(ctx, req, deliveryOf(in.Accept, in.Prefer))
}

// deliver submits a message and answers in the form that its sender wants.
func (a *API) deliver(ctx context.Context, req *agentv1.SubmitRequest, form delivery) (*reply, error) {
	switch form {
	case async:
		return a.sendAsync(ctx, req)
	case waited:
		return a.sendAndWait(ctx, req)
	}
	return a.sendAndStream(ctx, req)
}

type submittedOutput struct {
	Run       Run    `json:"run"`
	MessageID string `json:"message_id"`
}

func (a *API) sendAsync(ctx context.Context, req *agentv1.SubmitRequest) (*reply, error) {
	res, err := a.cfg.Conversations.Submit(ctx, req)
	if err != nil {
		return nil, err
	}
	return &reply{func(hc huma.Context) {
		hc.SetHeader("Preference-Applied", "respond-async")
		hc.SetHeader("Location", "/api/runs/"+res.GetRun().GetId())
		writeBody(hc, http.StatusAccepted, submittedOutput{viewRun(res.GetRun()), res.GetMessageId()})
	}}, nil
}

func writeBody(hc huma.Context, status int, v any) {
	hc.SetHeader("Content-Type", "application/json")
	hc.SetStatus(status)
	_ = encodeJSON(hc.BodyWriter(), v) // fails if the client has left
}

// openFor opens a viewer and submits the message concurrently. The viewer's position may
// therefore be after the beginning of the answer, which Overtook reports. Two kinds of
// messages are submitted only after the viewer is ready: a message that steers a run, which
// is watched from there on, and every message while the bus is disconnected, because
// refusing it is better than accepting it and not showing the answer.
func (a *API) openFor(ctx context.Context, req *agentv1.SubmitRequest) (*feed.Viewer, *agentv1.SubmitResponse, error) {
	session, err := parseID[id.Session]("id", req.GetSessionId())
	if err != nil {
		return nil, nil, err
	}
	v, err := a.cfg.Feed.Join(ctx, session)
	if err != nil {
		return nil, nil, err
	}
	if req.GetMode() == agentv1.SubmitMode_SUBMIT_MODE_STEER || !a.cfg.Feed.Connected() {
		if err := v.Ready(ctx); err != nil {
			v.Close()
			return nil, nil, err
		}
	}
	// Whether or not the client stays: a run that ends with its client must be known.
	submit, cancel := context.WithTimeout(context.WithoutCancel(ctx), submitTime)
	defer cancel()
	res, err := a.cfg.Conversations.Submit(submit, req)
	if err != nil {
		leave(v, err)
		return nil, nil, err
	}
	if err := v.Ready(ctx); err != nil {
		v.Close()
		return nil, res, runContinues(ctx, err, "show the answer", res.GetRun().GetId())
	}
	return v, res, nil
}

// submitTime bounds a submission whose client has left.
const submitTime = 30 * time.Second

// runContinues is the error for a sender whose message was accepted but whose answer this
// gateway cannot show.
func runContinues(ctx context.Context, err error, what, run string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &fault.Error{
		Kind: fault.Unavailable, Code: lossOf(err), RetryAfter: time.Second, Err: err,
		Message: "this gateway cannot " + what + " at the moment; the message was accepted and its run continues: " +
			"repeat the request with the same Idempotency-Key, or read /api/runs/" + run,
	}
}

func lossOf(err error) string {
	if errors.Is(err, feed.ErrDraining) {
		return "DRAINING"
	}
	return "FEED_LOST"
}

// leave closes a viewer after an error.
func leave(v *feed.Viewer, err error) {
	if fault.KindOf(err) == fault.NotFound {
		v.Forget()
		return
	}
	v.Close()
}

// submitAsStream submits a message and returns a stream whose position is not set yet. If it
// fails after the message was accepted, it returns the response and the error.
func (a *API) submitAsStream(ctx context.Context, req *agentv1.SubmitRequest) (*stream, *agentv1.SubmitResponse, error) {
	sctx, count, err := a.cfg.Streams.Add(ctx, principalOf(ctx))
	if err != nil {
		return nil, nil, err
	}
	v, res, err := a.openFor(sctx, req)
	if err != nil {
		err = withReason(sctx, err)
		count.Close()
		return nil, res, err
	}
	return &stream{api: a, ctx: sctx, viewer: v, count: count, run: res.GetRun()}, res, nil
}

func (a *API) sendAndStream(ctx context.Context, req *agentv1.SubmitRequest) (*reply, error) {
	s, res, err := a.submitAsStream(ctx, req)
	if err != nil {
		return nil, err
	}
	follow := feed.Follow{Sender: true, Message: res.GetMessageId()}
	switch {
	case !res.GetCreated():
		err = s.replay(follow)
	case res.GetRun().GetUserMessageId() != "" && res.GetRun().GetUserMessageId() != res.GetMessageId():
		// The message steers an active run, which is followed from here on.
		s.viewer.FollowRun(res.GetRun(), follow)
	default:
		err = s.begin(follow)
	}
	return s.reply(err)
}

// SendResult is the answer to a sender who waits for the end of the run.
type SendResult struct {
	Content      string     `json:"content" doc:"The text of the last step."`
	InputTokens  int64      `json:"inputTokens"`
	OutputTokens int64      `json:"outputTokens"`
	Steps        int32      `json:"steps"`
	FinishReason string     `json:"finishReason" example:"stop"`
	FinishDetail string     `json:"finishDetail,omitempty" doc:"For people: why the run ended, such as which budget is spent and when it begins anew."`
	RunID        string     `json:"runId" format:"uuid"`
	Simulated    bool       `json:"simulated,omitempty" doc:"The simulator answered, not a model."`
	ToolCalls    []ToolStat `json:"toolCalls,omitempty" doc:"With collect_tool_stats."`
}

// ToolStat summarizes one tool call.
type ToolStat struct {
	Name       string `json:"name"`
	Input      string `json:"input" doc:"A path or a summary, never the complete input."`
	DurationMS int64  `json:"durationMs"`
	OK         bool   `json:"ok"`
	Bytes      int    `json:"bytes" doc:"Size of the result."`
	ErrorType  string `json:"errorType,omitempty"`
}

// sendAndWait answers at the end of the run. It counts as a stream, which ends with the sender's
// permission.
func (a *API) sendAndWait(ctx context.Context, req *agentv1.SubmitRequest) (*reply, error) {
	sctx, count, err := a.cfg.Streams.Add(ctx, principalOf(ctx))
	if err != nil {
		return nil, err
	}
	defer count.Close()
	r, err := a.submitAndWait(sctx, req)
	if err != nil {
		return nil, withReason(sctx, err)
	}
	return r, nil
}

func (a *API) submitAndWait(ctx context.Context, req *agentv1.SubmitRequest) (*reply, error) {
	v, res, err := a.openFor(ctx, req)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	end, err := a.awaitEnd(ctx, v, res)
	if err != nil {
		return nil, err
	}
	if e := end.GetError(); e != nil {
		return nil, runFailure(e)
	}
	d := end.GetDone()
	text, err := a.finalText(ctx, d, res.GetRun().GetId())
	if err != nil {
		return nil, err
	}
	out := SendResult{
		Content: text, InputTokens: d.GetTotalTokensIn(), OutputTokens: d.GetTotalTokensOut(),
		Steps: d.GetSteps(), FinishReason: d.GetFinishReason(), FinishDetail: d.GetFinishDetail(), RunID: res.GetRun().GetId(), Simulated: res.GetRun().GetSimulated(),
	}
	if req.GetCollectToolStats() {
		if out.ToolCalls, err = a.toolStats(ctx, res.GetRun().GetId()); err != nil {
			return nil, err
		}
	}
	return &reply{func(hc huma.Context) { writeBody(hc, http.StatusOK, out) }}, nil
}

// maybeShortened is the length from which the text in a run's last event may be shortened,
// because events are bounded. The run's row has the complete text.
const maybeShortened = 64 << 10

// finalText returns the text of the run's last step.
func (a *API) finalText(ctx context.Context, d *runv1.Done, run string) (string, error) {
	if text := d.GetFinalText(); len(text) < maybeShortened {
		return text, nil
	}
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run})
	if err != nil {
		return "", err
	}
	return res.GetRun().GetText(), nil
}

// awaitEnd returns the run's last event from the feed or, if that fails, from its row.
func (a *API) awaitEnd(ctx context.Context, v *feed.Viewer, res *agentv1.SubmitResponse) (*runv1.Event, error) {
	run := res.GetRun()
	if !res.GetCreated() || v.Overtook(run.GetOrdinal()) {
		// If the run's row has no end, the end event is still to come.
		if end, err := a.endOf(ctx, run.GetId()); end != nil || err != nil {
			return end, err
		}
	}
	v.FollowRun(run, feed.Follow{})
	end, err := v.End(ctx)
	if err == nil {
		return end, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if end, rerr := a.endOf(ctx, run.GetId()); end != nil || rerr != nil {
		return end, rerr
	}
	return nil, runContinues(ctx, err, "wait for the end of the run", run.GetId())
}

// endOf returns the last event of a run, or nil if the run has not ended.
func (a *API) endOf(ctx context.Context, run string) (*runv1.Event, error) {
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run})
	if err != nil {
		return nil, err
	}
	if !hasEnded(res.GetRun()) {
		return nil, nil //nolint:nilnil // nil means not ended
	}
	return feed.EndOf(res.GetRun()), nil
}

func hasEnded(r *agentv1.Run) bool {
	switch r.GetState() {
	case agentv1.RunState_RUN_STATE_DONE, agentv1.RunState_RUN_STATE_FAILED, agentv1.RunState_RUN_STATE_CANCELLED:
		return true
	}
	return false
}

// runFailure returns the error of a failed run with a status for its code. The message is
// meant for people.
func runFailure(e *runv1.Error) error {
	kind := fault.Unavailable
	switch code := e.GetCode(); {
	case code == "", strings.Contains(code, "INTERNAL"):
		return &Error{status: http.StatusInternalServerError, Message: e.GetMessage(), Code: code}
	case strings.Contains(code, "RATE_LIMIT"), strings.Contains(code, "QUOTA"):
		kind = fault.Limited
	case strings.Contains(code, "INVALID"), strings.Contains(code, "TOO_LARGE"), strings.HasPrefix(code, "UNKNOWN_"),
		code == "MODEL_NOT_FOUND", code == "MODEL_CONTEXT_LENGTH", code == "MODEL_CONTENT_FILTER":
		// The same request would only fail again.
		kind = fault.Invalid
	}
	return fault.Coded(kind, e.GetCode(), "%s", e.GetMessage())
}

func (a *API) toolStats(ctx context.Context, run string) ([]ToolStat, error) {
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run})
	if err != nil {
		return nil, err
	}
	return each(res.GetToolCalls(), func(c *agentv1.ToolCall) ToolStat {
		o := c.GetOutcome()
		return ToolStat{
			Name: c.GetToolName(), Input: o.GetSummary(), DurationMS: o.GetDurationMs(),
			OK: o.GetState() == toolv1.OutcomeState_OUTCOME_STATE_OK, Bytes: len(o.GetResultJson()), ErrorType: o.GetErrorType(),
		}
	}), nil
}

func (a *API) withdrawMessage(ctx context.Context, in *struct {
	SessionPath
	Repeatable
	MessageID ID[id.Message] `path:"message_id" format:"uuid"`
},
) (*Success, error) {
	_, err := a.cfg.Conversations.Withdraw(ctx, &agentv1.WithdrawRequest{SessionId: in.ID.String(), MessageId: in.MessageID.String()})
	return succeeded(), err
}

// MoveMessage is the body of PATCH /api/sessions/{id}/messages/{message_id}.
type MoveMessage struct {
	Mode string `json:"mode" enum:"queue,steer" doc:"queue: to the end of the queue. steer: into the active run, before its next step."`
}

type runOutputBody struct {
	Run Run `json:"run"`
}

func (a *API) moveMessage(ctx context.Context, in *struct {
	SessionPath
	Repeatable
	MessageID ID[id.Message] `path:"message_id" format:"uuid"`
	Body      MoveMessage
},
) (*runOutputBody, error) {
	mode := agentv1.SubmitMode_SUBMIT_MODE_QUEUE
	switch in.Body.Mode {
	case "queue":
	case "steer":
		mode = agentv1.SubmitMode_SUBMIT_MODE_STEER
	default:
		return nil, invalid("mode: want queue or steer")
	}
	res, err := a.cfg.Conversations.Move(ctx, &agentv1.MoveRequest{SessionId: in.ID.String(), MessageId: in.MessageID.String(), Mode: mode})
	return answer(res, err, func(res *agentv1.MoveResponse) runOutputBody { return runOutputBody{viewRun(res.GetRun())} })
}

// Cancel is the body of POST /api/sessions/{id}/cancel.
type Cancel struct {
	RunID string `json:"run_id,omitempty" format:"uuid" doc:"The run to stop. Absent: the active run."`
	All   bool   `json:"all,omitempty" doc:"Stop all runs of the session, including those of queued messages."`
}

type cancelOutputBody struct {
	Success bool     `json:"success"`
	RunIDs  []string `json:"run_ids" nullable:"false" doc:"The runs that were asked to stop."`
}

func (a *API) cancel(ctx context.Context, in *struct {
	SessionPath
	Repeatable
	Body *Cancel `required:"false"`
},
) (*cancelOutputBody, error) {
	req := &agentv1.CancelRequest{SessionId: in.ID.String(), All: in.Body != nil && in.Body.All}
	if in.Body != nil && in.Body.RunID != "" {
		run, err := parseID[id.Run]("run_id", in.Body.RunID)
		if err != nil {
			return nil, err
		}
		req.RunId = run.String()
	}
	res, err := a.cfg.Conversations.Cancel(ctx, req)
	return &cancelOutputBody{true, append([]string{}, res.GetRunIds()...)}, err
}
