package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

const (
	maxMarkdown = 10 << 20
	// limitMarkdown is the body with it: line ends and quotes are two bytes in JSON, and one
	// character in twelve may be such.
	limitMarkdown = limitDocument + maxMarkdown/12
	// Much Markdown takes its time to become a document, and longer where the document has
	// much to compare it with.
	contentPatience = 15 * time.Second
	patiencePerByte = 45 * time.Second / maxMarkdown
)

// DocumentPath is the path of one document.
type DocumentPath struct {
	ID string `path:"id" format:"uuid" doc:"The document's id."`
}

type documentOutput struct {
	ETag string `header:"ETag" doc:"The state whose content is that of this answer or, without one, of the request. Absent where others may have written at the same moment."`
	Body struct {
		Document Document  `json:"document"`
		Warnings []Warning `json:"warnings,omitempty" doc:"What the document does not hold as the content has it."`
	}
}

// Warning is something in Markdown that a document does not hold as it was written.
type Warning struct {
	Line   int32  `json:"line" doc:"Of the content, from 1."`
	What   string `json:"what" example:"the HTML <kbd>"`
	KeptAs string `json:"kept_as" doc:"What is there in its place." example:"text"`
}

// telling adds warnings to the answer.
func (out *documentOutput) telling(warnings []*documentv1.Warning) *documentOutput {
	for _, w := range warnings {
		out.Body.Warnings = append(out.Body.Warnings, Warning{w.GetLine(), w.GetWhat(), w.GetKeptAs()})
	}
	return out
}

func showDocument(d *documentv1.Document, content *string) *documentOutput {
	out := &documentOutput{}
	out.Body.Document = viewDocument(d, content)
	return out
}

// as names the state of the document in the answer, if it is known to be the answer's.
func (out *documentOutput) as(sure bool) *documentOutput {
	if sure {
		out.ETag = strconv.Quote(strconv.FormatInt(out.Body.Document.Sequence, 10))
	}
	return out
}

func (a *API) documents() {
	handle(a, huma.Operation{
		OperationID: "create-document", Method: http.MethodPost, Path: "/api/documents", DefaultStatus: http.StatusCreated,
		Tags: []string{"Documents"}, Summary: "Create a document of Markdown", MaxBodyBytes: limitMarkdown,
	}, access{role: identity.Editor}, a.createDocument)
	handle(a, huma.Operation{
		OperationID: "list-documents", Method: http.MethodGet, Path: "/api/documents",
		Tags: []string{"Documents"}, Summary: "List documents, last changed first, without content",
	}, access{role: identity.Viewer}, a.listDocuments)
	handle(a, huma.Operation{
		OperationID: "get-document", Method: http.MethodGet, Path: "/api/documents/{id}",
		Tags: []string{"Documents"}, Summary: "Read a document as Markdown",
	}, access{role: identity.Viewer}, a.getDocument)
	handle(a, huma.Operation{
		OperationID: "update-document", Method: http.MethodPatch, Path: "/api/documents/{id}",
		Tags: []string{"Documents"}, Summary: "Rename a document, or set its content as a minimal change", MaxBodyBytes: limitMarkdown,
		Description: "With both, both are done in one step, or neither. With the header If-Match, an ETag, it is done to the document in that " +
			"state only, else 412. With `base`, the ETag or sequence of the content that yours was made from, the difference between the two is " +
			"merged into the document as it is now: what others wrote since stays. The answer then has the merged content, and its ETag is the " +
			"next base. 409 with the code BASE_GONE: that content is not known any more, read the document again. Without either, " +
			"`content` is all of the content.",
	}, access{role: identity.Editor}, a.updateDocument)
	handle(a, huma.Operation{
		OperationID: "delete-document", Method: http.MethodDelete, Path: "/api/documents/{id}",
		Tags: []string{"Documents"}, Summary: "Delete a document and its history",
	}, access{role: identity.Editor}, a.deleteDocument)
	handle(a, huma.Operation{
		OperationID: "list-document-versions", Method: http.MethodGet, Path: "/api/documents/{id}/versions",
		Tags: []string{"Documents"}, Summary: "A document's history, newest first",
		Description: "Each operation is a version, of the member or the agent's run that made it. What people type live is one version (write) " +
			"for each stretch of up to five minutes, in the name of who typed last in it: where several type at once, one of them stands for all.",
	}, access{role: identity.Viewer}, a.listVersions)
	handle(a, huma.Operation{
		OperationID: "restore-document-version", Method: http.MethodPost, Path: "/api/documents/{id}/versions/{version}/restore",
		Tags: []string{"Documents"}, Summary: "Make an old version the content of a new one",
	}, access{role: identity.Editor}, a.restoreVersion)
	handle(a, huma.Operation{
		OperationID: "undo-document-version", Method: http.MethodPost, Path: "/api/documents/{id}/versions/{version}/undo",
		Tags: []string{"Documents"}, Summary: "Take back what one operation did, and nothing that was done since",
		Description: "The operation is undone as a new version, which can be undone in turn. 409 with the code ALREADY_UNDONE, " +
			"NOT_UNDOABLE (no operation on content), or HISTORY_THINNED (too little is left of what was before; restore works).",
	}, access{role: identity.Editor}, a.undoVersion)
}

// CreateDocument is the body of POST /api/documents.
type CreateDocument struct {
	Name    string `json:"name" minLength:"1" maxLength:"200"`
	Content string `json:"content,omitempty" doc:"Markdown."`
}

func (a *API) createDocument(ctx context.Context, in *struct {
	Idempotent
	Body CreateDocument
},
) (*documentOutput, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	name, err := checkDocumentName(in.Body.Name)
	if err != nil {
		return nil, err
	}
	if err := checkMarkdown(in.Body.Content); err != nil {
		return nil, err
	}
	ctx, cancel := patienceFor(ctx, in.Body.Content)
	defer cancel()
	res, err := a.cfg.Documents.Create(ctx, &documentv1.CreateRequest{
		Name: name, Markdown: in.Body.Content, OperationKey: operationKey(principalOf(ctx).Actor, "create-document", key),
	})
	if err != nil {
		return nil, err
	}
	return showDocument(res.GetDocument(), nil).as(true).telling(res.GetWarnings()), nil
}

// checkDocumentName is checkName for a name that has one line.
func checkDocumentName(s string) (string, error) {
	s, err := checkName(s)
	if err != nil {
		return "", err
	}
	if strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }) {
		return "", invalid("name: holds a control character: use one line of plain text")
	}
	return s, nil
}

// patienceFor gives a call the time that its Markdown takes.
func patienceFor(ctx context.Context, markdown string) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, contentPatience+time.Duration(len(markdown))*patiencePerByte)
}

func checkMarkdown(s string) error {
	if len(s) > maxMarkdown {
		return &Error{status: http.StatusRequestEntityTooLarge, Code: "TOO_LARGE", Message: "content: a document holds at most 10 MiB"}
	}
	return checkText("content", s, maxMarkdown)
}

type documentsOutput struct {
	Body struct {
		Documents  []Document `json:"documents" nullable:"false"`
		NextCursor *string    `json:"next_cursor" doc:"Null at the end."`
	}
}

func (a *API) listDocuments(ctx context.Context, in *struct {
	Cursor string `query:"cursor" maxLength:"500" doc:"next_cursor of the page before."`
	Limit  int32  `query:"limit" minimum:"1" maximum:"100" default:"20"`
	Query  string `query:"q" maxLength:"200" doc:"Words that the name contains."`
},
) (*documentsOutput, error) {
	if err := checkText("q", in.Query, 200); err != nil {
		return nil, err
	}
	res, err := a.cfg.Documents.List(ctx, &documentv1.ListRequest{PageToken: in.Cursor, PageSize: in.Limit, Query: in.Query})
	if err != nil {
		return nil, err
	}
	out := &documentsOutput{}
	out.Body.Documents = make([]Document, len(res.GetDocuments()))
	for i, d := range res.GetDocuments() {
		out.Body.Documents[i] = viewDocument(d, nil)
	}
	out.Body.NextCursor = orNull(res.GetNextPageToken())
	return out, nil
}

func (a *API) getDocument(ctx context.Context, in *DocumentPath) (*documentOutput, error) {
	document, err := parseID[id.Document]("id", in.ID)
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.Documents.Read(ctx, &documentv1.ReadRequest{Id: document.String(), KeepBase: true})
	if err != nil {
		return nil, err
	}
	return showDocument(res.GetDocument(), new(res.GetMarkdown())).as(true), nil
}

// UpdateDocument is the body of PATCH /api/documents/{id}. What is absent stays.
type UpdateDocument struct {
	Name    *string `json:"name,omitempty" nullable:"true" minLength:"1" maxLength:"200"`
	Content *string `json:"content,omitempty" nullable:"true" doc:"Markdown."`
	Base    *State  `json:"base,omitempty" doc:"The state that content was made from, as an ETag or a sequence."`
}

// State names a state of a document, as the ETag or the sequence of an answer.
type State struct{ json.RawMessage }

// Schema implements huma.SchemaProvider.
func (State) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeString}, {Type: huma.TypeInteger, Format: "int64"}}, Examples: []any{`"12"`}}
}

// sequence returns the sequence of the state, 0 for none.
func (s *State) sequence() (int64, error) {
	if s == nil || len(s.RawMessage) == 0 || string(s.RawMessage) == "null" {
		return 0, nil
	}
	tag := string(s.RawMessage)
	_ = json.Unmarshal(s.RawMessage, &tag) // a number is its own text
	n, err := strconv.ParseInt(strings.Trim(strings.TrimPrefix(strings.TrimSpace(tag), "W/"), `"`), 10, 64)
	if err != nil || n < 1 {
		return 0, invalid("base: want the ETag of an answer about this document, or its sequence")
	}
	return n, nil
}

// Conditional is the header of a change to a document in one state only.
type Conditional struct {
	IfMatch string `header:"If-Match" doc:"An ETag: the change is made to the document in that state only, else 412."`
}

// sequence returns the sequence that the document must have, 0 for any.
func (c Conditional) sequence() (int64, error) {
	tag := strings.TrimSpace(c.IfMatch)
	if tag == "" || tag == "*" {
		return 0, nil
	}
	opaque := strings.TrimPrefix(tag, "W/")
	if len(opaque) < 2 || opaque[0] != '"' || strings.IndexByte(opaque[1:], '"') != len(opaque)-2 {
		return 0, invalid("If-Match: want one ETag as an answer had it, with its quotes, or *")
	}
	n, err := strconv.ParseInt(strings.Trim(tag, `"`), 10, 64)
	if err != nil || n < 1 { // not one of ours, or weak (RFC 9110, 13.1.1): no document is in that state
		return -1, nil
	}
	return n, nil
}

func (a *API) updateDocument(ctx context.Context, in *struct {
	DocumentPath
	Idempotent
	Conditional
	Body UpdateDocument
},
) (*documentOutput, error) {
	document, err := parseID[id.Document]("id", in.ID)
	if err != nil {
		return nil, err
	}
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	b, actor := in.Body, principalOf(ctx).Actor
	if b.Name == nil && b.Content == nil {
		return nil, invalid("name or content is required")
	}
	if b.Content != nil {
		if err := checkMarkdown(*b.Content); err != nil {
			return nil, err
		}
	}
	var name string
	if b.Name != nil {
		if name, err = checkDocumentName(*b.Name); err != nil {
			return nil, err
		}
	}
	ifSequence, err := in.sequence()
	if err != nil {
		return nil, err
	}
	base, err := b.Base.sequence()
	if err != nil {
		return nil, err
	}
	if base != 0 && b.Content == nil {
		return nil, invalid("base: is the state that content was made from: send content with it")
	}
	var d *documentv1.Document
	var merged *string
	var warnings []*documentv1.Warning
	exact := false
	if b.Content != nil {
		ctx, cancel := patienceFor(ctx, *b.Content)
		defer cancel()
		change := &documentv1.ReplaceRequest{
			Id: document.String(), Markdown: *b.Content, OperationKey: operationKey(actor, "replace-document "+in.ID, key),
			IfSequence: ifSequence, Base: base,
		}
		if b.Name != nil {
			change.Name = &name
		}
		res, err := a.cfg.Documents.Replace(ctx, change)
		if err != nil {
			return nil, err
		}
		d, exact, warnings, ifSequence = res.GetDocument(), res.GetExact(), res.GetWarnings(), 0
		if base != 0 && res.GetMarkdown() != "" {
			merged = &res.Markdown
		}
	}
	// Behind a content only where document-sync is of an earlier release, which knows no
	// name there. A repetition under the same key then does what was not done.
	if b.Name != nil && d.GetName() != name {
		res, err := a.cfg.Documents.Rename(ctx, &documentv1.RenameRequest{
			Id: document.String(), Name: name, OperationKey: operationKey(actor, "rename-document "+in.ID, key), IfSequence: ifSequence,
		})
		if err != nil {
			return nil, err
		}
		// Of a name alone: the caller knows the content that it was given to.
		d, exact = res.GetDocument(), ifSequence > 0
	}
	return showDocument(d, merged).as(exact).telling(warnings), nil
}

func (a *API) deleteDocument(ctx context.Context, in *struct {
	DocumentPath
	Idempotent
	Conditional
},
) (*done, error) {
	document, err := parseID[id.Document]("id", in.ID)
	if err != nil {
		return nil, err
	}
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	ifSequence, err := in.sequence()
	if err != nil {
		return nil, err
	}
	_, err = a.cfg.Documents.Delete(ctx, &documentv1.DeleteRequest{
		Id: document.String(), OperationKey: operationKey(principalOf(ctx).Actor, "delete-document "+in.ID, key),
		IfSequence: ifSequence,
	})
	if err != nil {
		return nil, err
	}
	return succeeded(), nil
}

type versionsOutput struct {
	Body struct {
		Versions   []DocumentVersion `json:"versions" nullable:"false"`
		NextCursor *string           `json:"next_cursor" doc:"Null at the end."`
	}
}

func (a *API) listVersions(ctx context.Context, in *struct {
	DocumentPath
	Cursor string `query:"cursor" maxLength:"500" doc:"next_cursor of the page before."`
	Limit  int32  `query:"limit" minimum:"1" maximum:"100" default:"20"`
},
) (*versionsOutput, error) {
	document, err := parseID[id.Document]("id", in.ID)
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.Documents.Versions(ctx, &documentv1.VersionsRequest{Id: document.String(), PageToken: in.Cursor, PageSize: in.Limit})
	if err != nil {
		return nil, err
	}
	out := &versionsOutput{}
	out.Body.Versions = make([]DocumentVersion, len(res.GetVersions()))
	for i, v := range res.GetVersions() {
		out.Body.Versions[i] = viewVersion(v)
	}
	out.Body.NextCursor = orNull(res.GetNextPageToken())
	return out, nil
}

// VersionPath is the path of one version of a document, of which a change makes a new one.
type VersionPath struct {
	DocumentPath
	Idempotent
	Conditional
	Version int64 `path:"version" minimum:"1"`
}

// operation returns the document and the key of a change that is made of a version, and the
// sequence that the document must have.
func (in *VersionPath) operation(ctx context.Context, name string) (document, operation string, ifSequence int64, err error) {
	doc, err := parseID[id.Document]("id", in.ID)
	if err != nil {
		return "", "", 0, err
	}
	key, err := in.key()
	if err != nil {
		return "", "", 0, err
	}
	if ifSequence, err = in.sequence(); err != nil {
		return "", "", 0, err
	}
	return doc.String(), operationKey(principalOf(ctx).Actor, name+"-document "+in.ID, key), ifSequence, nil
}

func (a *API) restoreVersion(ctx context.Context, in *VersionPath) (*documentOutput, error) {
	document, operation, ifSequence, err := in.operation(ctx, "restore")
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.Documents.Restore(ctx, &documentv1.RestoreRequest{Id: document, Version: in.Version, OperationKey: operation, IfSequence: ifSequence})
	if err != nil {
		return nil, err
	}
	return showDocument(res.GetDocument(), nil), nil
}

func (a *API) undoVersion(ctx context.Context, in *VersionPath) (*documentOutput, error) {
	document, operation, ifSequence, err := in.operation(ctx, "undo")
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.Documents.Undo(ctx, &documentv1.UndoRequest{Id: document, Version: in.Version, OperationKey: operation, IfSequence: ifSequence})
	if err != nil {
		return nil, err
	}
	return showDocument(res.GetDocument(), nil), nil
}
