package room

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/store"
)

// When a snapshot is saved.
const (
	savePause   = 2 * time.Second  // after the last edit
	saveAtLeast = 10 * time.Second // after the first one that is not saved
	saveTimeout = time.Minute
	turnWait    = time.Second     // for the turn: others want the place among those who save
	saveRetry   = 5 * time.Second // after a failure, doubled each time
	saveRetries = 6               // doublings; as many failures let the room be unloaded
	// versionAtLeast is how long history waits for who goes on typing.
	versionAtLeast = time.Minute
)

// unsaved says what of a doc no snapshot of ours has.
type unsaved struct {
	last     int64     // the newest update that we want in one
	saved    int64     // up to here one has everything
	first    time.Time // when the oldest of them was made
	latest   time.Time // and the newest
	stretch  time.Time // when the first was made that may be in no version; zero: there is none
	saving   bool
	failures int
	retry    time.Time // not before this
}

func (u *unsaved) any() bool { return u.last > u.saved }

// hopeless says that saving did not work often enough.
func (u *unsaved) hopeless() bool { return !u.saving && u.failures >= saveRetries }

func (u *unsaved) committed(seq int64, now time.Time) {
	if !u.any() {
		u.first = now
	}
	u.last, u.latest = max(u.last, seq), now
	if u.stretch.IsZero() {
		u.stretch = now
	}
}

// typing says that a version of what was edited can wait: there is more to come.
func (u *unsaved) typing(now time.Time) bool {
	return now.Before(u.latest.Add(savePause)) && now.Before(u.stretch.Add(versionAtLeast))
}

// loaded takes over what the state had behind its snapshot: who should have saved that
// may be dead.
func (u *unsaved) loaded(st store.State, now time.Time) {
	u.saved = max(u.saved, st.At)
	if n := len(st.Updates); n > 0 {
		u.committed(st.Updates[n-1].Sequence, now)
	}
}

func (u *unsaved) due() time.Time {
	at := u.latest.Add(savePause)
	if most := u.first.Add(saveAtLeast); most.Before(at) {
		at = most
	}
	if at.Before(u.retry) {
		at = u.retry
	}
	return at
}

// armSnapshot has a snapshot saved when it is time. mu is held.
func (r *room) armSnapshot() {
	if r.unsaved.any() && !r.unsaved.saving {
		r.arm(r.unsaved.due())
	}
}

func (r *room) checkSnapshot(now time.Time) {
	if !r.unsaved.any() || r.unsaved.saving {
		return
	}
	if due := r.unsaved.due(); now.Before(due) {
		r.arm(due)
		return
	}
	r.unsaved.saving = r.hub.spawn(func() { r.save(r.hub.life, false) })
}

// save saves a snapshot; the final one whatever people do. There is one at a time, which
// has set unsaved.saving.
func (r *room) save(ctx context.Context, final bool) {
	h := r.hub
	select {
	case h.saves <- struct{}{}:
		defer func() { <-h.saves }()
	case <-ctx.Done():
	}
	turn, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	if final {
		turn = ctx
	}
	var s *encoded
	err := panics.Try(func() (err error) {
		s, err = r.snapshot(ctx, turn)
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // a commit hangs: there is more to save then
		r.postpone()
		return
	}
	if err == nil {
		s.Typing = !final && r.typing()
		err = panics.Try(func() error {
			if err := s.loads(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, saveTimeout)
			defer cancel()
			return h.cfg.Store.Save(ctx, s.Snapshot)
		})
	}
	if err != nil && fault.KindOf(err) == fault.NotFound {
		r.gone()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	u := &r.unsaved
	u.saving = false
	if r.end != nil {
		return
	}
	now := time.Now()
	if tooLarge := fault.KindOf(err) == fault.TooLarge; tooLarge || err == nil {
		r.unsavable.Store(tooLarge)
	}
	if err != nil {
		u.retry = now.Add(saveRetry << min(u.failures, saveRetries))
		u.failures++
		h.metrics.unsaved.Inc()
		h.cfg.Log.Log(ctx, levelOf(err), "snapshot not saved yet", "document", r.ref.Document, "error", err)
	} else {
		// Not again at once, as when a hole keeps the newest updates out of it.
		u.retry, u.failures = now.Add(savePause), 0
		u.saved = max(u.saved, s.Sequence)
		u.first = now
		if !s.Typing {
			u.stretch = time.Time{}
			if u.any() {
				u.stretch = now
			}
		}
		h.metrics.saves.Inc()
	}
	r.armSnapshot()
}

// postpone has a snapshot saved a little later.
func (r *room) postpone() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsaved.saving, r.unsaved.retry = false, time.Now().Add(savePause)
	r.armSnapshot()
}

func (r *room) typing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unsaved.typing(time.Now())
}

// encoded is a snapshot, and what the doc has that it was made of.
type encoded struct {
	store.Snapshot
	structs, deletions yjs.DeleteSet
}

// loads tries whether a snapshot can be loaded again into a doc that has the same, what
// waits included: the updates that it replaces are gone then. Bytes say less: structs
// may be joined otherwise, and what an encoding left out would be missing in both.
func (s *encoded) loads() error {
	doc := yjs.New(yjs.Options{Limits: yjs.Unlimited()})
	if err := doc.ApplyUpdateV2(s.State, nil); err != nil {
		return fmt.Errorf("load the encoded document %s again: %w", s.Ref.Document, err)
	}
	if !s.isIn(doc) {
		return fmt.Errorf("load the encoded document %s again: it is not the same", s.Ref.Document)
	}
	return nil
}

// isIn says whether a doc has all that the one had that was encoded.
func (s *encoded) isIn(doc *yjs.Doc) bool {
	structs, deletions := doc.Contents()
	vector := doc.StateVector()
	if bytes.Equal(vector.Encode(), s.Vector) {
		return structs.Equal(s.structs) && deletions.Equal(s.deletions)
	}
	// What waited may have gone in, now that all came at once, and have deleted something.
	had, err := yjs.DecodeStateVector(s.Vector)
	for client, clock := range had {
		if vector[client] < clock {
			return false
		}
	}
	return err == nil && structs.Equal(s.structs) && deletions.Includes(s.deletions)
}

// snapshot encodes the doc and what is derived from it, if it gets the turn in time.
func (r *room) snapshot(ctx, turn context.Context) (*encoded, error) {
	if err := r.acquire(turn); err != nil {
		return nil, err
	}
	defer r.yield()
	r.mu.Lock()
	s := &encoded{Snapshot: store.Snapshot{Ref: r.ref, Sequence: r.seq.at}}
	r.mu.Unlock()
	if err := r.look(func() {
		s.State = r.doc.EncodeStateAsUpdateV2(nil)
		s.Vector = r.doc.StateVector().Encode()
		s.structs, s.deletions = r.doc.Contents()
	}); err != nil {
		return nil, err
	}
	if s.Unrendered = r.hub.cfg.Render == nil; s.Unrendered {
		return s, nil
	}
	err := panics.Try(func() (err error) {
		s.Markdown, s.Text, err = r.hub.cfg.Render(r.doc)
		return err
	})
	if err != nil { // the state counts
		s.Markdown, s.Text, s.Unrendered = "", "", true
		r.hub.cfg.Log.ErrorContext(ctx, "document not rendered", "document", r.ref.Document, "error", err)
	}
	return s, nil
}
