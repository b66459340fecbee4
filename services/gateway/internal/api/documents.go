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

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

const (
	maxMarkdown = 10 << 20
	// limitMarkdown bounds the body: line ends and quotes are two bytes in JSON, and one
	// character in twelve may be one of them.
	limitMarkdown = limitDocument + maxMarkdown/12
	// Converting Markdown to a document takes time that grows with its length.
	contentTimeout = 15 * time.Second
	timeoutPerByte = 45 * time.Second / maxMarkdown
)

// DocumentPath is the path of one document.
type DocumentPath struct {
	ID ID[id.Document] `path:"id" format:"uuid" doc:"The document's id."`
}

type documentOutput struct {
	ETag string `header:"ETag" doc:"Identifies the document's state with the content of this answer or, if the answer has no content, of the request. Absent if somebody else may have written at the same moment."`
	Body documentOutputBody
}

type documentOutputBody struct {
	Document Document  `json:"document"`
	Warnings []Warning `json:"warnings,omitempty" doc:"Markdown that the document could not represent exactly."`
}

// Warning concerns a piece of Markdown that the document could not represent exactly.
type Warning struct {
	Line   int32  `json:"line" doc:"The line in content, from 1."`
	What   string `json:"what" example:"the HTML <kbd>"`
	KeptAs string `json:"kept_as" doc:"What the document has instead." example:"text"`
}

// newDocumentOutput returns an answer with a document. exact reports whether the document's
// sequence belongs to exactly this content; the answer then has an ETag.
func newDocumentOutput(d *documentv1.Document, content *string, exact bool, warnings []*documentv1.Warning) *documentOutput {
	out := &documentOutput{Body: documentOutputBody{Document: viewDocument(d, content)}}
	if exact {
		out.ETag = strconv.Quote(strconv.FormatInt(d.GetSequence(), 10))
	}
	for _, w := range warnings {
		out.Body.Warnings = append(out.Body.Warnings, Warning{w.GetLine(), w.GetWhat(), w.GetKeptAs()})
	}
	return out
}

func (a *API) documents() {
	const tag = "Documents"
	register(a, op("create-document", "POST /api/documents", tag, "Create a document from Markdown", created, maxBody(limitMarkdown)), editors, a.createDocument)
	handle(a, op("list-documents", "GET /api/documents", tag, "List documents without their content, most recently changed first"), viewers, a.listDocuments)
	register(a, op("get-document", "GET /api/documents/{id}", tag, "Read a document as Markdown"), viewers, a.getDocument)
	register(a, op("update-document", "PATCH /api/documents/{id}", tag, "Rename a document, or set its content with a minimal change", maxBody(limitMarkdown),
		about("If name and content are both given, both are changed in one step, or neither is. `content` replaces the whole content, unless you send If-Match or `base`. "+
			"With the header If-Match, an ETag, the change is made only if the document is still in that state; otherwise the answer is 412. "+
			"`base` is the ETag or the sequence of the content that yours is based on. The differences between the two are merged into the current document, "+
			"which keeps what others wrote since. The answer then has the merged content, and its ETag is the next base. "+
			"409 with the code BASE_GONE means that the base is no longer stored: read the document again.")), editors, a.updateDocument)
	handle(a, op("delete-document", "DELETE /api/documents/{id}", tag, "Delete a document and its history"), editors, a.deleteDocument)
	handle(a, op("list-document-versions", "GET /api/documents/{id}/versions", tag, "List a document's versions, newest first",
		about("Each operation is a version, by the member or the agent's run that made it. Live typing becomes one version (write) "+
			"for up to five minutes, attributed to the person who typed last.")), viewers, a.listVersions)
	handle(a, op("label-document-version", "PATCH /api/documents/{id}/versions/{version}", tag, "Give a version a label",
		about("A version with a label is kept as long as the document. A document has 50 at most.")), editors, a.labelVersion)
	handle(a, op("get-document-version", "GET /api/documents/{id}/versions/{version}", tag, "Read a version, and the version before it"), viewers, a.getVersion)
	handle(a, op("undo-run-in-document", "POST /api/documents/{id}/runs/{run}/undo", tag, "Undo what an agent's run has done to a document",
		about("Undoes the run's operations that can be undone, newest first, and keeps what others wrote. Each becomes a version, which can be undone in turn. "+
			"If it fails in between, repeat it: operations that are undone already are left alone.")), editors, a.undoRun)
	register(a, op("restore-document-version", "POST /api/documents/{id}/versions/{version}/restore", tag, "Restore the content of an earlier version as a new version"), editors, a.restoreVersion)
	register(a, op("undo-document-version", "POST /api/documents/{id}/versions/{version}/undo", tag, "Undo one operation and keep everything that was done since",
		about("Undoing creates a new version, which can be undone in turn. 409 has the code ALREADY_UNDONE, "+
			"NOT_UNDOABLE (the version did not change the content), or HISTORY_THINNED (too little of the earlier state is kept; restore works).")), editors, a.undoVersion)
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
	name, err := checkDocumentName(in.Body.Name)
	if err != nil {
		return nil, err
	}
	if err := checkMarkdown(in.Body.Content); err != nil {
		return nil, err
	}
	ctx, cancel := withContentTimeout(ctx, in.Body.Content)
	defer cancel()
	res, err := a.cfg.Documents.Create(ctx, &documentv1.CreateRequest{
		Name: name, Markdown: in.Body.Content, OperationKey: in.Key.operationText(principalOf(ctx).Actor, "create-document"),
	})
	return newDocumentOutput(res.GetDocument(), nil, true, res.GetWarnings()), err
}

// checkDocumentName is checkName for a name on one line.
func checkDocumentName(s string) (string, error) {
	s, err := checkName(s)
	if err != nil {
		return "", err
	}
	if strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }) {
		return "", invalid("name: has a control character: use one line of plain text")
	}
	return s, nil
}

// withContentTimeout returns a context with the timeout of a call that carries Markdown.
func withContentTimeout(ctx context.Context, markdown string) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, contentTimeout+time.Duration(len(markdown))*timeoutPerByte)
}

func checkMarkdown(s string) error {
	if len(s) > maxMarkdown {
		return &Error{status: http.StatusRequestEntityTooLarge, Code: "TOO_LARGE", Message: "content: a document holds at most 10 MiB"}
	}
	return checkText("content", s, maxMarkdown)
}

type documentsOutputBody struct {
	Documents  []Document `json:"documents" nullable:"false"`
	NextCursor *string    `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listDocuments(ctx context.Context, in *struct {
	ServicePage
	Query string `query:"q" maxLength:"200" doc:"Words that the name contains."`
},
) (*documentsOutputBody, error) {
	if err := checkText("q", in.Query, 200); err != nil {
		return nil, err
	}
	res, err := a.cfg.Documents.List(ctx, &documentv1.ListRequest{PageToken: in.Cursor, PageSize: in.Limit, Query: in.Query})
	return &documentsOutputBody{
		each(res.GetDocuments(), func(d *documentv1.Document) Document { return viewDocument(d, nil) }), orNull(res.GetNextPageToken()),
	}, err
}

func (a *API) getDocument(ctx context.Context, in *struct {
	DocumentPath
	Content bool `query:"content" default:"true" doc:"false: without the content, and without an ETag."`
},
) (*documentOutput, error) {
	if !in.Content {
		res, err := a.cfg.Documents.Get(ctx, &documentv1.GetRequest{Id: in.ID.String()})
		return newDocumentOutput(res.GetDocument(), nil, false, nil), err
	}
	res, err := a.cfg.Documents.Read(ctx, &documentv1.ReadRequest{Id: in.ID.String(), KeepBase: true})
	return newDocumentOutput(res.GetDocument(), new(res.GetMarkdown()), true, nil), err
}

// UpdateDocument is the body of PATCH /api/documents/{id}. Absent fields keep their values.
type UpdateDocument struct {
	Name    *string `json:"name,omitempty" nullable:"true" minLength:"1" maxLength:"200"`
	Content *string `json:"content,omitempty" nullable:"true" doc:"Markdown."`
	Base    *State  `json:"base,omitempty" doc:"The state that content is based on, as an ETag or a sequence."`
}

// State identifies a state of a document by an answer's ETag or sequence.
type State struct{ json.RawMessage }

// Schema implements huma.SchemaProvider.
func (State) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeString}, {Type: huma.TypeInteger, Format: "int64"}}, Examples: []any{`"12"`}}
}

// sequence returns the sequence of the state, or 0 if it is absent.
func (s *State) sequence() (int64, error) {
	if s == nil || len(s.RawMessage) == 0 || string(s.RawMessage) == "null" {
		return 0, nil
	}
	tag := string(s.RawMessage)
	_ = json.Unmarshal(s.RawMessage, &tag) // fails for a number; tag already has its text
	n, err := strconv.ParseInt(strings.Trim(strings.TrimPrefix(strings.TrimSpace(tag), "W/"), `"`), 10, 64)
	if err != nil || n < 1 {
		return 0, invalid("base: want the ETag or the sequence of an earlier answer")
	}
	return n, nil
}

// documentChange is a validated PATCH of a document.
type documentChange struct {
	name, content *string
	base          int64 // 0 for none
}

func (b *UpdateDocument) change() (c documentChange, err error) {
	if b.Name == nil && b.Content == nil {
		return c, invalid("name or content is required")
	}
	c.content = b.Content
	if b.Content != nil {
		if err := checkMarkdown(*b.Content); err != nil {
			return c, err
		}
	}
	if b.Name != nil {
		name, err := checkDocumentName(*b.Name)
		if err != nil {
			return c, err
		}
		c.name = &name
	}
	if c.base, err = b.Base.sequence(); err == nil && c.base != 0 && b.Content == nil {
		err = invalid("base: send it only together with content")
	}
	return c, err
}

func (a *API) updateDocument(ctx context.Context, in *struct {
	DocumentPath
	Idempotent
	Conditional
	Body UpdateDocument
},
) (*documentOutput, error) {
	c, err := in.Body.change()
	if err != nil {
		return nil, err
	}
	document, actor, ifSequence := in.ID.String(), principalOf(ctx).Actor, in.IfMatch.sequence
	if c.content == nil {
		res, err := a.cfg.Documents.Rename(ctx, &documentv1.RenameRequest{
			Id: document, Name: *c.name, OperationKey: in.Key.operationText(actor, "rename-document "+document), IfSequence: ifSequence,
		})
		// With If-Match the client knows the content that was renamed.
		return newDocumentOutput(res.GetDocument(), nil, ifSequence > 0, nil), err
	}
	ctx, cancel := withContentTimeout(ctx, *c.content)
	defer cancel()
	res, err := a.cfg.Documents.Replace(ctx, &documentv1.ReplaceRequest{
		Id: document, Markdown: *c.content, Name: c.name, OperationKey: in.Key.operationText(actor, "replace-document "+document),
		IfSequence: ifSequence, Base: c.base,
	})
	var merged *string
	if c.base != 0 {
		merged = orNull(res.GetMarkdown())
	}
	return newDocumentOutput(res.GetDocument(), merged, res.GetExact(), res.GetWarnings()), err
}

func (a *API) deleteDocument(ctx context.Context, in *struct {
	DocumentPath
	Idempotent
	Conditional
},
) (*Success, error) {
	document := in.ID.String()
	_, err := a.cfg.Documents.Delete(ctx, &documentv1.DeleteRequest{
		Id: document, OperationKey: in.Key.operationText(principalOf(ctx).Actor, "delete-document "+document), IfSequence: in.IfMatch.sequence,
	})
	return succeeded(), err
}

type versionsOutputBody struct {
	Versions   []DocumentVersion `json:"versions" nullable:"false"`
	NextCursor *string           `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listVersions(ctx context.Context, in *struct {
	DocumentPath
	ServicePage
	Words bool `query:"words" doc:"Count the words that each version added and removed."`
},
) (*versionsOutputBody, error) {
	res, err := a.cfg.Documents.Versions(ctx, &documentv1.VersionsRequest{Id: in.ID.String(), PageToken: in.Cursor, PageSize: in.Limit, WithWords: in.Words})
	return &versionsOutputBody{each(res.GetVersions(), viewVersion), orNull(res.GetNextPageToken())}, err
}

// VersionContent is a version with its content.
type VersionContent struct {
	Version DocumentVersion `json:"version"`
	Content string          `json:"content" doc:"Markdown."`
	Before  string          `json:"before" doc:"The Markdown of the version before it; empty for the first version that is kept."`
}

func (a *API) getVersion(ctx context.Context, in *struct {
	DocumentPath
	Version int64 `path:"version" minimum:"1"`
},
) (*VersionContent, error) {
	res, err := a.cfg.Documents.ReadVersion(ctx, &documentv1.ReadVersionRequest{Id: in.ID.String(), Version: in.Version})
	return answer(res, err, func(res *documentv1.ReadVersionResponse) VersionContent {
		return VersionContent{viewVersion(res.GetVersion()), res.GetMarkdown(), res.GetBeforeMarkdown()}
	})
}

// LabelVersion is the body of PATCH /api/documents/{id}/versions/{version}.
type LabelVersion struct {
	Label string `json:"label" maxLength:"200" doc:"Empty to take the label away."`
}

type versionOutputBody struct {
	Version DocumentVersion `json:"version"`
}

func (a *API) labelVersion(ctx context.Context, in *struct {
	DocumentPath
	Repeatable
	Version int64 `path:"version" minimum:"1"`
	Body    LabelVersion
},
) (*versionOutputBody, error) {
	if err := checkText("label", in.Body.Label, 200); err != nil {
		return nil, err
	}
	res, err := a.cfg.Documents.LabelVersion(ctx, &documentv1.LabelVersionRequest{Id: in.ID.String(), Version: in.Version, Label: in.Body.Label})
	return answer(res, err, func(res *documentv1.LabelVersionResponse) versionOutputBody {
		return versionOutputBody{viewVersion(res.GetVersion())}
	})
}

// maxUndone bounds the versions in which the operations of a run are looked for.
const maxUndone = 1000

// RunUndone says what was undone of a run.
type RunUndone struct {
	Undone int `json:"undone" doc:"How many operations were undone by this request."`
	Kept   int `json:"kept" doc:"How many operations of the run cannot be undone: it created the document, or history no longer has what is needed."`
}

func (a *API) undoRun(ctx context.Context, in *struct {
	DocumentPath
	Run ID[id.Run] `path:"run" format:"uuid" doc:"The run's id."`
},
) (*RunUndone, error) {
	document, run := in.ID.String(), in.Run.String()
	out := &RunUndone{}
	var found []*documentv1.Version
	for token, seen := "", 0; seen < maxUndone; {
		res, err := a.cfg.Documents.Versions(ctx, &documentv1.VersionsRequest{Id: document, PageToken: token, PageSize: 100})
		if err != nil {
			return nil, err
		}
		for _, v := range res.GetVersions() {
			if v.GetAuthor().GetRunId() == run && v.GetUndoes() == 0 && v.GetUndoneBy() == 0 {
				found = append(found, v)
			}
		}
		seen += len(res.GetVersions())
		if token = res.GetNextPageToken(); token == "" {
			break
		}
	}
	for _, v := range found {
		if !v.GetUndoable() {
			out.Kept++
			continue
		}
		_, err := a.cfg.Documents.Undo(ctx, &documentv1.UndoRequest{Id: document, Version: v.GetVersion()})
		if err == nil {
			out.Undone++
			continue
		}
		switch fault.From(err).Code {
		case "ALREADY_UNDONE": // by somebody else, meanwhile
		case "NOT_UNDOABLE", "HISTORY_THINNED":
			out.Kept++
		default:
			return nil, err
		}
	}
	return out, nil
}

// VersionPath is the path of one version of a document, from which a new version is made.
type VersionPath struct {
	DocumentPath
	Idempotent
	Conditional
	Version int64 `path:"version" minimum:"1"`
}

func (a *API) restoreVersion(ctx context.Context, in *VersionPath) (*documentOutput, error) {
	document := in.ID.String()
	res, err := a.cfg.Documents.Restore(ctx, &documentv1.RestoreRequest{
		Id: document, Version: in.Version, IfSequence: in.IfMatch.sequence, OperationKey: in.Key.operationText(principalOf(ctx).Actor, "restore-document "+document),
	})
	return newDocumentOutput(res.GetDocument(), nil, false, nil), err
}

func (a *API) undoVersion(ctx context.Context, in *VersionPath) (*documentOutput, error) {
	document := in.ID.String()
	res, err := a.cfg.Documents.Undo(ctx, &documentv1.UndoRequest{
		Id: document, Version: in.Version, IfSequence: in.IfMatch.sequence, OperationKey: in.Key.operationText(principalOf(ctx).Actor, "undo-document "+document),
	})
	return newDocumentOutput(res.GetDocument(), nil, false, nil), err
}
