package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// SendMessage is the body of POST /api/sessions/{id}/messages.
type SendMessage struct {
	Content          Content  `json:"content"`
	Model            string   `json:"model,omitempty" doc:"The session's when absent."`
	Provider         string   `json:"provider,omitempty" doc:"The session's when absent."`
	Tools            []string `json:"tools,omitempty" nullable:"true" doc:"The session's when absent."`
	Mode             string   `json:"mode,omitempty" enum:"queue,steer,reject" default:"queue" doc:"What to do while a run of the session is active: wait behind it, join it before its next step, or be refused with 409."`
	CollectToolStats bool     `json:"collect_tool_stats,omitempty"`
	IdempotencyKey   string   `json:"idempotency_key,omitempty" doc:"The same as the header Idempotency-Key."`
	Timezone         string   `json:"timezone,omitempty" doc:"The sender's IANA timezone." example:"Europe/Paris"`
}

type sendInput struct {
	SessionPath
	Idempotent
	Accept string `header:"Accept" hidden:"true"` // the answers' types document it
	Prefer string `header:"Prefer" doc:"respond-async answers at once and lets the run go on without a viewer."`
	Body   SendMessage
}

// reply is an answer that the handler writes itself.
type reply struct {
	Body func(huma.Context)
}

func (a *API) messages() {
	op := huma.Operation{
		OperationID: "send-message", Method: http.MethodPost, Path: "/api/sessions/{id}/messages",
		Tags: []string{"Messages"}, Summary: "Send a message and watch the answer", MaxBodyBytes: limitMessage,
		Description: "Answers with the run's events, up to and with its end. A run does not stop because its viewer left: " +
			"go on with GET /api/runs/{id}/events or GET /api/sessions/{id}/events and the last event's id.",
	}
	op.Responses = a.sendResponses()
	handle(a, op, access{role: identity.Editor}, a.sendMessage)

	watch := huma.Operation{
		OperationID: "watch-session", Method: http.MethodGet, Path: "/api/sessions/{id}/events",
		Tags: []string{"Messages"}, Summary: "Watch a session",
		Description: "Every event of the session from now on or, with the last event's id, from there on. An id that is unknown or too old is no error: " +
			"the stream begins with a snapshot event.",
	}
	watch.Responses = map[string]*huma.Response{"200": a.streamResponse()}
	handle(a, watch, access{role: identity.Viewer, urlToken: true}, a.watchSession)

	handle(a, huma.Operation{
		OperationID: "cancel", Method: http.MethodPost, Path: "/api/sessions/{id}/cancel",
		Tags: []string{"Messages"}, Summary: "Stop the session's active run, a certain one, or all",
	}, access{role: identity.Editor}, a.cancel)
}

// manner is how the sender wants the answer.
type manner uint8

const (
	streamed manner = iota
	waited
	async
)

func mannerOf(accept, prefer string) manner {
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

// quality returns how much a media type is wanted by name, 0 for not at all.
// Wildcards do not count: they are what clients send who do not care.
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

// submission checks a message and returns what agent-runner gets.
func (in *sendInput) submission() (*agentv1.SubmitRequest, error) {
	session, err := parseID[id.Session]("id", in.ID)
	if err != nil {
		return nil, err
	}
	b := &in.Body
	if err := b.Content.check(); err != nil {
		return nil, err
	}
	if err := checkSessionFields(nil, &b.Model, &b.Provider, nil, b.Tools); err != nil {
		return nil, err
	}
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	other, err := checkKey("idempotency_key", b.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	if key != "" && other != "" && key != other {
		return nil, invalid("idempotency_key: differs from the header Idempotency-Key: send one of them")
	}
	if key == "" {
		key = other
	}
	mode, err := parseMode(b.Mode)
	if err != nil {
		return nil, err
	}
	if err := checkTimezone(b.Timezone); err != nil {
		return nil, err
	}
	return &agentv1.SubmitRequest{
		SessionId: session.String(), ContentJson: string(b.Content.RawMessage), Model: b.Model, Provider: b.Provider,
		Tools: selection(b.Tools), CollectToolStats: b.CollectToolStats, IdempotencyKey: key, Mode: mode, Timezone: b.Timezone,
	}, nil
}

func parseMode(s string) (agentv1.SubmitMode, error) {
	switch s {
	case "", "queue":
		return agentv1.SubmitMode_SUBMIT_MODE_QUEUE, nil
	case "steer":
		return agentv1.SubmitMode_SUBMIT_MODE_STEER, nil
	case "reject":
		return agentv1.SubmitMode_SUBMIT_MODE_REJECT, nil
	}
	return 0, invalid("mode: %q is unknown: use queue, steer or reject", clip(s))
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
	req, err := in.submission()
	if err != nil {
		return nil, err
	}
	switch mannerOf(in.Accept, in.Prefer) {
	case async:
		return a.sendAsync(ctx, req)
	case waited:
		return a.sendAndWait(ctx, req)
	}
	return a.sendAndStream(ctx, req)
}

type runOutput struct {
	Run Run `json:"run"`
}

func (a *API) sendAsync(ctx context.Context, req *agentv1.SubmitRequest) (*reply, error) {
	res, err := a.cfg.Conversations.Submit(ctx, req)
	if err != nil {
		return nil, err
	}
	return &reply{func(hc huma.Context) {
		hc.SetHeader("Preference-Applied", "respond-async")
		hc.SetHeader("Location", "/api/runs/"+res.GetRun().GetId())
		writeBody(hc, http.StatusAccepted, runOutput{viewRun(res.GetRun())})
	}}, nil
}

func writeBody(hc huma.Context, status int, v any) {
	hc.SetHeader("Content-Type", "application/json")
	hc.SetStatus(status)
	_ = encodeJSON(hc.BodyWriter(), v) // the client went away: nobody to tell
}

// openFor opens a viewer and submits the message. The one does not wait for the
// other, so either may be first: the viewer may stand behind some of the answer, and
// Overtook tells. Two things wait for the viewer: a message for a run under way, which
// is watched from here on, and any message while the bus is away, since it is better
// refused than accepted and not shown.
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
	res, err := a.cfg.Conversations.Submit(ctx, req)
	if err != nil {
		leave(v, err)
		return nil, nil, err
	}
	if err := v.Ready(ctx); err != nil {
		v.Close()
		return nil, nil, goesOn(ctx, err, "show the answer", res.GetRun().GetId())
	}
	return v, res, nil
}

// goesOn tells who sent a message that what they cannot see happens all the same.
func goesOn(ctx context.Context, err error, what, run string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	code := "FEED_LOST"
	if errors.Is(err, feed.ErrDraining) {
		code = "DRAINING"
	}
	return &fault.Error{
		Kind: fault.Unavailable, Code: code, RetryAfter: time.Second, Err: err,
		Message: "this gateway cannot " + what + " at the moment; the message was accepted and its run goes on: " +
			"repeat the request with the same Idempotency-Key, or read /api/runs/" + run,
	}
}

// leave closes a viewer that was opened for nothing.
func leave(v *feed.Viewer, err error) {
	if fault.KindOf(err) == fault.NotFound {
		v.Forget()
		return
	}
	v.Close()
}

func (a *API) sendAndStream(ctx context.Context, req *agentv1.SubmitRequest) (_ *reply, err error) {
	sctx, count, err := a.cfg.Streams.Add(ctx, principalOf(ctx))
	if err != nil {
		return nil, err
	}
	v, res, err := a.openFor(sctx, req)
	if err != nil {
		err = withReason(sctx, err)
		count.Close()
		return nil, err
	}
	s := &stream{api: a, ctx: sctx, viewer: v, count: count, run: res.GetRun()}
	follow := feed.Follow{Sender: true, Message: res.GetMessageId()}
	switch {
	case !res.GetCreated():
		err = s.replay(follow)
	case res.GetRun().GetUserMessageId() != "" && res.GetRun().GetUserMessageId() != res.GetMessageId():
		// The message joins a run that is under way: from now on.
		v.FollowRun(res.GetRun(), follow)
	default:
		err = s.begin(follow)
	}
	return s.reply(err)
}

// SendResult is the answer to a message whose sender waits for the end.
type SendResult struct {
	Content      string     `json:"content" doc:"The text of the last step."`
	InputTokens  int64      `json:"inputTokens"`
	OutputTokens int64      `json:"outputTokens"`
	Steps        int32      `json:"steps"`
	FinishReason string     `json:"finishReason" example:"stop"`
	RunID        string     `json:"runId" format:"uuid"`
	Simulated    bool       `json:"simulated,omitempty" doc:"The simulator answered, and no model."`
	ToolCalls    []ToolStat `json:"toolCalls,omitempty" doc:"With collect_tool_stats."`
}

// ToolStat tells of one tool call what is worth counting.
type ToolStat struct {
	Name       string `json:"name"`
	Input      string `json:"input" doc:"A path or a summary; never the whole."`
	DurationMS int64  `json:"durationMs"`
	OK         bool   `json:"ok"`
	Bytes      int    `json:"bytes" doc:"Of the result."`
	ErrorType  string `json:"errorType,omitempty"`
}

// sendAndWait holds a connection and a viewer as a stream does, and so it counts as
// one and ends with its right.
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
		Steps: d.GetSteps(), FinishReason: d.GetFinishReason(), RunID: res.GetRun().GetId(), Simulated: res.GetRun().GetSimulated(),
	}
	if req.GetCollectToolStats() {
		if out.ToolCalls, err = a.toolStats(ctx, res.GetRun().GetId()); err != nil {
			return nil, err
		}
	}
	return &reply{func(hc huma.Context) { writeBody(hc, http.StatusOK, out) }}, nil
}

// maybeShortened is how long the text in a run's last event may be for it to be all
// there is: events have bounds, and the run's row has not.
const maybeShortened = 64 << 10

// finalText returns the text of the run's last step.
func (a *API) finalText(ctx context.Context, d *runv1.Done, run string) (string, error) {
	if text := cmp.Or(d.GetFinalText(), d.GetText()); len(text) < maybeShortened {
		return text, nil
	}
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run})
	if err != nil {
		return "", err
	}
	return res.GetRun().GetText(), nil
}

// awaitEnd returns the run's last event, from the feed or else from its row.
func (a *API) awaitEnd(ctx context.Context, v *feed.Viewer, res *agentv1.SubmitResponse) (*runv1.Event, error) {
	run := res.GetRun()
	if !res.GetCreated() || v.Overtook(run.GetOrdinal()) {
		// What has not ended by its row has its end still to come.
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
	return nil, goesOn(ctx, err, "wait for the end of the run", run.GetId())
}

// endOf returns the last event of a run that has ended, nil for one that has not.
func (a *API) endOf(ctx context.Context, run string) (*runv1.Event, error) {
	res, err := a.cfg.Runs.GetRun(ctx, &agentv1.GetRunRequest{Id: run})
	if err != nil {
		return nil, err
	}
	if !hasEnded(res.GetRun()) {
		return nil, nil //nolint:nilnil // not ended is an answer
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

// runFailure gives a run's error the status that fits its code. The message was
// written for people.
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
	out := make([]ToolStat, len(res.GetToolCalls()))
	for i, c := range res.GetToolCalls() {
		o := c.GetOutcome()
		out[i] = ToolStat{
			Name: c.GetToolName(), Input: o.GetSummary(), DurationMS: o.GetDurationMs(),
			OK: o.GetState() == toolv1.OutcomeState_OUTCOME_STATE_OK, Bytes: len(o.GetResultJson()), ErrorType: o.GetErrorType(),
		}
	}
	return out, nil
}

// Cancel is the body of POST /api/sessions/{id}/cancel.
type Cancel struct {
	RunID string `json:"run_id,omitempty" format:"uuid" doc:"That run; when absent, the active one."`
	All   bool   `json:"all,omitempty" doc:"All runs of the session, those of queued messages too."`
}

type cancelOutput struct {
	Body struct {
		Success bool     `json:"success"`
		RunIDs  []string `json:"run_ids" nullable:"false" doc:"The runs that were told to stop."`
	}
}

func (a *API) cancel(ctx context.Context, in *struct {
	SessionPath
	Repeatable
	Body *Cancel `required:"false"`
},
) (*cancelOutput, error) {
	session, err := parseID[id.Session]("id", in.ID)
	if err != nil {
		return nil, err
	}
	if err := in.check(); err != nil {
		return nil, err
	}
	req := &agentv1.CancelRequest{SessionId: session.String(), All: in.Body != nil && in.Body.All}
	if in.Body != nil && in.Body.RunID != "" {
		run, err := parseID[id.Run]("run_id", in.Body.RunID)
		if err != nil {
			return nil, err
		}
		req.RunId = run.String()
	}
	res, err := a.cfg.Conversations.Cancel(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &cancelOutput{}
	out.Body.Success = true
	out.Body.RunIDs = append([]string{}, res.GetRunIds()...)
	return out, nil
}
