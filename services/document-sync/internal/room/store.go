package room

import (
	"context"

	"signalbox.dev/services/document-sync/internal/store"
)

// Store is what rooms need of the tables.
type Store interface {
	// Load returns what there is of a document, or a NotFound fault.
	Load(ctx context.Context, ref store.Ref) (store.State, error)
	// Since returns the updates after a sequence, with a snapshot only when some of
	// them are gone already; or a NotFound fault.
	Since(ctx context.Context, ref store.Ref, after int64) (store.State, error)
	// Heads returns the newest sequences of documents; those without one are deleted.
	Heads(ctx context.Context, refs []store.Ref) (map[store.Ref]int64, error)
	// Append commits an update and returns its sequence. A NotFound fault says that
	// the document is deleted, an Invalid, TooLarge or Conflict one that this update
	// will never be taken; any other error may be over the next time. The store bounds
	// the time that it takes.
	Append(ctx context.Context, ref store.Ref, author store.Author, update []byte) (sequence int64, err error)
	// Plant commits the update that brings a seed into the state, which may be empty, and
	// says whether it did: else somebody else was first, or there is another seed.
	Plant(ctx context.Context, ref store.Ref, seed store.Seed, update []byte) (sequence int64, planted bool, err error)
	// Quarantine keeps an update that panicked twice, for whoever mends that.
	Quarantine(ctx context.Context, q store.Quarantined) error
	// Save keeps a snapshot, unless a later one is there.
	Save(ctx context.Context, s store.Snapshot) error
}
