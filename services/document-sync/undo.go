package documentsync

import (
	"context"
	"errors"
	"strconv"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/yjs"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/edit"
	"signalbox.dev/services/document-sync/internal/store"
)

// codeNotUndoable is the code of the fault for a version that is not an operation on the
// content, or whose change is unknown.
const codeNotUndoable = "NOT_UNDOABLE"

// Undo implements DocumentService.
func (s *documents) Undo(ctx context.Context, req *documentv1.UndoRequest) (*documentv1.UndoResponse, error) {
	version := req.GetVersion()
	if version < 1 {
		return nil, fault.New(fault.Invalid, "version: is %d; give the number of a version of the document", version)
	}
	var undo *edit.Undo
	a, err := s.write(ctx, call{
		name: store.Undo, doc: req.GetId(), key: req.GetOperationKey(), request: []string{strconv.FormatInt(version, 10)}, undoes: version,
		ifSequence: req.GetIfSequence(),
		prepare: func(ctx context.Context, ref store.Ref) (err error) {
			undo, err = s.undo(ctx, ref, version)
			return err
		},
	}, func(doc *yjs.Doc) (planned, error) {
		inverse, err := undo.Inverse(doc)
		return planned{before: s.editor.Tree(doc), apply: func() (yjs.RelativePosition, error) {
			if inverse == nil {
				return yjs.RelativePosition{}, nil
			}
			err := doc.ApplyUpdate(inverse, nil)
			if errors.Is(err, yjs.ErrBudget) {
				err = fault.New(fault.TooLarge, "there is too much to undo at once: restore a version instead")
			}
			return yjs.RelativePosition{}, err
		}}, err
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.UndoResponse{Document: a.Document}, nil
}

// undo loads the change of a version.
func (s *documents) undo(ctx context.Context, ref store.Ref, version int64) (*edit.Undo, error) {
	done, err := s.store.UndoSource(ctx, ref, version)
	if err != nil {
		return nil, err
	}
	switch {
	case done.UndoneBy != 0:
		return nil, store.ErrUndone(version, done.UndoneBy)
	case done.Undoable:
		return s.editor.Undo(done.Before, done.Change)
	}
	var why string
	switch done.Operation {
	case store.Create:
		why = "created the document: delete the document, or replace its content"
	case store.Rename:
		why = "renamed the document: rename it again"
	case store.Write:
		why = "is live typing, and only operations can be undone: restore the version before it"
	default:
		why = "was made by an earlier release, and its change is unknown: restore the version before it"
	}
	return nil, fault.Coded(fault.Conflict, codeNotUndoable, "version %d %s", version, why)
}
