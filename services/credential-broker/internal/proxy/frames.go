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

// event is what is known of one whole event, or of the beginning of an overlong
// one. Its slices point into the buffer.
type event struct {
	name    []byte
	data    []byte
	hasData bool
	from    int // where it begins in the buffer
	at      int // where its data is in the buffer; -1 where it was joined from several lines
}

// span is a piece of the frame under way, relative to its start, so that it stays
// right when the buffer moves.
type span struct{ from, to int }

// frames finds the events of a stream in the buffer that it owns: in
//
//	buf[:done]     whole events, which next has returned
//	buf[done:at]   whole lines of the event under way
//	buf[at:end]    an unfinished line, or what was not looked at yet
//
// Lines end with \n, \r\n or \r. A \r at the very end of what was read ends its
// line at once; a \n that follows later is skipped at the front of the next event.
type frames struct {
	buf           []byte
	done, at, end int
	scanned       int // no line end in buf[at:scanned]

	begun  bool // the first line was read
	skipLF bool // a \n that comes next belongs to the line before

	name  span
	data  span
	lines int // data lines
	// over: the event under way did not fit; its beginning was given up.
	over     bool
	overLine bool // in an overlong event: the current line is not empty so far
	long     long // the overlong event under way
}

// long is what is kept of an overlong event: its name, and some members of its data.
type long struct {
	name   []byte
	filter *scan.PathFilter // nil: nothing
	at     int              // how much of the line under way was taken for the name of a data field; -1: it is another's
	lines  int              // data lines
}

// dataField begins a line of data; a space may follow.
const dataField = "data:"

// add reads a piece of a line.
func (l *long) add(line []byte) {
	for ; len(line) > 0 && 0 <= l.at && l.at < len(dataField); line = line[1:] {
		if line[0] != dataField[l.at] {
			l.at = -1
			return
		}
		if l.at++; l.at == len(dataField) {
			if l.lines++; l.lines > 1 {
				l.filter.Write([]byte{'\n'})
			}
		}
	}
	if l.at < 0 || len(line) == 0 {
		return
	}
	if l.at == len(dataField) {
		l.at++
		line = bytes.TrimPrefix(line, []byte(" "))
	}
	l.filter.Write(line)
}

// read reads lines and pieces of them.
func (l *long) read(b []byte) {
	for l.filter != nil && len(b) > 0 {
		i := lineEnd(b)
		if i < 0 {
			l.add(b)
			return
		}
		l.add(b[:i])
		l.at = 0
		b = b[i+1:]
	}
}

// next returns the next whole event. It is false when more must be read.
func (f *frames) next() (event, bool) {
	if f.over && !f.skim() {
		return event{}, false
	}
	for f.at < f.end {
		if f.skipLF {
			f.skipLF = false
			if f.buf[f.at] == '\n' {
				f.at++
				continue
			}
		}
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
			ev := f.event()
			f.finish()
			return ev, true
		}
		f.field(start, stop)
	}
	return event{}, false
}

// past returns the index behind the line end at i.
func (f *frames) past(i int) int {
	if f.buf[i] == '\n' {
		return i + 1
	}
	if i+1 == f.end {
		f.skipLF = true
		return i + 1
	}
	if f.buf[i+1] == '\n' {
		return i + 2
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
	switch {
	case len(line) >= 4 && string(line[:4]) == "data":
		if v, ok := value(line, 4); ok {
			f.lines++
			if f.lines == 1 {
				f.data = span{start + v - f.done, stop - f.done}
			}
		}
	case len(line) >= 5 && string(line[:5]) == "event":
		if v, ok := value(line, 5); ok {
			f.name = span{start + v - f.done, stop - f.done}
		}
	}
}

// value returns where a field's value begins, behind its name of n bytes.
func value(line []byte, n int) (int, bool) {
	switch {
	case len(line) == n:
		return n, true
	case line[n] != ':':
		return 0, false
	case len(line) > n+1 && line[n+1] == ' ':
		return n + 2, true
	}
	return n + 1, true
}

// event returns the event under way, which ends at f.at.
func (f *frames) event() event {
	whole := f.buf[f.done:f.at]
	ev := event{
		name: whole[f.name.from:f.name.to], data: whole[f.data.from:f.data.to], hasData: f.lines > 0,
		from: f.done, at: f.done + f.data.from,
	}
	if f.lines > 1 {
		ev.data, ev.at = joinData(whole), -1
	}
	return ev
}

// cut takes n bytes out of the buffer that are at i of the data of the event that was
// returned last. The event's slices are not to be used any more.
func (f *frames) cut(ev *event, i, n int) {
	at := ev.at + i
	if ev.at < 0 {
		at = ev.from + unjoin(f.buf[ev.from:f.done], i)
	}
	copy(f.buf[at:], f.buf[at+n:f.end])
	f.done, f.at, f.scanned, f.end = f.done-n, f.at-n, f.scanned-n, f.end-n
}

// joinData returns the data lines of an event joined with \n. Providers send one
// line; this is for those that do not.
func joinData(whole []byte) []byte {
	var data []byte
	for line := range dataLines(whole) {
		data = append(append(data, whole[line.from:line.to]...), '\n')
	}
	return bytes.TrimSuffix(data, []byte("\n"))
}

// unjoin returns where a byte of the joined data is in the event.
func unjoin(whole []byte, i int) int {
	for line := range dataLines(whole) {
		if n := line.to - line.from; i > n {
			i -= n + 1
			continue
		}
		return line.from + i
	}
	return len(whole)
}

// dataLines iterates over the values of an event's data lines.
func dataLines(whole []byte) iter.Seq[span] {
	return func(yield func(span) bool) {
		for at := 0; at < len(whole); {
			i := lineEnd(whole[at:])
			if i < 0 {
				i = len(whole) - at
			}
			line := whole[at : at+i]
			from := at
			at += i + 1
			if len(line) < 4 || string(line[:4]) != "data" {
				continue
			}
			if v, ok := value(line, 4); ok && !yield(span{from + v, from + i}) {
				return
			}
		}
	}
}

// finish makes f.at the beginning of the next event.
func (f *frames) finish() {
	f.done, f.scanned = f.at, f.at
	f.name, f.data, f.lines = span{}, span{}, 0
}

// rest returns what a stream that has ended left behind its last whole event: an
// event whose blank line is missing, or a part of one.
func (f *frames) rest() event {
	if f.at < f.end {
		f.field(f.at, f.end)
		f.at = f.end
	}
	ev := f.event()
	f.finish()
	return ev
}

// room makes space behind f.end. The bytes before from are not needed any more.
// It is false when the event under way has reached the size limit.
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

// giveUp returns what is known of the event under way, which is too long to hold,
// and goes on behind what was read of it. Of its data the members at these paths are kept
// for ending; without any, nothing is.
func (f *frames) giveUp(paths ...[]string) event {
	f.long = long{}
	if len(paths) > 0 {
		f.long.filter = scan.NewPathFilter(paths...)
		f.long.read(f.buf[f.done:f.end])
	}
	partial := f.at < f.end
	if partial {
		f.field(f.at, f.end)
		f.at = f.end
	}
	ev := f.event()
	f.long.name = bytes.Clone(ev.name)
	f.finish()
	f.over, f.overLine = true, partial
	return ev
}

// ending returns what was kept of an overlong event that has ended, as an event. It is false
// where its data is no whole JSON.
func (f *frames) ending() (event, bool) {
	if f.long.filter == nil {
		return event{}, false
	}
	data, ok := f.long.filter.Kept()
	return event{name: f.long.name, data: data, hasData: true, from: f.done, at: -1}, ok
}

// skim moves f.done towards the end of an overlong event and reports whether it
// was reached.
func (f *frames) skim() bool {
	from := f.at
	defer func() { f.long.read(f.buf[from:f.at]) }()
	for f.at < f.end {
		if f.skipLF {
			f.skipLF = false
			if f.buf[f.at] == '\n' {
				f.at++
				continue
			}
		}
		i := lineEnd(f.buf[f.at:f.end])
		if i < 0 {
			f.at, f.overLine = f.end, true
			break
		}
		blank := i == 0 && !f.overLine
		f.at = f.past(f.at + i)
		f.overLine = false
		if blank {
			f.over = false
			break
		}
	}
	f.finish()
	return !f.over
}
