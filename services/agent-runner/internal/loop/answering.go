package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/price"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/clienttool"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/prompt"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/runlog"
	"signalbox.dev/services/agent-runner/internal/structured"
	"signalbox.dev/services/agent-runner/internal/toolbox"
)

// answering is the state of the work on one claim. Only the goroutine of run uses it.
type answering struct {
	*Loop
	claim    *run.Claim
	draining <-chan struct{}
	active   *activeRun

	log     *runlog.Writer
	waiter  *toolbox.Waiter
	dialect string
	model   Model
	preset  *preset.Preset
	session run.Settings
	tools   []*toolv1.Tool
	// catalogue has all tools of the workspace, enabled or not.
	catalogue []*toolv1.Tool
	taint     taint
	history   []run.Message
	text      string             // of the last step
	paused    bool               // the provider paused in its last answer
	schema    *structured.Schema // of the final answer; nil for free text
	problem   error              // what is wrong with the last answer, which the model is to repair
	repaired  bool               // it was told so in this run
	// unenforced is true if the provider has refused to enforce the schema.
	unenforced bool
	unread     bool        // the inbox may have something unread
	stepped    bool        // this claim has begun a step
	compacted  int         // summaries since the last answer
	titled     chan string // gets the title of a session that is being named; nil if it is not
	noSummary  *llm.Error  // why the conversation could not be compacted; nil if it can
	since      time.Time   // up to when the time of this claim is counted
	// interrupt ends the context of work that may be interrupted.
	interrupt context.CancelCauseFunc
}

// run works on the run. It returns nil when the run has ended or is parked, and an error
// when it cannot continue here.
func (a *answering) run(ctx context.Context) error {
	if err := a.load(ctx); err != nil {
		if f := fault.From(err); f.Kind == fault.TooLarge {
			return a.giveUp(ctx, f.Message, f.Code) // it would fail again
		}
		return err
	}
	last, err := a.Store.LastStep(ctx, a.claim)
	if err != nil {
		return err
	}
	tail, err := a.open(ctx, last)
	if err != nil {
		return err
	}
	defer a.log.Close()
	a.waiter = a.Tools.Listen(a.claim.Run.ID, a.cfg.Queueing)
	defer a.waiter.Close()

	stoppable, cancel, stop := a.watch(ctx)
	defer stop()
	a.interrupt = cancel
	if !a.claim.First {
		// A stop may have come while the run had no runner.
		inbox, err := a.Store.ReadInbox(ctx, a.claim, false)
		if err != nil {
			return err
		}
		if inbox.Stop {
			cancel(errStopped)
		}
	}
	if last != nil {
		a.text = lastText(a.claim.Run.ID, a.history)
		a.paused = last.State == "complete" && last.FinishReason == pausedReason
		if last.FinishReason == compactedReason {
			a.compacted = 1
		}
		if a.schema != nil && last.State == "complete" && last.FinishReason == repairReason {
			a.repaired = true
			_, a.problem = a.schema.Check(a.text)
		}
	}
	if last != nil && last.State == "answered" {
		a.claim.Budgeted = true // as far as it is known
		ended, err := a.runTools(ctx, stoppable, last, toldOf(tail, last.Index, a.claim.Run.LastEvent), true)
		if ended || err != nil {
			return err
		}
	}
	for {
		ended, err := a.step(ctx, stoppable)
		if ended || err != nil {
			return err
		}
	}
}

// load reads the conversation, the session's settings and its preset.
func (a *answering) load(ctx context.Context) (err error) {
	if a.history, a.session, err = a.Store.History(ctx, a.claim); err != nil {
		return err
	}
	if s := a.claim.Run.ResponseSchema; s != nil {
		if a.schema, err = structured.Compile(structured.ResponseFormat, s); err != nil {
			return err
		}
	}
	if a.preset = a.session.OwnPreset; a.preset != nil {
		return nil
	}
	if a.preset, err = a.Presets.Get(a.session.Preset); err != nil {
		// The workspace has deleted it, or another version of the service has it.
		if a.preset, err = a.Presets.Get(preset.Default); err != nil {
			return err
		}
	}
	return nil
}

// open opens the run log for this claim, writes its first events, and returns what the log
// held before.
func (a *answering) open(ctx context.Context, last *run.OpenStep) (runlog.Tail, error) {
	r := &a.claim.Run
	stream, subj := run.LogSubject(a.cfg.Partitions, r.Workspace, r.Session)
	asked := run.UserMessageEvent(r.UserMessage, r.CreatedBy, nil, r.CreatedAt)
	var joined []run.Message
	for _, m := range a.history {
		switch {
		case m.ID == r.UserMessage:
			asked = run.UserMessageEvent(m.ID, r.CreatedBy, m.Content, m.CreatedAt)
		case m.Run == r.ID && m.Role == string(llm.User):
			joined = append(joined, m)
		case m.Run == r.ID:
			joined = nil // messages that joined before an answer were emitted before its commit
		}
	}
	var held runlog.Tail
	w, err := runlog.Open(ctx, runlog.Config{Bus: a.Bus, Log: a.Log, Stream: stream, Subject: subj, Claim: a.claim, Patience: a.cfg.Patience},
		func(tail runlog.Tail) runlog.Opening {
			held = tail
			return opening(a.claim, asked, a.messageEvents(joined), last, tail)
		})
	a.log = w
	return held, err
}

// giveUp ends a run that would fail again in the same way.
func (a *answering) giveUp(ctx context.Context, message, code string) error {
	r := &a.claim.Run
	a.Log.ErrorContext(ctx, "run given up", "run", r.ID, "claims", r.Fruitless, "reason", message)
	end := run.End{State: run.Failed, ErrorMessage: message, ErrorCode: code}
	err := a.finishWithLog(ctx, end)
	if err == nil || errors.Is(err, run.ErrFenced) {
		return err
	}
	// End it without the log. Viewers learn of the end from the rows.
	_, end.Subject = run.LogSubject(a.cfg.Partitions, r.Workspace, r.Session)
	end.Events = runlog.Stamp(a.claim, r.LastEvent+1, failed(&end))
	return a.Store.Finish(ctx, a.claim, end)
}

// finishWithLog ends the run like any other, within giveUpTimeout.
func (a *answering) finishWithLog(ctx context.Context, end run.End) error {
	ctx, cancel := context.WithTimeout(ctx, giveUpTimeout)
	defer cancel()
	if err := a.load(ctx); err != nil {
		a.Log.WarnContext(ctx, "conversation not read", "run", a.claim.Run.ID, "error", err) // the end does not need it
	}
	last, err := a.Store.LastStep(ctx, a.claim)
	if err != nil {
		return err
	}
	if _, err := a.open(ctx, last); err != nil {
		return err
	}
	defer a.log.Close()
	return a.finish(ctx, end)
}

const giveUpTimeout = 5 * time.Second

// retryUnavailable retries do while a dependency is unavailable, for Config.Patience, because
// the work so far has been paid for. do must be safe to repeat; a commit whose reply was lost is
// recognized as committed.
func (a *answering) retryUnavailable(ctx context.Context, do func() error) error {
	begun := time.Now()
	for {
		err := do()
		if fault.KindOf(err) != fault.Unavailable || time.Since(begun) > a.cfg.Patience {
			return err
		}
		a.Log.WarnContext(ctx, "run waits for an unavailable dependency", "run", a.claim.Run.ID, "error", err)
		if stop := sleep(ctx, a.backoff(1)); stop != nil {
			return errors.Join(stop, err)
		}
	}
}

// watch returns a context for work that a person's stop or the run's deadline may interrupt.
// cancel ends the context; stop ends it and the watcher.
func (a *answering) watch(ctx context.Context) (stoppable context.Context, cancel context.CancelCauseFunc, stop func()) {
	end := func() {}
	if d := a.claim.Run.Deadline; d != nil {
		ctx, end = context.WithDeadlineCause(ctx, *d, errWallTime)
	}
	stoppable, cancel = context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stoppable.Done():
				return
			case <-a.active.unread:
			}
			var inbox run.Inbox
			err := panics.Try(func() (err error) {
				inbox, err = a.Store.ReadInbox(stoppable, a.claim, false)
				return err
			})
			switch {
			case errors.Is(err, run.ErrFenced):
				cancel(run.ErrFenced) // taken over, or deleted with its session
			case err != nil && stoppable.Err() == nil:
				a.Log.WarnContext(ctx, "inbox not read; the next renewal tries again", "run", a.claim.Run.ID, "error", err)
			case inbox.Stop:
				cancel(errStopped)
			}
		}
	})
	return stoppable, cancel, func() {
		cancel(nil)
		wg.Wait()
		end()
	}
}

// step works from one step border to the next. ended is true if the run has ended or is
// parked.
func (a *answering) step(ctx, stoppable context.Context) (ended bool, err error) {
	select {
	case <-a.draining:
		return true, a.park(ctx)
	default:
	}
	if a.stepped && a.active.yield.Load() {
		return true, a.park(ctx)
	}
	a.stepped = true
	if ended, err := a.readInbox(ctx); ended || err != nil {
		return ended, err
	}
	if reason := a.reachedLimit(stoppable); reason != "" {
		return true, a.finish(ctx, run.End{State: run.Done, FinishReason: reason})
	}
	index := a.claim.Run.Steps
	spent, err := a.reserve(stoppable)
	switch {
	case errors.Is(err, errParkRequested):
		return true, a.park(ctx)
	case err != nil:
		return a.callFailed(ctx, stoppable, index, nil, err)
	case spent.Reason != "":
		return true, a.finish(ctx, run.End{State: run.Done, FinishReason: spent.Reason, FinishDetail: spent.Detail})
	}
	if err := a.retryUnavailable(stoppable, func() error { return a.prepare(stoppable) }); err != nil {
		return a.callFailed(ctx, stoppable, index, nil, err)
	}
	if c := a.planCompaction(false); c != nil {
		// Done or not, the answer is another call, which reserves anew.
		_, ended, err := a.compact(ctx, stoppable, index, c)
		return ended, err
	}
	a.nameSession(ctx, index)
	res, err := a.callModel(stoppable, index)
	if isTooLong(err) && isEmpty(res) {
		if c := a.planCompaction(true); c != nil {
			if done, ended, err := a.compact(ctx, stoppable, index, c); done || ended || err != nil {
				return ended, err
			}
		}
		err = a.tooLong(err)
	}
	if err != nil {
		return a.callFailed(ctx, stoppable, index, res, err)
	}
	a.compacted = 0
	return a.commitAnswer(ctx, stoppable, index, res)
}

// readInbox reads the inbox at a step border, unless it is known to be empty: at the first
// claim, or if the last commit found it empty. A nudge announces what comes later.
func (a *answering) readInbox(ctx context.Context) (ended bool, err error) {
	empty := !a.unread
	a.unread = true
	if empty {
		return false, nil
	}
	inbox, err := a.Store.ReadInbox(ctx, a.claim, true)
	if err != nil {
		return false, err
	}
	if inbox.Stop {
		return true, a.finish(ctx, run.End{State: run.Cancelled, FinishReason: reasonCancelled})
	}
	return false, a.emitJoined(ctx, inbox.Joined)
}

// Finish reasons that the loop adds to the model's.
const (
	reasonCancelled = "cancelled"
	reasonMaxSteps  = "max-steps"
	reasonMaxTime   = "max-time"
	// reasonMaxStepTime: one model call took too long.
	reasonMaxStepTime = "max-step-time"
	// pausedReason marks a step in which the provider paused; the next step continues it.
	pausedReason = "pause"
	// repairReason marks a step whose answer does not satisfy the run's schema; the next one
	// repairs it.
	repairReason = "repair"
)

// reachedLimit returns the finish reason of the run's limit that is reached, or "".
func (a *answering) reachedLimit(stoppable context.Context) string {
	limit := a.preset.MaxSteps
	if a.session.MaxSteps != nil {
		limit = *a.session.MaxSteps
	}
	if a.problem != nil {
		limit++ // for the repair of an answer
	}
	switch {
	case errors.Is(context.Cause(stoppable), errWallTime):
		return reasonMaxTime
	case a.claim.Run.Steps-a.summaries() >= limit:
		return reasonMaxSteps
	}
	return ""
}

// emitJoined adds steering messages that have just joined to the history and the run log.
func (a *answering) emitJoined(ctx context.Context, joined []run.Message) error {
	a.history = append(a.history, joined...)
	for _, ev := range a.messageEvents(joined) {
		if err := a.log.Append(ctx, ev); err != nil {
			return err
		}
	}
	return nil
}

// messageEvents returns user_message events.
func (a *answering) messageEvents(messages []run.Message) []*runv1.Event {
	out := make([]*runv1.Event, len(messages))
	for i, m := range messages {
		by := a.claim.Run.CreatedBy
		if m.SteeredBy != nil {
			by = *m.SteeredBy
		}
		out[i] = userMessage(m, by)
	}
	return out
}

// pauseNotice is how long a runner that shuts down waits for the log to take the news.
const pauseNotice = time.Second

// park gives the run back at a step border, for another runner. Viewers are told if this one shuts
// down; otherwise the run goes on at once.
func (a *answering) park(ctx context.Context) error {
	if err := a.log.Flush(ctx); err != nil {
		return err
	}
	select {
	case <-a.draining:
		// Without an answer the event may still arrive: before the next claim opens the log, which then
		// counts it, or later, with an epoch that readers drop.
		if err := a.tellPause(ctx); err != nil {
			a.Log.WarnContext(ctx, "viewers were not told that the run is paused", "run", a.claim.Run.ID, "error", err)
		}
	default:
	}
	if err := a.Store.Park(ctx, a.claim); err != nil {
		return err
	}
	a.Log.InfoContext(ctx, "run parked at a step border", "run", a.claim.Run.ID, "steps", a.claim.Run.Steps)
	return nil
}

func (a *answering) tellPause(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pauseNotice)
	defer cancel()
	if err := a.log.Append(ctx, parkedByShutdown(a.claim.Run.Steps)); err != nil {
		return err
	}
	return a.log.Flush(ctx)
}

// commitAnswer commits a model's answer: as the end of the run, as a complete step, or with tool
// calls, which it then runs.
func (a *answering) commitAnswer(ctx, stoppable context.Context, index int, res *llm.Response) (ended bool, err error) {
	a.problem = nil
	answer := a.toAnswer(index, res)
	if err := a.log.Flush(ctx); err != nil {
		return false, err
	}
	a.Metrics.observeAnswer(a.claim.Run.Provider, answer.Usage, answer.CostMicros)
	if len(answer.Calls) > 0 {
		if err := a.applyRules(ctx, &answer); err != nil {
			return false, err
		}
		last := a.log.Next() + int64(len(answer.Calls)) - 1
		if err := a.retryUnavailable(ctx, func() error { return a.Store.CommitAnswer(ctx, a.claim, answer, last) }); err != nil {
			return false, err
		}
		a.appendAnswer(answer)
		for _, ev := range callsComplete(index, answer.Calls) {
			if err := a.log.Append(ctx, ev); err != nil {
				return false, err
			}
		}
		return a.runTools(ctx, stoppable, &run.OpenStep{
			Index: index, Message: answer.Message(), FinishReason: answer.FinishReason, InputTokens: answer.Usage.Input, OutputTokens: answer.Usage.Output, Calls: answer.Calls,
		}, toldOf(runlog.Tail{}, index, 0), false)
	}
	if !res.Paused {
		a.text = modelmsg.PlainText(answer.Content)
		if end := a.endOf(&answer); end != nil {
			err := a.finish(ctx, *end)
			if !errors.Is(err, run.ErrMoreToDo) {
				return true, err
			}
		}
	}
	next := a.log.Next()
	if err := a.retryUnavailable(ctx, func() error { return a.Store.CompleteStep(ctx, a.claim, answer, next) }); err != nil {
		return false, err
	}
	a.appendAnswer(answer)
	a.paused = res.Paused
	return false, a.log.Append(ctx, answerComplete(&answer))
}

// endOf returns the end of the run with an answer, or nil if the model has to repair the
// answer, which does not satisfy the run's schema.
func (a *answering) endOf(answer *run.Answer) *run.End {
	end := &run.End{State: run.Done, FinishReason: answer.FinishReason, Answer: answer, UnlessSteered: true}
	if a.schema == nil {
		return end
	}
	value, problem := a.schema.Check(a.text)
	switch {
	case problem == nil:
		a.text = string(value)
	case !a.repaired:
		a.repaired, a.problem = true, problem
		answer.FinishReason = repairReason
		return nil
	default:
		end.State, end.ErrorCode = run.Failed, "RESPONSE_FORMAT"
		end.ErrorMessage = "The model's answer does not satisfy the JSON Schema, even after it was asked to correct it: " + problem.Error()
	}
	return end
}

// toAnswer converts a response for its commit.
func (a *answering) toAnswer(index int, res *llm.Response) run.Answer {
	answer := run.Answer{
		ID:   id.Message(id.Derive(a.claim.Run.ID.UUID, "answer", fmt.Sprint(index))),
		Step: index, RawDialect: res.Raw.Dialect, Raw: res.Raw.Blocks, Model: a.claim.Run.Model, ResponseID: res.ID,
		FinishReason: string(res.Finish), Usage: usageOf(res), Time: a.worked(),
	}
	answer.CostMicros = a.cost(answer.Usage)
	if string(res.Content) != "[]" {
		answer.Content = res.Content
	}
	if res.Paused {
		answer.FinishReason = pausedReason
	}
	now := time.Now()
	for i, c := range res.ToolCalls {
		answer.Calls = append(answer.Calls, a.plan(index, i, c, now))
	}
	return answer
}

// plan returns the row of a call: its effect and deadline, or an outcome if it is refused.
func (a *answering) plan(step, i int, c llm.ToolCall, now time.Time) run.Call {
	call := run.Call{
		Key:   id.Derive(a.claim.Run.ID.UUID, fmt.Sprint(step), fmt.Sprint(i), c.ID),
		Index: i, ID: c.ID, Name: c.Name, Args: c.Args,
		Effect: toolv1.Effect_EFFECT_UNSAFE, Deadline: now.Add(a.callTime(nil)),
	}
	tool := a.tool(c.Name)
	switch {
	case tool == nil:
		call.Outcome = refused("unknown_tool", "there is no tool %q: use one of the tools that you were given", c.Name)
	case len(c.Args) > maxArgs:
		call.Outcome = refused("too_large", "the arguments are over %d KiB: split them into several calls", maxArgs>>10)
	case c.Invalid:
		call.Outcome = refused("invalid_arguments", "the arguments are not a JSON object: write them again")
	default:
		call.Effect = tool.GetEffect()
		call.Deadline = now.Add(a.callTime(tool))
		if problem := a.checkArgs(c); problem != nil {
			call.Outcome = refused("invalid_arguments", "the arguments do not satisfy the schema of %s: %v", c.Name, problem)
		}
	}
	return call
}

// checkArgs returns what is wrong with the arguments of a client's tool. Executors check those
// of the others.
func (a *answering) checkArgs(c llm.ToolCall) error {
	i := slices.IndexFunc(a.session.ClientTools, func(t clienttool.Tool) bool { return t.Name == c.Name })
	if i < 0 || !clienttool.Is(a.tool(c.Name)) {
		return nil
	}
	schema, err := a.session.ClientTools[i].Schema()
	if err != nil {
		return err
	}
	return schema.CheckValue(string(c.Args))
}

// tool returns the enabled tool of a name, or nil.
func (a *answering) tool(name string) (tool *toolv1.Tool) {
	for _, t := range a.tools {
		if t.GetName() == name && !prompt.IsProvider(t) {
			tool = t
		}
	}
	return tool
}

// callTime is how long a call may take from its dispatch.
func (a *answering) callTime(tool *toolv1.Tool) time.Duration {
	if ms := tool.GetDeadlineMs(); ms > 0 {
		return a.cfg.Queueing + time.Duration(ms)*time.Millisecond
	}
	return a.cfg.Queueing + a.cfg.ToolTime
}

// appendAnswer adds a committed answer to the conversation in memory.
func (a *answering) appendAnswer(answer run.Answer) {
	if answer.Content == nil {
		return
	}
	a.text = modelmsg.PlainText(answer.Content)
	a.history = append(a.history, run.Message{
		Run: a.claim.Run.ID, Role: string(llm.Assistant), Content: answer.Content, RawDialect: &answer.RawDialect, Raw: answer.Raw,
		TokensIn: &answer.Usage.Input, TokensOut: &answer.Usage.Output,
	})
}

// finish commits the end of the run; the outbox publishes its events. Unless e.UnlessSteered
// is set, unread steering messages join the conversation first, unanswered.
func (a *answering) finish(ctx context.Context, e run.End) error {
	if e.UnlessSteered {
		return a.end(ctx, e)
	}
	e.UnlessSteered = true // another message may come at the last moment
	for {
		joined, err := a.Store.JoinSteering(ctx, a.claim)
		if err != nil {
			return err
		}
		if err := a.emitJoined(ctx, joined); err != nil {
			return err
		}
		e.Time += a.worked()
		if err := a.end(ctx, e); !errors.Is(err, run.ErrMoreToDo) {
			return err
		}
	}
}

func (a *answering) end(ctx context.Context, e run.End) error {
	if err := a.tellTitle(ctx); err != nil {
		return err
	}
	if err := a.log.Flush(ctx); err != nil {
		return err
	}
	r := &a.claim.Run
	usage, steps := r.Usage(), r.Steps
	if e.Answer != nil {
		usage = usage.Add(e.Answer.Usage)
		if !e.Answer.Interrupted {
			steps = e.Answer.Step + 1
			e.Events = append(e.Events, answerComplete(e.Answer))
		}
	}
	e.Text = a.text
	if e.State == run.Failed {
		e.Events = append(e.Events, failed(&e))
	} else {
		e.Events = append(e.Events, done(r, a.allText(e.Answer), usage, steps, &e))
	}
	e.Events = a.log.Stamp(e.Events...)
	_, e.Subject = run.LogSubject(a.cfg.Partitions, r.Workspace, r.Session)
	if err := a.retryUnavailable(ctx, func() error { return a.Store.Finish(ctx, a.claim, e) }); err != nil {
		return err
	}
	reason := e.FinishReason
	if e.State == run.Failed {
		reason = "error"
	}
	a.Metrics.runs.WithLabelValues(reason).Inc()
	a.Log.InfoContext(ctx, "run ended", "run", r.ID, "session", r.Session, "workspace", r.Workspace, "state", string(e.State),
		"finish_reason", reason, "steps", steps, "tokens_in", usage.Input, "tokens_out", usage.Output, "epoch", r.Epoch, "error_code", e.ErrorCode)
	return nil
}

func usageOf(res *llm.Response) run.Usage {
	u := res.Usage
	return run.Usage{
		Input: boundedTokens(u.InputTokens), CacheRead: boundedTokens(u.CacheRead), CacheWrite: boundedTokens(u.CacheWrite),
		Output: boundedTokens(u.OutputTokens), Reasoning: boundedTokens(u.Reasoning), Estimated: res.Estimated,
	}
}

// maxTokens bounds the tokens of one call. A server that reports more, or less than none, would
// make sums overflow, or give back what was spent of a budget.
const maxTokens = 1 << 30

func boundedTokens(tokens int64) int64 { return min(max(tokens, 0), maxTokens) }

// cost returns the price of tokens of the run's model, as run.Answer.CostMicros.
func (a *answering) cost(u run.Usage) *int64 {
	return a.costOf(a.claim.Run.Provider, a.claim.Run.Model, u)
}

// costOf returns the price of a model's tokens, or nil if it is not known.
func (l *Loop) costOf(provider, model string, u run.Usage) *int64 {
	tokens := price.Tokens{Input: u.Input, CacheRead: u.CacheRead, CacheWrite: u.CacheWrite, Output: u.Output}
	if cost, known := l.Prices.Cost(provider, model, tokens); known {
		return &cost
	}
	return nil
}

// allText returns the text of all steps; last is an answer that is not committed yet, or nil.
func (a *answering) allText(last *run.Answer) string {
	var contents []json.RawMessage
	for _, m := range a.history {
		if m.Run == a.claim.Run.ID && m.Role == string(llm.Assistant) {
			contents = append(contents, m.Content)
		}
	}
	if last != nil {
		contents = append(contents, last.Content)
	}
	return modelmsg.PlainTexts(contents)
}

// lastText returns the text of a run's last answer.
func lastText(r id.Run, history []run.Message) string {
	for _, h := range slices.Backward(history) {
		if h.Run == r && h.Role == string(llm.Assistant) {
			return modelmsg.PlainText(h.Content)
		}
	}
	return ""
}
