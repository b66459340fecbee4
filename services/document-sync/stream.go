package documentsync

import (
	"context"

	"connectrpc.com/connect"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/watch"
)

type stream = connect.ServerStream[documentv1.SubscribeResponse]

// Subscribe implements DocumentService. It starts watching before it reads, so that no change
// is missed, and leaves out changes that the read has already shown.
func (s *documents) Subscribe(ctx context.Context, req *documentv1.SubscribeRequest, out *stream) error {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return err
	}
	var doc id.Document
	if req.GetId() != "" {
		if doc, err = parseDocument(req.GetId()); err != nil {
			return err
		}
	}
	w, err := s.hub.Watch(ctx, actor.Workspace, doc)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := out.Send(nil); err != nil { // headers: the subscription to an empty workspace is visible
		return err
	}
	if id.IsZero(doc) {
		err = s.sendAll(ctx, w, actor.Workspace, out)
	} else {
		err = s.sendOne(ctx, w, actor.Workspace, doc, out)
	}
	if err != nil {
		return err
	}
	for {
		c, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if err := out.Send(c); err != nil {
			return err
		}
		if c.GetKind() == documentv1.SubscribeResponse_KIND_DELETED && !id.IsZero(doc) {
			return nil // nothing follows a deletion
		}
	}
}

func (s *documents) sendOne(ctx context.Context, w *watch.Watcher, ws id.Workspace, doc id.Document, out *stream) error {
	d, err := s.store.Get(ctx, ws, doc)
	if err != nil {
		return err
	}
	return sendCurrent(w, d, out)
}

func (s *documents) sendAll(ctx context.Context, w *watch.Watcher, ws id.Workspace, out *stream) error {
	var after *store.Cursor
	for {
		page, err := s.store.List(ctx, ws, nil, after, streamPage)
		if err != nil {
			return err
		}
		for _, d := range page {
			if err := sendCurrent(w, d, out); err != nil {
				return err
			}
		}
		if len(page) < streamPage {
			return nil
		}
		last := page[len(page)-1]
		after = &store.Cursor{UpdatedAt: last.UpdatedAt, ID: last.ID}
	}
}

const streamPage = 500

func sendCurrent(w *watch.Watcher, d store.Document, out *stream) error {
	w.MarkSeen(d.ID, d.Sequence, d.UpdatedAt)
	return out.Send(&documentv1.SubscribeResponse{
		Kind: documentv1.SubscribeResponse_KIND_CURRENT, Document: d.Proto(), Author: d.Author.Proto(),
	})
}
