package kill

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"signalbox.dev/services/e2e/world"
)

// check checks the invariants of a complete transcript. It
// only reads.
func (t *transcript) check() []problem {
	c := &checker{transcript: t}
	c.streams()
	c.order()
	c.ends()
	c.conversation()
	for _, id := range slices.Sorted(maps.Keys(t.runs)) {
		c.run(t.runs[id])
	}
	c.effects()
	c.approvals()
	c.histories()
	return c.found
}

type checker struct {
	*transcript
	found []problem
}

func (c *checker) wrong(s sort, format string, args ...any) {
	c.found = append(c.found, problem{s, c.session, fmt.Sprintf(format, args...)})
}

// streams checks that each witness saw every event once and in order.
func (c *checker) streams() {
	for _, s := range c.views {
		c.stream(s)
	}
}

func (c *checker) stream(s *view) {
	next := map[int64]int64{} // the next number of each run
	loose := map[int64]bool{} // runs of which a snapshot may contain more
	had := map[place]bool{}   // seen already
	var upTo place            // the position of the last snapshot, if any
	for _, x := range s.sights {
		if x.snapshot {
			// The events after the snapshot follow, even those seen before, and newer runs from
			// their beginning.
			upTo = x.place
			clear(loose)
			maps.DeleteFunc(had, func(p place, _ bool) bool { return upTo.isBefore(p) })
			maps.DeleteFunc(next, func(run, _ int64) bool { return run > upTo.run })
			next[upTo.run] = upTo.number + 1
			continue
		}
		if had[x.place] {
			c.wrong(twice, "%s saw %s twice", s.name, x.place)
			continue
		}
		had[x.place] = true
		want := next[x.run]
		switch {
		case x.number == want:
		case s.run != 0 && x.place == upTo && c.events[x.place].isEnd(): // a run's end is always sent
		case x.number < want:
			c.wrong(twice, "%s saw %s after %d-%d", s.name, x.place, x.run, want-1)
		case s.sender && c.omitted(x.run, want, x.number):
		case x.run < upTo.run && !loose[x.run]:
		default:
			c.wrong(hole, "%s saw %s when %d-%d was next", s.name, x.place, x.run, want)
		}
		loose[x.run] = true
		next[x.run] = max(want, x.number+1)
	}
}

// isBefore reports whether a snapshot at p does not contain the event at q.
func (p place) isBefore(q place) bool { return q.run > p.run || q.run == p.run && q.number > p.number }

// omitted reports whether a range has only events that a run's sender is not sent, as far as
// witnesses saw them. One that no witness saw counts as such an event, since its kind is unknown:
// either a snapshot stood for it, or the witnesses of the whole session have a hole.
func (c *checker) omitted(run, from, to int64) bool {
	for n := from; n < to; n++ {
		if e := c.events[place{run, n}]; e != nil && e.kind != "run-start" && e.kind != "user-message" {
			return false
		}
	}
	return true
}

// order checks that all witnesses of the whole session saw the same order as the witness with the
// most events. Of events repeated after a snapshot, the last occurrence counts.
func (c *checker) order() {
	var longest *view
	for _, s := range c.views {
		if s.run == 0 && (longest == nil || len(s.sights) > len(longest.sights)) {
			longest = s
		}
	}
	if longest == nil {
		return
	}
	index := map[place]int{}
	for i, x := range longest.sights {
		if !x.snapshot {
			index[x.place] = i
		}
	}
	for _, s := range c.views {
		final := map[place]int{}
		for at, x := range s.sights {
			if !x.snapshot {
				final[x.place] = at
			}
		}
		last := -1
		for at, x := range s.sights {
			i, ok := index[x.place]
			if x.snapshot || !ok || final[x.place] != at {
				continue
			}
			if i < last {
				c.wrong(differs, "%s saw %s after %s, and %s before", s.name, x.place, longest.sights[last].place, longest.name)
				break
			}
			last = i
		}
	}
}

// ends checks that each run has one end, and no events after it.
func (c *checker) ends() {
	ends, newest := map[int64][]place{}, map[int64]int64{}
	for p, e := range c.events {
		if e.isEnd() {
			ends[p.run] = append(ends[p.run], p)
		}
		newest[p.run] = max(newest[p.run], p.number)
	}
	for run, all := range ends {
		if len(all) > 1 {
			c.wrong(twoEnds, "run %d has the ends %v", run, all)
		} else if newest[run] > all[0].number {
			c.wrong(twoEnds, "run %d ended with %s and continued to %d", run, all[0], newest[run])
		}
	}
}

// conversation checks that each sent message is stored once, and nothing else.
func (c *checker) conversation() {
	times := map[string]int{}
	for _, m := range c.messages {
		if m.Role == "user" {
			times[m.Text()]++
		}
	}
	for _, a := range c.asks {
		n := times[a.content()]
		delete(times, a.content())
		switch {
		case n > 1:
			c.wrong(repeated, "the message %q is stored %d times", a.content(), n)
		case n == 0 && a.run != "" && c.runs[a.run].Ended():
			c.wrong(lost, "the message %q is not in the conversation; its run is %d", a.content(), a.ordinal)
		}
	}
	for m := range times {
		c.wrong(differs, "the message %q was not sent by this talker", m)
	}
}

// run checks a run: that it ended, as announced, and that its answer is complete.
func (c *checker) run(run world.Run) {
	if !run.Ended() {
		c.wrong(lost, "run %d (%s) is %s", run.Ordinal, run.ID, run.State)
		return
	}
	end, ok := c.transcript.ends[run.Ordinal]
	if !ok && c.covered(placeOf(deref(run.LastEventID))) {
		return // a snapshot had it, and no witness its events
	}
	if !ok {
		c.wrong(lost, "run %d (%s) is %s and no witness saw its end", run.Ordinal, run.ID, run.State)
		return
	}
	e := c.events[end]
	reason, text := "", ""
	if e.kind == "done" {
		e.field("finishReason", &reason)
		e.field("final_text", &text)
	}
	switch {
	case (e.kind == "error") != (run.State == "failed"),
		e.kind == "done" && (run.FinishReason == nil || *run.FinishReason != reason),
		e.kind == "done" && run.Text != text:
		c.wrong(differs, "run %d ended with %s %s and is stored as %+v", run.Ordinal, e.kind, e.data, run)
	}
	stored := c.stored(run)
	c.stepTexts(run, stored)
	if reason == "stop" {
		c.whole(run, stored)
	}
	if e.kind == "done" && reason != "stop" && reason != "cancelled" {
		c.wrong(differs, "run %d ended with the reason %q", run.Ordinal, reason)
	}
	if reason == "cancelled" && len(c.stops) == 0 {
		c.wrong(falseOK, "run %d was cancelled without a stop", run.Ordinal)
	}
}

// stored returns the texts of a run's committed steps.
func (c *checker) stored(run world.Run) map[int]string {
	texts := map[int]string{}
	for _, m := range c.messages {
		if m.Role == "assistant" && m.RunID != nil && *m.RunID == run.ID && m.StepIndex != nil {
			texts[*m.StepIndex] += m.Text()
		}
	}
	return texts
}

// stepTexts checks that the stream's text of each step, after its last step-retry, equals the
// stored one. Runs with unseen events are skipped.
func (c *checker) stepTexts(run world.Run, stored map[int]string) {
	streamed := map[int]string{}
	step, now := 0, ""
	for n := int64(0); n <= c.transcript.ends[run.Ordinal].number; n++ {
		e := c.events[place{run.Ordinal, n}]
		if e == nil {
			return
		}
		switch e.kind {
		case "text-delta":
			delta := ""
			e.field("delta", &delta)
			now += delta
		case "step-retry":
			now = ""
		case "step-complete":
			e.field("stepIndex", &step)
			streamed[step], now = now, ""
			step++
		}
	}
	if now != "" {
		streamed[step] = now
	}
	if run.State == "failed" { // a step that ended with an error is not stored
		delete(streamed, step)
	}
	for step := range 10 {
		if streamed[step] != stored[step] {
			c.wrong(falseOK, "run %d (%s), step %d streamed %q and stores %q", run.Ordinal, run.ID, step, streamed[step], stored[step])
		}
	}
}

// whole checks that a successful run has its script's complete answer.
func (c *checker) whole(run world.Run, stored map[int]string) {
	var asked, joined *ask
	for _, a := range c.asks {
		switch {
		case a.run != run.ID:
		case a.kind == turn:
			joined = a
		default:
			asked = a
		}
	}
	if joined != nil {
		asked = joined // a steering message is answered last
	}
	if asked == nil {
		c.wrong(differs, "run %d (%s) answers no message of this talker", run.Ordinal, run.ID)
		return
	}
	last := -1
	for step := range stored {
		last = max(last, step)
	}
	failed := slices.ContainsFunc(run.ToolCalls, func(t world.ToolCall) bool { return t.State == nil || *t.State != "ok" })
	got := stored[last]
	if whole := got == asked.answer() || failed && got == asked.failure(); !whole || got != run.Text {
		c.wrong(falseOK, "run %d (%s) is done with %q, and its text is %q; the complete answer is %q", run.Ordinal, run.ID, got, run.Text, asked.answer())
	}
}

// effects checks that each successful call took effect once, and no call took effect twice.
func (c *checker) effects() {
	for _, run := range c.runs {
		for _, x := range run.ToolCalls {
			note := noteOf(x.Args)
			switch n := c.counts[note].Effects; {
			case note == "" || x.Tool == "test_pure":
			case n > 1:
				c.wrong(doubled, "call %s of %s took effect %d times and has the state %q", note, x.Tool, n, deref(x.State))
			case n == 0 && deref(x.State) == "ok":
				c.wrong(falseOK, "call %s of %s has the state ok and took no effect", note, x.Tool)
			}
		}
	}
	c.written()
}

// written is effects for documents.
func (c *checker) written() {
	for _, a := range c.asks {
		if a.kind != doc || a.run == "" {
			continue
		}
		var mine []document
		for _, d := range c.documents {
			if d.name == a.document() {
				mine = append(mine, d)
			}
		}
		outcomes := c.outcomes(a)
		if len(mine) > 1 {
			c.wrong(doubled, "document %q exists %d times", a.document(), len(mine))
		}
		if len(mine) == 0 {
			if outcomes[a.document()] == "ok" {
				c.wrong(falseOK, "document %q does not exist, but its call was ok", a.document())
			}
			continue
		}
		for _, m := range a.markers() {
			switch n := strings.Count(mine[0].content, m); {
			case n > 1:
				c.wrong(doubled, "document %q has %q %d times:\n%s", a.document(), m, n, mine[0].content)
			case n == 0 && outcomes[m] == "ok":
				c.wrong(falseOK, "document %q lacks %q, whose call was ok:\n%s", a.document(), m, mine[0].content)
			}
		}
	}
}

// outcomes returns the outcomes of the calls of a doc message, by marker, and by the document's
// name for the first.
func (c *checker) outcomes(a *ask) map[string]string {
	out := map[string]string{}
	for _, call := range c.runs[a.run].ToolCalls {
		state := ""
		if call.State != nil {
			state = *call.State
		}
		for _, name := range append(a.markers(), a.document()) {
			if strings.Contains(string(call.Args), name) {
				out[name] = state
			}
		}
	}
	return out
}

// snap is a witness's snapshot.
type snap struct {
	at     time.Time
	spared bool
}

// snapshots lists the witnesses' snapshots.
func (t *transcript) snapshots() []snap {
	var out []snap
	for _, s := range t.views {
		last := map[int64]int64{}
		for _, x := range s.sights {
			if !x.snapshot {
				last[x.run] = x.number
				continue
			}
			// Some witness saw every event between the previous position and the snapshot's:
			// the log had them.
			spared := true
			for run := max(1, placeOf(x.cursor).run); run <= x.run; run++ {
				to := t.ends[run].number
				if run == x.run {
					to = x.number
				}
				from := int64(0)
				if n, ok := last[run]; ok {
					from = n + 1
				}
				for n := from; n <= to; n++ {
					spared = spared && t.events[place{run, n}] != nil
				}
			}
			out = append(out, snap{x.at, spared})
		}
	}
	return out
}

func placeOf(id string) place {
	p, _ := parsePlace(id) // zero for none
	return p
}
