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
// thinned history lacks the content that it deleted.
const CodeThinned = "HISTORY_THINNED"

// Undo computes the inverse of an operation. It works on a replica, and the caller applies the
// result.
type Undo struct {
	editor  *Editor
	replica *yjs.Doc
	before  []byte
	change  []byte
}

// Undo prepares the inverse of change, an update in encoding v1. before is a state from before
// it, in encoding v2, with the content that it deleted; it may be nil.
func (e *Editor) Undo(before, change []byte) (*Undo, error) {
	replica, err := load(before, yjs.Options{KeepDeleted: true, Limits: yjs.Unlimited()})
	if err != nil {
		return nil, err
	}
	return &Undo{editor: e, replica: replica, before: before, change: change}, nil
}

// load returns a document in a state of our own encoding.
func load(state []byte, o yjs.Options) (*yjs.Doc, error) {
	doc := yjs.New(o)
	if state == nil {
		return doc, nil
	}
	if err := doc.ApplyUpdateV2(state, nil); err != nil {
		return nil, fmt.Errorf("load the state before an operation: %w", err)
	}
	return doc, nil
}

// Inverse returns the v1 update that undoes the operation in the current doc, or nil if
// nothing is left to undo. It may be called once. Its fault says that history is insufficient.
func (u *Undo) Inverse(doc *yjs.Doc) ([]byte, error) {
	r := u.replica
	if err := r.ApplyUpdateV2(doc.EncodeStateAsUpdateV2(r.StateVector()), nil); err != nil {
		return nil, fmt.Errorf("update the replica: %w", err)
	}
	var inverse []byte
	stop := r.OnUpdate(func(made *yjs.Update) { inverse = made.V1() })
	defer stop()
	var err error
	r.Transact(nil, func(*yjs.Txn) {
		var changed bool
		if changed, err = r.UndoUpdate(u.change, nil); err == nil && changed {
			err = u.repair(doc)
		}
	})
	if errors.Is(err, yjs.ErrGone) {
		return nil, fault.Coded(fault.Conflict, CodeThinned,
			"the content that the operation deleted is no longer in the history, which is thinned as it ages: restore a version instead")
	}
	return inverse, err
}

// repair makes blocks valid that lost content around somebody else's text: editors would delete
// them. Blocks that exist in doc or in the state before stay as they are.
func (u *Undo) repair(doc *yjs.Doc) error {
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

// fit returns the valid blocks nearest to n, without the trailing empty paragraph.
func (e *Editor) fit(n *prosemirror.Node) []*prosemirror.Node {
	fit := e.schema.Fit(&prosemirror.Node{Type: e.schema.Spec().Top, Content: []*prosemirror.Node{n}}).Content
	if last := len(fit) - 1; last > 0 && fit[last].Type == e.schema.Spec().Trailing && len(fit[last].Content) == 0 {
		fit = fit[:last]
	}
	return fit
}
