// Package watch tells subscribers that documents changed.
//
// A change that was committed is announced on the bus (Announce), where every
// instance hears it, its own included, and passes it on to its watchers. An
// announcement may get lost or come twice: the truth is the row. So every
// instance also reads from time to time what changed lately in the workspaces
// that somebody watches, and passes that on as if it had been announced; a
// watcher drops what its document's sequence shows to be old.
//
// The Hub owns a subscription for each workspace that is watched, since what is typed in
// documents goes the same way and is nothing to it, and the goroutine of Run. A watcher owns a
// bounded queue: the hub never waits for one, it lets go of whoever falls behind.
// If the instance dies here, its watchers' streams break and they subscribe
// elsewhere; nothing but their place in the stream is lost.
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

// Source reads what changed lately, oldest first, deleted documents included.
type Source interface {
	Changed(ctx context.Context, ws id.Workspace, span time.Duration, after *store.Place, limit int) ([]store.Document, error)
}

// Config is what a Hub needs.
type Config struct {
	Bus    *bus.Bus
	Source Source
	Log    *slog.Logger
	// Resync is how often the tables are read for what was not heard.
	Resync time.Duration
	// Watchers and Queue bound how many there are, and how many changes one may
	// leave unread.
	Watchers, Queue int
}

// Bounds of the hub's own work.
const (
	// commitLag is how much later than its time a change may become visible: a
	// transaction takes at most a minute.
	commitLag       = time.Minute
	resyncPage      = 500
	announceTimeout = 250 * time.Millisecond
)

// Hub connects the bus with the watchers of this instance.
type Hub struct {
	cfg Config
	up  chan struct{} // closed when Run listens

	mu       sync.Mutex // guards the rest
	watchers map[id.Workspace]map[*Watcher]struct{}
	heard    map[id.Workspace]*bus.Subscription // of the workspaces that somebody watches
	count    int
	closed   bool
}

// New returns a hub; it hears nothing before Run.
func New(cfg Config) *Hub {
	return &Hub{cfg: cfg, up: make(chan struct{}), watchers: map[id.Workspace]map[*Watcher]struct{}{}, heard: map[id.Workspace]*bus.Subscription{}}
}

// Announce tells every instance about a change that was committed. It takes a
// moment at most; when it fails, Run's reading of the tables makes up for it.
func (h *Hub) Announce(ctx context.Context, ws id.Workspace, doc id.Document, c *documentv1.SubscribeResponse) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), announceTimeout)
	defer cancel()
	if err := h.cfg.Bus.Nudge(ctx, subject.DocUpdates(ws, doc), &documentv1.Change{Change: c}); err != nil {
		h.cfg.Log.WarnContext(ctx, "change not announced", "workspace", ws, "document", doc, "error", err)
	}
}

// Run listens until ctx is done and then lets go of all watchers.
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

// hear passes an announcement on. What nobody here watches is not even decoded.
func (h *Hub) hear(ctx context.Context, m *bus.Message) {
	ws, doc, ok := parse(m.Subject)
	if !ok || !h.watched(ws) {
		return
	}
	change, err := bus.Decode[*documentv1.Change](m)
	if err != nil {
		h.cfg.Log.WarnContext(ctx, "announcement not understood", "subject", m.Subject, "error", err)
		return
	}
	if change.GetChange() != nil { // what else is said is for rooms
		h.pass(ws, doc, change.GetChange())
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

func (h *Hub) pass(ws id.Workspace, doc id.Document, c *documentv1.SubscribeResponse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers[ws] {
		if !id.IsZero(w.doc) && w.doc != doc || !w.seen.fresh(doc, c.GetDocument().GetSequence()) {
			continue
		}
		select {
		case w.queue <- c:
		default:
			h.end(w, errBehind)
		}
	}
}

// resync passes on what changed lately in every workspace that is watched.
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
			return // the others would fare no better; the next tick tries again
		}
	}
}

func (h *Hub) resyncWorkspace(ctx context.Context, ws id.Workspace) error {
	var after *store.Place
	for {
		page, err := h.cfg.Source.Changed(ctx, ws, h.span(), after, resyncPage)
		if err != nil {
			return err
		}
		for _, d := range page {
			h.pass(ws, d.ID, &documentv1.SubscribeResponse{Kind: kind(d), Document: d.Proto(), Author: d.Author.Proto()})
		}
		if len(page) < resyncPage {
			return nil
		}
		last := page[len(page)-1]
		after = &store.Place{UpdatedAt: last.UpdatedAt, ID: last.ID}
	}
}

// span is how far back a reading of the tables must look to find all that may
// have become visible since the one before.
func (h *Hub) span() time.Duration { return 2*h.cfg.Resync + commitLag }

// kind is the best guess at what happened to a document, seen afterwards.
func kind(d store.Document) documentv1.SubscribeResponse_Kind {
	switch {
	case d.Deleted:
		return documentv1.SubscribeResponse_KIND_DELETED
	case d.Sequence == 1:
		return documentv1.SubscribeResponse_KIND_CREATED
	}
	return documentv1.SubscribeResponse_KIND_CHANGED
}
