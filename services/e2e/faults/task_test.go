package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"signalbox.dev/pkg/sse"

	"signalbox.dev/services/e2e/world"
)

// script is what the model does with a message: it writes a note and looks at the
// clock, and says in some sixty words, over most of a second, how that went. Where a
// message had no answer, the next one comes in one piece with it: the last one counts.
const script = `
description: Writes a note and tells of it.
delay: 10ms
rules:
  - name: failed
    when: {user: '(?s)^.*note (?P<n>\S+)$', result: {tool: doc_create, error: true}}
    then: [{say: 'Note {{.match.n}} is not written. ` + body + `'}]
  - name: written
    when: {user: '(?s)^.*note (?P<n>\S+)$', result: {tool: doc_create}}
    then: [{say: 'Note {{.match.n}} is written. ` + body + `'}]
  - name: write
    when: {user: '(?s)^.*note (?P<n>\S+)$'}
    then:
      - say: 'I write note {{.match.n}} and look at the clock.'
      - call: {tool: doc_create, args: {name: 'note {{.match.n}}', content: 'This is note {{.match.n}}.'}}
      - call: {tool: get_current_datetime, args: {}}
`

const body = `It has a beginning, a middle and an end, and whoever reads it from its first word to its last will find that ` +
	`nothing was left out: not a word, not a comma, and not the full stop behind the last of them. If one of these were ` +
	`missing it would not be the note that was asked for, and somebody would have to say so. This is its last word.`

// Answers that are whole.
func written(n string) string    { return "Note " + n + " is written. " + body }
func notWritten(n string) string { return "Note " + n + " is not written. " + body }

// requestTime is how long a gateway may take for an answer, if only an error.
const requestTime = 20 * time.Second

// task is one message: sent until it is accepted, watched until its run has ended,
// and judged.
type task struct {
	r    *rig
	n    string // names the note
	key  string
	door int // the gateway that is asked first

	asked, accepted, ended time.Time
	session, run           string
	end                    string // "ok", or the error's code, or the finish reason
	retries                int    // step-retry events
	snapshots, watches     int    // snapshot events, and how often the viewer (re)connected

	problems []string // what must not be
	hung     int      // requests that got no answer in time
	refused  []string // answers that asked to come back later

	// over is closed when nothing more happens to the task. Before that all of the
	// above belongs to the goroutine that works on it.
	over chan struct{}
}

func (k *task) wrong(format string, args ...any) {
	k.problems = append(k.problems, fmt.Sprintf("note %s, run %s: ", k.n, k.run)+fmt.Sprintf(format, args...))
}

// do sends the message and watches its run. A task that ctx interrupts has no end,
// and no problems from that.
func (k *task) do(ctx context.Context, session string) {
	k.asked, k.session = time.Now(), session
	if !k.send(ctx) {
		return
	}
	k.accepted = time.Now()
	limited, cancel := context.WithTimeout(ctx, stuck)
	defer cancel()
	v := &viewer{task: k, next: 0}
	if !v.watch(limited) {
		if ctx.Err() == nil {
			k.wrong("no end after %s; last seen: %v", stuck, v.last())
		}
		return
	}
	k.ended = time.Now()
}

// took is how long the run took from when it was asked for.
func (k *task) took() time.Duration { return k.ended.Sub(k.asked) }

// send repeats the message, under one key and at one gateway after the other, until
// it is accepted; half of the messages ask for a stream, of which only the
// beginning counts.
func (k *task) send(ctx context.Context) bool {
	for door := k.door; ; door++ {
		attempt, cancel := context.WithTimeout(ctx, requestTime)
		run, err := k.try(attempt, k.r.client(door))
		timedOut := errors.Is(attempt.Err(), context.DeadlineExceeded)
		cancel()
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			k.run = run
			return true
		case timedOut:
			k.hung++
		}
		if refusal, ok := errors.AsType[*world.Refused](err); ok {
			if !mayPass(refusal) {
				k.wrong("the message was refused: %v", err)
				return false
			}
			k.refused = append(k.refused, fmt.Sprint(refusal.Status, " ", refusal.Code))
		}
		if !wait(ctx, 200*time.Millisecond) {
			return false
		}
	}
}

// mayPass reports whether a refusal is one that a trouble explains: it says in words
// that it will pass. An internal error is none.
func mayPass(r *world.Refused) bool {
	return r.Temporary() && r.Status != http.StatusInternalServerError && r.Message != ""
}

func (k *task) try(ctx context.Context, c world.Client) (run string, err error) {
	s := world.Sending{Content: "note " + k.n, Key: k.key}
	if k.door%2 == 0 {
		r, err := c.Submit(ctx, k.session, s)
		return r.ID, err
	}
	stream, err := c.Send(ctx, k.session, s)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	if stream.Run == "" {
		return "", errors.New("the stream does not say of which run it is")
	}
	return stream.Run, nil
}

// viewer sees one run from its beginning to its end, however often its stream is cut.
type viewer struct {
	*task
	next     int64  // the number of the next event
	ordinal  string // of the run in its session, as its events say
	cursor   string // the last event's id
	hole     bool   // a snapshot took the place of some events: the text is not whole
	lost     bool   // it does not say of how many
	text     string // of the step that goes on
	whole    string // of the last step that is complete
	writing  *bool  // what the tool said, as seen
	terminal bool
}

func (v *viewer) last() string { return fmt.Sprintf("event %q after %d streams", v.cursor, v.watches) }

// silence is how long a viewer waits for the next event before it asks elsewhere.
const silence = 8 * time.Second

// watch returns true when the run's end was seen.
func (v *viewer) watch(ctx context.Context) bool {
	for door := v.door; ; door++ {
		v.stream(ctx, v.r.client(door))
		if v.terminal {
			return true
		}
		if !wait(ctx, 100*time.Millisecond) {
			return false
		}
	}
}

// stream reads one stream until it ends, is cut or falls silent.
func (v *viewer) stream(ctx context.Context, c world.Client) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v.watches++
	watchdog := time.AfterFunc(silence, cancel)
	defer watchdog.Stop()
	s, err := c.Watch(ctx, world.RunEvents(v.run), v.cursor)
	if errors.Is(err, world.ErrNothingMore) {
		v.wrong("there is nothing behind event %q, and that was no end", v.cursor)
		v.terminal = true
		return
	}
	if refusal, ok := errors.AsType[*world.Refused](err); ok && !mayPass(refusal) {
		v.wrong("the stream was refused: %v", err)
		v.terminal = true
		return
	}
	if err != nil {
		return
	}
	defer s.Close()
	for {
		ev, err := s.Next()
		if errors.Is(err, io.EOF) && !v.terminal {
			v.wrong("the stream ended well behind event %q, and that was no end", v.cursor)
			v.terminal = true
		}
		if err != nil {
			return
		}
		watchdog.Reset(silence)
		v.see(ev)
	}
}

// data is what counts of an event.
type data struct {
	Delta        string `json:"delta"`
	ToolName     string `json:"toolName"`
	IsError      bool   `json:"isError"`
	Text         string `json:"final_text"`
	FinishReason string `json:"finishReason"`
	Error        string `json:"error"`
	Code         string `json:"code"`
}

func (v *viewer) see(ev sse.Event) {
	if v.terminal {
		v.wrong("event %s %s came behind the end", ev.ID, ev.Type)
	}
	v.cursor = string(ev.ID)
	ordinal, number, _ := strings.Cut(v.cursor, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		v.wrong("event %s has the id %q", ev.Type, ev.ID)
		return
	}
	if ev.Type == "snapshot" {
		// It tells of the session, which may be in another run by now.
		v.snapshots++
		v.hole = true
		if v.lost = v.ordinal != ordinal; !v.lost {
			v.next = max(v.next, n+1)
		}
		return
	}
	v.ordinal = ordinal
	// A snapshot of a run that has ended is followed by its end, which it contains.
	end := ev.Type == "done" || ev.Type == "error"
	if due := n == v.next || v.lost && n > v.next || v.hole && end; !due {
		v.wrong("event %d (%s) came where %d was due", n, ev.Type, v.next)
	}
	v.lost = false
	v.next = n + 1
	var d data
	if err := json.Unmarshal(ev.Data, &d); err != nil {
		v.wrong("event %s is no JSON: %v", ev.Type, err)
		return
	}
	v.take(ev.Type, d)
}

func (v *viewer) take(kind string, d data) {
	switch kind {
	case "text-delta":
		v.text += d.Delta
	case "step-retry":
		v.retries++
		v.text = ""
	case "step-complete":
		v.whole, v.text = v.text, ""
	case "tool-result":
		if d.ToolName == "doc_create" {
			v.writing = &d.IsError
		}
	case "done":
		v.terminal = true
		v.judge(d)
	case "error":
		v.terminal = true
		v.end = d.Code
		if d.Error == "" || d.Code == "" {
			v.wrong("the run failed without a word or a code: %+v", d)
		}
	}
}

// budgets are reasons to finish that name a spent budget: a part of the answer may
// have been said.
var budgets = []string{"max-time", "max-step-time"}

// judge says whether the end is right.
func (v *viewer) judge(d data) {
	v.end = "ok"
	if slices.Contains(budgets, d.FinishReason) {
		v.end = d.FinishReason
		return
	}
	right := d.Text == written(v.n) && (v.writing == nil || !*v.writing) ||
		d.Text == notWritten(v.n) && (v.writing == nil || *v.writing)
	if d.FinishReason != "stop" || !right {
		v.wrong("done with %q and the text %q", d.FinishReason, d.Text)
	}
	if !v.hole && v.whole != d.Text {
		v.wrong("the deltas say %q, the end %q", v.whole, d.Text)
	}
	if d.Text == notWritten(v.n) {
		v.end = "tool failed"
	}
}

// ask asks a gateway for what other services know. Its answer may be an error, but
// it must be an answer.
func (k *task) ask(ctx context.Context, c world.Client, path string) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	res, err := c.Do(ctx, world.Request{Method: http.MethodGet, Path: path})
	if refusal, ok := errors.AsType[*world.Refused](err); ok {
		if !mayPass(refusal) {
			k.wrong("%s: %v", path, err)
		}
		k.refused = append(k.refused, fmt.Sprint(refusal.Status, " ", refusal.Code))
		return
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		k.hung++
	}
	if err != nil {
		return // cut: the line may be so
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err == nil && !json.Valid(b.Bytes()) {
		k.wrong("%s answers with %q", path, &b)
	}
}
