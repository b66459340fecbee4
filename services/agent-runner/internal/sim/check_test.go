package sim

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/run"
)

// observer checks the rows after every transaction for invariants that always hold.
type observer struct {
	states map[id.Run]run.State
}

// observe compares the runs with their previous state.
func (w *world) observe() {
	active := map[id.Session]int64{}
	for _, r := range w.pg.allRuns {
		if w.pg.runs[r.ID] != r {
			continue
		}
		before := w.watcher.states[r.ID]
		w.watcher.states[r.ID] = r.State
		if before.Ended() && before != r.State {
			w.violation("run %s was %s and is %s", runLabel(&r.Run), before, r.State)
		}
		if r.State == run.Waiting && (r.runner != "" || !r.lease.IsZero()) {
			w.violation("run %s waits for a person or a client and has the runner %q", runLabel(&r.Run), r.runner)
		}
		if r.State != run.Running && r.State != run.Waiting {
			continue
		}
		if other, ok := active[r.Session]; ok {
			w.violation("runs %d and %d of session %s are both active", other, r.Ordinal, short(r.Session))
		}
		active[r.Session] = r.Ordinal
		if before != run.Running && before != run.Waiting {
			for _, o := range w.pg.runsOf(r.Session) {
				if o.State == run.Queued && o.Ordinal < r.Ordinal {
					w.violation("run %s starts before run %s", runLabel(&r.Run), runLabel(&o.Run))
				}
			}
		}
	}
}

// checkTaken checks that no run is taken from a healthy runner that works on it.
func (w *world) checkTaken(by *process, c *run.Claim, from claimant) {
	w.note("claim", label(c), "by", by.name, "from", from.runner)
	for _, p := range w.processes {
		if p == nil || p.name != from.runner || p.dead || time.Since(p.ill) < lease+2*beat {
			continue
		}
		if p.holding[c.Run.ID] == from.epoch && time.Since(p.renewed) < lease-beat {
			w.violation("%s takes run %s from %s, which is well and at work on it", by.name, label(c), p.name)
		}
	}
}

// checkWanted checks that no model is called for a run whose runner knows of a stop.
func (w *world) checkWanted(p *process, session string) {
	for _, r := range w.pg.runs {
		if r.Session.String() == session && r.State == run.Running && r.runner == p.name && !r.stop.IsZero() && r.border.After(r.stop) {
			w.violation("%s asks the model in run %s, which was to stop", p.name, runLabel(&r.Run))
		}
	}
}

// checkPlanned checks that every dispatched call has a row.
func (w *world) checkPlanned(c *toolv1.Call) {
	key, err := id.Parse[id.Operation](c.GetKey())
	session, err2 := id.Parse[id.Session](c.GetSessionId())
	if err != nil || err2 != nil {
		w.violation("call %v has no key", c)
		return
	}
	row := w.pg.calls[key]
	// A call whose outcome is unknown was approved before, and that message may come again.
	if c.GetToolName() == clientTool || row != nil && !row.MayRun() && !row.done && row.Ask.Question != run.AskOutcome {
		w.violation("call %s of run %s was dispatched without an approval", c.GetToolCallId(), c.GetRunId())
	}
	if w.pg.sessions[session] != nil && row == nil && !w.pg.retired[key] {
		w.violation("call %s of run %s was dispatched before it was written down", c.GetToolCallId(), c.GetRunId())
	}
}

// limits bound the waits while there are no faults.
type limits struct {
	death  time.Duration // a run whose runner died
	orphan time.Duration // a run whose lease ran out
	turn   time.Duration // a run whose turn it is
	stop   time.Duration // a run that a person stopped
	over   time.Duration // a run after its deadline
	say    time.Duration // the outbox
}

// limits are wider if requests are slow or replies are lost: a run that fails several times is
// finally released with a wait of ten seconds.
func (s *shape) limits() limits {
	if s.slowRows == 0 && s.slowBus == 0 && s.lostAnswers == 0 && s.lostAcks == 0 {
		return limits{death: 5 * time.Second, orphan: 5 * time.Second, turn: 8 * time.Second, stop: 4 * time.Second, over: 8 * time.Second, say: 8 * time.Second}
	}
	return limits{death: 25 * time.Second, orphan: 25 * time.Second, turn: 30 * time.Second, stop: 45 * time.Second, over: 60 * time.Second, say: 30 * time.Second}
}

// checkWaiting checks that nothing waits for long while there are no faults.
func (w *world) checkWaiting() {
	if w.troubles > 0 || w.reported {
		return
	}
	waits := func(since time.Time, limit time.Duration, format string, args ...any) {
		for _, t := range []time.Time{w.trouble, w.crowded} {
			if since.Before(t) {
				since = t
			}
		}
		if time.Since(since) > limit {
			w.reported = true
			w.violation(format, args...)
		}
	}
	limit := w.shape.limits()
	// Times in rows are of Postgres' clock.
	ours := func(t time.Time) time.Time { return t.Add(-w.pg.ahead) }
	capacity, active := 0, 0
	for _, p := range w.runners() {
		if !p.leaves() {
			capacity += w.shape.slots
		}
	}
	for _, r := range w.pg.runs {
		if r.State == run.Running {
			active++
		}
	}
	atLimit := slices.ContainsFunc(w.pg.allRuns, func(r *runRow) bool { return w.pg.held(r.Workspace) >= w.pg.most() })
	if active >= capacity || atLimit {
		w.crowded = time.Now() // waiting runs may be waiting for a slot
	}
	for _, r := range w.pg.allRuns {
		switch {
		case w.pg.runs[r.ID] != r:
		case r.State == run.Running:
			if died := w.death(r.runner); !died.IsZero() {
				waits(died, limit.death, "nobody takes run %s, whose runner died", runLabel(&r.Run))
			}
			if w.pg.needsSlot(r) {
				waits(ours(r.lease), limit.turn, "nobody goes on with run %s after an answer", runLabel(&r.Run))
			} else {
				waits(ours(r.lease), limit.orphan, "nobody takes run %s, whose lease ran out", runLabel(&r.Run))
			}
			if !r.stop.IsZero() {
				waits(r.stop, limit.stop, "run %s does not stop", runLabel(&r.Run))
			}
			if r.Deadline != nil {
				waits(ours(*r.Deadline), limit.over+w.pg.ahead.Abs(), "run %s goes on after its deadline", runLabel(&r.Run))
			}
		case r.State == run.Waiting:
			w.checkAsked(r, waits, limit)
		case r.State == run.Queued && !w.pg.blocked(r):
			waits(ours(w.turn(r)), limit.turn, "nobody begins with run %s", runLabel(&r.Run))
		}
	}
	if len(w.pg.outbox) > 0 {
		waits(w.saidAll, limit.say, "the outbox keeps %d messages, the first is %s", len(w.pg.outbox), w.pg.outbox[0].MessageID)
	} else {
		w.saidAll = time.Now()
	}
}

// checkAsked checks that a run that waits for a person has a question, and not for ever.
func (w *world) checkAsked(r *runRow, waits func(since time.Time, limit time.Duration, format string, args ...any), limit limits) {
	if !r.stop.IsZero() {
		waits(r.stop, limit.stop, "run %s waits for a person or a client and does not stop", runLabel(&r.Run))
	}
	asked := false
	for _, c := range w.pg.calls {
		if c.run != r.ID || !c.Waits() {
			continue
		}
		asked = true
		waits(c.Ask.Until.Add(-w.pg.ahead), 5*time.Second+limit.orphan+w.pg.ahead.Abs(), "run %s waits for an answer about %s for ever", runLabel(&r.Run), c.ID)
	}
	if !asked {
		w.violation("run %s waits for a person or a client, and nobody is asked", runLabel(&r.Run))
	}
}

// death returns when a runner died, or the zero time.
func (w *world) death(runner string) time.Time {
	for _, p := range w.all {
		if p.name == runner && p.dead {
			return p.died
		}
	}
	return time.Time{}
}

// turn returns since when a queued run could start.
func (w *world) turn(r *runRow) time.Time {
	since := r.CreatedAt
	for _, o := range w.pg.runsOf(r.Session) {
		if o.EndedAt != nil && o.EndedAt.After(since) {
			since = *o.EndedAt
		}
	}
	return since
}

// checkEnd checks the invariants of the final state.
func (w *world) checkEnd(people []*person) {
	for _, r := range w.pg.runs {
		if !r.State.Ended() {
			w.violation("run %s has not ended: %s", runLabel(&r.Run), r.State)
		}
	}
	if n := len(w.pg.outbox); n > 0 {
		w.violation("the outbox holds %d messages", n)
	}
	for _, s := range w.nats.streams {
		if s.reader != nil && len(s.reader.entries) > 0 {
			w.violation("stream %s holds %d messages", s.name, len(s.reader.entries))
		}
	}
	for _, p := range people {
		w.checkAccepted(p)
	}
	for _, s := range w.pg.allSessions {
		if w.pg.sessions[s.id] != s {
			continue
		}
		w.checkBranches(s)
		for _, r := range w.pg.runsOf(s.id) {
			w.checkRun(r)
		}
		w.checkLog(s)
	}
	w.checkCalls(people)
}

// checkAccepted checks that every accepted message is stored once.
func (w *world) checkAccepted(p *person) {
	if w.pg.sessions[p.session] == nil {
		return
	}
	found := map[string]int{}
	for _, m := range w.pg.joined(p.session) {
		if m.key != "" {
			found[m.key]++
		}
	}
	for _, r := range w.pg.runsOf(p.session) {
		if r.key != "" {
			found[r.key]++
		}
	}
	for key, out := range p.accepted {
		if found[key] != 1 {
			w.violation("message %q was accepted and is %d times in the conversation", key, found[key])
		}
		if w.pg.runs[out.Run.ID] == nil {
			w.violation("message %q was accepted and has no run", key)
		}
	}
}

// stuck is the error code of a run that was given up.
const stuck = "RUN_STUCK"

func (w *world) gaveUp(r id.Run) bool { return w.pg.runs[r] != nil && w.pg.runs[r].ErrorCode == stuck }

// checkRun checks that a run ended once, for a reason and in time, and that its sums are right.
func (w *world) checkRun(r *runRow) {
	name := runLabel(&r.Run)
	if r.ErrorCode == stuck && w.shape.fruitless == usualFruitless {
		w.violation("run %s was given up", name)
	}
	if r.State == run.Cancelled && r.Epoch > 0 && r.stop.IsZero() {
		w.violation("run %s is cancelled, and nobody stopped it", name)
	}
	if r.State == run.Failed && r.ErrorCode == "" {
		w.violation("run %s failed without a word: %s", name, r.ErrorMessage)
	}
	var sum run.Usage
	steps := 0
	for k, u := range w.pg.usage {
		if k.run == r.ID {
			sum = sum.Add(u)
		}
	}
	for k, s := range w.pg.steps {
		if k.run != r.ID || s.state == "open" {
			continue
		}
		if s.state == "complete" {
			steps++
		}
		if u, ok := w.pg.usage[k]; !ok || u != s.usage {
			w.violation("step %d of run %s used %v, and %v is booked", k.index, name, s.usage, u)
		}
	}
	if sum != r.Usage() {
		w.violation("run %s used %v, its steps %v", name, r.Usage(), sum)
	}
	for i := range r.Steps {
		if w.pg.steps[stepKey{r.ID, i}] == nil {
			w.violation("run %s has %d steps, and no step %d", name, r.Steps, i)
		}
	}
}

// checkBranches checks every branch of a session: that each answer is on that of the message that it
// answers, and that a model can continue it.
func (w *world) checkBranches(s *sessionRow) {
	all := w.pg.joined(s.id)
	for _, m := range all {
		if !slices.ContainsFunc(all, func(o *messageRow) bool { return o.parent == m.position }) {
			w.checkConversation(s, m.position)
		}
		r := w.pg.runs[m.Run]
		if m.Role == "user" || r == nil {
			continue
		}
		if !slices.ContainsFunc(w.pg.branch(s, m.position), func(o *messageRow) bool { return o.ID == r.UserMessage }) {
			w.violation("message %d of session %s, of run %s, is not on the branch of what it answers", m.position, short(s.id), runLabel(&r.Run))
		}
	}
}

// checkConversation checks that a model can continue the branch that ends at a position.
func (w *world) checkConversation(s *sessionRow, leaf int64) {
	var open []string // calls that want results
	var by *messageRow
	began := int64(0)
	for _, m := range w.pg.branch(s, leaf) {
		parts, err := modelmsg.Parse(m.Content)
		if err != nil {
			w.violation("message %d of session %s: %v", m.position, short(s.id), err)
			continue
		}
		if r := w.pg.runs[m.Run]; r != nil && r.Epoch == 0 && m.Role == "user" {
			continue // cancelled while it was queued: it joined wherever the conversation was
		}
		if len(open) > 0 && w.gaveUp(by.Run) && (m.Run != by.Run || m.Role == "user") {
			open = nil // it was given up in the middle of its tools
		}
		if len(open) > 0 && (m.Role != "tool" || m.Run != by.Run || *m.StepIndex != *by.StepIndex) {
			w.violation("session %s: message %d, by %s, comes between calls and their results", short(s.id), m.position, m.Role)
		}
		switch r := w.pg.runs[m.Run]; {
		case r == nil:
			w.violation("message %d of session %s belongs to no run", m.position, short(s.id))
		case r.Ordinal < began:
			w.violation("message %d of session %s, of run %d, comes after those of run %d", m.position, short(s.id), r.Ordinal, began)
		default:
			began = r.Ordinal
		}
		var calls, results []string
		for _, p := range parts {
			switch p.Type {
			case modelmsg.ToolCall:
				calls = append(calls, p.ToolCallID)
			case modelmsg.ToolResult:
				results = append(results, p.ToolCallID)
			}
		}
		if !slices.Equal(results, open) {
			w.violation("message %d of session %s has the results of %v, want %v", m.position, short(s.id), results, open)
		}
		open, by = calls, m
	}
	if len(open) > 0 && !w.gaveUp(by.Run) {
		w.violation("the calls %v at the end of session %s have no results", open, short(s.id))
	}
}

// checkCalls checks that no effect happened twice and that the outcome is ok only if it happened.
func (w *world) checkCalls(people []*person) {
	for _, key := range slices.Sorted(maps.Keys(w.executors.happened)) {
		row, n := w.executors.ledger[key], w.executors.happened[key]
		if row == nil {
			continue
		}
		if n > 1 && !w.isPure(key) {
			w.violation("call %s took effect %d times", key, n)
		}
	}
	for key, c := range w.pg.calls {
		switch {
		case c.done:
		case w.gaveUp(c.run):
			continue
		default:
			w.violation("call %s of run %s has no outcome", c.ID, c.run)
			continue
		}
		if c.Ask != nil && c.Ask.Question == run.AskApproval && !c.MayRun() && w.executors.happened[key.String()] > 0 {
			w.violation("call %s is %q by a person and happened", c.ID, c.Ask.Decision)
		}
		if c.Name == clientTool {
			w.checkResult(c, people)
			continue
		}
		if c.Outcome.State != toolv1.OutcomeState_OUTCOME_STATE_OK || c.Ask != nil && c.Ask.Decision == run.Happened {
			continue
		}
		var result struct{ Result string }
		if err := json.Unmarshal(c.Outcome.Result, &result); err != nil || result.Result != key.String() {
			w.violation("call %s is ok with the result %s", c.ID, c.Outcome.Result)
		}
		if w.executors.happened[key.String()] == 0 {
			w.violation("call %s is told to be ok and never happened", c.ID)
		}
	}
}

// checkResult checks that a result that was taken from a client is the call's, and that the call
// is ok only if a client has said so.
func (w *world) checkResult(c *callRow, people []*person) {
	var sent json.RawMessage
	for _, p := range people {
		if r := p.results[c.Key]; r != nil {
			sent = r
		}
	}
	ok := c.Outcome.State == toolv1.OutcomeState_OUTCOME_STATE_OK
	switch {
	case sent != nil && (!ok || string(c.Outcome.Result) != `{"output":`+string(sent)+`}`):
		w.violation("call %s has the result %s, and its client has sent %s", c.ID, c.Outcome.Result, sent)
	case ok && c.Ask.Decision != run.Answered:
		w.violation("call %s is ok, and no client has said so", c.ID)
	}
}

func (w *world) isPure(key string) bool {
	k, err := id.Parse[id.Operation](key)
	c := w.pg.calls[k]
	return err == nil && c != nil && c.Effect == toolv1.Effect_EFFECT_PURE || c == nil
}

// short returns the number of an id for the trace.
func short[T id.Kind](v T) string {
	u := struct{ uuid.UUID }(v)
	return fmt.Sprint("#", binary.BigEndian.Uint32(u.UUID[12:]))
}

func runLabel(r *run.Run) string {
	return fmt.Sprintf("%s.%d/%d", short(r.Session), r.Ordinal, r.Epoch)
}
