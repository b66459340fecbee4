package room

import (
	"context"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/store"
)

// Operation is an edit by an agent or by REST, committed in a transaction of its own.
type Operation struct {
	// Origin is the origin of the Yjs transaction.
	Origin any
	// Edit changes the document within one transaction, or leaves it unchanged. Do returns
	// its error and commits nothing.
	Edit func(doc *yjs.Doc) error
	// Commit commits the result of Edit and returns its sequence. done reports that the
	// operation was committed before, and nothing is committed now.
	Commit func(ctx context.Context, e Edited) (sequence int64, done bool, err error)
	// Refused, which may be nil, replaces Commit if Edit failed or the document is full, and
	// returns the error of Do: nil if the operation was committed before, when there was
	// still space.
	Refused func(ctx context.Context, why error) error
}

// Edited is the result of an operation.
type Edited struct {
	Update []byte   // v1; nil if nothing changed
	Doc    *yjs.Doc // the new content, to be read until Commit returns
	Since  int64    // the sequence up to which Doc has everything, apart from Update
}

// Do runs an operation on a document, which it opens if necessary and which contains
// everything committed before the call. It returns the errors of Edit and Commit, NotFound for
// a document that does not exist, and Unavailable if the instance is full. When it returns nil,
// the commit has been sent to all local peers.
func (h *Hub) Do(ctx context.Context, ref store.Ref, op Operation) error {
	return h.withTurn(ctx, ref, func(r *room) error { return r.operate(ctx, op) })
}

// readTries is how often Read waits for an update that another instance committed before one
// that has already arrived.
const readTries = 5

// Read calls f with the committed content of a document, which it opens if necessary: everything
// from before the call, up to a sequence. f only reads, and everybody else waits for it.
func (h *Hub) Read(ctx context.Context, ref store.Ref, f func(doc *yjs.Doc, sequence int64) error) error {
	for try := 1; ; try++ {
		done := false
		err := h.withTurn(ctx, ref, func(r *room) error {
			r.mu.Lock()
			at, ahead := r.seq.at, len(r.seq.ahead) > 0
			r.mu.Unlock()
			if ahead && try < readTries {
				return nil
			}
			done = true
			return f(r.doc, at)
		})
		if err != nil || done {
			return err
		}
	}
}

// withTurn calls f with the turn of a room that has caught up with Postgres.
func (h *Hub) withTurn(ctx context.Context, ref store.Ref, f func(*room) error) error {
	r, err := h.open(ctx, ref)
	if err != nil {
		return err
	}
	defer h.unpin(r)
	st, err := r.since(ctx)
	if err != nil {
		return err
	}
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.yield()
	if err := r.applyMissed(ctx, st); err != nil {
		return err
	}
	err = panics.Try(func() error { return f(r) })
	if panicked(err) {
		r.doc = nil // f may have left it inconsistent
	}
	return err
}

// operate runs an operation. The turn is held; the doc is discarded if it contains anything
// uncommitted.
func (r *room) operate(ctx context.Context, op Operation) (err error) {
	doc, before := r.doc, r.doc.Size()
	r.doc = nil // also after a panic from here on
	var update []byte
	r.listen, r.novel = true, nil
	doc.Transact(op.Origin, func(*yjs.Txn) { err = op.Edit(doc) })
	update, r.listen, r.novel = r.novel, false, nil
	if after := doc.Size(); err == nil && after > before && (after > r.hub.cfg.DocumentBytes || r.unsavable.Load()) {
		err = errDocumentFull()
	}
	if err != nil {
		if update == nil {
			r.doc = doc
		}
		if op.Refused != nil {
			return op.Refused(ctx, err)
		}
		return err
	}
	r.mu.Lock()
	at := r.seq.at
	r.mu.Unlock()
	seq, done, err := op.Commit(ctx, Edited{Update: update, Doc: doc, Since: at})
	if update == nil {
		r.doc = doc
	}
	switch {
	case err != nil:
		if fault.KindOf(err) == fault.NotFound {
			r.checkDeleted(ctx)
		}
		return err
	case done || update == nil:
		return nil
	}
	r.doc = doc
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end == nil {
		r.committed(seq, update, nil)
	}
	return nil
}

// checkDeleted ends the room if the document is gone: a NotFound of an operation may also
// concern something else, such as a version.
func (r *room) checkDeleted(ctx context.Context) {
	_, _ = r.since(ctx)
}
