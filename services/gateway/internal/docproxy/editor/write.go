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
	gather     = 16 << 10 // short frames are copied together up to this
	keepQueue  = 16       // frames of a queue that is kept for its memory
)

// Queue adds a frame, or a piece of one to which more belongs, which is shared by so many
// connections and never changed. It returns at once; Flush writes.
func (c *Conn) Queue(piece []byte, more bool, sharers int) {
	c.mu.Lock()
	fits := c.queueLocked(piece, more, sharers)
	c.mu.Unlock()
	if !fits {
		c.End(tooSlow)
	}
}

// queueLocked is Queue; false says that too much waits already.
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
		c.hold(len(piece) / sharers)
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

// Send queues a frame of this end, and has it written. In the middle of another one it is
// dropped: what it is good for, that one does.
func (c *Conn) Send(frame []byte) { c.send(frame, false) }

// send is Send; a frame that is owed, the answer to the last ping, waits for the end of
// the other one.
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

// start has a goroutine write what is queued.
func (c *Conn) start() {
	c.mu.Lock()
	start := !c.writing && len(c.queue) > 0
	c.writing = c.writing || start
	c.mu.Unlock()
	if start {
		go c.run()
	}
}

// Flush writes what is queued, without waiting: what the kernel does not take at once,
// a goroutine writes.
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

// write is the write goroutine: it lives while there is something in the queue.
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

// cut ends a connection that cannot be written to. writing stays set: nobody writes
// behind half a frame.
func (c *Conn) cut() {
	c.mu.Lock()
	ended := c.ending
	c.why.Code = CodeLost // the peer does not hear of another one
	c.mu.Unlock()
	if !ended {
		c.End(Closing{Code: CodeLost, Reason: "the client takes nothing"})
	}
	c.wire.Close()
}

// written notes that a batch went out, and keeps its memory.
func (c *Conn) written(batch [][]byte) {
	c.sent.Store(c.h.tick.Load())
	clear(batch)
	if cap(batch) <= keepQueue {
		c.spare = batch[:0]
	}
}

// take returns what is in the queue; when that is nothing, the writer is done.
func (c *Conn) take() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wroteLocked()
	if len(c.queue) > 0 {
		batch := c.queue
		c.queue, c.spare, c.waiting = c.spare, nil, 0
		c.held, c.holds = c.holds, 0
		c.taken = c.open
		c.large = c.open && c.large
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

// parts calls write for each part of a batch that goes out in one write, and returns
// what is left of the batch when that returns false: write says how much it wrote.
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

// writeAll writes frames with as few writes as it takes.
func (c *Conn) writeAll(batch [][]byte) (err error) {
	parts(batch, func(b []byte) (int, bool) {
		err = c.writeBytes(b)
		return 0, err == nil
	})
	return err
}

// writeBytes sets the deadline each time: middleware around the handler may have left
// one of its own on the connection.
func (c *Conn) writeBytes(b []byte) error {
	c.h.cfg.Out.Add(float64(len(b)))
	for len(b) > 0 {
		if err := c.patience(); err != nil {
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

// patience gives the next write its time, if the connection was not given up.
func (c *Conn) patience() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending && c.why.lost() {
		return os.ErrDeadlineExceeded
	}
	return c.wire.SetWriteDeadline(time.Now().Add(c.h.cfg.WriteWait))
}

// raw is a write that does not wait.
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

// attempt writes what the kernel takes at once, and returns the rest.
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
