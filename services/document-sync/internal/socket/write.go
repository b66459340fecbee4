package socket

import (
	"errors"
	"os"
	"sync"
	"time"

	"signalbox.dev/services/document-sync/internal/room"
)

const (
	writeWait  = 10 * time.Second // for writeChunk bytes
	writeChunk = 64 << 10
	gather     = 16 << 10 // short frames are copied together up to this
	keepQueue  = 16       // frames of a queue that is kept for its memory
)

var tooSlow = closing{
	code: room.CloseBusy, reason: "The connection is too slow for what happens in the document: connect again.",
	abandon: true, label: labelSlow,
}

// enqueue adds frames, which are shared and never changed, and returns at once.
func (c *conn) enqueue(frames ...[]byte) {
	c.mu.Lock()
	if c.ending {
		c.mu.Unlock()
		return
	}
	if c.waiting > c.h.limits.Queue {
		c.mu.Unlock()
		c.end(tooSlow)
		return
	}
	for _, f := range frames {
		c.queue = append(c.queue, f)
		c.waiting += len(f)
	}
	start := !c.writing
	c.writing = true
	c.mu.Unlock()
	if start {
		go c.run()
	}
}

// write is the write goroutine: it lives while there is something in the queue.
func (c *conn) write() {
	for {
		batch := c.take()
		if batch == nil {
			return
		}
		if err := c.writeAll(batch); err != nil {
			label := labelLost
			if errors.Is(err, os.ErrDeadlineExceeded) {
				label = labelSlow
			}
			c.kill(label) // writing stays set: nobody writes behind half a frame
			return
		}
		c.sent.Store(c.h.tick.Load())
		clear(batch)
		if cap(batch) <= keepQueue {
			c.spare = batch[:0]
		}
	}
}

// take returns what is in the queue; when that is nothing, the writer is done.
func (c *conn) take() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) > 0 {
		batch := c.queue
		c.queue, c.spare, c.waiting = c.spare, nil, 0
		return batch
	}
	c.writing = false
	if c.ending { // the close frame is out
		if half, ok := c.wire.Conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // the peer was faster
		}
	}
	return nil
}

var gatherers = sync.Pool{New: func() any { return new([gather]byte) }}

// writeAll writes frames with as few writes as it takes.
func (c *conn) writeAll(batch [][]byte) error {
	c.h.metrics.messagesOut.Add(float64(len(batch)))
	if len(batch) == 1 {
		return c.writeBytes(batch[0])
	}
	buf := gatherers.Get().(*[gather]byte)
	defer gatherers.Put(buf)
	b := buf[:0]
	for _, f := range batch {
		if len(b)+len(f) > gather {
			if err := c.writeBytes(b); err != nil {
				return err
			}
			b = buf[:0]
		}
		if len(f) <= gather {
			b = append(b, f...)
		} else if err := c.writeBytes(f); err != nil {
			return err
		}
	}
	return c.writeBytes(b)
}

// writeBytes sets the deadline each time: middleware around the handler may have left
// one of its own on the connection.
func (c *conn) writeBytes(b []byte) error {
	c.h.metrics.bytesOut.Add(float64(len(b)))
	for len(b) > 0 {
		if err := c.wire.SetWriteDeadline(time.Now().Add(writeWait)); err != nil {
			return err
		}
		n, err := c.wire.Conn.Write(b[:min(len(b), writeChunk)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
