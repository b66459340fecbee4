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
	maxLive      = 16 << 20 // bytes of live frames that may wait
	maxBulk      = 64 << 20 // bytes of bulk that may wait
	pauseBulk    = 16 << 20 // bytes of waiting bulk above which producers of bulk pause
	writeTimeout = 10 * time.Second
	writeSize    = 64 << 10
	maxSpare     = 256 << 10 // the largest buffer that is kept for reuse
)

// ErrFull means that too much bulk waits already: the caller should close the stream.
var ErrFull = errors.New("mux: too many large messages are waiting")

var errSlowPeer = errors.New("mux: the peer reads too slowly")

// queue is a stream's share of an outbox. The outbox's mutex guards all but id.
type queue struct {
	id      uint64
	bulk    int    // how many of its messages are in the outbox's bulk
	last    uint64 // the number of the newest of them
	dropped bool   // the peer has closed the stream
}

// message is an entry of the bulk: a message that is sent in pieces, or a frame that waits
// behind one.
type message struct {
	queues  []*queue
	data    []byte
	encoded bool // data is a frame
}

// outbox holds what waits to be written to a connection. Its goroutine exists only while
// something waits.
type outbox struct {
	conn net.Conn
	fail func(error) // aborts the connection; called from any goroutine

	mu        sync.Mutex // guards what follows, and queues
	live      []byte     // frames
	spare     []byte     // a buffer for reuse
	shared    []byte     // the newest live message, whose list of streams still grows
	sharedIDs []byte     // those streams, encoded
	sharedN   int
	bulk      []message
	newest    uint64 // the number of the newest message in bulk; counts all of them
	sent      int    // bytes of bulk[0] that have been sent
	bulkBytes int
	writing   bool
	closed    bool
	closing   bool          // the connection closes when everything is written
	drained   chan struct{} // closed when less waits; nil if nobody waits for that
}

// deliver queues a message for a stream. The message must never change.
func (o *outbox) deliver(to *queue, data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return nil
	case to.bulk > 0 || len(data) > MaxPiece:
		return o.deliverBulk(to, data)
	case len(o.live) > maxLive:
		o.overflowLocked()
		return nil
	case !same(o.shared, data) || o.sharedN == maxStreams:
		o.flushShared()
		o.shared = data
	}
	o.sharedIDs = binary.AppendUvarint(o.sharedIDs, to.id)
	o.sharedN++
	o.startLocked()
	return nil
}

func (o *outbox) deliverBulk(to *queue, data []byte) error {
	if o.bulkBytes > maxBulk {
		return ErrFull
	}
	n := len(o.bulk) - 1
	switch {
	case n < 0 || o.bulk[n].encoded || !same(o.bulk[n].data, data), n == 0 && o.sent > 0, len(o.bulk[n].queues) == maxStreams,
		to.last == o.newest: // two copies for one stream follow each other, not piece by piece
		o.push(to, message{data: data})
	default:
		o.bulk[n].queues = append(o.bulk[n].queues, to)
		to.bulk++
		to.last = o.newest
	}
	return nil
}

// push appends a stream's message to the bulk.
func (o *outbox) push(to *queue, m message) {
	m.queues = []*queue{to}
	o.bulk = append(o.bulk, m)
	o.bulkBytes += len(m.data)
	o.newest++
	to.bulk++
	to.last = o.newest
	o.startLocked()
}

// same reports whether two messages share their memory.
func same(a, b []byte) bool { return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] }

// flushShared appends the shared message to live as a frame.
func (o *outbox) flushShared() {
	if o.sharedN == 0 {
		return
	}
	at := len(o.live)
	b := append(o.live, 0, 0, 0, 0, kindDeliver, 0)
	b = binary.AppendUvarint(b, uint64(o.sharedN)) //nolint:gosec // never negative
	b = append(append(b, o.sharedIDs...), o.shared...)
	o.live = putLength(b, at)
	o.shared, o.sharedIDs, o.sharedN = nil, o.sharedIDs[:0], 0
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
	o.flushShared()
	o.live = f.append(o.live)
	if len(o.live) > 2*maxLive {
		o.overflowLocked()
		return
	}
	o.startLocked()
}

// sendAfter queues a frame about a stream behind everything that was sent to it.
func (o *outbox) sendAfter(to *queue, f *frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if to.bulk == 0 {
		o.sendLocked(f)
		return
	}
	o.push(to, message{data: f.append(nil), encoded: true})
}

// sendBounded queues a frame once fewer than limit bytes of live frames wait. It returns
// false if stop or the outbox is closed first.
func (o *outbox) sendBounded(f *frame, limit int, stop <-chan struct{}) bool {
	for {
		o.mu.Lock()
		if o.closed || len(o.live) < limit {
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

// backlog returns a channel that is closed when less bulk waits, nil if little waits now.
func (o *outbox) backlog() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.bulkBytes <= pauseBulk {
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

// wake makes waiting producers check again.
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

// write is the outbox's goroutine. After an error writing stays set, so that nothing follows
// half a frame.
func (o *outbox) write() {
	for b := o.next(); b != nil; b = o.next() {
		for rest := b; len(rest) > 0; {
			err := o.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
			var n int
			if err == nil {
				n, err = o.conn.Write(rest[:min(len(rest), writeSize)])
			}
			if err != nil {
				o.fail(err)
				return
			}
			rest = rest[n:]
		}
		if cap(b) <= maxSpare {
			o.mu.Lock()
			o.spare = b[:0]
			o.mu.Unlock()
		}
	}
}

// drop discards the bulk of a stream that the peer has closed.
func (o *outbox) drop(q *queue) {
	o.mu.Lock()
	defer o.mu.Unlock()
	q.dropped = true
}

// next returns the bytes to write next: all live frames and a piece of bulk. It returns nil
// when nothing is left, and the goroutine ends.
func (o *outbox) next() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flushShared()
	b := o.live
	for room := MaxPiece; room > 0 && len(o.bulk) > 0; {
		b, room = o.appendBulk(b, room)
	}
	o.wakeLocked()
	if len(b) == 0 || o.closed {
		o.writing = false
		if o.closing && !o.closed {
			o.closeWrite()
		}
		return nil
	}
	o.live, o.spare = o.spare, nil
	return b
}

// appendBulk appends a piece of the first message in bulk, of at most room bytes, and
// returns the rest of the room.
func (o *outbox) appendBulk(b []byte, room int) ([]byte, int) {
	m := &o.bulk[0]
	m.queues = slices.DeleteFunc(m.queues, func(q *queue) bool { return q.dropped })
	if len(m.queues) == 0 {
		o.popBulk()
		return b, room
	}
	n := min(room, len(m.data)-o.sent)
	if m.encoded {
		n = len(m.data)
		b = append(b, m.data...)
	} else {
		at := len(b)
		b = appendBool(append(b, 0, 0, 0, 0, kindDeliver), o.sent+n < len(m.data))
		b = binary.AppendUvarint(b, uint64(len(m.queues)))
		for _, q := range m.queues {
			b = binary.AppendUvarint(b, q.id)
		}
		b = putLength(append(b, m.data[o.sent:o.sent+n]...), at)
	}
	if o.sent += n; o.sent == len(m.data) {
		o.popBulk()
	}
	return b, room - max(n, 1)
}

func (o *outbox) popBulk() {
	for _, q := range o.bulk[0].queues {
		q.bulk--
	}
	o.bulkBytes -= len(o.bulk[0].data)
	o.bulk[0] = message{}
	o.bulk, o.sent = o.bulk[1:], 0
	if len(o.bulk) == 0 {
		o.bulk = nil
	}
}

// closeWrite closes this half of the connection; the peer then closes it altogether.
func (o *outbox) closeWrite() {
	half, ok := o.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		go o.fail(errClosed)
	}
}

// closeAfterWrites closes this half of the connection when everything is written.
func (o *outbox) closeAfterWrites() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closing = true
	o.startLocked()
}

func (o *outbox) overflowLocked() {
	o.closeLocked()
	go o.fail(errSlowPeer)
}

// close discards everything that waits.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closeLocked()
}

func (o *outbox) closeLocked() {
	o.closed = true
	o.live, o.spare, o.shared, o.sharedIDs, o.sharedN, o.bulk, o.bulkBytes = nil, nil, nil, nil, 0, nil, 0
	o.wakeLocked()
}
