package documentsync

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/visible"
	"signalbox.dev/pkg/yjs"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/edit"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/watch"
)

// documents implements DocumentService: it authorizes callers, validates requests, and
// announces changes. Viewers read, editors write. An agent's run writes on behalf of its
// member and is visible in the document meanwhile.
type documents struct {
	store   *store.Store
	rooms   *room.Hub
	editor  *edit.Editor
	hub     *watch.Hub
	log     *slog.Logger
	metrics *metrics
	// replicas limits the documents held in memory outside the rooms.
	replicas chan struct{}
}

// maxReplicas is the limit of replicas; each may be as large as a document can be.
const maxReplicas = 4

// Create implements DocumentService.
func (s *documents) Create(ctx context.Context, req *documentv1.CreateRequest) (*documentv1.CreateResponse, error) {
	name, err := edit.Name(req.GetName())
	if err != nil {
		return nil, err
	}
	markdown, err := edit.Text("markdown", req.GetMarkdown())
	if err != nil {
		return nil, err
	}
	tree, losses, err := s.editor.Import(markdown)
	if err != nil {
		return nil, err
	}
	warned := warnings(losses)
	a, err := s.change(ctx, call{
		name: store.Create, doc: id.New[id.Document]().String(), key: req.GetOperationKey(), request: []string{name, markdown},
		warnings: &warned,
		run: func(ctx context.Context, op store.Operation) (store.Answer, error) {
			doc, err := s.editor.New(op.Document.String(), tree)
			if err != nil {
				return store.Answer{}, err
			}
			first := store.Snapshot{
				State: doc.EncodeStateAsUpdateV2(nil), Vector: doc.StateVector().Encode(),
				Markdown: s.editor.Markdown(tree), Text: edit.Plain(tree),
			}
			return s.store.Create(ctx, op, name, first)
		},
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.CreateResponse{Document: a.Document, Warnings: a.Warnings}, nil
}

// Rename implements DocumentService.
func (s *documents) Rename(ctx context.Context, req *documentv1.RenameRequest) (*documentv1.RenameResponse, error) {
	name, err := edit.Name(req.GetName())
	if err != nil {
		return nil, err
	}
	a, err := s.change(ctx, call{
		name: store.Rename, doc: req.GetId(), key: req.GetOperationKey(), request: []string{name}, ifSequence: req.GetIfSequence(),
		run: func(ctx context.Context, op store.Operation) (store.Answer, error) {
			return s.store.Rename(ctx, op, name)
		},
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.RenameResponse{Document: a.Document}, nil
}

// Delete implements DocumentService.
func (s *documents) Delete(ctx context.Context, req *documentv1.DeleteRequest) (*documentv1.DeleteResponse, error) {
	_, err := s.change(ctx, call{
		name: store.Delete, doc: req.GetId(), key: req.GetOperationKey(), ifSequence: req.GetIfSequence(), run: s.store.Delete,
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.DeleteResponse{}, nil
}

// Edit implements DocumentService.
func (s *documents) Edit(ctx context.Context, req *documentv1.EditRequest) (*documentv1.EditResponse, error) {
	oldText, err := edit.Text("old_text", req.GetOldText())
	if err != nil {
		return nil, err
	}
	newText, err := edit.Text("new_text", req.GetNewText())
	if err != nil {
		return nil, err
	}
	all := req.GetReplaceAll()
	var warned []*documentv1.Warning
	a, err := s.edit(ctx, call{
		name: store.Edit, doc: req.GetId(), key: req.GetOperationKey(), request: []string{oldText, newText, strconv.FormatBool(all)},
		warnings: &warned,
	}, func(tree *prosemirror.Node) (*prosemirror.Node, int, error) {
		next, places, losses, err := s.editor.Replace(tree, oldText, newText, all)
		warned = warnings(losses)
		return next, places, err
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.EditResponse{Document: a.Document, Replacements: a.Replacements, Exact: a.Exact, Warnings: a.Warnings}, nil
}

// Append implements DocumentService.
func (s *documents) Append(ctx context.Context, req *documentv1.AppendRequest) (*documentv1.AppendResponse, error) {
	markdown, err := edit.Text("markdown", req.GetMarkdown())
	if err != nil {
		return nil, err
	}
	var warned []*documentv1.Warning
	if len(markdown) <= edit.MaxText { // larger text is refused below
		if _, losses, err := s.editor.Import(markdown); err == nil {
			warned = warnings(losses)
		}
	}
	a, err := s.edit(ctx, call{
		name: store.Append, doc: req.GetId(), key: req.GetOperationKey(), request: []string{markdown}, warnings: &warned,
	}, func(tree *prosemirror.Node) (*prosemirror.Node, int, error) {
		next, err := s.editor.Append(tree, markdown)
		return next, 0, err
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.AppendResponse{Document: a.Document, Warnings: a.Warnings}, nil
}

// Replace implements DocumentService.
func (s *documents) Replace(ctx context.Context, req *documentv1.ReplaceRequest) (*documentv1.ReplaceResponse, error) {
	markdown, err := edit.Text("markdown", req.GetMarkdown())
	if err != nil {
		return nil, err
	}
	c := call{name: store.Replace, doc: req.GetId(), key: req.GetOperationKey(), request: []string{markdown}, ifSequence: req.GetIfSequence()}
	if req.Name != nil {
		if c.rename, err = edit.Name(req.GetName()); err != nil {
			return nil, err
		}
		c.request = append(c.request, c.rename)
	}
	var base, next *prosemirror.Node
	var warned []*documentv1.Warning
	c.warnings = &warned
	read := func() (err error) {
		var losses []prosemirror.Loss
		next, losses, err = s.editor.Import(markdown)
		warned = warnings(losses)
		return err
	}
	if req.GetBase() != 0 {
		c.request = append(c.request, "base", strconv.FormatInt(req.GetBase(), 10))
		c.content = new(string)
	}
	if c.content != nil || len(markdown) > edit.MaxText {
		c.prepare = func(ctx context.Context, ref store.Ref) (err error) {
			if c.content != nil {
				if base, err = s.tree(s.store.Base(ctx, ref, req.GetBase())); err != nil {
					return err
				}
			}
			return read()
		}
	} else if err := read(); err != nil {
		return nil, err
	}
	a, err := s.edit(ctx, c, func(tree *prosemirror.Node) (*prosemirror.Node, int, error) {
		if base == nil {
			return s.editor.Keep(tree, next), 0, nil
		}
		merged, err := s.editor.Merge(tree, base, next)
		return merged, 0, err
	})
	if err != nil {
		return nil, err
	}
	res := &documentv1.ReplaceResponse{Document: a.Document, Exact: a.Exact, Warnings: a.Warnings}
	if c.content != nil {
		res.Markdown = *c.content
	}
	return res, nil
}

// warnings converts losses for the response.
func warnings(losses []prosemirror.Loss) []*documentv1.Warning {
	var out []*documentv1.Warning
	for _, l := range losses {
		out = append(out, &documentv1.Warning{Line: int32(l.Line), What: l.What, KeptAs: l.KeptAs})
	}
	return out
}

// Restore implements DocumentService.
func (s *documents) Restore(ctx context.Context, req *documentv1.RestoreRequest) (*documentv1.RestoreResponse, error) {
	version := req.GetVersion()
	var past *prosemirror.Node // read once
	a, err := s.edit(ctx, call{
		name: store.Restore, doc: req.GetId(), key: req.GetOperationKey(), request: []string{strconv.FormatInt(version, 10)},
		ifSequence: req.GetIfSequence(),
		prepare: func(ctx context.Context, ref store.Ref) (err error) {
			past, err = s.tree(s.store.Version(ctx, ref, version))
			return err
		},
	}, func(*prosemirror.Node) (*prosemirror.Node, int, error) { return past, 0, nil })
	if err != nil {
		return nil, err
	}
	return &documentv1.RestoreResponse{Document: a.Document}, nil
}

// tree parses the content of an old version, or passes on the error of reading it.
func (s *documents) tree(old store.Old, err error) (*prosemirror.Node, error) {
	if err != nil {
		return nil, err
	}
	if old.State == nil {
		return s.editor.ParseStored(old.Markdown)
	}
	doc := yjs.New(yjs.Options{Limits: yjs.Unlimited()}) // trusted: our own encoding
	if err := doc.ApplyUpdateV2(old.State, nil); err != nil {
		return nil, fmt.Errorf("read version %d: %w", old.Version.Version, err)
	}
	return s.editor.Tree(doc), nil
}

// call is an unvalidated request that writes.
type call struct {
	name, doc, key string
	request        []string
	undoes         int64   // the version that an Undo reverts
	rename         string  // the new name in a Replace; empty: unchanged
	ifSequence     int64   // the required sequence of the document; 0 for any
	content        *string // receives the resulting content if known; nil: not requested
	// warnings, which may be nil, are read when the operation is committed.
	warnings *[]*documentv1.Warning
	// prepare, which may be nil, loads what an edit needs besides the document.
	prepare func(ctx context.Context, ref store.Ref) error
	run     func(ctx context.Context, op store.Operation) (store.Answer, error)
}

func (s *documents) change(ctx context.Context, c call) (answer store.Answer, err error) {
	defer func(start time.Time) { s.metrics.changed(c.name, start, err) }(time.Now())
	actor, err := identity.Require(ctx, identity.Editor)
	if err != nil {
		return store.Answer{}, err
	}
	doc, err := parseDocument(c.doc)
	if err != nil {
		return store.Answer{}, err
	}
	var key id.Operation
	if c.key != "" {
		if key, err = id.Parse[id.Operation](c.key); err != nil {
			return store.Answer{}, fault.New(fault.Invalid, "operation_key: %v", err)
		}
	}
	author := store.Author{Member: actor.Member, Run: actor.Run}
	answer, err = c.run(ctx, store.Operation{
		Workspace: actor.Workspace, Document: doc, Author: author, Name: c.name, Key: key, Request: c.request, Undoes: c.undoes,
		IfSequence: c.ifSequence, Warnings: c.warnings,
	})
	if err == nil && answer.Changed {
		s.hub.Announce(ctx, actor.Workspace, doc, &documentv1.SubscribeResponse{Kind: kindOf(c.name), Document: answer.Document, Author: author.Proto()})
	}
	return answer, err
}

func kindOf(operation string) documentv1.SubscribeResponse_Kind {
	switch operation {
	case store.Create:
		return documentv1.SubscribeResponse_KIND_CREATED
	case store.Rename:
		return documentv1.SubscribeResponse_KIND_RENAMED
	case store.Delete:
		return documentv1.SubscribeResponse_KIND_DELETED
	}
	return documentv1.SubscribeResponse_KIND_CHANGED
}

// Get implements DocumentService.
func (s *documents) Get(ctx context.Context, req *documentv1.GetRequest) (*documentv1.GetResponse, error) {
	actor, doc, err := reader(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	d, err := s.store.Get(ctx, actor.Workspace, doc)
	if err != nil {
		return nil, err
	}
	return &documentv1.GetResponse{Document: d.Proto()}, nil
}

// Read implements DocumentService.
func (s *documents) Read(ctx context.Context, req *documentv1.ReadRequest) (*documentv1.ReadResponse, error) {
	actor, doc, err := reader(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	ref := store.Ref{Workspace: actor.Workspace, Document: doc}
	d, markdown, current, err := s.store.Markdown(ctx, actor.Workspace, doc)
	if err != nil {
		return nil, err
	}
	if !current {
		err = s.rooms.Read(ctx, ref, func(open *yjs.Doc, sequence int64) error {
			markdown, d.Sequence = s.editor.Markdown(s.editor.Tree(open)), sequence
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if req.GetKeepBase() && actor.Role >= identity.Editor { // only editors can use a base
		if err := s.store.KeepBase(ctx, ref, d.Sequence, markdown); err != nil {
			s.log.WarnContext(ctx, "base of a document not kept", "document", doc, "error", err)
		}
	}
	s.show(ctx, ref, store.Author{Member: actor.Member, Run: actor.Run}, yjs.RelativePosition{})
	return &documentv1.ReadResponse{Document: d.Proto(), Markdown: markdown}, nil
}

// List implements DocumentService.
func (s *documents) List(ctx context.Context, req *documentv1.ListRequest) (*documentv1.ListResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	after, err := parseCursor(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	words, err := queryWords(req.GetQuery())
	if err != nil {
		return nil, err
	}
	// One more than requested reveals whether there is a next page.
	all, err := s.store.List(ctx, actor.Workspace, words, after, size+1)
	if err != nil {
		return nil, err
	}
	res := &documentv1.ListResponse{}
	if len(all) > size {
		all = all[:size]
		last := all[size-1]
		res.NextPageToken = formatCursor(store.Cursor{UpdatedAt: last.UpdatedAt, ID: last.ID})
	}
	for _, d := range all {
		res.Documents = append(res.Documents, d.Proto())
	}
	return res, nil
}

// Limits of a search by name.
const (
	maxQuery = 200 // bytes
	maxWords = 10
)

func queryWords(query string) ([]string, error) {
	words := strings.Fields(strings.ToValidUTF8(strings.ReplaceAll(query, "\x00", " "), " "))
	if len(query) > maxQuery || len(words) > maxWords {
		return nil, fault.New(fault.Invalid, "query: is too long; at most %d words and %d bytes are allowed", maxWords, maxQuery)
	}
	return words, nil
}

// Versions implements DocumentService.
func (s *documents) Versions(ctx context.Context, req *documentv1.VersionsRequest) (*documentv1.VersionsResponse, error) {
	actor, doc, err := reader(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	before, err := parseVersion(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	all, err := s.store.Versions(ctx, actor.Workspace, doc, before, size+1)
	if err != nil {
		return nil, err
	}
	res := &documentv1.VersionsResponse{}
	if len(all) > size {
		all = all[:size]
		res.NextPageToken = formatVersion(all[size-1].Version)
	}
	if req.GetWithWords() {
		if err := s.store.CountWords(ctx, store.Ref{Workspace: actor.Workspace, Document: doc}, all); err != nil {
			return nil, err
		}
	}
	for _, v := range all {
		res.Versions = append(res.Versions, v.Proto())
	}
	return res, nil
}

// ReadVersion implements DocumentService.
func (s *documents) ReadVersion(ctx context.Context, req *documentv1.ReadVersionRequest) (*documentv1.ReadVersionResponse, error) {
	actor, doc, err := reader(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	old, before, err := s.store.Compared(ctx, store.Ref{Workspace: actor.Workspace, Document: doc}, req.GetVersion())
	if err != nil {
		return nil, err
	}
	return &documentv1.ReadVersionResponse{Version: old.Proto(), Markdown: old.Markdown, BeforeMarkdown: before}, nil
}

// LabelVersion implements DocumentService.
func (s *documents) LabelVersion(ctx context.Context, req *documentv1.LabelVersionRequest) (*documentv1.LabelVersionResponse, error) {
	actor, err := identity.Require(ctx, identity.Editor)
	if err != nil {
		return nil, err
	}
	doc, err := parseDocument(req.GetId())
	if err != nil {
		return nil, err
	}
	label := strings.TrimSpace(visible.Text(req.GetLabel()))
	if len(label) > maxLabel || !utf8.ValidString(req.GetLabel()) || strings.ContainsFunc(label, unicode.IsControl) {
		return nil, fault.New(fault.Invalid, "label must be one line of at most %d bytes", maxLabel)
	}
	v, err := s.store.Label(ctx, store.Ref{Workspace: actor.Workspace, Document: doc}, req.GetVersion(), label)
	if err != nil {
		return nil, err
	}
	return &documentv1.LabelVersionResponse{Version: v.Proto()}, nil
}

// maxLabel bounds a version's label, in bytes.
const maxLabel = 200

func reader(ctx context.Context, doc string) (identity.Actor, id.Document, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return identity.Actor{}, id.Document{}, err
	}
	d, err := parseDocument(doc)
	return actor, d, err
}

func parseDocument(s string) (id.Document, error) {
	doc, err := id.Parse[id.Document](s)
	if err != nil {
		return id.Document{}, fault.New(fault.Invalid, "id: %v", err)
	}
	return doc, nil
}
