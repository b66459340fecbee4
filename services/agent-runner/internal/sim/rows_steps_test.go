package sim

import (
	"errors"
	"slices"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/agent-runner/internal/run"
)

// errDuplicate is a violation of a table's unique key.
var errDuplicate = errors.New("duplicate key value violates unique constraint")

// committed reports whether a step is already in one of the states.
func (d *rows) committed(c *run.Claim, step int, states ...string) bool {
	s := d.steps[stepKey{c.Run.ID, step}]
	return s != nil && slices.Contains(states, s.state) && d.cfg.plant != commitsOnce
}

func (d *rows) commitAnswer(c *run.Claim, a run.Answer, lastEvent int64) error {
	row, s, err := d.fence(c)
	if err != nil || d.committed(c, a.Step, "answered", "complete") {
		return err
	}
	if err := d.mayAnswer(c, a); err != nil {
		return err
	}
	d.writeAnswer(row, s, a, "answered")
	d.planCalls(c, a)
	row.LastEvent, row.Fruitless = lastEvent, 0
	return nil
}

// mayAnswer checks the unique keys.
func (d *rows) mayAnswer(c *run.Claim, a run.Answer) error {
	if _, ok := d.usage[stepKey{c.Run.ID, a.Step}]; ok {
		return errDuplicate
	}
	for _, call := range a.Calls {
		if d.calls[call.Key] != nil {
			return errDuplicate
		}
	}
	return nil
}

func (d *rows) writeAnswer(row *runRow, s *sessionRow, a run.Answer, state string) {
	if a.Content != nil {
		in, out, step, dialect := a.Usage.Input, a.Usage.Output, a.Step, a.RawDialect
		s.place(d.insertMessage(s, messageRow{Message: run.Message{
			ID: a.ID, Run: row.ID, StepIndex: &step, Role: "assistant", Content: a.Content, RawDialect: &dialect, Raw: a.Raw,
			Interrupted: a.Interrupted, TokensIn: &in, TokensOut: &out, Model: a.Model,
		}}))
	}
	key := stepKey{row.ID, a.Step}
	wasted := run.Usage{}
	if old := d.steps[key]; old != nil {
		wasted = old.wasted
	}
	d.steps[key] = &stepRow{state: state, message: a.Message(), response: a.ResponseID, reason: a.FinishReason, usage: a.Usage, wasted: wasted}
	d.usage[key] = a.Usage
	addUsage(&row.Run, a.Usage)
	if a.Summary != nil && d.cfg.plant != losesSummaries {
		made := *a.Summary
		made.Run = row.ID
		d.summaries[key] = made
		d.keepSummary(s, made)
	}
}

func (d *rows) planCalls(c *run.Claim, a run.Answer) {
	for _, call := range a.Calls {
		row := &callRow{Call: call, run: c.Run.ID, step: a.Step, done: call.Outcome != nil}
		if call.Ask != nil {
			row.ask(*call.Ask)
		}
		d.calls[call.Key] = row
	}
}

func (d *rows) commitResults(c *run.Claim, r run.Results, lastEvent int64) (mail bool, err error) {
	row, s, err := d.fence(c)
	if err != nil || d.committed(c, r.Step, "complete") {
		return err == nil, err
	}
	d.writeResults(row, s, r)
	row.LastEvent, row.Fruitless = lastEvent, 0
	return slices.ContainsFunc(d.inbox, func(i *inboxRow) bool { return i.run == row.ID && !i.read }), nil
}

func (d *rows) writeResults(row *runRow, s *sessionRow, r run.Results) {
	for key, o := range r.Outcomes {
		if call := d.calls[key]; call != nil && !call.done {
			call.Outcome, call.done = o, true
		}
	}
	step := r.Step
	s.place(d.insertMessage(s, messageRow{Message: run.Message{Run: row.ID, StepIndex: &step, Role: "tool", Content: r.Content}}))
	d.complete(row, r.Step)
}

func (d *rows) complete(row *runRow, step int) {
	if s := d.steps[stepKey{row.ID, step}]; s != nil {
		s.state = "complete"
	}
	row.Steps = max(row.Steps, step+1)
}

func (d *rows) completeStep(c *run.Claim, a run.Answer, lastEvent int64) error {
	row, s, err := d.fence(c)
	if err != nil || d.committed(c, a.Step, "complete") {
		return err
	}
	if err := d.mayAnswer(c, a); err != nil {
		return err
	}
	d.writeAnswer(row, s, a, "complete")
	d.complete(row, a.Step)
	row.LastEvent, row.Fruitless = lastEvent, 0
	return nil
}

func (d *rows) addWaste(c *run.Claim, step int, wasted run.Usage) error {
	if _, _, err := d.fence(c); err != nil {
		return err
	}
	key := stepKey{c.Run.ID, step}
	if d.steps[key] == nil {
		d.steps[key] = &stepRow{state: "open"}
	}
	d.steps[key].wasted = d.steps[key].wasted.Add(wasted)
	d.wasted[key] = d.wasted[key].Add(wasted)
	return nil
}

func (d *rows) lastStep(c *run.Claim) *run.OpenStep {
	for i := d.maxStep(c.Run.ID); i >= 0; i-- {
		s := d.steps[stepKey{c.Run.ID, i}]
		if s == nil || s.state == "open" {
			continue
		}
		return &run.OpenStep{
			Index: i, Message: s.message, State: s.state, FinishReason: s.reason, InputTokens: s.usage.Input, OutputTokens: s.usage.Output,
			Waited: !s.waitingSince.IsZero(),
			Calls:  d.callsOf(c.Run.ID, i),
		}
	}
	return nil
}

func (d *rows) maxStep(r id.Run) int {
	last := -1
	for k := range d.steps {
		if k.run == r {
			last = max(last, k.index)
		}
	}
	return last
}

func (d *rows) readHistory(c *run.Claim) ([]run.Message, run.Settings, error) {
	s := d.session(c.Run.Workspace, c.Run.Session)
	if s == nil {
		return nil, run.Settings{}, run.ErrFenced // deleted
	}
	var out []run.Message
	for _, m := range d.branch(s, s.leaf) {
		out = append(out, m.Message)
	}
	return out, run.Settings{Preset: s.preset, MaxSteps: s.maxSteps, ClientTools: d.cfg.clientTools, Summary: d.summaryOf(s)}, nil
}
