package edit

import (
	"errors"
	"fmt"
	"slices"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
)

// CodeThinned is the code of the fault for an operation that cannot be undone because
// history has too little left.
const CodeThinned = "HISTORY_THINNED"

// Undo finds out what takes an operation back. It works on a replica, and leaves the
// shared document to the caller.
type Undo struct {
	editor  *Editor
	replica *yjs.Doc
	before  []byte
	change  []byte
}

// Undo returns what takes back change, an update in encoding v1. before is a state from
// before it, in encoding v2, which has what it deleted; it may be nil.
func (e *Editor) Undo(before, change []byte) (*Undo, error) {
	replica, err := load(before, yjs.Options{KeepDeleted: true, Limits: yjs.Unlimited()})
	if err != nil {
		return nil, err
	}
	return &Undo{editor: e, replica: replica, before: before, change: change}, nil
}

// load returns a document in a state that we have kept ourselves.
func load(state []byte, o yjs.Options) (*yjs.Doc, error) {
	doc := yjs.New(o)
	if state == nil {
		return doc, nil
	}
	if err := doc.ApplyUpdateV2(state, nil); err != nil {
		return nil, fmt.Errorf("read a state from before an operation: %w", err)
	}
	return doc, nil
}

// Inverse returns the update, v1, that takes the operation back in doc as it is now, or
// nil when nothing is left to take back. It can be called once. Its fault says that
// history has too little left.
func (u *Undo) Inverse(doc *yjs.Doc) ([]byte, error) {
	r := u.replica
	if err := r.ApplyUpdateV2(doc.EncodeStateAsUpdateV2(r.StateVector()), nil); err != nil {
		return nil, fmt.Errorf("read a document of our own: %w", err)
	}
	var inverse []byte
	stop := r.OnUpdate(func(made *yjs.Update) { inverse = made.V1() })
	defer stop()
	var err error
	r.Transact(nil, func(*yjs.Txn) {
		var changed bool
		if changed, err = r.UndoUpdate(u.change, nil); err == nil && changed {
			err = u.mend(doc)
		}
	})
	if errors.Is(err, yjs.ErrGone) {
		return nil, fault.Coded(fault.Conflict, CodeThinned,
			"what the operation deleted is not in the history any more, which is thinned out as it gets older: restore a version instead")
	}
	return inverse, err
}

// mend makes those blocks fit that are not valid, because of what is gone around
// somebody's words: editors would delete them. Blocks that were the same before, now or
// before the operation, are as their author wants them.
func (u *Undo) mend(doc *yjs.Doc) error {
	tree := u.editor.Tree(u.replica)
	if u.editor.schema.Fit(tree) == tree {
		return nil
	}
	past, err := load(u.before, yjs.Options{Limits: yjs.Unlimited()})
	if err != nil {
		return err
	}
	known := slices.Concat(u.editor.Tree(doc).Content, u.editor.Tree(past).Content)
	next := &prosemirror.Node{Type: tree.Type, Attrs: tree.Attrs}
	for _, n := range tree.Content {
		fit := u.editor.fit(n)
		if len(fit) == 1 && fit[0].Equal(n) || slices.ContainsFunc(known, n.Equal) {
			fit = []*prosemirror.Node{n}
		}
		next.Content = append(next.Content, fit...)
	}
	_, err = u.editor.Write(u.replica, next)
	return err
}

// fit returns the valid blocks nearest to one, without the empty one that a document
// ends with.
func (e *Editor) fit(n *prosemirror.Node) []*prosemirror.Node {
	fit := e.schema.Fit(&prosemirror.Node{Type: e.schema.Spec().Top, Content: []*prosemirror.Node{n}}).Content
	if last := len(fit) - 1; last > 0 && fit[last].Type == e.schema.Spec().Trailing && len(fit[last].Content) == 0 {
		fit = fit[:last]
	}
	return fit
}
