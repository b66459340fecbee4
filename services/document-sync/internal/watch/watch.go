// Package watch informs subscribers about changed documents.
//
// Committed changes are announced on the bus (Announce), received by every instance and
// passed to its watchers. Announcements may be lost or repeated, so every instance also
// periodically reads recent changes in the watched workspaces and passes them on like
// announcements. A watcher drops changes whose sequence is not new.
//
// The Hub owns a subscription per watched workspace, on which it ignores live edits, and the
// goroutine of Run. A watcher owns a bounded queue; the hub ends watchers that fall behind
// instead of waiting for them. If the instance dies, its watchers' streams break and their
// clients subscribe elsewhere; only their position in the stream is lost.
package watch

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/store"
)

// Source lists recent changes, oldest first, including deletions.
type Source interface {
	Changed(ctx context.Context, ws id.Workspace, span time.Duration, after *store.Cursor, limit int) ([]store.Document, error)
}

// Config configures a Hub.
type Config struct {
	Bus    *bus.Bus
	Source Source
	Log    *slog.Logger
	// Resync is how often recent changes are read.
	Resync time.Duration
	// Watchers limits the number of watchers, Queue the unread changes of each.
	Watchers, Queue int
}

// Limits of the hub's own work.
const (
	// commitLag is how long after its timestamp a change may become visible: a transaction
	// takes at most a minute.
	commitLag       = time.Minute
	resyncPage      = 500
	announceTimeout = 250 * time.Millisecond
)

// Hub passes changes from the bus to the watchers of this instance.
type Hub struct {
	cfg Config
	up  chan struct{} // closed when Run has started

	mu       sync.Mutex // guards the rest
	watchers map[id.Workspace]map[*Watcher]struct{}
	subs     map[id.Workspace]*bus.Subscription // of the watched workspaces
	count    int
	closed   bool
}

// New returns a hub, which receives nothing before Run.
func New(cfg Config) *Hub {
	return &Hub{cfg: cfg, up: make(chan struct{}), watchers: map[id.Workspace]map[*Watcher]struct{}{}, subs: map[id.Workspace]*bus.Subscription{}}
}

// Announce tells every instance about a committed change. It takes at most announceTimeout; a
// failure is made up for by the resync of Run.
func (h *Hub) Announce(ctx context.Context, ws id.Workspace, doc id.Document, c *documentv1.SubscribeResponse) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), announceTimeout)
	defer cancel()
	if err := h.cfg.Bus.Nudge(ctx, subject.DocUpdates(ws, doc), &documentv1.Change{Change: c}); err != nil {
		h.cfg.Log.WarnContext(ctx, "change not announced", "workspace", ws, "document", doc, "error", err)
	}
}

// Run resyncs until ctx is done and then ends all watchers.
func (h *Hub) Run(ctx context.Context) error {
	defer h.close()
	close(h.up)
	t := time.NewTicker(h.cfg.Resync)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			panics.Contain(ctx, h.cfg.Log, "changed documents", func() { h.resync(ctx) })
		}
	}
}

// receive passes on an announcement. Changes that nobody here watches are not decoded.
func (h *Hub) receive(ctx context.Context, m *bus.Message) {
	ws, doc, ok := parse(m.Subject)
	if !ok || !h.watched(ws) {
		return
	}
	change, err := bus.Decode[*documentv1.Change](m)
	if err != nil {
		h.cfg.Log.WarnContext(ctx, "announcement not understood", "subject", m.Subject, "error", err)
		return
	}
	if change.GetChange() != nil { // other messages are for rooms
		h.dispatch(ws, doc, change.GetChange())
	}
}

func parse(subj string) (ws id.Workspace, doc id.Document, ok bool) {
	_, rest, _ := strings.Cut(subj, ".")
	w, d, _ := strings.Cut(rest, ".")
	ws, err1 := id.Parse[id.Workspace](w)
	doc, err2 := id.Parse[id.Document](d)
	return ws, doc, err1 == nil && err2 == nil
}

func (h *Hub) watched(ws id.Workspace) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers[ws]) > 0
}

func (h *Hub) dispatch(ws id.Workspace, doc id.Document, c *documentv1.SubscribeResponse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers[ws] {
		if !id.IsZero(w.doc) && w.doc != doc || !w.seen.isNew(doc, c.GetDocument().GetSequence()) {
			continue
		}
		select {
		case w.queue <- c:
		default:
			h.end(w, errBehind)
		}
	}
}

// resync passes on recent changes in every watched workspace.
func (h *Hub) resync(ctx context.Context) {
	h.mu.Lock()
	all := make([]id.Workspace, 0, len(h.watchers))
	for ws := range h.watchers {
		all = append(all, ws)
	}
	h.mu.Unlock()
	for _, ws := range all {
		if err := h.resyncWorkspace(ctx, ws); err != nil {
			if ctx.Err() == nil {
				h.cfg.Log.WarnContext(ctx, "changes not read", "error", err)
			}
			return // the others would fail too; the next tick tries again
		}
	}
}

func (h *Hub) resyncWorkspace(ctx context.Context, ws id.Workspace) error {
	var after *store.Cursor
	for {
		page, err := h.cfg.Source.Changed(ctx, ws, h.span(), after, resyncPage)
		if err != nil {
			return err
		}
		for _, d := range page {
			h.dispatch(ws, d.ID, &documentv1.SubscribeResponse{Kind: kind(d), Document: d.Proto(), Author: d.Author.Proto()})
		}
		if len(page) < resyncPage {
			return nil
		}
		last := page[len(page)-1]
		after = &store.Cursor{UpdatedAt: last.UpdatedAt, ID: last.ID}
	}
}

// span is how far back a resync must look to find every change that may have become visible
// since the previous one.
func (h *Hub) span() time.Duration { return 2*h.cfg.Resync + commitLag }

// kind infers from a document's row what happened to it.
func kind(d store.Document) documentv1.SubscribeResponse_Kind {
	switch {
	case d.Deleted:
		return documentv1.SubscribeResponse_KIND_DELETED
	case d.Sequence == 1:
		return documentv1.SubscribeResponse_KIND_CREATED
	}
	return documentv1.SubscribeResponse_KIND_CHANGED
}
