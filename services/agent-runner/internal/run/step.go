package run

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/subject"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/budget"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// Answer is the model's side of a step.
type Answer struct {
	// ID is that of the message which stores the answer.
	ID   id.Message
	Step int
	// Content is the assistant message in the AI SDK's format. If it is nil, the model said
	// nothing and no message is stored.
	Content json.RawMessage
	// RawDialect and Raw are the provider's own blocks.
	RawDialect   string
	Raw          []byte
	Model        string
	ResponseID   string
	FinishReason string
	Usage        Usage
	// CostMicros is the list price of the call in millionths of a dollar; nil if unknown.
	CostMicros *int64
	// Time is how long the run has been worked on since the last commit.
	Time        time.Duration
	Interrupted bool
	Calls       []Call
	// Summary is set for a step that made a summary instead of an answer.
	Summary *Summary
}

// Message returns the id of the stored message; nil if there is none.
func (a *Answer) Message() *id.Message {
	if a.Content == nil {
		return nil
	}
	return &a.ID
}

// Call is a tool call of an answer.
type Call struct {
	Key   id.Operation
	Index int
	ID    string `db:"tool_call_id"`
	Name  string `db:"tool_name"`
	// Args is a JSON object.
	Args     json.RawMessage
	Effect   toolv1.Effect
	Deadline time.Time
	// Outcome is set for a call that is refused without being dispatched, such as one for a
	// tool that is not enabled.
	Outcome *Outcome
	// Ask is set if a person is or was asked about the call, or a rule has answered for one.
	Ask *Ask
	// Announced says what the run's last event covers of the call.
	Announced Announced
}

// Outcome is how a call ended.
type Outcome struct {
	State      toolv1.OutcomeState
	Result     json.RawMessage
	ErrorType  string
	Summary    string
	DurationMS int64
}

// IsError reports whether the model sees the result as an error.
func (o *Outcome) IsError() bool { return o.State != toolv1.OutcomeState_OUTCOME_STATE_OK }

// CommitAnswer commits the model's answer and its tool calls. The caller dispatches those
// without an outcome, unless they wait for a person. lastEvent is the number of the last event
// that announces the answer.
//
// Like the other commits it may be repeated if its result is unknown.
func (s *Store) CommitAnswer(ctx context.Context, c *Claim, a Answer, lastEvent int64) error {
	_, err := s.commit(ctx, c, a.Step, "answered", func(b *pgx.Batch) error {
		queueAnswer(b, c, &a, "answered")
		queueProgress(b, c, a.Usage, 0, lastEvent)
		queueCalls(b, c, &a)
		return nil
	})
	if err != nil {
		return fmt.Errorf("commit the answer of step %d: %w", a.Step, err)
	}
	c.Run.LastEvent = lastEvent
	c.Run.add(a.Usage)
	return nil
}

// queueAnswer writes the message, the step and its usage.
func queueAnswer(b *pgx.Batch, c *Claim, a *Answer, state string) {
	args := usageArgs(c, a.Step, a.Usage, a.CostMicros)
	args["state"], args["response"], args["reason"] = state, a.ResponseID, a.FinishReason
	args["model"], args["calls"] = a.Model, len(a.Calls)
	if a.Content != nil {
		args["id"], args["role"], args["content"] = a.ID, "assistant", string(a.Content)
		args["dialect"], args["raw"], args["interrupted"] = a.RawDialect, a.Raw, a.Interrupted
		queueMessage(b, args)
	}
	b.Queue(`
		INSERT INTO steps (run_id, step_index, workspace_id, state, response_id, finish_reason,
			input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens, estimated, committed_at)
		VALUES (@run, @step, @workspace, @state, @response, @reason, @in, @cacheread, @cachewrite, @out, @reasoning, @estimated, clock_timestamp())
		ON CONFLICT (run_id, step_index) DO UPDATE SET
			state = @state, response_id = @response, finish_reason = @reason, input_tokens = @in, cache_read_tokens = @cacheread,
			cache_write_tokens = @cachewrite, output_tokens = @out, reasoning_tokens = @reasoning, estimated = @estimated,
			committed_at = clock_timestamp()`, args)
	b.Queue(`
		INSERT INTO usage (run_id, step_index, workspace_id, session_id, member_id, provider, model,
			input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens, estimated, tool_calls, cost_micros)
		VALUES (@run, @step, @workspace, @session, @member, @provider, @model, @in, @cacheread, @cachewrite, @out, @reasoning, @estimated, @calls, @cost)`, args)
	amount := spent(a.Usage, a.CostMicros, 1)
	amount.Time = a.Time
	budget.QueueSpent(b, args, amount)
	if a.Summary != nil {
		queueSummary(b, c, a.Summary)
	}
}

// spent returns what a model call takes from the budgets.
func spent(u Usage, costMicros *int64, steps int64) budget.Amount {
	a := budget.Amount{Tokens: u.Input + u.Output, Steps: steps}
	if costMicros != nil {
		a.CostMicros = *costMicros
	}
	return a
}

// queueTime adds running time to the budgets, if there are any.
func queueTime(b *pgx.Batch, c *Claim, t time.Duration) {
	if c.Budgeted && t > 0 {
		args := c.key()
		args["member"] = c.Run.CreatedBy
		budget.QueueSpent(b, args, budget.Amount{Time: t})
	}
}

// usageArgs returns arguments with the usage of a step.
func usageArgs(c *Claim, step int, u Usage, costMicros *int64) pg.Args {
	args := c.key()
	args["step"], args["member"], args["provider"] = step, c.Run.CreatedBy, c.Run.Provider
	args["in"], args["cacheread"], args["cachewrite"] = u.Input, u.CacheRead, u.CacheWrite
	args["out"], args["reasoning"], args["estimated"], args["cost"] = u.Output, u.Reasoning, u.Estimated, costMicros
	return args
}

// queueCalls writes the rows of an answer's calls. No call is dispatched without its row, and
// the claim's holder dispatches every call whose row has no outcome and is not planned.
func queueCalls(b *pgx.Batch, c *Claim, a *Answer) {
	for _, call := range a.Calls {
		args := c.key()
		args["key"], args["step"], args["index"] = call.Key, a.Step, call.Index
		args["callid"], args["name"], args["args"] = call.ID, call.Name, string(call.Args)
		args["effect"], args["deadline"] = effectName(call.Effect), call.Deadline
		b.Queue(`
			INSERT INTO tool_calls (key, workspace_id, session_id, run_id, step_index, call_index, tool_call_id, tool_name,
				args, effect, phase, deadline, planned_at)
			VALUES (@key, @workspace, @session, @run, @step, @index, @callid, @name, @args, @effect, 'dispatched', @deadline, clock_timestamp())`, args)
		if call.Ask != nil {
			queueAsk(b, c, &call)
		}
		if call.Outcome != nil {
			queueOutcome(b, c, call.Key, call.Outcome)
		}
	}
}

// Dispatch returns the message that asks an executor to run a call. Each round of each
// epoch has its own message id, so that the stream takes it; the executor recognizes a
// repeated call by its key.
func Dispatch(r *Run, step int, call Call, epoch int64, round int) outbox.Message {
	return outbox.Message{
		Workspace: r.Workspace,
		Subject:   subject.ToolWork(call.Name),
		ID:        fmt.Sprintf("%s:%d:%d", call.Key, epoch, round),
		Body:      work(r, step, call),
	}
}

func queueOutcome(batch *pgx.Batch, c *Claim, key id.Operation, o *Outcome) {
	args := c.key()
	args["key"], args["outcome"], args["result"] = key, outcomeName(o.State), string(o.Result)
	args["errortype"], args["summary"], args["duration"] = o.ErrorType, o.Summary, o.DurationMS
	batch.Queue(`
		UPDATE tool_calls SET phase = 'done', state = @outcome, result = @result, error_type = @errortype,
			summary = @summary, duration_ms = @duration, done_at = clock_timestamp()
		WHERE workspace_id = @workspace AND key = @key AND phase <> 'done'`, args)
}

// Results is the tools' side of a step.
type Results struct {
	Step int
	// Content is the tool message: results in call order.
	Content  json.RawMessage
	Outcomes map[id.Operation]*Outcome
	Time     time.Duration // as in Answer
}

// CommitResults commits the outcomes of a step's calls, which completes the step.
// lastEvent is the number of its step-complete event. If unread is false, the inbox was
// empty at the commit and need not be read at the step border that follows.
func (s *Store) CommitResults(ctx context.Context, c *Claim, r Results, lastEvent int64) (unread bool, err error) {
	again, err := s.commit(ctx, c, r.Step, "complete", func(b *pgx.Batch) error {
		queueResults(b, c, &r)
		queueTime(b, c, r.Time)
		queueProgress(b, c, Usage{}, r.Step+1, lastEvent)
		queueUnread(b, c, &unread)
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("commit the results of step %d: %w", r.Step, err)
	}
	c.Run.LastEvent = lastEvent
	c.Run.Steps = r.Step + 1
	return unread || again, nil
}

func queueResults(b *pgx.Batch, c *Claim, r *Results) {
	for key, o := range r.Outcomes {
		queueOutcome(b, c, key, o)
	}
	args := c.key()
	args["id"], args["role"], args["content"], args["step"] = id.New[id.Message](), "tool", string(r.Content), r.Step
	args["dialect"], args["raw"], args["interrupted"], args["in"], args["out"], args["model"] = nil, nil, false, nil, nil, ""
	queueMessage(b, args)
	b.Queue(`
		UPDATE steps SET state = 'complete', committed_at = clock_timestamp()
		WHERE workspace_id = @workspace AND run_id = @run AND step_index = @step`, args)
}

// CompleteStep commits an answer without tool calls that is not the run's last, because the
// provider paused or a steering message came, or commits a summary. It completes the step.
func (s *Store) CompleteStep(ctx context.Context, c *Claim, a Answer, lastEvent int64) error {
	_, err := s.commit(ctx, c, a.Step, "complete", func(b *pgx.Batch) error {
		queueAnswer(b, c, &a, "complete")
		queueProgress(b, c, a.Usage, a.Step+1, lastEvent)
		return nil
	})
	if err != nil {
		return fmt.Errorf("commit step %d: %w", a.Step, err)
	}
	c.Run.LastEvent, c.Run.Steps = lastEvent, a.Step+1
	c.Run.add(a.Usage)
	return nil
}

// AddWaste records the tokens of a model call that failed midway, and their cost as in
// Answer.CostMicros. The usage of the run does not include them.
func (s *Store) AddWaste(ctx context.Context, c *Claim, step int, wasted Usage, costMicros *int64) error {
	args := usageArgs(c, step, wasted, costMicros)
	args["model"] = c.Run.Model
	_, err := s.commit(ctx, c, step, "", func(b *pgx.Batch) error {
		b.Queue(`
			INSERT INTO steps (run_id, step_index, workspace_id, state, wasted_input_tokens, wasted_output_tokens)
			VALUES (@run, @step, @workspace, 'open', @in, @out)
			ON CONFLICT (run_id, step_index) DO UPDATE SET
				wasted_input_tokens = steps.wasted_input_tokens + @in, wasted_output_tokens = steps.wasted_output_tokens + @out`, args)
		queueUsage(b, args, true)
		budget.QueueSpent(b, args, spent(wasted, costMicros, 0))
		return nil
	})
	if err != nil {
		return fmt.Errorf("record the waste of step %d: %w", step, err)
	}
	return nil
}

// queueUsage adds to the usage of a step that is not an answer's: of calls that failed midway, or of
// the title.
func queueUsage(b *pgx.Batch, args pg.Args, wasted bool) {
	args["wasted"] = wasted
	b.Queue(`
		INSERT INTO usage (run_id, step_index, wasted, workspace_id, session_id, member_id, provider, model,
			input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, reasoning_tokens, estimated, tool_calls, cost_micros)
		VALUES (@run, @step, @wasted, @workspace, @session, @member, @provider, @model, @in, @cacheread, @cachewrite, @out, @reasoning, @estimated, 0, @cost)
		ON CONFLICT (run_id, step_index, wasted) DO UPDATE SET
			input_tokens = usage.input_tokens + @in, cache_read_tokens = usage.cache_read_tokens + @cacheread,
			cache_write_tokens = usage.cache_write_tokens + @cachewrite, output_tokens = usage.output_tokens + @out,
			reasoning_tokens = usage.reasoning_tokens + @reasoning, estimated = usage.estimated OR @estimated,
			cost_micros = usage.cost_micros + @cost`, args)
}

// OpenStep is the newest committed step as a new claim finds it. It is answered and lacks
// results, or it is complete.
type OpenStep struct {
	Index int `db:"step_index"`
	// Message is the one with the answer; nil if the model said nothing.
	Message      *id.Message
	State        string
	FinishReason string
	InputTokens  int64
	OutputTokens int64
	// Waited is true if the run has waited for a person in this step. Then the commit that
	// parked it is the newest of the run.
	Waited bool
	Calls  []Call `db:"-"`
}

// lastStep holds the rows of the newest committed step and its calls.
type lastStep struct {
	steps []OpenStep
	calls []Call
}

// queueLastStep reads the newest committed step and its calls if the condition holds.
func queueLastStep(b *pgx.Batch, args pg.Args, condition string) *lastStep {
	l := &lastStep{}
	b.Queue(`
		SELECT step_index, (SELECT m.id FROM messages m
				WHERE m.workspace_id = @workspace AND m.run_id = @run AND m.session_id = @session AND m.step_index = steps.step_index AND m.role = 'assistant') AS message,
			state, finish_reason, input_tokens, output_tokens, waiting_since IS NOT NULL AS waited FROM steps
		WHERE workspace_id = @workspace AND run_id = @run AND state <> 'open' AND `+condition+`
		ORDER BY step_index DESC LIMIT 1`, args).Query(pg.Collect(&l.steps))
	b.Queue(`
		SELECT key, call_index, tool_call_id, tool_name, args, effect, deadline, phase, state, coalesce(result, 'null'), error_type, summary, duration_ms,
			question, asked_why, expires_at, time_limit_ms, decision, decided_why, decided_by, announced, args_hash
		FROM tool_calls
		WHERE workspace_id = @workspace AND run_id = @run AND `+condition+` AND step_index = (
			SELECT max(step_index) FROM steps WHERE workspace_id = @workspace AND run_id = @run AND state <> 'open')
		ORDER BY call_index`, args).Query(func(rows pgx.Rows) (err error) {
		l.calls, err = pgx.CollectRows(rows, scanCall)
		return err
	})
	return l
}

// LastStep returns the newest committed step of a run with its calls, or nil if no step is
// committed. The first call after Claim returns what was read with the claim.
func (s *Store) LastStep(ctx context.Context, c *Claim) (*OpenStep, error) {
	l := c.last
	c.last = nil
	if l == nil {
		b := &pgx.Batch{}
		l = queueLastStep(b, c.key(), "true")
		if err := s.db.ReadInWorkspace(ctx, c.Run.Workspace, b); err != nil {
			return nil, fmt.Errorf("read the last step of run %s: %w", c.Run.ID, err)
		}
	}
	if len(l.steps) == 0 {
		return nil, nil //nolint:nilnil // no step is committed
	}
	step := &l.steps[0]
	step.Calls = l.calls
	return step, nil
}

func scanCall(row pgx.CollectableRow) (Call, error) {
	var (
		call                 Call
		o                    Outcome
		ask                  Ask
		effect, phase, state string
		until                *time.Time
		limit                int64
	)
	err := row.Scan(&call.Key, &call.Index, &call.ID, &call.Name, &call.Args, &effect, &call.Deadline,
		&phase, &state, &o.Result, &o.ErrorType, &o.Summary, &o.DurationMS,
		&ask.Question, &ask.Why, &until, &limit, &ask.Decision, &ask.DecisionReason, &ask.DecidedBy, &call.Announced, &ask.ArgsHash)
	call.Effect = effectOf(effect)
	if phase == "done" {
		o.State = outcomeOf(state)
		call.Outcome = &o
	}
	if ask.Question != "" {
		ask.TimeLimit = time.Duration(limit) * time.Millisecond
		if until != nil {
			ask.Until = *until
		}
		call.Ask = &ask
	}
	return call, err
}
