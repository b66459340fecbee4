package socket

import (
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"signalbox.dev/services/document-sync/internal/room"
)

// keepBuffer is the longest buffer that is used again. Messages that need more count
// against Limits.Partial.
const keepBuffer = 64 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }}

// receive reads a message and hands it on. The buffer is taken only now: who sends
// nothing has none.
func (c *conn) receive(r io.Reader) error {
	buf := buffers.Get().(*[]byte)
	defer func() {
		if cap(*buf) <= keepBuffer {
			buffers.Put(buf)
		} else {
			c.h.partial.Add(-int64(cap(*buf)))
		}
	}()
	if err := c.readAll(buf, r); err != nil {
		return err
	}
	c.h.metrics.messagesIn.Inc()
	if err := c.pay(1, len(*buf)); err != nil {
		return err
	}
	return c.away(func() error { return c.session.handle(*buf) })
}

// readAll grows the buffer as bytes come, and not because somebody announces them.
func (c *conn) readAll(buf *[]byte, r io.Reader) error {
	*buf = (*buf)[:0]
	for {
		if len(*buf) == cap(*buf) && !c.grow(buf) {
			return &closing{code: room.CloseBusy, reason: "Too many large messages are under way: try again later."}
		}
		b := *buf
		n, err := r.Read(b[len(b):cap(b)])
		*buf = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return closingOfRead(err)
		}
	}
}

// grow doubles a buffer, and reports whether that is within Limits.Partial.
func (c *conn) grow(buf *[]byte) bool {
	had := cap(*buf)
	*buf = slices.Grow(*buf, had)
	now := cap(*buf)
	if now <= keepBuffer {
		return true
	}
	if had <= keepBuffer {
		had = 0
	}
	return c.h.partial.Add(int64(now-had)) <= int64(c.h.limits.Partial)
}

// burst is how many seconds' worth of messages and bytes a connection may send at once.
const burst = 8

// stepPrice is what a step 1 costs, in messages: it may be answered with all there is.
const stepPrice = 20

// credit is what a connection may still send. It grows with the ticks.
type credit struct {
	at              int64 // tick of the last growth
	messages, bytes int
}

// pay takes from the credit. Who has none is read no further until there is some: its
// own TCP window fills, and nothing is lost.
func (c *conn) pay(messages, bytes int) error {
	l := &c.h.limits
	for waited := false; ; waited = true {
		if now := c.h.tick.Load(); now > c.credit.at {
			seconds := int(min(now-c.credit.at, burst))
			c.credit.at = now
			c.credit.messages = min(c.credit.messages+seconds*l.Messages, l.Messages*burst)
			c.credit.bytes = min(c.credit.bytes+seconds*l.Bytes, l.Bytes*burst)
		}
		if c.credit.messages >= 0 && c.credit.bytes >= 0 {
			c.credit.messages -= messages
			c.credit.bytes -= bytes
			return nil
		}
		if !waited {
			c.h.metrics.throttled.Inc()
		}
		if err := c.away(c.nextTick); err != nil {
			return err
		}
	}
}

func (c *conn) nextTick() error {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-c.life.Done():
		return c.life.Err()
	case <-t.C:
		return nil
	}
}
