package sim

import (
	"slices"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/agent-runner/internal/run"
)

// readInbox is the reading half of run.ReadInbox; joinSteering is the other half.
func (d *rows) readInbox(c *run.Claim) (stop, steering bool, err error) {
	row := d.runs[c.Run.ID]
	if row == nil || row.Epoch != c.Run.Epoch || row.State != run.Running {
		return false, false, run.ErrFenced
	}
	for _, i := range d.inbox {
		if i.run == row.ID && !i.read && i.kind == "stop" {
			stop = true
			i.read = d.cfg.plant == forgetsStops
		}
	}
	return stop, len(d.unreadSteering(row.ID)) > 0, nil
}

func (d *rows) unreadSteering(r id.Run) []id.Message {
	var out []id.Message
	for _, i := range d.inbox {
		if i.run == r && i.kind == "steer" && !i.read {
			out = append(out, i.message)
		}
	}
	return out
}

func (d *rows) joinSteering(c *run.Claim) ([]run.Message, error) {
	_, s, err := d.fence(c)
	if err != nil {
		return nil, err
	}
	messages := d.unreadSteering(c.Run.ID)
	var out []run.Message
	for _, m := range messages {
		d.join(s, m)
	}
	for _, i := range d.inbox {
		i.read = i.read || i.run == c.Run.ID && slices.Contains(messages, i.message)
	}
	for _, m := range d.joined(s.id) {
		if slices.Contains(messages, m.ID) {
			out = append(out, m.Message)
		}
	}
	return out, nil
}

func (d *rows) finish(c *run.Claim, e run.End) error {
	row, s, err := d.fence(c)
	if d.cfg.plant == wakesEarly {
		d.say(run.EventMessages(c.Run.Workspace, e.Subject, e.Events)...)
	}
	if err != nil {
		return err
	}
	unread := d.unreadSteering(row.ID)
	if len(unread) > 0 && e.UnlessSteered {
		return run.ErrMoreToDo
	}
	if e.Answer != nil {
		if err := d.mayAnswer(c, *e.Answer); err != nil {
			return err
		}
		d.writeAnswer(row, s, *e.Answer, "complete")
		d.planCalls(c, *e.Answer)
	}
	for _, m := range unread {
		d.join(s, m)
	}
	if e.Answer != nil && !e.Answer.Interrupted {
		d.complete(row, e.Answer.Step)
	}
	now := d.cfg.now()
	row.State, row.Text, row.FinishReason, row.ErrorMessage, row.ErrorCode, row.ErrorRetryAt = e.State, e.Text, e.FinishReason, e.ErrorMessage, e.ErrorCode, e.ErrorRetryAt
	row.LastEvent = e.Events[len(e.Events)-1].GetNumber()
	row.EndedAt, row.lease, row.Fruitless = &now, time.Time{}, 0
	for _, i := range d.inbox {
		i.read = i.read || i.run == row.ID
	}
	d.say(run.EventMessages(row.Workspace, e.Subject, e.Events)...)
	if !d.wakeNext(s) {
		d.wakeOther(s.ws, row.ID)
	}
	return nil
}
