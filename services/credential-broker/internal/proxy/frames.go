package proxy

import (
	"bytes"
	"iter"

	"signalbox.dev/services/credential-broker/internal/scan"
)

const (
	firstBuffer = 32 << 10
	keepBuffer  = 64 << 10 // larger ones are not kept for the next stream
	maxFrame    = 1 << 20  // a longer event is forwarded before it is whole
)

// event is what is known about one whole event, or about the beginning of an overlong one.
// Its slices point into the buffer.
type event struct {
	name    []byte
	data    []byte
	hasData bool
	from    int // where it begins in the buffer
	at      int // where its data is in the buffer; -1 if it was joined from several lines
}

// frames finds the events of a stream in the buffer that it owns: in
//
//	buf[:done]     whole events that next has returned
//	buf[done:at]   whole lines of the current event
//	buf[at:end]    an unfinished line, or what was not examined yet
//
// Lines end with \n, \r\n or \r. A \r at the very end of the buffer ends its line at once; a
// \n that follows later is skipped at the front of the next line.
type frames struct {
	buf           []byte
	done, at, end int
	scanned       int // no line ends in buf[at:scanned]

	begun  bool // the first line was read
	skipLF bool // a \n that comes next belongs to the previous line

	// Of the current event, relative to done:
	name, data scan.Span
	lines      int // data lines

	over bool // the current event did not fit: its beginning is no longer in the buffer
	long long // what is known about it
}

// long reads an overlong event: its name, and some members of its data.
type long struct {
	name   []byte
	filter *scan.PathFilter
	line   int // how much of the current line matches dataField; -1 if it is another field's
	lines  int // data lines
}

// dataField begins a line of data; a space may follow.
const dataField = "data:"

// add reads a piece of a line.
func (l *long) add(piece []byte) {
	for ; len(piece) > 0 && 0 <= l.line && l.line < len(dataField); piece = piece[1:] {
		if piece[0] != dataField[l.line] {
			l.line = -1
			return
		}
		l.line++
		if l.line == len(dataField) {
			if l.lines++; l.lines > 1 {
				l.filter.Write([]byte{'\n'})
			}
		}
	}
	if l.line < 0 || len(piece) == 0 {
		return
	}
	if l.line == len(dataField) {
		l.line++
		piece = bytes.TrimPrefix(piece, []byte(" "))
	}
	l.filter.Write(piece)
}

// endLine ends a line and reports whether it was blank.
func (l *long) endLine() bool {
	blank := l.line == 0
	l.line = 0
	return blank
}

// next returns the next whole event; false if more must be read.
func (f *frames) next() (event, bool) {
	if f.over && !f.skim() {
		return event{}, false
	}
	for f.more() {
		from := max(f.at, f.scanned)
		i := lineEnd(f.buf[from:f.end])
		if i < 0 {
			f.scanned = f.end
			break
		}
		start, stop := f.at, from+i
		f.at = f.past(stop)
		if !f.begun {
			f.begun = true
			if bytes.HasPrefix(f.buf[start:stop], []byte("\xef\xbb\xbf")) {
				start += 3
			}
		}
		if start == stop {
			return f.event(), true
		}
		f.field(start, stop)
	}
	return event{}, false
}

// more reports whether there is text to examine, once a \n that belongs to the previous line
// is skipped.
func (f *frames) more() bool {
	if f.skipLF && f.at < f.end {
		f.skipLF = false
		if f.buf[f.at] == '\n' {
			f.at++
		}
	}
	return f.at < f.end
}

// past returns the index behind the line end at i.
func (f *frames) past(i int) int {
	if f.buf[i] == '\r' {
		if i+1 < f.end && f.buf[i+1] == '\n' {
			return i + 2
		}
		f.skipLF = i+1 == f.end
	}
	return i + 1
}

// lineEnd returns the index of the first \n or \r in b, or -1.
func lineEnd(b []byte) int {
	lf := bytes.IndexByte(b, '\n')
	if lf >= 0 {
		b = b[:lf]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return lf
}

// field notes where the event's name and data are.
func (f *frames) field(start, stop int) {
	line := f.buf[start:stop]
	if v, ok := value(line, "data"); ok {
		f.lines++
		if f.lines == 1 {
			f.data = scan.Span{From: start + v - f.done, To: stop - f.done}
		}
	} else if v, ok := value(line, "event"); ok {
		f.name = scan.Span{From: start + v - f.done, To: stop - f.done}
	}
}

// value returns where a line's value begins if the line is the field of that name.
func value(line []byte, name string) (int, bool) {
	n := len(name)
	switch {
	case len(line) < n || string(line[:n]) != name:
		return 0, false
	case len(line) == n:
		return n, true
	case line[n] != ':':
		return 0, false
	case len(line) > n+1 && line[n+1] == ' ':
		return n + 2, true
	}
	return n + 1, true
}

// event returns the current event, which ends at f.at, and makes f.at the beginning of the
// next one.
func (f *frames) event() event {
	whole := f.buf[f.done:f.at]
	ev := event{
		name: whole[f.name.From:f.name.To], data: whole[f.data.From:f.data.To], hasData: f.lines > 0,
		from: f.done, at: f.done + f.data.From,
	}
	if f.lines > 1 {
		ev.data, ev.at = joinData(whole), -1
	}
	f.done, f.scanned = f.at, f.at
	f.name, f.data, f.lines = scan.Span{}, scan.Span{}, 0
	return ev
}

// cut removes n bytes at i of the data of the last returned event from the buffer, and
// invalidates the event's slices.
func (f *frames) cut(ev *event, i, n int) {
	at := ev.at + i
	if ev.at < 0 {
		at = ev.from + unjoin(f.buf[ev.from:f.done], i)
	}
	copy(f.buf[at:], f.buf[at+n:f.end])
	f.done, f.at, f.scanned, f.end = f.done-n, f.at-n, f.scanned-n, f.end-n
}

// joinData returns an event's data lines joined with \n. Most providers send one line.
func joinData(whole []byte) []byte {
	var lines [][]byte
	for line := range dataLines(whole) {
		lines = append(lines, whole[line.From:line.To])
	}
	return bytes.Join(lines, []byte("\n"))
}

// unjoin returns where a byte of the joined data is in the event.
func unjoin(whole []byte, i int) int {
	for line := range dataLines(whole) {
		if n := line.To - line.From; i > n {
			i -= n + 1
			continue
		}
		return line.From + i
	}
	return len(whole)
}

// dataLines iterates over the values of an event's data lines.
func dataLines(whole []byte) iter.Seq[scan.Span] {
	return func(yield func(scan.Span) bool) {
		for at := 0; at < len(whole); {
			i := lineEnd(whole[at:])
			if i < 0 {
				i = len(whole) - at
			}
			if v, ok := value(whole[at:at+i], "data"); ok && !yield(scan.Span{From: at + v, To: at + i}) {
				return
			}
			at += i + 1
		}
	}
}

// rest returns what follows the last whole event: an event without its blank line, or a part
// of one.
func (f *frames) rest() event {
	if f.at < f.end {
		f.field(f.at, f.end)
		f.at = f.end
	}
	return f.event()
}

// room makes space behind f.end; the bytes before from are no longer needed. It is false if
// the current event has reached the size limit.
func (f *frames) room(from int) bool {
	if from > 0 {
		copy(f.buf, f.buf[from:f.end])
		f.done, f.at, f.end, f.scanned = f.done-from, f.at-from, f.end-from, max(f.scanned-from, 0)
	}
	if f.end < len(f.buf) {
		return true
	}
	if len(f.buf) >= maxFrame {
		return false
	}
	next := make([]byte, min(2*len(f.buf), maxFrame))
	copy(next, f.buf[:f.end])
	f.buf = next
	return true
}

// giveUp returns what is known about the current event, which is too long to hold, and goes on
// behind what was read of it. The members of its data at these paths are kept for ending.
func (f *frames) giveUp(paths ...[]string) event {
	f.long = long{filter: scan.NewPathFilter(paths...)}
	rest := f.buf[f.done:f.end]
	for i := lineEnd(rest); i >= 0; i = lineEnd(rest) {
		f.long.add(rest[:i])
		f.long.endLine()
		rest = rest[i+1:]
	}
	f.long.add(rest)
	ev := f.rest()
	f.long.name = bytes.Clone(ev.name)
	f.over = true
	return ev
}

// ending returns what was kept of an overlong event that has ended; false if its data was not
// whole JSON.
func (f *frames) ending() (event, bool) {
	data, ok := f.long.filter.Kept()
	return event{name: f.long.name, data: data, hasData: true, from: f.done, at: -1}, ok
}

// skim moves f.done towards the end of an overlong event and reports whether it was reached.
func (f *frames) skim() bool {
	for f.over && f.more() {
		i := lineEnd(f.buf[f.at:f.end])
		if i < 0 {
			f.long.add(f.buf[f.at:f.end])
			f.at = f.end
			break
		}
		f.long.add(f.buf[f.at : f.at+i])
		f.at = f.past(f.at + i)
		f.over = !f.long.endLine()
	}
	f.done, f.scanned = f.at, f.at
	return !f.over
}
