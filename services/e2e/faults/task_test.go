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

// script is the model's reaction to a message: it writes a note and reads the clock, and then
// reports the result in some sixty words, over most of a second. The provider sees a message
// without an answer joined with the next one: the last one counts.
const script = `
description: Writes a note and reports the result.
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

// The complete answers.
func written(n string) string    { return "Note " + n + " is written. " + body }
func notWritten(n string) string { return "Note " + n + " is not written. " + body }

// requestTime is the time in which a gateway must respond, even if with an error.
const requestTime = 20 * time.Second

// task is one message, which is sent until it is accepted; its run is watched to its end and
// judged.
type task struct {
	r       *rig
	n       string // names the note
	key     string
	gateway int // the index of the first gateway

	asked, accepted, ended time.Time
	session, run           string
	end                    string // "ok", or the error's code, or the finish reason
	retries                int    // step-retry events
	snapshots, watches     int    // snapshot events, and the viewer's connections

	problems []string // violated invariants
	hung     int      // requests without a response in time
	refused  []string // temporary refusals

	// over is closed at the end of the task. Before that its goroutine owns the fields above.
	over chan struct{}
}

func (k *task) wrong(format string, args ...any) {
	k.problems = append(k.problems, fmt.Sprintf("note %s, run %s: ", k.n, k.run)+fmt.Sprintf(format, args...))
}

// do sends the message and watches its run. If ctx is done first, the task has no end, which is
// not a problem.
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

// took returns the time from the first attempt to the run's end.
func (k *task) took() time.Duration { return k.ended.Sub(k.asked) }

// send repeats the message, with one key and at alternating gateways, until it is accepted. Half of
// the messages request a stream, of which only the beginning is read.
func (k *task) send(ctx context.Context) bool {
	for gateway := k.gateway; ; gateway++ {
		attempt, cancel := context.WithTimeout(ctx, requestTime)
		run, err := k.try(attempt, k.r.client(gateway))
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

// mayPass reports whether a refusal is temporary and has a message. An internal error is neither.
func mayPass(r *world.Refused) bool {
	return r.Temporary() && r.Status != http.StatusInternalServerError && r.Message != ""
}

func (k *task) try(ctx context.Context, c world.Client) (run string, err error) {
	s := world.Sending{Content: "note " + k.n, Key: k.key}
	if k.gateway%2 == 0 {
		r, err := c.Submit(ctx, k.session, s)
		return r.ID, err
	}
	stream, err := c.Send(ctx, k.session, s)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	if stream.Run == "" {
		return "", errors.New("the stream does not name its run")
	}
	return stream.Run, nil
}

// viewer watches one run from its beginning to its end, across any number of streams.
type viewer struct {
	*task
	next     int64  // the number of the next event
	ordinal  string // of the run in its session, as its events say
	cursor   string // the last event's id
	hole     bool   // a snapshot replaced some events, so the text is incomplete
	lost     bool   // the number of replaced events is unknown
	again    int64  // the number of the first event, after a snapshot, that was not seen before it
	text     string // of the current step
	whole    string // of the last complete step
	writing  *bool  // the tool's result as seen
	terminal bool
}

func (v *viewer) last() string { return fmt.Sprintf("event %q after %d streams", v.cursor, v.watches) }

// silence is how long a viewer waits for the next event before it uses another gateway.
const silence = 8 * time.Second

// watch reports whether the run's end was seen.
func (v *viewer) watch(ctx context.Context) bool {
	for gateway := v.gateway; ; gateway++ {
		v.stream(ctx, v.r.client(gateway))
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

// data has the relevant fields of an event.
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
		// It describes the session, which may have another active run by now.
		v.snapshots++
		v.hole = true
		v.lost, v.again = true, 0
		if v.ordinal == ordinal {
			// If it is older than what was seen, events are sent again before those after the loss.
			v.lost, v.again, v.next = n+1 < v.next, v.next, n+1
		}
		return
	}
	v.ordinal = ordinal
	// A snapshot of a run that has ended is followed by its end, which it contains.
	end := ev.Type == "done" || ev.Type == "error"
	if due := n == v.next || v.lost && n > v.next || v.hole && end; !due {
		v.wrong("event %d (%s) came where %d was due", n, ev.Type, v.next)
	}
	v.lost = v.lost && n < v.again
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

// budgets are finish reasons of a spent budget: the answer may be partial.
var budgets = []string{"max-time", "max-step-time"}

// judge checks the end.
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

// ask sends a request that the gateway passes on. The response may be an error, but there must be
// one.
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
		return // cut, which the line's fault may explain
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err == nil && !json.Valid(b.Bytes()) {
		k.wrong("%s answers with %q", path, &b)
	}
}
