package editor

import "time"

// Bytes of a large frame that a client must read per second, after Config.WriteWait: normally,
// and while more than half of Config.QueueTotal is used.
const (
	leastRate   = 32 << 10
	crowdedRate = 512 << 10
)

// full reports whether Config.QueueTotal is used up.
func (h *Host) full() bool { return h.queued.Load() >= int64(h.cfg.QueueTotal) }

// count counts bytes that wait behind a write. The caller holds c.mu, as for the functions below.
func (c *Conn) count(n int) {
	c.inQueue += n
	c.h.queued.Add(int64(n))
}

func (c *Conn) release(n *int) {
	if *n > 0 {
		c.h.queued.Add(int64(-*n))
		*n = 0
	}
}

// beginLarge records that a large frame begins.
func (c *Conn) beginLarge(size int64) {
	if c.began == 0 {
		c.began, c.size = c.h.tick.Load()+1, 0
	}
	c.size += size
}

// wroteLocked records that the writer has written its batch.
func (c *Conn) wroteLocked() {
	c.release(&c.inWrite)
	if !c.large {
		c.began = 0
	}
}

// late reports whether a large frame has exceeded its time.
func (c *Conn) late(tick int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began == 0 {
		return false
	}
	rate := int64(leastRate)
	if c.h.queued.Load() > int64(c.h.cfg.QueueTotal)/2 {
		rate = crowdedRate
	}
	return time.Duration(tick+1-c.began)*time.Second > c.h.cfg.WriteWait+time.Duration(c.size/rate)*time.Second
}
