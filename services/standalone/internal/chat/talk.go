package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"signalbox.dev/pkg/process"
)

// talk is a conversation at a terminal: it executes typed commands and messages one at a
// time, and shows the results. One goroutine at a time may call its methods.
type talk struct {
	client *Client
	// fields are those of new sessions.
	fields  map[string]any
	session Session
	// print writes lines that stay; live shows text that is still incomplete, until the next
	// call.
	print, live func(string)
	// style is asked before each use: the terminal may have changed.
	style func() Style

	// past receives the person's earlier messages when a session is resumed, oldest first.
	past func([]string)
	// answering is the session whose answer is awaited; nil for none.
	answering atomic.Pointer[string]
	// asked are the open questions of that answer.
	asked questions

	explained bool   // what a simulated answer is
	answer    string // the received part of the open block
	thinking  bool   // the open block is reasoning
	inBlock   bool   // the last output was a block
	listed    map[string][]string
}

var errQuit = errors.New("quit")

// do executes what was typed, and shows its error.
func (t *talk) do(ctx context.Context, typed string) error {
	err := t.try(ctx, typed)
	if err != nil && !errors.Is(err, errQuit) && !errors.Is(err, process.ErrShown) && !errors.Is(err, context.Canceled) {
		t.block(t.style().red("error: " + t.style().wrap(err.Error())))
	}
	return err
}

// try executes a command, or sends a message.
func (t *talk) try(ctx context.Context, typed string) error {
	name, argument, _ := strings.Cut(typed, " ")
	if !strings.HasPrefix(typed, "/") {
		return t.say(ctx, typed)
	}
	for _, c := range commands {
		switch {
		case c.name != name && c.alias != name:
		case c.do == nil:
			return t.help()
		default:
			if c.name != "/quit" {
				t.block(t.style().dim("> " + oneLine(typed, t.style().width()-2)))
			}
			return c.do(t, ctx, strings.TrimSpace(argument))
		}
	}
	return fmt.Errorf("there is no command %s: /help lists them; a message cannot begin with /", oneLine(name, 40))
}

// block prints a text between empty lines.
func (t *talk) block(text string) {
	if text == "" {
		return
	}
	t.line("")
	t.print(text)
	t.inBlock = true
}

// line prints a text right below the last one.
func (t *talk) line(text string) {
	if t.inBlock && text != "" {
		t.print("")
	}
	t.print(text)
	t.inBlock = false
}

// begin makes a session, or resumes the one with that id: it shows the messages and follows
// the active run.
func (t *talk) begin(ctx context.Context, id string) error {
	var err error
	if id == "" {
		if t.session, err = t.client.CreateSession(ctx, t.fields); err == nil {
			t.line(t.style().dim("New session " + t.session.ID))
		}
		return err
	}
	if id, err = t.client.Find(ctx, "sessions", id); err != nil {
		return err
	}
	d, err := t.client.Session(ctx, id)
	if err != nil {
		return err
	}
	t.session = d.Session
	t.past(userTexts(d.Messages))
	run := ""
	if d.ActiveRun != nil {
		run = d.ActiveRun.ID
	}
	var shown []Message
	for _, m := range d.Messages {
		if run == "" || m.Role == "user" || m.RunID != run { // the active run is followed from its first event
			shown = append(shown, m)
		}
	}
	t.line(t.style().dim("Session " + d.Session.ID + "  " + oneLine(d.Session.Title, 60)))
	if earlier := len(shown) - maxShown; earlier > 0 {
		t.line(t.style().dim(fmt.Sprintf("%s before these: signalbox sessions show %s%s", Plural(earlier, "message"), d.Session.ID, t.client.Flags)))
		shown = shown[earlier:]
	}
	t.block(t.style().Transcript(shown))
	if run == "" {
		return nil
	}
	return t.await(func() error { return t.client.Follow(ctx, run, t.show) })
}

// maxShown is how many earlier messages a resumed session shows.
const maxShown = 50

// say sends a message and shows the answer.
func (t *talk) say(ctx context.Context, text string) error {
	t.block(t.style().user(text))
	return t.await(func() error { return t.client.Send(ctx, t.session.ID, text, t.show) })
}

// await reads an answer to its end.
func (t *talk) await(end func() error) error {
	session := t.session.ID
	t.explain(t.session.Provider == simulator) // the sender of a message gets no run-start
	t.answering.Store(&session)
	defer t.answering.Store(nil)
	defer t.asked.clear()
	defer t.flush(true)
	return end()
}

// simulator is the provider whose answers do not come from a model.
const simulator = "simulator"

// explain says once what a simulated answer is.
func (t *talk) explain(simulated bool) {
	if simulated && !t.explained {
		t.explained = true
		t.block(t.style().dim(t.style().wrap(t.client.simulatedNote())))
	}
}

// event is what events carry of which something is shown.
type event struct {
	Delta, ToolName, Result, Error, Reason, Until, FinishReason, FinishDetail, URL, Title string

	RunID, ToolCallID, Decision, ExpiresAt string
	OutcomeUnknown, ForPerson              bool

	Args                                 json.RawMessage
	IsError, Simulated                   bool
	TotalTokensIn, TotalTokensOut, Steps int64
	Messages                             int64
}

// simulatedNote says what it means that a run is simulated.
func (c *Client) simulatedNote() string {
	return "[simulated: a script answers, not a model. `signalbox accounts add anthropic" + c.Flags + "` adds an account]"
}

// summary is the last line of an answer.
func (d event) summary() string {
	mark := ""
	if d.Simulated {
		mark = "simulated, "
	}
	line := fmt.Sprintf("[%s%s, %s, %d tokens in, %d out]", mark, d.FinishReason, Plural(d.Steps, "step"), d.TotalTokensIn, d.TotalTokensOut)
	if d.FinishDetail != "" {
		line += "\n" + d.FinishDetail
	}
	return line
}

func (ev Event) parse() (event, error) {
	var d event
	if err := json.Unmarshal(ev.Data, &d); err != nil {
		return d, fmt.Errorf("decode event %s: %w", ev.ID, err)
	}
	return d, nil
}

// show shows one event of an answer.
func (t *talk) show(ev Event) error {
	d, err := ev.parse()
	if err != nil {
		return err
	}
	s := t.style()
	switch ev.Type {
	case "text-delta":
		t.write(false, d.Delta)
		return nil
	case "reasoning-delta":
		t.write(true, d.Delta)
		return nil
	case "run-start":
		t.explain(d.Simulated)
		return nil
	case "tool-call-delta", "tool-call-start", "user-message", "step-complete", "snapshot", "session-title", "tool-progress":
		return nil
	}
	t.flush(true)
	switch ev.Type {
	case "tool-call-complete":
		t.line(s.toolCall(d.ToolName, d.Args))
	case "tool-result":
		t.line(s.toolResult(d.ToolName, d.Result, d.IsError))
	case "tool-approval-request":
		t.asked.add(d.asked())
		t.block(s.wrap(d.asked().String()))
	case "tool-client-request":
		t.line(s.dim(s.wrap(d.clientRequest())))
	case "tool-approval-response":
		t.asked.remove(d.ToolCallID)
		t.line(s.dim(s.wrap(d.decided())))
	case "source":
		t.line(s.dim(oneLine("· "+d.Title+" "+d.URL, s.width())))
	case "step-retry":
		t.line(s.dim("↻ " + s.wrap(d.Reason)))
	case "compaction":
		t.line(s.dim(fmt.Sprintf("… the first %d messages are summarized for the model", d.Messages)))
	case "waiting":
		t.line(s.dim("… " + s.wrap("waiting: "+d.Reason+" "+d.Until)))
	case "error":
		t.line(s.red("error: " + s.wrap(d.Error)))
		return process.ErrShown
	case "done":
		t.line(s.dim(d.summary()))
	}
	return nil
}

// write adds to the open block, and prints the blocks that are complete.
func (t *talk) write(thinking bool, delta string) {
	if thinking != t.thinking {
		t.flush(true)
		t.thinking = thinking
	}
	t.answer += delta
	if strings.Contains(delta, "\n") {
		t.flush(false)
	}
	if len(t.answer) > maxLive { // only its end is visible
		t.live(t.style().wrap(t.answer[len(t.answer)-maxLive:]))
		return
	}
	t.live(t.rendered(t.answer))
}

// flush prints the blocks that further text cannot change; at the end, all blocks.
func (t *talk) flush(end bool) {
	done, open := t.answer, ""
	if !end {
		done, open = splitComplete(t.answer)
	}
	if t.answer = open; end {
		t.live("")
	}
	t.block(t.rendered(done))
}

// maxLive bounds the text that is rendered again for each delta.
const maxLive = 8 << 10

func (t *talk) rendered(text string) string {
	s := t.style()
	switch {
	case strings.TrimSpace(text) == "":
		return ""
	case t.thinking:
		return s.dim(s.wrap(strings.TrimSpace(text)))
	default:
		return s.Markdown(text)
	}
}

// resolve returns the id for the number of an item in the last list, or for an id that may
// be abbreviated.
func (t *talk) resolve(ctx context.Context, what, argument string) (string, error) {
	if n, err := strconv.Atoi(argument); err == nil && n >= 1 && n <= len(t.listed[what]) {
		return t.listed[what][n-1], nil
	}
	return t.client.Find(ctx, what, argument)
}
