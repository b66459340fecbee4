package documentsync

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/watch"
)

type stream = connect.ServerStream[documentv1.SubscribeResponse]

// Subscribe implements DocumentService. It watches first and reads then, so that
// nothing falls in between; what the reading showed already is left out after it.
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
	if err := out.Send(nil); err != nil { // the headers: who watches an empty workspace is told that it does
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
			return nil // nothing follows the end
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
	var after *store.Place
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
		after = &store.Place{UpdatedAt: last.UpdatedAt, ID: last.ID}
	}
}

const streamPage = 500

func sendCurrent(w *watch.Watcher, d store.Document, out *stream) error {
	w.Told(d.ID, d.Sequence, d.UpdatedAt)
	return out.Send(&documentv1.SubscribeResponse{
		Kind: documentv1.SubscribeResponse_KIND_CURRENT, Document: d.Proto(), Author: d.Author.Proto(),
	})
}

// boundWrites cuts a response whose reader takes longer than wait for one write:
// a stream's handler must not hang on somebody who stopped reading.
func boundWrites(next http.Handler, wait time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&boundWriter{w, http.NewResponseController(w), wait}, r)
	})
}

type boundWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	wait    time.Duration
}

// Write gives the reader a fresh span of time.
func (w *boundWriter) Write(b []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(b)
}

// Flush does too, as it is where bytes of a stream leave.
func (w *boundWriter) Flush() {
	w.extend()
	_ = w.control.Flush() // the next write tells when the connection is gone
}

// Unwrap lets a ResponseController through.
func (w *boundWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *boundWriter) extend() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.wait)) // every net/http connection can
}
