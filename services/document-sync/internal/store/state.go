package store

import (
	"signalbox.dev/pkg/id"
)

// Ref names a document.
type Ref struct {
	Workspace id.Workspace
	Document  id.Document
}

// Update is a committed change of a document's state.
type Update struct {
	Sequence int64
	Data     []byte // a Yjs update, v1
	Author   Author
}

// State is what is stored of a document: the state of a snapshot, and the updates
// after it.
type State struct {
	Document Document // its Sequence is that of the last update; without Content
	Snapshot []byte   // a Yjs update, v2; nil when none was read
	At       int64    // the sequence up to which Snapshot has everything
	Updates  []Update // after At, or after what was asked for; dense, ascending
	// Seed is Markdown that is not in the state: somebody wrote it who knows documents
	// only as text. Nil as a rule.
	Seed *Seed
}

// Seed is the text that a document had, and the one it was given.
type Seed struct {
	Before, After string
}

// Snapshot is a document's whole state, and what was derived from it.
type Snapshot struct {
	Ref      Ref
	Sequence int64  // everything up to it is contained
	State    []byte // a Yjs update, v2
	Vector   []byte // its state vector
	Markdown string
	Text     string // plain, for search
	// Unrendered says that Markdown and Text could not be derived: what there is stays.
	Unrendered bool
	// Typing says that people are still at it: what they have edited is no version yet.
	Typing bool
}
