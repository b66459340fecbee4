package documentsync

import (
	"context"
	"strconv"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/edit"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/watch"
)

// documents is the door: it says who may do what, checks what comes in, and
// announces what changed. Viewers read, editors write; an agent's run writes for
// its member.
type documents struct {
	store   *store.Store
	hub     *watch.Hub
	metrics *metrics
}

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
	a, err := s.change(ctx, change{
		name: store.Create, doc: id.New[id.Document]().String(), key: req.GetOperationKey(), request: []string{name, markdown},
		next: func(context.Context, store.Document, store.History) (store.Next, error) {
			return store.Next{Name: name, Content: markdown}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.CreateResponse{Document: a.Document}, nil
}

// Rename implements DocumentService.
func (s *documents) Rename(ctx context.Context, req *documentv1.RenameRequest) (*documentv1.RenameResponse, error) {
	name, err := edit.Name(req.GetName())
	if err != nil {
		return nil, err
	}
	a, err := s.change(ctx, change{
		name: store.Rename, doc: req.GetId(), key: req.GetOperationKey(), request: []string{name},
		next: func(_ context.Context, d store.Document, _ store.History) (store.Next, error) {
			return store.Next{Name: name, Content: d.Content}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.RenameResponse{Document: a.Document}, nil
}

// Delete implements DocumentService.
func (s *documents) Delete(ctx context.Context, req *documentv1.DeleteRequest) (*documentv1.DeleteResponse, error) {
	_, err := s.change(ctx, change{
		name: store.Delete, doc: req.GetId(), key: req.GetOperationKey(),
		next: func(_ context.Context, d store.Document, _ store.History) (store.Next, error) {
			return store.Next{Name: d.Name, Deleted: true}, nil
		},
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
	a, err := s.change(ctx, change{
		name: store.Edit, doc: req.GetId(), key: req.GetOperationKey(), request: []string{oldText, newText, strconv.FormatBool(all)},
		next: func(_ context.Context, d store.Document, _ store.History) (store.Next, error) {
			content, n, err := edit.Replace(d.Content, oldText, newText, all)
			return store.Next{Name: d.Name, Content: content, Replacements: n}, err
		},
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.EditResponse{Document: a.Document, Replacements: a.Replacements}, nil
}

// Append implements DocumentService.
func (s *documents) Append(ctx context.Context, req *documentv1.AppendRequest) (*documentv1.AppendResponse, error) {
	markdown, err := edit.Text("markdown", req.GetMarkdown())
	if err != nil {
		return nil, err
	}
	a, err := s.change(ctx, change{
		name: store.Append, doc: req.GetId(), key: req.GetOperationKey(), request: []string{markdown},
		next: func(_ context.Context, d store.Document, _ store.History) (store.Next, error) {
			content, err := edit.Append(d.Content, markdown)
			return store.Next{Name: d.Name, Content: content}, err
		},
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.AppendResponse{Document: a.Document}, nil
}

// Replace implements DocumentService.
func (s *documents) Replace(ctx context.Context, req *documentv1.ReplaceRequest) (*documentv1.ReplaceResponse, error) {
	markdown, err := edit.Text("markdown", req.GetMarkdown())
	if err != nil {
		return nil, err
	}
	a, err := s.change(ctx, change{
		name: store.Replace, doc: req.GetId(), key: req.GetOperationKey(), request: []string{markdown},
		next: func(_ context.Context, d store.Document, _ store.History) (store.Next, error) {
			return store.Next{Name: d.Name, Content: markdown}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.ReplaceResponse{Document: a.Document}, nil
}

// Restore implements DocumentService.
func (s *documents) Restore(ctx context.Context, req *documentv1.RestoreRequest) (*documentv1.RestoreResponse, error) {
	version := req.GetVersion()
	a, err := s.change(ctx, change{
		name: store.Restore, doc: req.GetId(), key: req.GetOperationKey(), request: []string{strconv.FormatInt(version, 10)},
		next: func(ctx context.Context, d store.Document, h store.History) (store.Next, error) {
			content, err := h.Content(ctx, version)
			return store.Next{Name: d.Name, Content: content}, err
		},
	})
	if err != nil {
		return nil, err
	}
	return &documentv1.RestoreResponse{Document: a.Document}, nil
}

// change is one call that writes, not yet checked.
type change struct {
	name, doc, key string
	request        []string
	next           func(context.Context, store.Document, store.History) (store.Next, error)
}

func (s *documents) change(ctx context.Context, c change) (answer store.Answer, err error) {
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
	answer, err = s.store.Change(ctx, store.Operation{
		Workspace: actor.Workspace, Document: doc, Author: author, Name: c.name, Key: key, Request: c.request,
	}, c.next)
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
	d, err := s.store.Read(ctx, actor.Workspace, doc)
	if err != nil {
		return nil, err
	}
	return &documentv1.ReadResponse{Document: d.Proto(), Markdown: d.Content}, nil
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
	after, err := parsePlace(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	words, err := queryWords(req.GetQuery())
	if err != nil {
		return nil, err
	}
	// One more than asked for tells whether there is a next page.
	all, err := s.store.List(ctx, actor.Workspace, words, after, size+1)
	if err != nil {
		return nil, err
	}
	res := &documentv1.ListResponse{}
	if len(all) > size {
		all = all[:size]
		last := all[size-1]
		res.NextPageToken = formatPlace(store.Place{UpdatedAt: last.UpdatedAt, ID: last.ID})
	}
	for _, d := range all {
		res.Documents = append(res.Documents, d.Proto())
	}
	return res, nil
}

// Bounds of a search by name.
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
	for _, v := range all {
		res.Versions = append(res.Versions, v.Proto())
	}
	return res, nil
}

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
