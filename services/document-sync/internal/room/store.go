package room

import (
	"context"

	"signalbox.dev/services/document-sync/internal/store"
)

// Store is the storage of rooms.
type Store interface {
	// Load returns everything stored of a document, or a NotFound fault.
	Load(ctx context.Context, ref store.Ref) (store.State, error)
	// Since returns the updates after a sequence, with a snapshot only if some of them were
	// pruned; or a NotFound fault.
	Since(ctx context.Context, ref store.Ref, after int64) (store.State, error)
	// Heads returns the newest sequences of documents, without deleted ones.
	Heads(ctx context.Context, refs []store.Ref) (map[store.Ref]int64, error)
	// Append commits an update and returns its sequence. A NotFound fault means that the
	// document is deleted, an Invalid, TooLarge or Conflict fault that the update will never
	// be accepted; other errors are temporary. The store bounds its duration.
	Append(ctx context.Context, ref store.Ref, author store.Author, update []byte) (sequence int64, err error)
	// ApplySeed commits the update that applies a seed; update may be empty. applied is false if
	// another instance was faster or the seed has changed.
	ApplySeed(ctx context.Context, ref store.Ref, seed store.Seed, update []byte) (sequence int64, applied bool, err error)
	// Quarantine stores an update that panicked twice, for debugging.
	Quarantine(ctx context.Context, q store.Quarantined) error
	// Save stores a snapshot, unless there is a later one.
	Save(ctx context.Context, s store.Snapshot) error
}
