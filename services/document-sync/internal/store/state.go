package store

import (
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Ref identifies a document.
type Ref struct {
	Workspace id.Workspace
	Document  id.Document
}

// args are the query arguments @ws and @id.
func (r Ref) args() pg.Args { return pg.Args{"ws": r.Workspace, "id": r.Document} }

// Update is a committed change of a document's state.
type Update struct {
	Sequence int64
	Data     []byte // a Yjs update, v1
	Author   Author
}

// State is the stored state of a document: a snapshot and the updates after it.
type State struct {
	Document Document // its Sequence is that of the last update
	Snapshot []byte   // a Yjs update, v2; nil if it was not read
	At       int64    // Snapshot contains everything up to this sequence
	Updates  []Update // after At, or after the requested sequence; without gaps, ascending
	// Seed is a change of the Markdown that is not in the state, made by an older release.
	// Usually nil.
	Seed *Seed
}

// Seed is the Markdown of a document before and after a change.
type Seed struct {
	Before, After string
}

// Snapshot is the whole state of a document, with what was derived from it.
type Snapshot struct {
	Ref      Ref
	Sequence int64  // everything up to it is included
	State    []byte // a Yjs update, v2
	Vector   []byte // its state vector
	Markdown string
	Text     string // plain, for search
	// Unrendered means that Markdown and Text could not be derived: the stored ones stay.
	Unrendered bool
	// Typing means that editing continues: the live edits do not become a version yet.
	Typing bool
}
