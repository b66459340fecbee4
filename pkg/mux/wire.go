package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Bounds of what is on the wire.
const (
	MaxPart  = 8 << 10  // bytes of a message that go up in one frame
	Window   = 32 << 10 // of a stream that may be under way up, with partCost for each part
	MaxPiece = 64 << 10 // bytes that go down in one frame
	partCost = 32       // so that empty parts are bounded, too

	maxStreams = 4096 // of one deliver
	maxText    = 8 << 10
	maxBody    = MaxPiece + maxStreams*binary.MaxVarintLen64 + 64 // of a frame, behind its length
	headSize   = 4
)

// Kinds of frames.
const (
	kindOpen = iota + 1
	kindData
	kindClientClose
	kindPing
	kindDeliver
	kindServerClose
	kindCredit
	kindPong
	kindGoAway
)

// ErrMalformed is about a peer that does not speak the protocol.
var ErrMalformed = errors.New("mux: malformed frame")

// frame is one frame, of any kind; each has some of the fields.
type frame struct {
	kind    byte
	stream  uint64   // all but deliver, ping, pong, away
	streams []uint64 // deliver
	more    bool     // data, deliver: the message goes on
	number  uint64   // end, leave: the code; credit: how much; open: Unix seconds, 0 for never
	path    string   // open
	text    string   // open: the signed context; end, leave: the reason
	data    []byte   // data, deliver
}

// append appends f with its length.
func (f *frame) append(b []byte) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, f.kind)
	switch f.kind {
	case kindOpen:
		b = binary.AppendUvarint(b, f.stream)
		b = binary.AppendUvarint(b, f.number)
		b = appendText(b, f.path)
		b = appendText(b, f.text)
	case kindClientClose, kindServerClose:
		b = binary.AppendUvarint(b, f.stream)
		b = binary.AppendUvarint(b, f.number)
		b = appendText(b, f.text)
	case kindCredit:
		b = binary.AppendUvarint(b, f.stream)
		b = binary.AppendUvarint(b, f.number)
	case kindData:
		b = binary.AppendUvarint(b, f.stream)
		b = append(appendBool(b, f.more), f.data...)
	case kindDeliver:
		b = appendBool(b, f.more)
		b = binary.AppendUvarint(b, uint64(len(f.streams)))
		for _, s := range f.streams {
			b = binary.AppendUvarint(b, s)
		}
		b = append(b, f.data...)
	}
	return finish(b, at)
}

// finish writes the length of the frame that begins at.
func finish(b []byte, at int) []byte {
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-headSize)) //nolint:gosec // it is bounded
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// parse takes a frame's body apart. data is lent, and streams is used again.
func (f *frame) parse(body []byte) error {
	*f = frame{streams: f.streams[:0]}
	if len(body) == 0 {
		return fmt.Errorf("%w: it is empty", ErrMalformed)
	}
	f.kind = body[0]
	r := fields{rest: body[1:]}
	switch f.kind {
	case kindOpen:
		f.stream, f.number, f.path, f.text = r.number(), r.number(), r.text(), r.text()
	case kindClientClose, kindServerClose:
		f.stream, f.number, f.text = r.number(), r.number(), r.text()
	case kindCredit:
		f.stream, f.number = r.number(), r.number()
	case kindData:
		f.stream, f.more, f.data = r.number(), r.flag(), r.all(MaxPart)
	case kindDeliver:
		f.more = r.flag()
		for range r.count(maxStreams) {
			f.streams = append(f.streams, r.number())
		}
		f.data = r.all(MaxPiece)
	case kindPing, kindPong, kindGoAway:
	default:
		return fmt.Errorf("%w: of unknown kind %d", ErrMalformed, f.kind)
	}
	if r.bad || len(r.rest) > 0 {
		return fmt.Errorf("%w: of kind %d", ErrMalformed, f.kind)
	}
	return nil
}

// fields takes a body apart. After something that is not there, bad is set and all
// that is read is zero.
type fields struct {
	rest []byte
	bad  bool
}

func (r *fields) number() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || r.bad {
		r.bad = true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *fields) flag() bool {
	v := r.number()
	r.bad = r.bad || v > 1
	return v == 1
}

func (r *fields) count(most uint64) uint64 {
	n := r.number()
	if n > most || n > uint64(len(r.rest)) {
		r.bad = true
		return 0
	}
	return n
}

func (r *fields) text() string {
	n := r.count(maxText)
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

func (r *fields) all(most int) []byte {
	b := r.rest
	r.rest = nil
	r.bad = r.bad || len(b) > most
	return b
}

// reader finds the frames in what comes.
type reader struct {
	from     io.Reader
	buf      []byte
	next, to int // what was read and not looked at is buf[next:to]
}

const readSize = 64 << 10

func newReader(from io.Reader, first []byte) *reader {
	r := &reader{from: from, buf: make([]byte, max(readSize, len(first)))}
	r.to = copy(r.buf, first)
	return r
}

// size is how long the frame is that comes next, with its length; 0 when that is not known yet.
func (r *reader) size() int {
	if r.to-r.next < headSize {
		return 0
	}
	return headSize + int(binary.BigEndian.Uint32(r.buf[r.next:]))
}

// ready reports whether body would not wait.
func (r *reader) ready() bool {
	n := r.size()
	return n > 0 && r.to-r.next >= n
}

// body returns the next frame's body, which is lent until the next call.
func (r *reader) body() ([]byte, error) {
	for {
		n := r.size()
		if n > headSize+maxBody {
			return nil, fmt.Errorf("%w: of %d bytes", ErrMalformed, n)
		}
		if n > 0 && r.to-r.next >= n {
			b := r.buf[r.next+headSize : r.next+n]
			r.next += n
			return b, nil
		}
		if err := r.fill(n); err != nil {
			return nil, err
		}
	}
}

// fill reads on, in a buffer that has room for n bytes.
func (r *reader) fill(n int) error {
	r.to = copy(r.buf, r.buf[r.next:r.to])
	r.next = 0
	if n > len(r.buf) {
		b := make([]byte, headSize+maxBody)
		copy(b, r.buf[:r.to])
		r.buf = b
	}
	m, err := r.from.Read(r.buf[r.to:])
	r.to += m
	if m > 0 {
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}
