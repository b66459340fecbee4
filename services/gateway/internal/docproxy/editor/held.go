package editor

import "time"

// How many bytes of a large frame a peer has to read in a second, besides
// Config.WriteWait: at first, and while much waits for all.
const (
	leastRate   = 32 << 10
	crowdedRate = 512 << 10
)

// full reports whether no more may wait for slow peers.
func (h *Host) full() bool { return h.held.Load() >= int64(h.cfg.Held) }

// hold notes what waits behind a write; c.mu is held, as for all that follows.
func (c *Conn) hold(n int) {
	c.holds += n
	c.h.held.Add(int64(n))
}

func (c *Conn) letGo(n *int) {
	if *n > 0 {
		c.h.held.Add(int64(-*n))
		*n = 0
	}
}

// beginLarge notes that a frame of some size begins.
func (c *Conn) beginLarge(size int64) {
	if c.began == 0 {
		c.began, c.size = c.h.tick.Load()+1, 0
	}
	c.size += size
}

// wroteLocked notes that what was taken is written.
func (c *Conn) wroteLocked() {
	c.letGo(&c.held)
	if !c.large {
		c.began = 0
	}
}

// late reports whether a large frame should have been read by now.
func (c *Conn) late(tick int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began == 0 {
		return false
	}
	rate := int64(leastRate)
	if c.h.held.Load() > int64(c.h.cfg.Held)/2 {
		rate = crowdedRate
	}
	return time.Duration(tick+1-c.began)*time.Second > c.h.cfg.WriteWait+time.Duration(c.size/rate)*time.Second
}
