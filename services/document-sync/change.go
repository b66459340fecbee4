package documentsync

import (
	"context"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/edit"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// planned is a change that an operation is about to make.
type planned struct {
	before       *prosemirror.Node // the current content
	replacements int
	name         string // the new name; empty: unchanged
	// apply makes the change in the document's transaction and returns the caret after it.
	apply func() (yjs.RelativePosition, error)
}

// edit changes a document's content to the tree that next returns.
func (s *documents) edit(ctx context.Context, c call, next func(*prosemirror.Node) (*prosemirror.Node, int, error)) (store.Answer, error) {
	return s.write(ctx, c, func(doc *yjs.Doc) (planned, error) {
		before := s.editor.Tree(doc)
		tree, replacements, err := next(before)
		return planned{before: before, replacements: replacements, name: c.rename, apply: func() (yjs.RelativePosition, error) {
			written, err := s.editor.Write(doc, tree)
			return written.Caret, err
		}}, err
	})
}

// write runs an operation on a document's content. plan computes the change without making
// it; its error is the answer, unless the operation was committed before.
func (s *documents) write(ctx context.Context, c call, plan func(doc *yjs.Doc) (planned, error)) (store.Answer, error) {
	c.run = func(ctx context.Context, op store.Operation) (answer store.Answer, err error) {
		ref := store.Ref{Workspace: op.Workspace, Document: op.Document}
		var todo planned
		var before []byte
		var caret yjs.RelativePosition
		// refused is the answer unless the operation was committed before.
		refused := s.store.Precondition(ctx, op)
		if refused == nil && c.prepare != nil { // what it loads stays in memory until the end
			select {
			case s.replicas <- struct{}{}:
				defer func() { <-s.replicas }()
			case <-ctx.Done():
				return store.Answer{}, ctx.Err()
			}
			refused = c.prepare(ctx, ref)
		}
		operate := func(ctx context.Context, change store.Change) (err error) {
			answer, err = s.store.Operate(ctx, op, func(store.Document) (store.Change, error) { return change, refused })
			return err
		}
		err = s.rooms.Do(ctx, ref, room.Operation{
			Origin: op.Author,
			Edit: func(doc *yjs.Doc) (err error) {
				if refused != nil {
					return nil
				}
				if todo, refused = plan(doc); refused != nil {
					return nil
				}
				before = doc.EncodeStateAsUpdateV2(nil)
				caret, err = todo.apply()
				return err
			},
			Commit: func(ctx context.Context, e room.Edited) (int64, bool, error) {
				var change store.Change
				if refused == nil { // before the store locks the document
					change, refused = s.derive(e, todo, before)
				}
				err := operate(ctx, change)
				if c.content != nil {
					*c.content = change.Markdown
				}
				return answer.Document.GetSequence(), answer.Repeated, err
			},
			Refused: func(ctx context.Context, why error) error {
				refused = why
				return operate(ctx, store.Change{})
			},
		})
		if fault.KindOf(err) == fault.NotFound { // deleted, perhaps after this operation was committed
			refused = err
			err = operate(ctx, store.Change{})
		}
		if err == nil {
			s.show(ctx, ref, op.Author, caret)
		}
		if err == nil && c.content != nil && answer.Repeated { // the content after the first call
			past, _ := s.store.Base(ctx, ref, answer.Document.GetSequence())
			*c.content = past.Markdown
		}
		return answer, err
	}
	return s.change(ctx, c)
}

// derive returns what is stored for a change to a document with state before.
func (s *documents) derive(e room.Edited, done planned, before []byte) (store.Change, error) {
	markdown := s.editor.Markdown(s.editor.Tree(e.Doc))
	if len(e.Update) == 0 {
		return store.Change{Replacements: done.replacements, Name: done.name, Markdown: markdown, Since: e.Since}, nil
	}
	if err := edit.CheckSize(markdown); err != nil {
		return store.Change{}, err
	}
	return store.Change{
		Update: e.Update, Replacements: done.replacements, Name: done.name,
		Before: before, BeforeMarkdown: s.editor.Markdown(done.before),
		State: e.Doc.EncodeStateAsUpdateV2(nil), Markdown: markdown, Since: e.Since,
	}, nil
}
