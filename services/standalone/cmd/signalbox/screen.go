package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"

	"signalbox.dev/pkg/process"
)

// screen is the output, where a person may be reading, and asks questions.
type screen struct {
	out, err io.Writer
	in       *bufio.Reader
	ctx      context.Context //nolint:containedctx // the command's, which ends at a signal
	// Tables and colours are for terminals only, and answers come from one.
	tables, colours, answers bool
	// width is the terminal's number of columns; 0 if unknown.
	width int
}

func (c *cli) screen() *screen {
	if c.shown != nil {
		return c.shown
	}
	f, ok := c.out.(*os.File)
	tables, width := ok && isTerminal(f), 0
	if tables {
		width, _, _ = term.GetSize(int(f.Fd())) // 0 if unknown
	}
	return &screen{
		width: width, out: c.out, err: c.err, in: bufio.NewReader(os.Stdin), ctx: context.Background(), tables: tables,
		colours: tables && c.variable("NO_COLOR") == "" && c.variable("TERM") != "dumb", answers: isTerminal(os.Stdin),
	}
}

// variable returns an environment variable.
func (c *cli) variable(name string) string {
	for _, kv := range c.environ {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// maxLine bounds a line of input.
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

// cell is a field of a table.
type cell struct {
	text   string
	colour colour
}

// plainCells prints values as they are.
func plainCells(values ...any) []cell {
	out := make([]cell, len(values))
	for i, v := range values {
		out[i].text = fmt.Sprint(v)
	}
	return out
}

func headerCells(header []string, c colour) []cell {
	out := make([]cell, len(header))
	for i, h := range header {
		out[i] = cell{h, c}
	}
	return out
}

// table prints rows under a header: at a terminal in columns or, if it is too narrow, as
// blocks; elsewhere with tabs between the fields.
func (s *screen) table(header []string, rows [][]cell) error {
	if len(rows) == 0 && !s.tables {
		return nil
	}
	if !s.tables {
		for _, r := range append([][]cell{headerCells(header, plain)}, rows...) {
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
	all := append([][]cell{headerCells(header, bold)}, rows...)
	widths := make([]int, len(header))
	for _, r := range all {
		for i, c := range r {
			widths[i] = max(widths[i], columns(printable(c.text)))
		}
	}
	if !narrow(header, widths, s.width) {
		return s.blocks(header, rows)
	}
	for _, r := range all {
		var line strings.Builder
		for i, c := range r {
			text := cut(printable(c.text), widths[i])
			line.WriteString(s.paint(c.colour, text))
			if i < len(r)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-columns(text)+gap))
			}
		}
		if _, err := fmt.Fprintln(s.out, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// blocks prints each row as lines of a name and a field.
func (s *screen) blocks(header []string, rows [][]cell) error {
	names := 0
	for _, h := range header {
		names = max(names, columns(h))
	}
	for i, r := range rows {
		var b strings.Builder
		if i > 0 {
			b.WriteString("\n")
		}
		for j, c := range r {
			if text := printable(c.text); text != "" {
				fmt.Fprintf(&b, "%s  %s\n", s.paint(bold, fmt.Sprintf("%-*s", names, header[j])), s.paint(c.colour, text))
			}
		}
		if _, err := fmt.Fprint(s.out, b.String()); err != nil {
			return err
		}
	}
	return nil
}

// unseen are characters that move the cursor, reverse the rest of a line, or are invisible,
// so that different texts look the same.
var unseen = []*unicode.RangeTable{unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector}

// printable removes unseen characters: labels are other people's text.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unseen...) {
			return -1
		}
		return r
	}, text)
}

var errDeclined = errors.New("nothing was changed")

// confirm asks before a change that cannot be undone, unless yes is set.
func (s *screen) confirm(yes bool, format string, args ...any) error {
	question := fmt.Sprintf(format, args...)
	if yes {
		return nil
	}
	if !s.answers {
		return process.Usage("this needs the answer to %q, and there is no terminal: add --yes", question)
	}
	answer, err := s.ask("%s [y/N] ", question)
	if errors.Is(err, io.EOF) {
		return errDeclined
	}
	if err != nil {
		return err
	}
	if a := strings.ToLower(answer); a == "y" || a == "yes" {
		return nil
	}
	return errDeclined
}

// ask asks for a line. At the end of the input it returns io.EOF.
func (s *screen) ask(format string, args ...any) (string, error) {
	if s.answers {
		fmt.Fprintf(s.err, format, args...)
	}
	return s.wait(s.line)
}

var errInterrupted = errors.New("interrupted: nothing was changed")

// wait returns the result of read, or errInterrupted if the command is told to stop
// meanwhile. A read of a terminal cannot be interrupted: it is abandoned, and nothing is
// read after it.
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

// line reads a line.
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
	return "", process.Usage("the line is longer than %d bytes", maxLine)
}

// askKey is askSecret for a key. Piped input must be the key and nothing else: otherwise the
// first line of a wrong file would be taken for a key.
func (s *screen) askKey(provider string, optional bool) (string, error) {
	if s.answers {
		note := "not shown"
		if optional {
			note += "; Enter for none"
		}
		return s.askSecret("API key for %s (%s): ", provider, note)
	}
	return s.wait(s.onlyLine)
}

// onlyLine reads a line, after which only white space may follow.
func (s *screen) onlyLine() (string, error) {
	text, err := s.line()
	if err != nil {
		return "", err
	}
	rest, err := io.ReadAll(io.LimitReader(s.in, maxLine))
	if err != nil {
		return "", err
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return "", process.Usage("the input has more than one line: pass the secret and nothing else")
	}
	return text, nil
}

// askSecret is ask without echo.
func (s *screen) askSecret(format string, args ...any) (string, error) {
	if !s.answers {
		return s.ask(format, args...)
	}
	// Before the question, so that an immediate answer is not shown either.
	fd := int(os.Stdin.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return "", err
	}
	defer func() { _ = term.Restore(fd, state) }() // the terminal is gone
	fmt.Fprintf(s.err, format, args...)
	defer fmt.Fprint(s.err, "\r\n")
	return s.wait(s.rawLine)
}

// Keys that a terminal handles itself unless it is in raw mode.
const (
	ctrlC     = 0x03
	ctrlD     = 0x04
	backspace = 0x08
	ctrlU     = 0x15
	del       = 0x7f
)

// rawLine reads a line from a terminal in raw mode. term.ReadPassword would not end at
// Ctrl-D, and is limited to lines of 4096 bytes.
func (s *screen) rawLine() (string, error) {
	var line []byte
	for len(line) < maxLine {
		b, err := s.in.ReadByte()
		switch {
		case err != nil:
			return "", err
		case b == '\r' || b == '\n':
			return strings.TrimSpace(string(line)), nil
		case b == ctrlC:
			return "", errInterrupted
		case b == ctrlD && len(line) == 0:
			return "", io.EOF
		case b == backspace || b == del:
			line = line[:max(0, len(line)-1)]
		case b == ctrlU:
			line = line[:0]
		case b != ctrlD:
			line = append(line, b)
		}
	}
	return "", process.Usage("the line is longer than %d bytes", maxLine)
}
