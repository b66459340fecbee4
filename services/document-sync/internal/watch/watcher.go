package watch

import (
	"context"
	"errors"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

var (
	errBehind = fault.New(fault.Limited, "too far behind the changes: read the document and subscribe again")
	errEnding = fault.New(fault.Unavailable, "this instance is shutting down: subscribe again")
	errClosed = errors.New("the watcher was closed")
)

// Watcher receives the changes of one document, or of all in a workspace.
type Watcher struct {
	hub   *Hub
	ws    id.Workspace
	doc   id.Document // zero: all
	queue chan *documentv1.SubscribeResponse
	ended chan struct{} // closed when the hub ends the watcher
	why   error         // set before ended is closed
	seen  *seen         // guarded by hub.mu
}

// Watch returns a watcher for every change committed after Watch has returned. A zero doc means
// the whole workspace. The caller closes it.
func (h *Hub) Watch(ctx context.Context, ws id.Workspace, doc id.Document) (*Watcher, error) {
	select {
	case <-h.up:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	w, err := h.add(ws, doc)
	if err != nil {
		return nil, err
	}
	// The response proves that the server has the subscription.
	if err := h.cfg.Bus.Flush(ctx); err != nil {
		w.Close()
		return nil, fault.Wrap(err, fault.Unavailable, "changes cannot be followed at the moment: try again")
	}
	return w, nil
}

func (h *Hub) add(ws id.Workspace, doc id.Document) (*Watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, errEnding
	case h.count >= h.cfg.Watchers:
		return nil, fault.New(fault.Unavailable, "this instance has its maximum number of subscribers: try again")
	}
	w := &Watcher{
		hub: h, ws: ws, doc: doc,
		queue: make(chan *documentv1.SubscribeResponse, h.cfg.Queue), ended: make(chan struct{}),
		seen: newSeen(2 * h.span()),
	}
	if h.watchers[ws] == nil {
		sub, err := h.cfg.Bus.Subscribe(subject.WorkspaceDocUpdates(ws), h.receive)
		if err != nil {
			return nil, fault.Wrap(err, fault.Unavailable, "changes cannot be followed at the moment: try again")
		}
		h.watchers[ws], h.subs[ws] = map[*Watcher]struct{}{}, sub
	}
	h.watchers[ws][w] = struct{}{}
	h.count++
	return w, nil
}

// end removes w; h.mu is held.
func (h *Hub) end(w *Watcher, why error) {
	if _, ok := h.watchers[w.ws][w]; !ok {
		return
	}
	delete(h.watchers[w.ws], w)
	if len(h.watchers[w.ws]) == 0 {
		_ = h.subs[w.ws].Unsubscribe() // fails only without a connection, which ends the subscription too
		delete(h.watchers, w.ws)
		delete(h.subs, w.ws)
	}
	h.count--
	w.why = why
	close(w.ended)
}

func (h *Hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, set := range h.watchers {
		for w := range set {
			h.end(w, errEnding)
		}
	}
}

// Count returns the number of watchers.
func (h *Hub) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// MarkSeen records that the caller has already shown a document in this state, so that Next skips
// it and older ones.
func (w *Watcher) MarkSeen(doc id.Document, sequence int64, updated time.Time) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.seen.mark(doc, sequence, updated)
}

// Next waits for the next change. It never returns the same state of a document twice, nor an
// older one after a newer one. When the hub has ended the watcher it returns the reason, a
// fault, at once: the queue is incomplete by then.
func (w *Watcher) Next(ctx context.Context) (*documentv1.SubscribeResponse, error) {
	for {
		select {
		case <-w.ended:
			return nil, w.why
		default:
		}
		select {
		case c := <-w.queue:
			if !w.stale(c.GetDocument()) {
				return c, nil
			}
		case <-w.ended:
			return nil, w.why
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (w *Watcher) stale(d *documentv1.Document) bool {
	doc, err := id.Parse[id.Document](d.GetId())
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return err != nil || d.GetSequence() <= w.seen.documents[doc].shown
}

// Close ends the watcher. It may be called twice.
func (w *Watcher) Close() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.hub.end(w, errClosed)
}

// seen holds the known sequences of documents while late or repeated news are possible.
type seen struct {
	documents map[id.Document]state
	keep      time.Duration
	prune     int // the size at which old entries are removed
}

type state struct {
	queued, shown int64 // sequences: queued, and shown otherwise
	at            time.Time
}

const pruneAt = 1024

func newSeen(keep time.Duration) *seen {
	return &seen{documents: map[id.Document]state{}, keep: keep, prune: pruneAt}
}

// isNew reports whether the sequence is new and records it.
func (s *seen) isNew(doc id.Document, sequence int64) bool {
	st := s.documents[doc]
	if sequence <= max(st.queued, st.shown) {
		return false
	}
	st.queued = sequence
	s.put(doc, st, time.Now())
	return true
}

func (s *seen) mark(doc id.Document, sequence int64, updated time.Time) {
	now := time.Now()
	if now.Sub(updated) > s.keep {
		return // no change up to this state can still arrive
	}
	st := s.documents[doc]
	st.shown = max(st.shown, sequence)
	s.put(doc, st, now)
}

func (s *seen) put(doc id.Document, st state, now time.Time) {
	st.at = now
	s.documents[doc] = st
	if len(s.documents) < s.prune {
		return
	}
	for k, v := range s.documents {
		if now.Sub(v.at) > s.keep {
			delete(s.documents, k)
		}
	}
	s.prune = max(pruneAt, 2*len(s.documents))
}
