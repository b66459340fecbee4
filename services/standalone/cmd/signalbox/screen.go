package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"signalbox.dev/pkg/process"
)

// screen is where a person may sit: it knows what to draw there, and asks.
type screen struct {
	out, err io.Writer
	in       *bufio.Reader
	ctx      context.Context //nolint:containedctx // the command's, which ends with a signal
	// tables and colours are for terminals alone; questions need one to be answered.
	tables, colours, answers bool
}

func (c *cli) screen() *screen {
	f, ok := c.out.(*os.File)
	tables := ok && isTerminal(f)
	return &screen{
		out: c.out, err: c.err, in: bufio.NewReader(os.Stdin), ctx: context.Background(), tables: tables,
		colours: tables && c.variable("NO_COLOR") == "" && c.variable("TERM") != "dumb", answers: isTerminal(os.Stdin),
	}
}

// variable returns one of the environment's.
func (c *cli) variable(name string) string {
	for _, kv := range c.environ {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// maxLine bounds what is read at once.
const maxLine = 64 << 10

type colour string

const (
	plain  colour = ""
	bold   colour = "1"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
	grey   colour = "90"
)

func (s *screen) paint(c colour, text string) string {
	if !s.colours || c == plain || text == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// cell is a piece of a table.
type cell struct {
	text   string
	colour colour
}

func plainCells(texts ...string) []cell {
	out := make([]cell, len(texts))
	for i, t := range texts {
		out[i].text = t
	}
	return out
}

// table writes rows: in columns under a header at a terminal, with a tab between the
// fields elsewhere.
func (s *screen) table(header []string, rows [][]cell) error {
	if !s.tables {
		for _, r := range rows {
			texts := make([]string, len(r))
			for i, c := range r {
				texts[i] = printable(c.text)
			}
			if _, err := fmt.Fprintln(s.out, strings.Join(texts, "\t")); err != nil {
				return err
			}
		}
		return nil
	}
	head := make([]cell, len(header))
	for i, h := range header {
		head[i] = cell{h, bold}
	}
	rows = append([][]cell{head}, rows...)
	widths := make([]int, len(header))
	for _, r := range rows {
		for i, c := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(printable(c.text)))
		}
	}
	for _, r := range rows {
		var line strings.Builder
		for i, c := range r {
			text := printable(c.text)
			line.WriteString(s.paint(c.colour, text))
			if i < len(r)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+2))
			}
		}
		if _, err := fmt.Fprintln(s.out, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// printable leaves out what would move the cursor: labels are other people's text.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, text)
}

var errDeclined = errors.New("nothing was changed")

// confirm asks before something that cannot be undone, unless yes is given.
func (s *screen) confirm(yes bool, format string, args ...any) error {
	question := fmt.Sprintf(format, args...)
	if yes {
		return nil
	}
	if !s.answers {
		return process.Usage("this asks %q, and nobody can answer: add --yes", question)
	}
	answer, err := s.ask("%s [y/N] ", question)
	if err != nil {
		return err
	}
	if a := strings.ToLower(answer); a == "y" || a == "yes" {
		return nil
	}
	return errDeclined
}

// ask returns a line. At the end of the input it is io.EOF.
func (s *screen) ask(format string, args ...any) (string, error) {
	if s.answers {
		fmt.Fprintf(s.err, format, args...)
	}
	return s.wait(s.line)
}

var errInterrupted = errors.New("interrupted: nothing was done")

// wait returns what read does, or errInterrupted when somebody tells the command to stop
// meanwhile. A read of a terminal cannot be ended: it is left behind, and nothing is read
// after it.
func (s *screen) wait(read func() (string, error)) (string, error) {
	type answer struct {
		text string
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		text, err := read()
		answered <- answer{text, err}
	}()
	select {
	case a := <-answered:
		return a.text, a.err
	case <-s.ctx.Done():
		return "", errInterrupted
	}
}

// line reads one.
func (s *screen) line() (string, error) {
	var line strings.Builder
	for line.Len() < maxLine {
		b, err := s.in.ReadByte()
		switch {
		case errors.Is(err, io.EOF) && line.Len() > 0, b == '\n':
			return strings.TrimSpace(line.String()), nil
		case err != nil:
			return "", err
		}
		line.WriteByte(b)
	}
	return "", fmt.Errorf("the line is longer than %d bytes", maxLine)
}

// askSecret is ask without showing what is typed.
func (s *screen) askSecret(format string, args ...any) (string, error) {
	if !s.answers {
		return s.ask(format, args...)
	}
	// From before the question on: who answers at once is not shown either.
	fd := int(os.Stdin.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return "", err
	}
	defer func() { _ = term.Restore(fd, state) }() // the terminal went away
	fmt.Fprintf(s.err, format, args...)
	defer fmt.Fprint(s.err, "\r\n")
	return s.wait(func() (string, error) {
		b, err := term.ReadPassword(fd)
		return strings.TrimSpace(string(b)), err
	})
}
