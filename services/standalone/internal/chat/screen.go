package chat

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"charm.land/bubbles/v2/key"
	"charm.land/bubbles/v2/textarea"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
)

// Screen is a conversation at a terminal: the prompt stays at the bottom, and the messages
// go above it, into the terminal's own scrollback.
type Screen struct {
	Client *Client
	// Session is the session to resume, maybe abbreviated; empty for a new one with Fields.
	Session string
	Fields  map[string]any
	// Message is sent at once, and Run ends with its answer; if empty, Run ends when the
	// person quits.
	Message string
	In, Out *os.File
	Environ []string
}

// Run returns when the person quits, or the only message is answered.
func (s *Screen) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := &screen{ctx: ctx, once: s.Message != "", input: newInput()}
	m.look.profile = colorprofile.Detect(s.Out, s.Environ)
	out := &framed{File: s.Out, first: make(chan struct{})}
	p := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(s.In), tea.WithOutput(out), tea.WithEnvironment(s.Environ))
	m.talk = &talk{
		client: s.Client, fields: s.Fields, style: m.look.style,
		print: func(text string) {
			// One line at a time always fits the terminal; an empty text would not be printed.
			for line := range strings.SplitSeq(m.look.adapt(text), "\n") {
				p.Send(tea.Println(cmp.Or(line, " "))())
			}
		},
		live: func(text string) { p.Send(liveMsg(text)) },
		past: func(said []string) { p.Send(pastMsg(said)) },
	}
	s.Client.Notice = func(format string, args ...any) {
		m.talk.line(m.look.style().dim(m.look.style().wrap(fmt.Sprintf(format, args...))))
	}
	m.first = func(ctx context.Context) error {
		select {
		case <-out.first:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := m.talk.begin(ctx, s.Session)
		if err == nil && m.once {
			err = m.talk.say(ctx, s.Message)
		}
		return err
	}
	_, err := p.Run()
	cancel()
	m.task.Wait() // its output is discarded now
	if errors.Is(err, tea.ErrInterrupted) || errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, m.err)
}

// framed is a terminal that reports when it shows the first frame. Before that the renderer
// assumes that it owns the whole window, and output would overwrite its contents.
type framed struct {
	*os.File
	once  sync.Once
	first chan struct{} // closed when the first frame is shown
}

func (f *framed) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	if bytes.Contains(b, []byte(ansi.SetModeBracketedPaste)) { // which comes with the first frame
		f.once.Do(func() { close(f.first) })
	}
	return n, err
}

// look is the current appearance of the terminal.
type look struct {
	profile colorprofile.Profile

	mu  sync.Mutex // guards what follows
	now Style
}

func (l *look) style() Style {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *look) resize(width int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = Style{Width: width, Colours: true}
}

// adapt removes the colours that the terminal does not support.
func (l *look) adapt(text string) string {
	var b bytes.Buffer
	_, _ = io.WriteString(&colorprofile.Writer{Forward: &b, Profile: l.profile}, text) // a buffer takes everything
	return b.String()
}

type (
	liveMsg string
	pastMsg []string
	doneMsg struct {
		err     error
		session Session
	}
	endMsg struct{}
)

// screen is the program's model: the part below the scrollback.
type screen struct {
	ctx   context.Context //nolint:containedctx // the program's, parent of every task's
	talk  *talk
	look  look
	first func(context.Context) error
	once  bool
	err   error // what Run returns

	input         textarea.Model
	width, height int
	live          string
	session       Session  // as of the last task's end
	history       []string // earlier input, oldest first
	at            int      // the position in history; its length for new text
	waiting       []string // input that was typed during an answer

	task     sync.WaitGroup
	stop     context.CancelFunc // ends the task; nil without one
	stopping bool               // the run was asked to stop
	quitting bool
}

func newInput() textarea.Model {
	in := textarea.New()
	in.Prompt = "> "
	in.ShowLineNumbers = false
	in.DynamicHeight, in.MinHeight, in.MaxHeight = true, 1, 10
	in.MaxContentHeight = 10_000
	in.CharLimit = 0
	in.SetVirtualCursor(false)
	in.KeyMap.InsertNewline = key.NewBinding(key.WithKeys("alt+enter", "shift+enter", "ctrl+j"))
	styles := textarea.DefaultDarkStyles()
	plain := lipgloss.NewStyle()
	styles.Focused = textarea.StyleState{Base: plain, Text: plain, CursorLine: plain, Prompt: plain.Bold(true), Placeholder: plain.Faint(true)}
	styles.Blurred = styles.Focused
	in.SetStyles(styles)
	return in
}

func (m *screen) Init() tea.Cmd {
	return m.input.Focus()
}

// start runs a task on a goroutine of its own.
func (m *screen) start(do func(context.Context) error) tea.Cmd {
	ctx, stop := context.WithCancel(m.ctx)
	m.stop, m.stopping = stop, false
	m.task.Add(1)
	return func() tea.Msg {
		defer m.task.Done()
		defer stop()
		err := do(ctx)
		return doneMsg{err, m.talk.session}
	}
}

// do executes what was typed.
func (m *screen) do(typed string) tea.Cmd {
	return m.start(func(ctx context.Context) error { return m.talk.do(ctx, typed) })
}

func (m *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		m.input.SetWidth(msg.Width)
		m.look.resize(msg.Width)
		if first := m.first; first != nil { // the width is known now
			m.first = nil
			return m, m.start(first)
		}
		return m, nil
	case pastMsg:
		m.history = append(m.history, msg...)
		m.at = len(m.history)
		return m, nil
	case liveMsg:
		m.live = string(msg)
		return m, nil
	case doneMsg:
		return m.done(msg)
	case endMsg: // all output is on the screen now; above an empty view it would be lost
		m.quitting = true
		return m, tea.Quit
	case tea.KeyPressMsg:
		if cmd, ok := m.key(msg.String()); ok {
			return m, cmd
		}
	}
	var cmd tea.Cmd
	m.input, cmd = m.input.Update(msg)
	return m, cmd
}

// done handles the end of a task, and starts the next one.
func (m *screen) done(msg doneMsg) (tea.Model, tea.Cmd) {
	m.stop, m.live, m.session = nil, "", msg.session
	switch {
	case errors.Is(msg.err, errQuit):
		return m, m.quit(nil)
	case m.once, m.session.ID == "": // there is no session to continue
		return m, m.quit(msg.err)
	case len(m.waiting) > 0:
		typed := m.waiting[0]
		m.waiting = m.waiting[1:]
		return m, m.do(typed)
	}
	return m, nil
}

func (m *screen) quit(err error) tea.Cmd {
	m.err = err
	end := func() tea.Msg { return endMsg{} }
	if m.once || m.session.ID == "" {
		return end
	}
	hint := m.look.style().dim("To continue it: signalbox chat --session " + m.session.ID + m.talk.client.Flags)
	return tea.Sequence(tea.Println(m.look.adapt(hint)), end)
}

// key handles the chat's own keys; other keys are for the input.
func (m *screen) key(name string) (tea.Cmd, bool) {
	typed := strings.TrimSpace(m.input.Value())
	switch {
	case name == "ctrl+z":
		return tea.Suspend, true
	case name == "ctrl+c":
		return m.interrupt(), true
	case name == "ctrl+d" && m.input.Length() == 0:
		return m.enter("/quit"), true
	case name == "enter" && typed == "":
		return nil, true
	case name == "enter":
		m.input.Reset()
		m.history = append(m.history, typed)
		m.at = len(m.history)
		return m.enter(typed), true
	case name == "up" && m.input.Line() == 0 && m.input.LineInfo().RowOffset == 0:
		m.recall(-1)
		return nil, true
	case name == "down" && m.input.Line() == m.input.LineCount()-1 && m.input.LineInfo().RowOffset == m.input.LineInfo().Height-1:
		m.recall(1)
		return nil, true
	}
	return nil, false
}

// enter executes what was typed, after the current task.
func (m *screen) enter(typed string) tea.Cmd {
	if m.stop == nil {
		return m.do(typed)
	}
	session := m.talk.answering.Load()
	if q, ok := m.talk.asked.first(); ok && session != nil {
		if body, ok := q.answer(typed); ok {
			m.talk.asked.remove(q.ToolCallID)
			return m.decide(*session, q, body)
		}
	}
	m.waiting = append(m.waiting, typed)
	return nil
}

// decide answers a question while the answer goes on.
func (m *screen) decide(session string, q question, body map[string]any) tea.Cmd {
	return func() tea.Msg {
		if err := m.talk.client.Decide(m.ctx, session, q.ToolCallID, body); err != nil {
			return tea.Println(m.look.adapt(m.look.style().red("error: " + clean(err.Error()))))()
		}
		return nil
	}
}

// interrupt stops the answer, and the second time stops waiting for it; without an answer it
// clears the input, or else ends the chat.
func (m *screen) interrupt() tea.Cmd {
	switch {
	case m.stop == nil && m.input.Length() > 0:
		m.input.Reset()
		m.at = len(m.history)
		return nil
	case m.stop == nil:
		return m.quit(nil)
	case m.stopping:
		m.stop()
		return nil
	}
	m.stopping, m.waiting = true, nil
	session := m.talk.answering.Load()
	if session == nil {
		m.stop()
		return nil
	}
	return func() tea.Msg {
		if err := m.talk.client.Cancel(m.ctx, *session); err != nil {
			return tea.Println(m.look.adapt(m.look.style().red("error: " + clean(err.Error()))))()
		}
		return nil
	}
}

// recall puts an earlier or later input into the input line.
func (m *screen) recall(step int) {
	m.at = min(max(m.at+step, 0), len(m.history))
	m.input.Reset()
	if m.at < len(m.history) {
		m.input.SetValue(m.history[m.at])
	}
}

func (m *screen) View() tea.View {
	if m.quitting {
		return tea.NewView("")
	}
	s := m.look.style()
	below := "\n" + s.dim(oneLine(m.status(), max(m.width-1, 1)))
	cursor := m.input.Cursor()
	if m.once {
		cursor = nil
	} else {
		below = "\n" + m.input.View() + below
	}
	above := ""
	if m.live != "" {
		lines := strings.Split(m.live, "\n")
		if room := max(m.height-lipgloss.Height(below)-3, 1); len(lines) > room {
			lines = lines[len(lines)-room:]
		}
		above = "\n" + strings.Join(lines, "\n") + "\n"
	}
	v := tea.NewView(above + below)
	if cursor != nil {
		cursor.Y += strings.Count(above, "\n") + 1
		v.Cursor = cursor
	}
	return v
}

func (m *screen) status() string {
	_, asked := m.talk.asked.first()
	switch {
	case m.stop != nil && asked && !m.stopping:
		return "a tool call waits for your answer: y or n; Ctrl-C stops"
	case m.stopping && m.stop != nil:
		return "stopping … press Ctrl-C again to stop waiting"
	case len(m.waiting) > 0:
		return fmt.Sprintf("answering … then %s; Ctrl-C stops it and drops the rest", Plural(len(m.waiting), "more message"))
	case m.stop != nil:
		return "answering … Ctrl-C stops it"
	}
	return m.session.Provider + "/" + m.session.Model + " · /help · Ctrl-D ends"
}
