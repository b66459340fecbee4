// Package doctest is an in-memory DocumentService for tests. It implements what the tools rely
// on, above all that a change with an operation key is made exactly once. It can be made to
// fail.
package doctest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
)

// Service has the documents of all workspaces.
type Service struct {
	documentv1connect.UnimplementedDocumentServiceHandler

	mu       sync.Mutex // guards the rest
	docs     map[string]*entry
	answers  map[string]proto.Message // by workspace and operation key
	effects  int
	failures []error
	hold     chan struct{}
	calls    []identity.Actor
}

type entry struct {
	doc     *documentv1.Document
	content string
}

// New returns an empty service.
func New() *Service {
	return &Service{docs: map[string]*entry{}, answers: map[string]proto.Message{}}
}

// Start serves s until the test ends and returns a client whose calls are signed
// as tool-executor's.
func Start(t testing.TB, s *Service) documentv1connect.DocumentServiceClient {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	url := s.Serve(t, key)
	options, err := rpc.Client{Signer: identity.NewSigner(subject.ToolExecutor, key), Audience: subject.DocumentSync}.ClientOptions()
	if err != nil {
		t.Fatal(err)
	}
	h := rpc.NewHTTPClient(nil)
	t.Cleanup(h.CloseIdleConnections)
	return documentv1connect.NewDocumentServiceClient(h, url, options...)
}

// Serve serves s until the test ends, for callers who sign with tool-executor's
// key, and returns its URL.
func (s *Service) Serve(t testing.TB, key identity.Key) string {
	t.Helper()
	verifier, err := identity.NewVerifier(subject.DocumentSync, map[string]string{subject.ToolExecutor: key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	options, err := rpc.Server{Verifier: verifier, Log: natstest.Log(t)}.HandlerOptions()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(documentv1connect.NewDocumentServiceHandler(s, options...))
	srv := httptest.NewUnstartedServer(mux)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv.Config.Protocols = protocols
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

// FailNext makes the next calls fail, each with one of errs, before they do anything.
func (s *Service) FailNext(errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, errs...)
}

// Hold makes calls wait, before they do anything, until release is called or they are
// cancelled.
func (s *Service) Hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := make(chan struct{})
	s.hold = ch
	return sync.OnceFunc(func() { close(ch) })
}

// Effects returns how many changes were made.
func (s *Service) Effects() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.effects
}

// Actors returns the callers, in order.
func (s *Service) Actors() []identity.Actor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Content returns a document's content.
func (s *Service) Content(doc string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.docs[doc]; e != nil {
		return e.content
	}
	return ""
}

func (s *Service) enter(ctx context.Context, least identity.Role) (identity.Actor, error) {
	a, err := identity.Require(ctx, least)
	s.mu.Lock()
	s.calls = append(s.calls, a)
	hold := s.hold
	if len(s.failures) > 0 && err == nil {
		err, s.failures = s.failures[0], s.failures[1:]
	}
	s.mu.Unlock()
	if err != nil {
		return a, err
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
	return a, nil
}

// find returns a document that the actor can see; mu is held.
func (s *Service) find(a identity.Actor, doc string) (*entry, error) {
	if _, err := id.Parse[id.Document](doc); err != nil {
		return nil, fault.New(fault.Invalid, "id: %v", err)
	}
	e := s.docs[doc]
	if e == nil || e.doc.GetWorkspaceId() != a.Workspace.String() {
		return nil, fault.New(fault.NotFound, "document %s does not exist", doc)
	}
	return e, nil
}

// change runs f, or returns the earlier answer to the same key.
func change[T proto.Message](ctx context.Context, s *Service, key string, f func(identity.Actor) (T, error)) (T, error) {
	var zero T
	a, err := s.enter(ctx, identity.Editor)
	if err != nil {
		return zero, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := a.Workspace.String() + key
	if r, ok := s.answers[k]; ok && key != "" {
		if r, ok := r.(T); ok {
			return r, nil
		}
		return zero, fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "operation_key: used for another request")
	}
	r, err := f(a)
	if err != nil {
		return zero, err
	}
	s.effects++
	s.answers[k] = r
	return r, nil
}

func (e *entry) set(content string) *documentv1.Document {
	e.content = content
	e.doc.Sequence++
	e.doc.UpdatedAt = timestamppb.Now()
	return proto.CloneOf(e.doc)
}

// Create implements DocumentService.
func (s *Service) Create(ctx context.Context, req *documentv1.CreateRequest) (*documentv1.CreateResponse, error) {
	return change(ctx, s, req.GetOperationKey(), func(a identity.Actor) (*documentv1.CreateResponse, error) {
		if strings.TrimSpace(req.GetName()) == "" {
			return nil, fault.New(fault.Invalid, "name: is empty")
		}
		e := &entry{doc: &documentv1.Document{
			Id: id.New[id.Document]().String(), WorkspaceId: a.Workspace.String(), Name: req.GetName(), CreatedBy: a.Member.String(),
		}}
		s.docs[e.doc.GetId()] = e
		return &documentv1.CreateResponse{Document: e.set(req.GetMarkdown()), Warnings: kbdIn(req.GetMarkdown())}, nil
	})
}

// Edit implements DocumentService.
func (s *Service) Edit(ctx context.Context, req *documentv1.EditRequest) (*documentv1.EditResponse, error) {
	return change(ctx, s, req.GetOperationKey(), func(a identity.Actor) (*documentv1.EditResponse, error) {
		e, err := s.find(a, req.GetId())
		if err != nil {
			return nil, err
		}
		n := strings.Count(e.content, req.GetOldText())
		switch {
		case n == 0:
			return nil, fault.Coded(fault.Conflict, "NOT_FOUND_TEXT", "old_text was not found in the document (0 matches)")
		case n > 1 && !req.GetReplaceAll():
			return nil, fault.Coded(fault.Conflict, "AMBIGUOUS_TEXT", "old_text was found %d times in the document", n)
		}
		return &documentv1.EditResponse{Document: e.set(strings.ReplaceAll(e.content, req.GetOldText(), req.GetNewText())), Replacements: int32(n), Warnings: kbdIn(req.GetNewText())}, nil
	})
}

// Append implements DocumentService.
func (s *Service) Append(ctx context.Context, req *documentv1.AppendRequest) (*documentv1.AppendResponse, error) {
	return change(ctx, s, req.GetOperationKey(), func(a identity.Actor) (*documentv1.AppendResponse, error) {
		e, err := s.find(a, req.GetId())
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(req.GetMarkdown()) == "" {
			return nil, fault.New(fault.Invalid, "markdown: is empty; give the blocks to append")
		}
		return &documentv1.AppendResponse{Document: e.set(e.content + "\n\n" + req.GetMarkdown()), Warnings: kbdIn(req.GetMarkdown())}, nil
	})
}

// Delete implements DocumentService.
func (s *Service) Delete(ctx context.Context, req *documentv1.DeleteRequest) (*documentv1.DeleteResponse, error) {
	return change(ctx, s, req.GetOperationKey(), func(a identity.Actor) (*documentv1.DeleteResponse, error) {
		if _, err := s.find(a, req.GetId()); err != nil {
			return nil, err
		}
		delete(s.docs, req.GetId())
		return &documentv1.DeleteResponse{}, nil
	})
}

// Read implements DocumentService.
func (s *Service) Read(ctx context.Context, req *documentv1.ReadRequest) (*documentv1.ReadResponse, error) {
	a, err := s.enter(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(a, req.GetId())
	if err != nil {
		return nil, err
	}
	return &documentv1.ReadResponse{Document: proto.CloneOf(e.doc), Markdown: e.content}, nil
}

// List implements DocumentService; its page tokens are offsets.
func (s *Service) List(ctx context.Context, req *documentv1.ListRequest) (*documentv1.ListResponse, error) {
	a, err := s.enter(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*documentv1.Document
	for _, e := range s.docs {
		if e.doc.GetWorkspaceId() == a.Workspace.String() {
			all = append(all, proto.CloneOf(e.doc))
		}
	}
	slices.SortFunc(all, func(a, b *documentv1.Document) int { return strings.Compare(b.GetId(), a.GetId()) })
	from, size := 0, int(req.GetPageSize())
	if size == 0 {
		size = 20
	}
	if t := req.GetPageToken(); t != "" {
		if _, err := fmt.Sscanf(t, "%d", &from); err != nil || from < 0 {
			return nil, fault.New(fault.Invalid, "page_token: unknown")
		}
	}
	from = min(from, len(all))
	res := &documentv1.ListResponse{Documents: all[from:min(from+size, len(all))]}
	if from+size < len(all) {
		res.NextPageToken = fmt.Sprint(from + size)
	}
	return res, nil
}

// kbdIn returns a warning for <kbd>, which this service pretends not to support.
func kbdIn(markdown string) []*documentv1.Warning {
	before, _, found := strings.Cut(markdown, "<kbd>")
	if !found {
		return nil
	}
	return []*documentv1.Warning{{Line: int32(1 + strings.Count(before, "\n")), What: "the HTML <kbd>", KeptAs: "text"}}
}
