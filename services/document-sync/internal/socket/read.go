package socket

import (
	"context"
	"time"

	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/document-sync/internal/room"
)

// smallBuffer is the size up to which messages do not count towards Limits.Partial.
const smallBuffer = 64 << 10

// Receive implements mux.Session.
func (c *conn) Receive(part []byte, more bool) {
	if c.life.Err() != nil {
		return // received before the end
	}
	if err := panics.Try(func() error { return c.receive(part, more) }); err != nil {
		c.fail(err)
	}
}

// receive assembles a message and handles it. Most messages have one part.
func (c *conn) receive(part []byte, more bool) error {
	c.h.metrics.bytesIn.Add(float64(len(part)))
	msg := part
	if more || len(c.message) > 0 {
		if err := c.append(part); err != nil {
			return err
		}
		msg = c.message
	}
	if more {
		return nil
	}
	defer c.dropMessage()
	c.h.metrics.messagesIn.Inc()
	if err := c.pay(1, len(msg)); err != nil {
		return err
	}
	return c.session.handle(msg)
}

// append adds a part to the message, within Limits.Message and Limits.Partial.
func (c *conn) append(part []byte) error {
	had := cap(c.message)
	if len(c.message)+len(part) > c.h.limits.Message {
		return &closing{code: room.CloseTooBig, reason: "The message is too large: send smaller updates."}
	}
	if len(c.message)+len(part) > had {
		c.message = append(make([]byte, 0, max(len(c.message)+len(part), 2*had)), c.message...)
	}
	c.message = append(c.message, part...)
	if partialSize(cap(c.message)) > partialSize(had) &&
		c.h.partial.Add(partialSize(cap(c.message))-partialSize(had)) > int64(c.h.limits.Partial) {
		return &closing{code: room.CloseBusy, reason: "Too many large messages are in transit: try again later."}
	}
	return nil
}

// partialSize is the amount of Limits.Partial that a buffer uses.
func partialSize(size int) int64 {
	if size <= smallBuffer {
		return 0
	}
	return int64(size)
}

func (c *conn) dropMessage() {
	if n := partialSize(cap(c.message)); n > 0 {
		c.h.partial.Add(-n)
	}
	c.message = nil
}

// burst is the maximum saved credit in seconds of the rate limits.
const burst = 8

// Additional costs in messages: a step 1 may be answered with the whole state, and joining may
// load a document.
const (
	stepCost = 20
	joinCost = 100
)

// credit is the token bucket of a connection. It is refilled with the ticks.
type credit struct {
	at              int64 // the tick of the last refill
	messages, bytes int
}

// pay takes credit. If there is none it blocks, so that the stream's window and then the editor's
// own buffer fill; nothing is lost.
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
		if err := c.nextTick(); err != nil {
			return err
		}
	}
}

// admit precedes requests with large answers: it charges their price, and blocks while too much
// is in transit to the gateway.
func (c *conn) admit(price int) error {
	if err := c.pay(price, 0); err != nil {
		return err
	}
	if !c.stream.AwaitRoom() {
		return context.Canceled
	}
	return nil
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
