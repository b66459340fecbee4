package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Bounds of frames and streams.
const (
	MaxPart  = 8 << 10  // bytes of a message in a frame up
	Window   = 32 << 10 // bytes of a stream that may be in flight up, with partCost for each part
	MaxPiece = 64 << 10 // bytes of a message in a frame down
	partCost = 32       // so that empty parts are bounded, too

	maxStreams = 4096 // of a deliver frame
	maxText    = 8 << 10
	maxBody    = MaxPiece + maxStreams*binary.MaxVarintLen64 + 64 // of a frame, without its length
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

// ErrMalformed means that the peer violates the protocol.
var ErrMalformed = errors.New("mux: malformed frame")

// frame is a frame of any kind. Each kind has some of the fields.
type frame struct {
	kind    byte
	stream  uint64   // open, data, close, credit
	streams []uint64 // deliver
	more    bool     // data, deliver: the message goes on
	number  uint64   // close: the code; credit: bytes; open: Unix seconds, 0 for never
	path    string   // open
	text    string   // open: the signed context; close: the reason
	data    []byte   // data, deliver
}

// append appends f, with its length in front.
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
	return putLength(b, at)
}

// putLength completes the frame that begins at.
func putLength(b []byte, at int) []byte {
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-headSize)) //nolint:gosec // frames are bounded
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

// parse decodes a frame's body. f.data aliases body, and f.streams is reused.
func (f *frame) parse(body []byte) error {
	*f = frame{streams: f.streams[:0]}
	if len(body) == 0 {
		return fmt.Errorf("%w: empty", ErrMalformed)
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
		return fmt.Errorf("%w: unknown kind %d", ErrMalformed, f.kind)
	}
	if r.bad || len(r.rest) > 0 {
		return fmt.Errorf("%w: kind %d", ErrMalformed, f.kind)
	}
	return nil
}

// fields decodes the fields of a body. After an error bad is set, and every field is zero.
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

// reader splits a byte stream into frames.
type reader struct {
	from     io.Reader
	buf      []byte
	next, to int // buf[next:to] is unread
}

const readSize = 64 << 10

func newReader(from io.Reader, first []byte) *reader {
	r := &reader{from: from, buf: make([]byte, max(readSize, len(first)))}
	r.to = copy(r.buf, first)
	return r
}

// size returns the size of the next frame with its length, 0 if it is not known yet.
func (r *reader) size() int {
	if r.to-r.next < headSize {
		return 0
	}
	return headSize + int(binary.BigEndian.Uint32(r.buf[r.next:]))
}

// ready reports whether body would return at once.
func (r *reader) ready() bool {
	n := r.size()
	return n > 0 && r.to-r.next >= n
}

// body returns the next frame's body, which is valid until the next call.
func (r *reader) body() ([]byte, error) {
	for {
		n := r.size()
		if n > headSize+maxBody {
			return nil, fmt.Errorf("%w: %d bytes", ErrMalformed, n)
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

// fill reads more, into a buffer with room for n bytes.
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
