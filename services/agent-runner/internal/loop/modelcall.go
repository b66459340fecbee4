package loop

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"signalbox.dev/pkg/fault"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/prompt"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/structured"
)

// callModel calls the model for the next step, with retries, and returns its answer. With an error, the response is
// the part that had arrived when the run was interrupted, or nil.
func (a *answering) callModel(ctx context.Context, index int) (*llm.Response, error) {
	model, _ := a.Catalogue.Lookup(a.claim.Run.Provider, a.claim.Run.Model)
	in := prompt.Input{
		Run: &a.claim.Run, Step: index, Model: model, Dialect: a.dialect, ServerTools: a.Catalogue.ServerTool, Preset: a.preset, Session: a.session, Tools: a.tools,
		Messages: a.history[a.summarized():], Now: time.Now(), Continue: a.paused,
	}
	if a.schema != nil {
		in.Format = a.schema.Prompt()
		if !a.unenforced {
			in.Schema = a.schema.JSON()
		}
	}
	if a.problem != nil {
		in.Repair = structured.Repair(a.problem)
	}
	return a.request(ctx, index, prompt.Build(in), a.relay)
}

// relayFunc takes the events of an answer as it arrives. wrote reports whether viewers have been
// told of them.
type relayFunc func(ctx context.Context, index int, ev *llm.Event) (wrote bool, err error)

// request sends a request to the model, with retries. Its results are those of callModel.
func (a *answering) request(ctx context.Context, index int, req *llm.Request, relay relayFunc) (*llm.Response, error) {
	for try, broken := 1, 0; ; try++ {
		var res *llm.Response
		var streamed bool
		err := a.retryUnavailable(ctx, func() (err error) {
			res, streamed, err = a.attempt(ctx, index, req, relay)
			return err
		})
		switch {
		case err == nil:
			return res, nil
		case ctx.Err() != nil:
			return res, context.Cause(ctx)
		case errors.Is(err, errStepTime):
			return res, err
		}
		failure, ok := errors.AsType[*llm.Error](err)
		if ok && failure.Kind == llm.KindInvalid && !streamed && req.Format != nil {
			a.Log.WarnContext(ctx, "model call refused; trying without the provider's own check of the format", "run", a.claim.Run.ID, "step", index, "error", err)
			req.Format, a.unenforced = nil, true // the schema may be too complex for the provider
			try--
			continue
		}
		if ok && failure.Broken && broken < maxBroken {
			broken++
			try-- // not the provider but the connection to the broker has failed
		}
		if !ok || !failure.Retryable || try >= a.cfg.Tries || failure.RetryAfter > a.cfg.MaxRetryAfter {
			return res, err
		}
		a.Log.WarnContext(ctx, "model call failed; trying again", "run", a.claim.Run.ID, "step", index, "try", try, "error", err)
		if err := a.voidAttempt(ctx, index, res, streamed, failure); err != nil {
			return res, err // viewers do not know yet that res is void, so a stop may keep it
		}
		wait := max(a.backoff(max(try, 1)), failure.RetryAfter)
		if failure.RetryAfter >= minNotice {
			if err := a.log.Append(ctx, waiting(index, failure.Message, time.Now().Add(wait))); err != nil {
				return nil, err
			}
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// maxBroken is how often a step may lose the connection to the broker before that counts as
// a failure of the provider.
const maxBroken = 10

// minNotice is the shortest Retry-After, of a provider or the broker, that is announced to viewers.
const minNotice = time.Second

// prepare looks up the provider and the tools, once for each claim.
func (a *answering) prepare(ctx context.Context) (err error) {
	if a.model != nil {
		return nil
	}
	catalogue, err := a.Tools.Catalogue(ctx)
	if err != nil {
		return err
	}
	client := a.clientTools(catalogue)
	a.catalogue = append(slices.Clip(catalogue), client...)
	a.tools = append(prompt.Tools(catalogue, a.claim.Run.Tools, a.session.Tools, a.preset), client...)
	a.dialect, a.model, err = a.Models.For(ctx, a.claim.Run.Provider)
	return err
}

// clientTools returns the tools that clients have declared, except for those whose names are in
// the catalogue by now.
func (a *answering) clientTools(catalogue []*toolv1.Tool) (tools []*toolv1.Tool) {
	for i := range a.session.ClientTools {
		t := a.session.ClientTools[i].Proto()
		if !slices.ContainsFunc(catalogue, func(o *toolv1.Tool) bool { return o.GetName() == t.GetName() }) {
			tools = append(tools, t)
		}
	}
	return tools
}

// attempt makes one model call. streamed reports whether any of it went to the run log.
func (a *answering) attempt(ctx context.Context, index int, req *llm.Request, relay relayFunc) (res *llm.Response, streamed bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, a.cfg.StepTime, errStepTime)
	defer cancel()
	defer func() {
		outcome := "ok"
		if failure, ok := errors.AsType[*llm.Error](err); ok {
			outcome = failure.Kind.String()
		} else if err != nil {
			outcome = "interrupted"
		}
		a.Metrics.modelCalls.WithLabelValues(a.claim.Run.Provider, outcome).Inc()
	}()
	start := time.Now()
	stream, err := a.model.Stream(ctx, req)
	if err != nil {
		return nil, false, err
	}
	defer stream.Close()
	counted := func(res *llm.Response) *llm.Response {
		stream.Estimate(req, res)
		return res
	}
	var last time.Time
	var pause time.Duration
	defer func() {
		if !last.IsZero() {
			a.Metrics.pauses.Observe(max(pause, time.Since(last)).Seconds())
		}
	}()
	for stream.Next() {
		now := time.Now()
		if last.IsZero() {
			a.Metrics.firstToken.Observe(now.Sub(start).Seconds())
		} else {
			pause = max(pause, now.Sub(last))
		}
		last = now
		wrote, err := relay(ctx, index, stream.Event())
		streamed = streamed || wrote
		if err != nil {
			return counted(stream.Partial()), streamed, err
		}
	}
	if err := stream.Err(); err != nil {
		return counted(stream.Partial()), streamed, err
	}
	return counted(stream.Response()), streamed, nil
}

// relay writes a stream's event to the run log. Calls of our own tools are announced when
// they are committed; those that the provider runs are announced as they come.
func (a *answering) relay(ctx context.Context, index int, ev *llm.Event) (wrote bool, err error) {
	if err := a.tellTitle(ctx); err != nil {
		return false, err
	}
	event := &runv1.Event{StepIndex: int32(index)}
	switch ev.Type {
	case llm.TextDelta:
		return true, a.log.Text(ctx, index, int32(ev.Index), string(ev.Text))
	case llm.ReasoningDelta:
		return true, a.log.Reasoning(ctx, index, int32(ev.Index), string(ev.Text))
	case llm.ToolCallDelta:
		return true, a.log.ToolDelta(ctx, index, ev.ID, ev.Name, string(ev.Text))
	case llm.ToolCallStart:
		event.Body = &runv1.Event_ToolCallStart{ToolCallStart: &runv1.ToolCallStart{ToolCallId: ev.ID, ToolName: ev.Name}}
	case llm.ServerToolCall:
		event.Body = &runv1.Event_ToolCallComplete{ToolCallComplete: &runv1.ToolCallComplete{
			ToolCallId: ev.ID, ToolName: ev.Name, ArgsJson: string(ev.Args), ProviderExecuted: true,
		}}
	case llm.ServerToolResult:
		event.Body = &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{
			ToolCallId: ev.ID, ToolName: ev.Name, ResultJson: bounded(ev.Args), IsError: ev.IsError, ProviderExecuted: true,
		}}
	case llm.Source:
		if len(ev.URL)+len(ev.Title) > maxArgs {
			return false, nil // too long for a usable address
		}
		event.Body = &runv1.Event_Source{Source: &runv1.Source{Url: ev.URL, Title: ev.Title}}
	case llm.Citation:
		if len(ev.URL) > maxArgs {
			return false, nil
		}
		event.Body = &runv1.Event_Citation{Citation: &runv1.Citation{Url: ev.URL, Text: cutRunes(string(ev.Text), maxCited), End: int32(ev.End)}}
	default:
		return false, nil
	}
	return true, a.log.Append(ctx, event)
}

// maxCited bounds what a citation quotes, in characters. The message has all of it.
const maxCited = 500

// cutRunes returns the first characters of s, n at most.
func cutRunes(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// maxServerResult bounds a provider's tool result in an event. The message has all of it.
const maxServerResult = 256 << 10

func bounded(result json.RawMessage) string {
	if len(result) > maxServerResult {
		return `{"result":"too large to stream: it is in the message"}`
	}
	return string(result)
}

// voidAttempt records the usage of a failed call. If some of its answer was streamed, it
// emits step-retry and removes the content from partial.
func (a *answering) voidAttempt(ctx context.Context, index int, partial *llm.Response, streamed bool, failure *llm.Error) error {
	if streamed {
		if err := a.log.Append(ctx, stepRetry(index, failure.Message)); err != nil {
			return err
		}
		partial.Content = json.RawMessage("[]")
	}
	return a.recordWaste(ctx, index, partial)
}

// recordWaste records the usage of an answer of which nothing is kept.
func (a *answering) recordWaste(ctx context.Context, index int, partial *llm.Response) error {
	if partial == nil {
		return nil
	}
	used := usageOf(partial)
	if used == (run.Usage{}) {
		return nil
	}
	return a.Store.AddWaste(ctx, a.claim, index, used, a.cost(used))
}

// backoff returns the wait before the next try: it doubles with each try, plus or minus half.
func (a *answering) backoff(try int) time.Duration {
	wait := a.cfg.Backoff << (try - 1)
	return wait/2 + a.cfg.Jitter(wait)
}

// sleep returns nil after the wait, or the context's cause.
func sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// callFailed ends a run whose model call failed or was interrupted. It returns err if the
// failure is ours and may pass, so that the run is released.
func (a *answering) callFailed(ctx, stoppable context.Context, index int, partial *llm.Response, err error) (ended bool, _ error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	switch cause := context.Cause(stoppable); {
	case errors.Is(cause, errStopped):
		return true, a.cutShort(ctx, index, partial, run.Cancelled, reasonCancelled)
	case errors.Is(cause, errWallTime):
		return true, a.cutShort(ctx, index, partial, run.Done, reasonMaxTime)
	case errors.Is(cause, run.ErrFenced):
		return false, cause
	case errors.Is(err, errStepTime):
		return true, a.cutShort(ctx, index, partial, run.Done, reasonMaxStepTime)
	}
	if err := a.recordWaste(ctx, index, partial); err != nil {
		return false, err
	}
	if failure, ok := errors.AsType[*llm.Error](err); ok {
		end := run.End{State: run.Failed, ErrorMessage: failure.Message, ErrorCode: code(failure)}
		if failure.RetryAfter > 0 {
			end.ErrorRetryAt = new(time.Now().Add(failure.RetryAfter + time.Second - 1).Truncate(time.Second)) // rounded up: not too early
		}
		return true, a.finish(ctx, end)
	}
	switch f := fault.From(err); f.Kind {
	case fault.Internal, fault.Unavailable, fault.Deadline, fault.Cancelled:
		return false, err // an internal failure: the run is claimed again
	default:
		return true, a.finish(ctx, run.End{State: run.Failed, ErrorMessage: f.Message, ErrorCode: f.Code})
	}
}

// cutShort ends a run in the middle of an answer and keeps the part that has arrived.
func (a *answering) cutShort(ctx context.Context, index int, partial *llm.Response, state run.State, reason string) error {
	end := run.End{State: state, FinishReason: reason}
	if !isEmpty(partial) {
		answer := a.toAnswer(index, partial)
		answer.Content = modelmsg.MarkCancelled(answer.Content)
		answer.Interrupted, answer.FinishReason, answer.Calls = true, string(llm.FinishOther), nil
		a.text = modelmsg.PlainText(answer.Content)
		end.Answer = &answer
	} else if err := a.recordWaste(ctx, index, partial); err != nil {
		return err
	}
	return a.finish(ctx, end)
}

// isEmpty reports whether nothing of an answer has arrived.
func isEmpty(partial *llm.Response) bool { return partial == nil || string(partial.Content) == "[]" }

// code returns the machine-readable name of a model failure, such as MODEL_OVERLOADED.
func code(e *llm.Error) string {
	b := []byte("MODEL_" + e.Kind.String())
	for i, c := range b {
		switch {
		case c == '-':
			b[i] = '_'
		case c >= 'a' && c <= 'z':
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}
