package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/sse"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"

	"signalbox.dev/services/gateway/internal/auth"
	"signalbox.dev/services/gateway/internal/feed"
	"signalbox.dev/services/gateway/internal/limit"
	"signalbox.dev/services/gateway/internal/store"
)

// Whoever has a share link reads one document as it changes, without signing in. The link is the
// path SharePath and a secret, of which only a hash is stored. The page sends the secret as a
// bearer token; it is valid for nothing else.

// SharePath is the beginning of the path of share links.
const SharePath = "/r/"

// shareOpens limits how often an address may open shared documents, and how many addresses are
// remembered.
var shareOpens = limit.Rate{PerMinute: 60, Burst: 30}

const (
	maxShareAddresses = 50_000
	// Changes of a shared document are sent at most once in sharePause, and less often if it is
	// large: at most sharePace bytes per second.
	sharePause = time.Second
	sharePace  = 128 << 10
	shareBeat  = 15 * time.Second
)

// errNoShare is the answer for all links that do not work: it does not tell why.
var errNoShare error = fault.New(fault.NotFound, "this link does not work: it was revoked, has expired, or never existed. Ask whoever sent it for a new one")

// Share is a link to a document, without its secret.
type Share struct {
	ID        string  `json:"id" format:"uuid"`
	CreatedBy string  `json:"created_by" format:"uuid" doc:"The link works only as long as this member may write in the workspace."`
	CreatedAt string  `json:"created_at" format:"date-time"`
	ExpiresAt *string `json:"expires_at" format:"date-time" doc:"Null for never."`
}

func viewShare(s store.Share) Share {
	return Share{s.ID.String(), s.CreatedBy.String(), timeStamp(s.CreatedAt), timeOrNull(s.ExpiresAt)}
}

func timeOrNull(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	return new(timeStamp(t))
}

func (a *API) shares() {
	const tag = "Documents"
	who := editors.inPerson()
	handle(a, op("list-document-shares", "GET /api/documents/{id}/shares", tag, "List the links to a document that work, newest first"), who, a.listShares)
	handle(a, op("create-document-share", "POST /api/documents/{id}/shares", tag, "Create a link with which anybody can read a document; it is shown only once", created,
		about("Whoever has the link sees the document as it changes, without its history and without the conversation. "+
			"The link works until it is revoked or expires, and only as long as its creator may write in the workspace. "+
			"A repeated call with the same Idempotency-Key answers 409, because the link is not shown again.")), who, a.createShare)
	handle(a, op("delete-document-share", "DELETE /api/documents/{id}/shares/{share}", tag, "Revoke a link to a document; pages that show it end within seconds"), who, a.deleteShare)
	register(a, op("watch-shared-document", "GET /api/shared/events", tag, "Watch the document of a share link",
		answers(map[string]*huma.Response{"200": a.sharedResponse()}),
		about("The bearer token is the secret of the link, which is the last part of its path. Each event has the whole document; the first comes at once. "+
			"404 is the answer for every link that does not work.")), access{share: true, workspace: fromNowhere}, a.watchShared)
}

type sharesOutputBody struct {
	Shares []Share `json:"shares" nullable:"false"`
}

func (a *API) listShares(ctx context.Context, in *DocumentPath) (*sharesOutputBody, error) {
	if _, err := a.cfg.Documents.Get(ctx, &documentv1.GetRequest{Id: in.ID.String()}); err != nil {
		return nil, err
	}
	found, err := a.cfg.Store.Shares(ctx, principalOf(ctx).Actor.Workspace, in.ID.value)
	return &sharesOutputBody{each(found, viewShare)}, err
}

// CreateShare is the body of POST /api/documents/{id}/shares.
type CreateShare struct {
	ExpiresInDays *int `json:"expires_in_days,omitempty" nullable:"true" minimum:"1" maximum:"365" doc:"Absent or null for a link that does not expire."`
}

type shareOutputBody struct {
	Share Share  `json:"share"`
	Path  string `json:"path" doc:"The link: a path of this server. It contains the secret, and is not shown again." example:"/r/sbl_…"`
}

func (a *API) createShare(ctx context.Context, in *struct {
	DocumentPath
	Key  idempotencyKey `header:"Idempotency-Key" doc:"A repeated call with the same key creates no second link and answers 409. At most 255 printable ASCII characters."`
	Body CreateShare
},
) (*shareOutputBody, error) {
	if _, err := a.cfg.Documents.Get(ctx, &documentv1.GetRequest{Id: in.ID.String()}); err != nil {
		return nil, err
	}
	actor := principalOf(ctx).Actor
	s := store.Share{ID: id.New[store.ShareID](), Workspace: actor.Workspace, Document: in.ID.value, CreatedBy: actor.Member}
	if in.Key.text != "" {
		s.ID.UUID = in.Key.operation(actor, "create-share "+in.ID.String()).UUID
	}
	if days := in.Body.ExpiresInDays; days != nil {
		if *days < 1 || *days > 365 {
			return nil, invalid("expires_in_days: want 1 to 365, or leave it out for a link that does not expire")
		}
		s.ExpiresAt = time.Now().AddDate(0, 0, *days)
	}
	made, secret, err := a.cfg.Store.CreateShare(ctx, s)
	if err != nil {
		return nil, err
	}
	return &shareOutputBody{viewShare(made), SharePath + secret.Reveal()}, nil
}

func (a *API) deleteShare(ctx context.Context, in *struct {
	DocumentPath
	Share ID[store.ShareID] `path:"share" format:"uuid" doc:"The link's id."`
	Repeatable
},
) (*Success, error) {
	return succeeded(), a.cfg.Store.RevokeShare(ctx, principalOf(ctx).Actor.Workspace, in.ID.value, in.Share.value)
}

type shareKey struct{}

// authorizeShare lets the holder of a share link read its document on behalf of its creator.
func (a *API) authorizeShare(ctx context.Context, r *http.Request, secret string) (context.Context, error) {
	network := httpserver.Network(a.cfg.Authenticator.Address(r))
	if wait, ok := a.shareOpens.Take(network, time.Now()); !ok {
		return nil, &fault.Error{
			Kind: fault.Limited, Code: "RATE_LIMITED", RetryAfter: wait,
			Message: fmt.Sprintf("your address opens too many shared documents: wait %s", max(wait.Round(time.Second), time.Second)),
		}
	}
	s, ok, err := a.cfg.Store.Shared(ctx, conf.Secret(secret))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errNoShare
	}
	p := auth.Principal{
		Actor:   identity.Actor{Workspace: s.Workspace, Member: s.CreatedBy, Role: identity.Viewer},
		Expires: s.ExpiresAt,
		Grant:   store.Grant{Workspace: s.Workspace, Member: s.CreatedBy, Role: identity.Editor, Share: s.ID},
	}
	ctx = context.WithValue(context.WithValue(ctx, principalKey{}, p), shareKey{}, s)
	return identity.With(ctx, p.Actor), nil
}

// SharedDocumentEvent is the data of one event of a shared document's stream.
type SharedDocumentEvent struct {
	Type      string `json:"type" enum:"document"`
	Name      string `json:"name"`
	Content   string `json:"content" doc:"Markdown."`
	UpdatedAt string `json:"updated_at" format:"date-time"`
}

func (a *API) sharedResponse() *huma.Response {
	a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[SharedDocumentEvent](), true, "SharedDocumentEvent")
	return &huma.Response{
		Description: "Server-sent events. The stream ends when the link stops working; connecting again then answers 404.",
		Content: map[string]*huma.MediaType{"text/event-stream": {
			Schema: &huma.Schema{Type: huma.TypeString, Description: "Events whose data is one line of JSON, a SharedDocumentEvent.", Extensions: map[string]any{
				"contentMediaType": "application/json", "contentSchema": map[string]any{"$ref": "#/components/schemas/SharedDocumentEvent"},
			}},
			Example: "retry: 1000\n:\nevent: document\ndata: {\"type\":\"document\",\"name\":\"Minutes\",\"content\":\"# Minutes\\n\",\"updated_at\":\"2026-03-01T09:30:00Z\"}\n\n",
		}},
	}
}

// sharedState is a shared document as viewers get it.
type sharedState struct {
	sequence int64
	name     string
	event    []byte // encoded once for all viewers
}

// sharedDocument is a viewer of a shared document.
type sharedDocument struct {
	api   *API
	share store.Share
	ctx   context.Context //nolint:containedctx // ends with the connection or the link
	count *auth.Stream
	sent  sharedState // without its event
}

func (a *API) watchShared(ctx context.Context, _ *struct{}) (*reply, error) {
	share, _ := ctx.Value(shareKey{}).(store.Share) // set by authorizeShare
	sctx, count, err := a.cfg.Shared.Add(ctx, principalOf(ctx))
	if err != nil {
		return nil, err
	}
	s := &sharedDocument{api: a, share: share, ctx: sctx, count: count}
	first, err := s.read()
	if err != nil {
		count.Close()
		if fault.KindOf(err) == fault.NotFound { // the document was deleted
			err = errNoShare
		}
		return nil, err
	}
	return &reply{func(hc huma.Context) { s.serve(hc, first) }}, nil //nolint:contextcheck // it has the stream's
}

// read returns the document as an event, nil if the viewer has it already. Viewers who want the
// same document read it together.
func (s *sharedDocument) read() ([]byte, error) {
	state, err := s.api.sharedReads.get(s.ctx, s.share.Document, func(ctx context.Context) (sharedState, error) {
		res, err := s.api.cfg.Documents.Read(ctx, &documentv1.ReadRequest{Id: s.share.Document.String()})
		if err != nil {
			return sharedState{}, err
		}
		d := res.GetDocument()
		data, err := marshal(SharedDocumentEvent{"document", d.GetName(), res.GetMarkdown(), stamp(d.GetUpdatedAt())})
		if err != nil {
			return sharedState{}, fmt.Errorf("write a shared document: %w", err)
		}
		return sharedState{d.GetSequence(), d.GetName(), sse.AppendEvent(nil, "document", data, "")}, nil
	})
	if err != nil || state.sequence == s.sent.sequence && state.name == s.sent.name {
		return nil, err
	}
	s.sent.sequence, s.sent.name = state.sequence, state.name
	return state.event, nil
}

// serve writes the document, and writes it again when it has changed, until the connection, the
// link or the document ends, or the gateway drains.
func (s *sharedDocument) serve(hc huma.Context, first []byte) {
	defer s.count.Close()
	r, w := humago.Unwrap(hc)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Robots-Tag", "noindex")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	err := s.watch(&sink{w: w, rc: http.NewResponseController(w)}, first)
	s.api.cfg.Log.DebugContext(s.ctx, "shared document's stream ended", "share", s.share.ID, "error", err)
	panic(http.ErrAbortHandler) // the stream is never complete: clients connect again
}

func (s *sharedDocument) watch(out *sink, first []byte) error {
	ctx, cancel := context.WithCancel(s.ctx)
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- panics.Try(func() error { return s.subscribe(ctx, changed) })
	}()
	err := s.write(out, first, changed, ended)
	cancel()
	return err
}

// write returns why the stream ends.
func (s *sharedDocument) write(out *sink, event []byte, changed <-chan struct{}, ended <-chan error) error {
	if err := out.Write(append(sse.AppendHeartbeat(sse.AppendRetry(nil, retryMS)), event...)); err != nil {
		return err
	}
	beat := time.NewTicker(shareBeat)
	defer beat.Stop()
	pause := time.NewTimer(sharePause)
	defer pause.Stop()
	var wake <-chan struct{} // changed, but for the pause after an event
	for {
		select {
		case err := <-ended:
			return err
		case <-s.api.cfg.Feed.Draining():
			return feed.ErrDraining
		case <-beat.C:
			if err := out.Write(sse.AppendHeartbeat(nil)); err != nil {
				return err
			}
		case <-pause.C:
			wake = changed
		case <-wake:
			event, err := s.read()
			if err != nil {
				return err
			}
			if event == nil {
				continue
			}
			if err := out.Write(event); err != nil {
				return err
			}
			wake = nil
			pause.Reset(sharePause + time.Duration(len(event))*time.Second/sharePace)
		}
	}
}

// subscribe reports changes of the document. It returns when ctx is done, the document is deleted
// or document-sync ends the stream.
func (s *sharedDocument) subscribe(ctx context.Context, changed chan<- struct{}) error {
	changes, err := s.api.cfg.Documents.Subscribe(ctx, &documentv1.SubscribeRequest{Id: s.share.Document.String()})
	if err != nil {
		return err
	}
	defer func() { _ = changes.Close() }() // its error says no more than Err
	for changes.Receive() {
		if changes.Msg().GetKind() == documentv1.SubscribeResponse_KIND_DELETED {
			return errNoShare
		}
		select {
		case changed <- struct{}{}:
		default: // a change waits already
		}
	}
	return changes.Err()
}
