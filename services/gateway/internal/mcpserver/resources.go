package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/fault"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

// The URIs of resources.
const (
	documentURI = "signalbox://documents/"
	sessionURI  = "signalbox://sessions/"
)

// resourcePage is how many documents one page of the list has.
const resourcePage = 100

// private keeps one caller's results from others; the SDK's default is public.
var private = mcp.Cacheable{CacheScope: "private"}

func (s *server) addResources(m *mcp.Server) {
	m.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "document", Title: "Document", URITemplate: documentURI + "{id}", MIMEType: "text/markdown", Description: "A document of the workspace.",
	}, s.document)
	m.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "session", Title: "Session", URITemplate: sessionURI + "{id}", MIMEType: "application/json", Description: "The newest messages of a session.",
	}, s.session)
	m.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch r := req.(type) {
			case *mcp.ListResourcesRequest:
				// The SDK lists the resources that were added; a workspace's documents change.
				return s.listResources(ctx, r)
			case *mcp.ReadResourceRequest:
				res, err := next(ctx, method, req)
				return res, withJSONData(err, r.Params.URI)
			}
			return next(ctx, method, req)
		}
	})
}

// withJSONData returns the SDK's error about a missing resource with data that is JSON: the SDK
// quotes the URI as Go does, and leaves out the answer if that is not JSON.
func withJSONData(err error, uri string) error {
	e, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok || len(e.Data) == 0 || json.Valid(e.Data) {
		return err
	}
	data, err := json.Marshal(map[string]string{"uri": uri})
	if err != nil {
		return err
	}
	return &jsonrpc.Error{Code: e.Code, Message: e.Message, Data: data}
}

func (s *server) listResources(ctx context.Context, req *mcp.ListResourcesRequest) (*mcp.ListResourcesResult, error) {
	cursor := ""
	if req.Params != nil {
		cursor = req.Params.Cursor
	}
	res, err := s.cfg.Documents.List(ctx, &documentv1.ListRequest{PageSize: resourcePage, PageToken: cursor})
	if err != nil {
		return nil, s.shown(ctx, "resources/list", err)
	}
	out := &mcp.ListResourcesResult{Cacheable: private, Resources: []*mcp.Resource{}, NextCursor: res.GetNextPageToken()}
	for _, d := range res.GetDocuments() {
		out.Resources = append(out.Resources, &mcp.Resource{URI: documentURI + d.GetId(), Name: d.GetName(), MIMEType: "text/markdown"})
	}
	return out, nil
}

func (s *server) document(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	doc, err := s.readDocument(ctx, documentInput{strings.TrimPrefix(req.Params.URI, documentURI)})
	if err != nil {
		return nil, s.missing(ctx, req.Params.URI, err)
	}
	return contents(req.Params.URI, "text/markdown", doc.Content), nil
}

func (s *server) session(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	found, err := s.readSession(ctx, sessionInput{ID: strings.TrimPrefix(req.Params.URI, sessionURI)})
	if err != nil {
		return nil, s.missing(ctx, req.Params.URI, err)
	}
	body, err := json.Marshal(found)
	if err != nil {
		return nil, err
	}
	return contents(req.Params.URI, "application/json", string(body)), nil
}

func (s *server) missing(ctx context.Context, uri string, err error) error {
	if kind := fault.KindOf(err); kind == fault.NotFound || kind == fault.Invalid {
		return mcp.ResourceNotFoundError(uri)
	}
	return s.shown(ctx, "resources/read", err)
}

func contents(uri, mimeType, text string) *mcp.ReadResourceResult {
	if text == "" {
		text = "\n" // the SDK leaves out an empty text, which the schema requires
	}
	return &mcp.ReadResourceResult{Cacheable: private, Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: mimeType, Text: text}}}
}
