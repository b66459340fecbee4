package feed

import (
	"time"
)

// group has some of a topic's attached viewers, to which a worker writes in one turn. The groups of a
// topic are spread over the workers, so that a session with many viewers delays none of them for long.
type group struct {
	topic   *topic
	shard   *shard
	viewers []*Viewer // guarded by the topic's mutex

	nextCheck time.Time // owned by the topic's worker

	// Guarded by the shard's mutex.
	isQueued, isCheckQueued bool      // it is in a list of its shard
	rests                   time.Time // when its rest ends; frames that arrive meanwhile are batched
}

// maxRest is the longest rest of a group: 33 writes a second look as smooth as hundreds.
const maxRest = 30 * time.Millisecond

// rest returns how long a group of a number of viewers rests after a write.
func (c *Config) rest(viewers int) time.Duration { return min(c.Rest*time.Duration(viewers), maxRest) }

// enqueue queues the group with its worker for a write, or for a check of its connections. from is
// the calling worker. The topic's lock is held.
func (g *group) enqueue(from *shard, check bool) {
	if len(g.viewers) == 0 {
		return
	}
	s := g.shard
	s.mu.Lock()
	switch {
	case check && !g.isCheckQueued:
		g.isCheckQueued = true
		s.checks = append(s.checks, g)
	case !check && !g.isQueued:
		g.isQueued = true
		if time.Now().Before(g.rests) {
			s.resting = append(s.resting, g)
		} else {
			s.queue = append(s.queue, g)
		}
	}
	s.mu.Unlock()
	if s == from {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// watched reports whether the topic has viewers. The lock is held.
func (t *topic) watched() bool {
	if len(t.viewers) > 0 {
		return true
	}
	for _, g := range t.groups {
		if len(g.viewers) > 0 {
			return true
		}
	}
	return false
}

// add adds v to the viewers that a goroutine serves. The lock is held.
func (t *topic) add(v *Viewer) {
	v.at = len(t.viewers)
	t.viewers = append(t.viewers, v)
}

// addToGroup adds v, which is in no list, to the attached viewers. The lock is held.
func (t *topic) addToGroup(v *Viewer) {
	size, shards := t.shard.feed.cfg.GroupSize, t.shard.feed.shards
	for _, g := range t.groups {
		if len(g.viewers) < size {
			v.group = g
			break
		}
	}
	if v.group == nil {
		v.group = &group{topic: t, shard: shards[(t.shard.index+len(t.groups))%len(shards)], nextCheck: time.Now()}
		t.groups = append(t.groups, v.group)
	}
	v.at = len(v.group.viewers)
	v.group.viewers = append(v.group.viewers, v)
}

// unlist removes v from its list. The lock is held.
func (t *topic) unlist(v *Viewer) {
	list := &t.viewers
	if v.group != nil {
		list = &v.group.viewers
	}
	l := *list
	last := len(l) - 1
	l[v.at] = l[last]
	l[v.at].at = v.at
	l[last] = nil
	*list = l[:last]
}

// remove removes v. It may be called twice.
func (t *topic) remove(v *Viewer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.gone {
		return
	}
	v.gone = true
	v.spend(len(v.backlog))
	t.unlist(v)
	t.shard.feed.metrics.viewers.Dec()
}

// attached returns the attached viewers. The lock is held.
func (t *topic) attached() (all []*Viewer) {
	for _, g := range t.groups {
		all = append(all, g.viewers...)
	}
	return all
}

// LeaveLast has a drain end the viewer's stream at the end of the drain window, because its client
// cannot resume it. It is called before Serve and Attach.
func (v *Viewer) LeaveLast() { v.leavesLast = true }

// stay returns how long the viewer stays when a drain begins: a random time, so that clients do not
// resume all at once.
func (v *Viewer) stay() time.Duration {
	if v.leavesLast {
		return v.feed.cfg.DrainWindow
	}
	return v.feed.jitter(v.feed.cfg.DrainWindow)
}

// drain ends the streams that are due, and chooses times for the others, so that not all clients
// reconnect at once.
func (t *topic) drain(now time.Time) {
	var due []*Viewer
	t.mu.Lock()
	for _, g := range t.groups {
		for _, v := range g.viewers {
			switch {
			case v.leave.IsZero():
				v.leave = now.Add(v.stay())
			case !now.Before(v.leave):
				due = append(due, v)
			}
		}
	}
	t.mu.Unlock()
	for _, v := range due {
		v.Cut(ErrDraining)
	}
}
