package mux

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"signalbox.dev/pkg/panics"
)

const (
	maxLive   = 16 << 20 // bytes of live frames that wait
	maxBulk   = 64 << 20 // bytes of bulk that wait, behind which there is no more
	slowBulk  = 16 << 20 // bytes of bulk behind which what makes more of it waits
	writeWait = 10 * time.Second
	writeSize = 64 << 10
	keepSize  = 256 << 10 // of a buffer that is used again
)

// ErrFull refuses bulk that has no room: the stream should be ended.
var ErrFull = errors.New("mux: too much waits already")

// errStarved cuts a trunk whose other end takes too little.
var errStarved = errors.New("mux: the other end takes nothing")

// queue is a stream as the outbox sees it.
type queue struct {
	id uint64

	// Guarded by the outbox' mutex.
	bulk int    // its entries in the outbox' bulk
	last uint64 // the newest of them
	gone bool   // nothing more is for it
}

// entry is a message that goes down in pieces, or one that waits behind such a one.
type entry struct {
	queues  []*queue
	message []byte
	encoded bool // message is a frame already
}

// outbox is what waits to be written to a trunk. Its goroutine is there only while
// there is something.
type outbox struct {
	conn net.Conn
	fail func(error) // called, by any goroutine, when the trunk is to be cut

	mu      sync.Mutex // guards what follows, and queues
	live    []byte     // frames
	spare   []byte     // a buffer to be used again
	last    []byte     // a message that goes behind live, to those that follow
	lastTo  []byte     // its streams' numbers
	lastN   int
	bulk    []entry
	newest  uint64 // how many entries bulk has had: the number of the last one
	sent    int    // bytes of bulk[0] that went out
	waits   int    // bytes of all bulk
	writing bool
	closed  bool
	ending  bool          // the trunk is to be cut when all is written
	drained chan struct{} // when somebody waits: closed when there is less
}

// deliver queues message, which is never changed, for a stream. It returns ErrFull
// when there is no room.
func (o *outbox) deliver(to *queue, message []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return nil
	case to.bulk > 0 || len(message) > MaxPiece:
		return o.deliverBulk(to, message)
	case len(o.live) > maxLive:
		o.starveLocked()
		return nil
	case !same(o.last, message) || o.lastN == maxStreams:
		o.seal()
		o.last = message
	}
	o.lastTo = binary.AppendUvarint(o.lastTo, to.id)
	o.lastN++
	o.startLocked()
	return nil
}

func (o *outbox) deliverBulk(to *queue, message []byte) error {
	if o.waits > maxBulk {
		return ErrFull
	}
	n := len(o.bulk) - 1
	switch {
	case n < 0 || o.bulk[n].encoded || !same(o.bulk[n].message, message), n == 0 && o.sent > 0, len(o.bulk[n].queues) == maxStreams,
		to.last == o.newest: // who gets it twice gets it one after the other, and not each piece twice
		o.push(to, entry{message: message})
	default:
		o.bulk[n].queues = append(o.bulk[n].queues, to)
		to.bulk++
		to.last = o.newest
	}
	return nil
}

// push adds an entry of a stream to the bulk.
func (o *outbox) push(to *queue, e entry) {
	e.queues = []*queue{to}
	o.bulk = append(o.bulk, e)
	o.waits += len(e.message)
	o.newest++
	to.bulk++
	to.last = o.newest
	o.startLocked()
}

// same reports whether two messages are one, in memory.
func same(a, b []byte) bool { return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] }

// seal makes a frame of the message that gathered streams.
func (o *outbox) seal() {
	if o.lastN == 0 {
		return
	}
	at := len(o.live)
	b := append(o.live, 0, 0, 0, 0, kindDeliver, 0)
	b = binary.AppendUvarint(b, uint64(o.lastN)) //nolint:gosec // it is none below zero
	b = append(append(b, o.lastTo...), o.last...)
	o.live = finish(b, at)
	o.last, o.lastTo, o.lastN = nil, o.lastTo[:0], 0
}

// send queues a frame.
func (o *outbox) send(f *frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sendLocked(f)
}

func (o *outbox) sendLocked(f *frame) {
	if o.closed {
		return
	}
	o.seal()
	o.live = f.append(o.live)
	if len(o.live) > 2*maxLive {
		o.starveLocked()
		return
	}
	o.startLocked()
}

// sendBehind queues a frame about a stream behind all that was sent to it.
func (o *outbox) sendBehind(to *queue, f *frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if to.bulk == 0 {
		o.sendLocked(f)
		return
	}
	o.push(to, entry{message: f.append(nil), encoded: true})
}

// sendBounded queues a frame when less than most bytes wait, and until then waits.
// It returns false when stop or the outbox was closed first.
func (o *outbox) sendBounded(f *frame, most int, stop <-chan struct{}) bool {
	for {
		o.mu.Lock()
		if o.closed || len(o.live) < most {
			o.sendLocked(f)
			closed := o.closed
			o.mu.Unlock()
			return !closed
		}
		drained := o.drainedLocked()
		o.mu.Unlock()
		select {
		case <-drained:
		case <-stop:
			return false
		}
	}
}

// behind returns a channel to wait for while there is much bulk; nil when there is not.
func (o *outbox) behind() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.waits <= slowBulk {
		return nil
	}
	return o.drainedLocked()
}

func (o *outbox) drainedLocked() <-chan struct{} {
	if o.drained == nil {
		o.drained = make(chan struct{})
	}
	return o.drained
}

// wake has those look again who wait.
func (o *outbox) wake() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wakeLocked()
}

func (o *outbox) wakeLocked() {
	if o.drained != nil {
		close(o.drained)
		o.drained = nil
	}
}

func (o *outbox) startLocked() {
	if !o.writing {
		o.writing = true
		go func() {
			if err := panics.Try(func() error { o.write(); return nil }); err != nil {
				o.fail(err)
			}
		}()
	}
}

// write is the outbox' goroutine.
func (o *outbox) write() {
	for b := o.take(); b != nil; b = o.take() {
		for rest := b; len(rest) > 0; {
			err := o.conn.SetWriteDeadline(time.Now().Add(writeWait))
			var n int
			if err == nil {
				n, err = o.conn.Write(rest[:min(len(rest), writeSize)])
			}
			if err != nil {
				o.fail(err) // writing stays set: nobody writes behind half a frame
				return
			}
			rest = rest[n:]
		}
		if cap(b) <= keepSize {
			o.mu.Lock()
			o.spare = b[:0]
			o.mu.Unlock()
		}
	}
}

// forget drops the bulk of a stream that the other end has given up.
func (o *outbox) forget(l *queue) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l.gone = true
}

// take returns what is to be written next: all that is live, and a piece of bulk. When
// that is nothing the goroutine ends.
func (o *outbox) take() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seal()
	b := o.live
	for room := MaxPiece; room > 0 && len(o.bulk) > 0; {
		b, room = o.appendBulk(b, room)
	}
	o.wakeLocked()
	if len(b) == 0 || o.closed {
		o.writing = false
		if o.ending && !o.closed {
			o.closeHalf()
		}
		return nil
	}
	o.live, o.spare = o.spare, nil
	return b
}

// appendBulk appends a piece of the first bulk, of at most room bytes, and returns
// what is left of the room.
func (o *outbox) appendBulk(b []byte, room int) ([]byte, int) {
	e := &o.bulk[0]
	e.queues = slices.DeleteFunc(e.queues, func(l *queue) bool { return l.gone })
	if len(e.queues) == 0 {
		o.popBulk()
		return b, room
	}
	n := min(room, len(e.message)-o.sent)
	if e.encoded {
		n = len(e.message)
		b = append(b, e.message...)
	} else {
		at := len(b)
		b = appendBool(append(b, 0, 0, 0, 0, kindDeliver), o.sent+n < len(e.message))
		b = binary.AppendUvarint(b, uint64(len(e.queues)))
		for _, l := range e.queues {
			b = binary.AppendUvarint(b, l.id)
		}
		b = finish(append(b, e.message[o.sent:o.sent+n]...), at)
	}
	if o.sent += n; o.sent == len(e.message) {
		o.popBulk()
	}
	return b, room - max(n, 1)
}

func (o *outbox) popBulk() {
	for _, l := range o.bulk[0].queues {
		l.bulk--
	}
	o.waits -= len(o.bulk[0].message)
	o.bulk[0] = entry{}
	o.bulk, o.sent = o.bulk[1:], 0
	if len(o.bulk) == 0 {
		o.bulk = nil
	}
}

// closeHalf says that nothing follows; the other end closes the trunk then.
func (o *outbox) closeHalf() {
	half, ok := o.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		go o.fail(errClosed)
	}
}

// finish closes this half of the trunk when all is written.
func (o *outbox) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ending = true
	o.startLocked()
}

// starveLocked has the trunk cut.
func (o *outbox) starveLocked() {
	o.closeLocked()
	go o.fail(errStarved)
}

// close forgets all that waits.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closeLocked()
}

func (o *outbox) closeLocked() {
	o.closed = true
	o.live, o.spare, o.last, o.lastTo, o.lastN, o.bulk, o.waits = nil, nil, nil, nil, 0, nil, 0
	o.wakeLocked()
}
