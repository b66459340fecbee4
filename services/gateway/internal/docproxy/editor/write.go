package editor

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	writeChunk = 64 << 10
	gather     = 16 << 10 // short frames are combined up to this size
	keepQueue  = 16       // capacity of a queue that is reused
)

// Queue adds a frame, or a piece of a frame if more is set. The piece is shared by that many
// connections and must not be changed. Queue does not block; Flush writes.
func (c *Conn) Queue(piece []byte, more bool, sharers int) {
	c.mu.Lock()
	fits := c.queueLocked(piece, more, sharers)
	c.mu.Unlock()
	if !fits {
		c.End(tooSlow)
	}
}

// queueLocked is Queue. It returns false if too much is queued already.
func (c *Conn) queueLocked(piece []byte, more bool, sharers int) bool {
	if c.ending {
		return true
	}
	begins := !c.open && more && !c.large
	switch {
	case !c.open && c.waiting > c.h.cfg.Queue, (begins || c.free && c.writing) && c.h.full():
		return false
	case begins:
		c.large, c.free = true, true
		c.beginLarge(frameSize(piece))
	}
	c.queue = append(c.queue, piece)
	if c.writing {
		c.count(len(piece) / sharers)
	}
	if !c.free {
		c.waiting += len(piece)
	}
	if c.open = more; !more {
		c.free = false
		if c.pong != nil {
			c.queue, c.pong = append(c.queue, c.pong), nil
		}
	}
	return true
}

// Send queues a complete frame and has it written. While another frame is incomplete it is
// dropped, because that frame keeps the connection alive too.
func (c *Conn) Send(frame []byte) { c.send(frame, false) }

// send is Send. A frame that is owed, the answer to the last ping, is sent after the incomplete
// frame instead of being dropped.
func (c *Conn) send(frame []byte, owed bool) {
	c.mu.Lock()
	if c.open {
		if owed {
			c.pong = frame
		}
		c.mu.Unlock()
		return
	}
	fits := c.queueLocked(frame, false, 1)
	c.mu.Unlock()
	if !fits {
		c.End(tooSlow)
		return
	}
	c.start()
}

// start starts a goroutine that writes the queue, unless it is running.
func (c *Conn) start() {
	c.mu.Lock()
	start := !c.writing && len(c.queue) > 0
	c.writing = c.writing || start
	c.mu.Unlock()
	if start {
		go c.run()
	}
}

// Flush writes the queue without blocking. A goroutine writes what the kernel does not accept
// at once.
func (c *Conn) Flush() {
	if c.raw == nil {
		c.start()
		return
	}
	c.mu.Lock()
	if c.writing || len(c.queue) == 0 {
		c.mu.Unlock()
		return
	}
	c.writing = true
	c.mu.Unlock()
	for batch := c.take(); batch != nil; batch = c.take() {
		left, err := c.attempt(batch)
		if err != nil {
			c.cut()
			return
		}
		if len(left) > 0 {
			c.left = left
			go c.run()
			return
		}
		c.written(batch)
	}
}

// write writes until the queue is empty.
func (c *Conn) write() {
	batch := c.left
	c.left = nil
	if batch == nil {
		batch = c.take()
	}
	for ; batch != nil; batch = c.take() {
		if err := c.writeAll(batch); err != nil {
			c.cut()
			return
		}
		c.written(batch)
	}
}

// cut ends a connection that cannot be written to. writing stays set, so that nothing follows
// an incomplete frame.
func (c *Conn) cut() {
	c.mu.Lock()
	ended := c.ending
	c.why.Code = CodeLost // no close frame can be sent
	c.mu.Unlock()
	if !ended {
		c.End(Closing{Code: CodeLost, Reason: "the client takes nothing"})
	}
	c.wire.Close()
}

// written records that a batch was written, and keeps its memory.
func (c *Conn) written(batch [][]byte) {
	c.sent.Store(c.h.tick.Load())
	clear(batch)
	if cap(batch) <= keepQueue {
		c.spare = batch[:0]
	}
}

// take returns the queue. If it is empty, the writer is done.
func (c *Conn) take() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wroteLocked()
	if len(c.queue) > 0 {
		batch := c.queue
		c.queue, c.spare, c.waiting = c.spare, nil, 0
		c.inWrite, c.inQueue = c.inQueue, 0
		c.taken = c.open
		c.large = c.open && c.large
		return batch
	}
	c.writing = false
	if c.ending { // the close frame was written
		if half, ok := c.wire.Conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // fails if the client has closed
		}
	}
	return nil
}

var gatherers = sync.Pool{New: func() any { return new([gather]byte) }}

// parts combines the frames of a batch and calls write for each part. write returns the bytes
// written and whether to continue. parts returns the rest of the batch.
func parts(batch [][]byte, write func([]byte) (int, bool)) (left [][]byte) {
	buf := gatherers.Get().(*[gather]byte)
	defer gatherers.Put(buf)
	for len(batch) > 0 {
		b, n := batch[0], 1
		if len(batch) > 1 && len(b) <= gather {
			b = append(buf[:0], b...)
			for n < len(batch) && len(b)+len(batch[n]) <= gather {
				b = append(b, batch[n]...)
				n++
			}
		}
		wrote, ok := write(b)
		if ok {
			batch = batch[n:]
			continue
		}
		for wrote > 0 && wrote >= len(batch[0]) {
			wrote -= len(batch[0])
			batch = batch[1:]
		}
		left = append([][]byte{batch[0][wrote:]}, batch[1:]...)
		return left
	}
	return nil
}

// writeAll writes a batch with few writes.
func (c *Conn) writeAll(batch [][]byte) (err error) {
	parts(batch, func(b []byte) (int, bool) {
		err = c.writeBytes(b)
		return 0, err == nil
	})
	return err
}

// writeBytes writes b. It sets the deadline of each write.
func (c *Conn) writeBytes(b []byte) error {
	c.h.cfg.Out.Add(float64(len(b)))
	for len(b) > 0 {
		if err := c.setWriteDeadline(); err != nil {
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

// setWriteDeadline sets the deadline of the next write, unless the connection was cut.
func (c *Conn) setWriteDeadline() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending && c.why.lost() {
		return os.ErrDeadlineExceeded
	}
	return c.wire.SetWriteDeadline(time.Now().Add(c.h.cfg.WriteWait))
}

// raw is a non-blocking write.
type raw struct {
	b     []byte
	n     int
	err   error
	write func(fd uintptr)
}

var raws = sync.Pool{New: func() any {
	r := new(raw)
	r.write = func(fd uintptr) {
		for r.n, r.err = syscall.Write(int(fd), r.b); errors.Is(r.err, syscall.EINTR); {
			r.n, r.err = syscall.Write(int(fd), r.b)
		}
	}
	return r
}}

// attempt writes what the kernel accepts at once, and returns the rest.
func (c *Conn) attempt(batch [][]byte) (left [][]byte, err error) {
	r := raws.Get().(*raw)
	left = parts(batch, func(b []byte) (int, bool) {
		r.b = b
		if err = c.raw.Control(r.write); err != nil {
			return 0, false
		}
		n := max(r.n, 0)
		if r.err != nil && !errors.Is(r.err, syscall.EAGAIN) {
			err = r.err
		}
		c.h.cfg.Out.Add(float64(n))
		return n, n == len(b)
	})
	r.b = nil
	raws.Put(r)
	return left, err
}
