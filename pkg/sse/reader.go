package sse

import (
	"bytes"
	"errors"
	"io"
	"time"
)

// ErrTooLong means that an event, or one line, exceeds the Reader's limit.
var ErrTooLong = errors.New("server-sent event is over the size limit")

const (
	firstBuffer  = 4 << 10
	defaultLimit = 1 << 20
	knownTypes   = 64 // event types whose names are kept, to avoid allocations
	emptyReads   = 100
)

// Event is a dispatched event. Data and ID alias the Reader's buffers and are valid until the
// next call of Next.
type Event struct {
	// Type is the event's type as sent; empty means "message".
	Type string
	// Data is the data lines joined with \n. Invalid UTF-8 is not replaced, because a codec may
	// need it unchanged.
	Data []byte
	// ID is the stream's last event id: the event's own, or the previous one.
	ID []byte
}

// Reader reads events from a stream, however it is split. It holds one event in memory, and
// allocates nothing once its buffers have grown to the largest event.
type Reader struct {
	src io.Reader
	max int

	buf        []byte // buf[start:end] is read and not yet consumed
	start, end int
	scanned    int // buf[start:scanned] has no line end

	data    []byte
	id      []byte
	typ     []byte
	hasData bool
	pending bool // fields of the next event have been read
	skipLF  bool // the last line ended with \r: a \n after it belongs to it
	begun   bool // the byte order mark, if any, has been read

	retry time.Duration
	types map[string]string
	err   error
}

// NewReader returns a Reader of r. An event (data, type and id together) or a line of more than
// maxEvent bytes is ErrTooLong; 0 means 1 MiB.
func NewReader(r io.Reader, maxEvent int) *Reader {
	if maxEvent <= 0 {
		maxEvent = defaultLimit
	}
	return &Reader{src: r, max: maxEvent}
}

// Reset makes the Reader read another stream, with the same buffers and limit.
func (r *Reader) Reset(src io.Reader) {
	*r = Reader{
		src: src, max: r.max,
		buf: r.buf, data: r.data[:0], id: r.id[:0], typ: r.typ[:0], types: r.types,
	}
}

// Retry returns the stream's latest reconnection time, 0 if there is none.
func (r *Reader) Retry() time.Duration { return r.retry }

// Next returns the next event. It never waits for a byte after the event's blank line. Events
// without data are not dispatched, as the standard says.
//
// The error is io.EOF if the stream ended between events, io.ErrUnexpectedEOF if it ended
// inside one, ErrTooLong, or that of the underlying reader. After an error every call returns
// it again.
func (r *Reader) Next() (Event, error) {
	if r.err != nil {
		return Event{}, r.err
	}
	for {
		line, ok := r.line()
		if !ok {
			return Event{}, r.err
		}
		if len(line) == 0 {
			if ev, ok := r.dispatch(); ok {
				return ev, nil
			}
			continue
		}
		if !r.field(line) {
			r.err = ErrTooLong
			return Event{}, r.err
		}
	}
}

// dispatch returns the event read so far, if it has data.
func (r *Reader) dispatch() (Event, bool) {
	r.pending = false
	if !r.hasData {
		r.typ = r.typ[:0]
		return Event{}, false
	}
	ev := Event{Type: r.name(r.typ), Data: r.data, ID: r.id}
	r.typ = r.typ[:0]
	r.hasData = false
	return ev, true
}

// name returns b as a string, without an allocation for known types.
func (r *Reader) name(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := r.types[string(b)]; ok {
		return s
	}
	s := string(b)
	if r.types == nil {
		r.types = make(map[string]string)
	}
	if len(r.types) < knownTypes {
		r.types[s] = s
	}
	return s
}

// field parses a non-empty line and reports whether the event is within the limit.
func (r *Reader) field(line []byte) bool {
	colon := bytes.IndexByte(line, ':')
	if colon == 0 {
		return true // a comment
	}
	name, value := line, []byte(nil)
	if colon > 0 {
		name, value = line[:colon], line[colon+1:]
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
	}
	switch string(name) {
	case "data":
		if !r.hasData {
			r.data = r.data[:0]
		} else {
			r.data = append(r.data, '\n')
		}
		if len(r.data)+len(value)+len(r.typ)+len(r.id) > r.max {
			return false
		}
		r.data = append(r.data, value...)
		r.hasData, r.pending = true, true
	case "event":
		r.typ = append(r.typ[:0], value...)
		r.pending = true
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			r.id = append(r.id[:0], value...)
		}
		r.pending = true
	case "retry":
		r.setRetry(value)
	}
	return true
}

func (r *Reader) setRetry(value []byte) {
	if len(value) == 0 || len(value) > 9 {
		return
	}
	ms := 0
	for _, c := range value {
		if c < '0' || c > '9' {
			return
		}
		ms = ms*10 + int(c-'0')
	}
	r.retry = time.Duration(ms) * time.Millisecond
}

// line returns the next line without its end. It returns false at the end of the stream, with
// the cause in r.err.
func (r *Reader) line() ([]byte, bool) {
	for {
		if r.skipLF && r.start < r.end {
			if r.buf[r.start] == '\n' {
				r.start++
			}
			r.skipLF = false
			r.scanned = r.start
		}
		if i := lineEnd(r.buf[r.scanned:r.end]); i >= 0 {
			end := r.scanned + i
			line := r.buf[r.start:end]
			r.skipLF = r.buf[end] == '\r'
			r.start = end + 1
			r.scanned = r.start
			if !r.begun {
				line = r.trimBOM(line)
			}
			if len(line) > r.max+len("data: ") {
				r.err = ErrTooLong
				return nil, false
			}
			return line, true
		}
		r.scanned = r.end
		if r.end-r.start > r.max+len("data: ") {
			r.err = ErrTooLong
			return nil, false
		}
		if err := r.fill(); err != nil {
			r.err = r.ended(err)
			return nil, false
		}
	}
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

func (r *Reader) trimBOM(line []byte) []byte {
	r.begun = true
	return bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
}

// ended turns the end of the stream into what Next promises: an unfinished event
// or an unfinished line (other than a comment) is not a clean end.
func (r *Reader) ended(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	rest := r.buf[r.start:r.end]
	if !r.begun {
		rest = r.trimBOM(rest)
	}
	if r.pending || (len(rest) > 0 && rest[0] != ':') {
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}

// fill reads at least one more byte.
func (r *Reader) fill() error {
	r.room()
	for range emptyReads {
		n, err := r.src.Read(r.buf[r.end:])
		if n < 0 || n > len(r.buf)-r.end {
			return errors.New("read of server-sent events: reader returned an impossible count")
		}
		r.end += n
		if n > 0 {
			return nil // an error that came with bytes comes again without them
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// room makes space behind r.end: by moving what is left to the front, else by growing.
func (r *Reader) room() {
	if r.start == r.end {
		r.start, r.end, r.scanned = 0, 0, 0
	}
	if r.end < len(r.buf) {
		return
	}
	if r.start > 0 {
		n := copy(r.buf, r.buf[r.start:r.end])
		r.scanned -= r.start
		r.start, r.end = 0, n
		if r.end < len(r.buf) {
			return
		}
	}
	next := make([]byte, max(firstBuffer, 2*len(r.buf)))
	copy(next, r.buf[:r.end])
	r.buf = next
}
