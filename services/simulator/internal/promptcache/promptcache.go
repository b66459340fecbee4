// Package promptcache counts tokens of prompts as providers with prompt caching do: read from
// the cache, written to it, or neither. It stores only the hashes of prefixes.
package promptcache

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"

	"signalbox.dev/services/simulator/internal/chat"
)

const (
	least    = 1024 // tokens a prefix must have
	lookBack = 20   // segments before a mark in which an earlier prefix is found
	step     = 128  // automatic caching counts in steps of so many tokens
)

// Cache has a bounded number of hashes of prefixes. A hash expires if it is not used for its
// lifetime. Cache is safe for concurrent use.
type Cache struct {
	most    int
	now     func() time.Time
	mu      sync.Mutex // guards what follows
	entries map[[32]byte]*list.Element
	order   *list.List // of *entry, the most recently used first
}

type entry struct {
	key     [32]byte
	life    time.Duration
	expires time.Time
}

// New returns an empty cache of at most most prefixes.
func New(most int, now func() time.Time) *Cache {
	return &Cache{most: most, now: now, entries: map[[32]byte]*list.Element{}, order: list.New()}
}

// Reset empties the cache.
func (c *Cache) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
	c.order.Init()
}

// Marked returns the usage of a prompt with explicit cache marks. scope identifies the cache:
// credential and model.
func (c *Cache) Marked(scope string, prompt []chat.Segment) chat.Usage {
	total := sum(prompt)
	marks := false
	for _, s := range prompt {
		marks = marks || s.Mark != ""
	}
	if !marks {
		return chat.Usage{Input: total}
	}
	p := prefixes(scope, prompt)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	read := -1
	for i := len(prompt) - 1; i >= 0 && read < 0; i-- {
		if prompt[i].Mark == "" {
			continue
		}
		for j := i; j >= max(0, i-lookBack) && read < 0; j-- {
			if p[j].tokens >= least && c.use(p[j].key, now) {
				read = j
			}
		}
	}
	u := chat.Usage{}
	done := 0
	if read >= 0 {
		u.CacheRead = p[read].tokens
		done = p[read].tokens
	}
	for i, s := range prompt {
		if s.Mark == "" || i <= read || p[i].tokens < least {
			continue
		}
		life := 5 * time.Minute
		if s.Mark == "1h" {
			life = time.Hour
			u.CacheWrite1h += p[i].tokens - done
		} else {
			u.CacheWrite5m += p[i].tokens - done
		}
		done = p[i].tokens
		c.put(p[i].key, life, now)
	}
	u.Input = total - done
	return u
}

// Automatic returns the usage of a prompt whose prefixes are cached without marks.
func (c *Cache) Automatic(scope string, prompt []chat.Segment) chat.Usage {
	total := sum(prompt)
	if total < least {
		return chat.Usage{Input: total}
	}
	p := prefixes(scope, prompt)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	u := chat.Usage{}
	for i := len(p) - 1; i >= 0 && p[i].tokens >= least && u.CacheRead == 0; i-- {
		if c.use(p[i].key, now) {
			u.CacheRead = p[i].tokens / step * step
		}
	}
	for i := range p {
		if p[i].tokens >= least {
			c.put(p[i].key, 5*time.Minute, now)
			break
		}
	}
	c.put(p[len(p)-1].key, 5*time.Minute, now)
	u.Input = total - u.CacheRead
	return u
}

// use reports whether key is cached and renews its lifetime. The caller holds mu.
func (c *Cache) use(key [32]byte, now time.Time) bool {
	e, ok := c.entries[key]
	if !ok {
		return false
	}
	v, ok := e.Value.(*entry)
	if !ok || now.After(v.expires) {
		return false
	}
	v.expires = now.Add(v.life)
	c.order.MoveToFront(e)
	return true
}

// put adds or renews key. The caller holds mu.
func (c *Cache) put(key [32]byte, life time.Duration, now time.Time) {
	if e, ok := c.entries[key]; ok {
		c.order.Remove(e)
	}
	c.entries[key] = c.order.PushFront(&entry{key: key, life: life, expires: now.Add(life)})
	for len(c.entries) > c.most {
		last := c.order.Back()
		if v, ok := c.order.Remove(last).(*entry); ok {
			delete(c.entries, v.key)
		}
	}
}

type prefix struct {
	key    [32]byte
	tokens int
}

func prefixes(scope string, prompt []chat.Segment) []prefix {
	h := sha256.New()
	h.Write([]byte(scope))
	out := make([]prefix, len(prompt))
	tokens := 0
	for i, s := range prompt {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s.Canonical)))
		h.Write(n[:])
		h.Write(s.Canonical)
		tokens += s.Tokens
		out[i].tokens = tokens
		h.Sum(out[i].key[:0])
	}
	return out
}

func sum(prompt []chat.Segment) int {
	n := 0
	for _, s := range prompt {
		n += s.Tokens
	}
	return n
}
