package socket

import (
	"context"
	"time"

	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/document-sync/internal/room"
)

// smallBuffer is up to where messages do not count against Limits.Partial.
const smallBuffer = 64 << 10

// Receive implements mux.Session.
func (c *conn) Receive(part []byte, more bool) {
	if c.life.Err() != nil {
		return // what still came
	}
	if err := panics.Try(func() error { return c.receive(part, more) }); err != nil {
		c.fail(err)
	}
}

// receive puts a message together, and hands it on. Most have one part.
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

// append grows the message as parts come, within Limits.Message and Limits.Partial.
func (c *conn) append(part []byte) error {
	had := cap(c.message)
	if len(c.message)+len(part) > c.h.limits.Message {
		return &closing{code: room.CloseTooBig, reason: "The message is too large: send smaller updates."}
	}
	if len(c.message)+len(part) > had {
		c.message = append(make([]byte, 0, max(len(c.message)+len(part), 2*had)), c.message...)
	}
	c.message = append(c.message, part...)
	if counted(cap(c.message)) > counted(had) &&
		c.h.partial.Add(counted(cap(c.message))-counted(had)) > int64(c.h.limits.Partial) {
		return &closing{code: room.CloseBusy, reason: "Too many large messages are under way: try again later."}
	}
	return nil
}

// counted is how much of Limits.Partial a buffer takes.
func counted(size int) int64 {
	if size <= smallBuffer {
		return 0
	}
	return int64(size)
}

func (c *conn) dropMessage() {
	if n := counted(cap(c.message)); n > 0 {
		c.h.partial.Add(-n)
	}
	c.message = nil
}

// burst is how many seconds' worth of messages and bytes a connection may send at once.
const burst = 8

// What some messages cost more, in messages: a step 1 may be answered with all there is,
// and a document that is joined has to be found, and perhaps loaded.
const (
	stepPrice = 20
	joinPrice = 100
)

// credit is what a connection may still send. It grows with the ticks.
type credit struct {
	at              int64 // tick of the last growth
	messages, bytes int
}

// pay takes from the credit. Who has none is heard no further until there is some: the
// stream's window fills, then the editor's own, and nothing is lost.
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

// mayAsk comes before what is answered with much: that costs so many messages, and waits
// while too much is under way to the gateway.
func (c *conn) mayAsk(price int) error {
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
