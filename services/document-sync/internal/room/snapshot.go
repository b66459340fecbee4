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

// When snapshots are saved.
const (
	savePause   = 2 * time.Second  // after the last edit
	saveAtLeast = 10 * time.Second // after the first unsaved edit
	saveTimeout = time.Minute
	turnWait    = time.Second     // for the turn, while it occupies a slot of saves
	saveRetry   = 5 * time.Second // after a failure, doubled each time
	saveRetries = 6               // doublings, and failures after which the room may be unloaded
	// versionAtLeast is the longest time without a version while typing goes on.
	versionAtLeast = time.Minute
)

// unsaved records what no snapshot of this room contains.
type unsaved struct {
	last     int64     // the newest update to be saved
	saved    int64     // the snapshot contains everything up to here
	first    time.Time // when the oldest unsaved update was made
	latest   time.Time // when the newest was made
	stretch  time.Time // when the first update without a version was made; zero if there is none
	saving   bool
	failures int
	retry    time.Time // no attempt before
}

func (u *unsaved) any() bool { return u.last > u.saved }

// givenUp reports whether saving has failed too often.
func (u *unsaved) givenUp() bool { return !u.saving && u.failures >= saveRetries }

func (u *unsaved) committed(seq int64, now time.Time) {
	if !u.any() {
		u.first = now
	}
	u.last, u.latest = max(u.last, seq), now
	if u.stretch.IsZero() {
		u.stretch = now
	}
}

// typing reports whether the version can wait because edits continue.
func (u *unsaved) typing(now time.Time) bool {
	return now.Before(u.latest.Add(savePause)) && now.Before(u.stretch.Add(versionAtLeast))
}

// loaded takes over the updates after the loaded snapshot, whose writer may be dead.
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

// armSnapshot schedules the next snapshot. mu is held.
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

// save saves a snapshot; the final one is not postponed. The caller has set unsaved.saving, so
// that there is one at a time.
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
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // a slow commit, which will change the document anyway
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
		r.endDeleted()
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
		// Not again at once, since a gap may keep the newest updates out of it.
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

// postpone schedules a snapshot a little later.
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

// encoded is a snapshot with the contents of the doc it was made from.
type encoded struct {
	store.Snapshot
	structs, deletions yjs.DeleteSet
}

// loads verifies that the snapshot, which replaces updates, decodes to a doc with the same
// contents, including pending structs. Comparing bytes would not do: structs may merge
// differently, and anything missing from the encoding would be missing on both sides.
func (s *encoded) loads() error {
	doc := yjs.New(yjs.Options{Limits: yjs.Unlimited()})
	if err := doc.ApplyUpdateV2(s.State, nil); err != nil {
		return fmt.Errorf("decode the new snapshot of document %s: %w", s.Ref.Document, err)
	}
	if !s.matches(doc) {
		return fmt.Errorf("decode the new snapshot of document %s: it differs from the document", s.Ref.Document)
	}
	return nil
}

// matches reports whether a doc contains everything that was encoded.
func (s *encoded) matches(doc *yjs.Doc) bool {
	structs, deletions := doc.Contents()
	vector := doc.StateVector()
	if bytes.Equal(vector.Encode(), s.Vector) {
		return structs.Equal(s.structs) && deletions.Equal(s.deletions)
	}
	// Pending structs may have been integrated, since everything came at once, and deleted more.
	had, err := yjs.DecodeStateVector(s.Vector)
	for client, clock := range had {
		if vector[client] < clock {
			return false
		}
	}
	return err == nil && structs.Equal(s.structs) && deletions.Includes(s.deletions)
}

// snapshot encodes the doc and renders it, if it gets the turn in time.
func (r *room) snapshot(ctx, turn context.Context) (*encoded, error) {
	if err := r.acquire(turn); err != nil {
		return nil, err
	}
	defer r.yield()
	r.mu.Lock()
	s := &encoded{Snapshot: store.Snapshot{Ref: r.ref, Sequence: r.seq.at}}
	r.mu.Unlock()
	if err := r.readDoc(func() {
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
	if err != nil { // save the state anyway
		s.Markdown, s.Text, s.Unrendered = "", "", true
		r.hub.cfg.Log.ErrorContext(ctx, "document not rendered", "document", r.ref.Document, "error", err)
	}
	return s, nil
}
