package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/visible"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// A server that wants OAuth answers 401, and the owners of the workspace sign in to it. This
// service only finds that out (challenge) and stores it for the one who signs in: the credential
// broker finds the authorization server, and keeps and renews the tokens. From the sign-in on,
// requests go through the broker. Until then the server is asked without it: a 401 may have been
// an accident.

// SignIn says whether an owner has to sign in to a server.
type SignIn string

// The states.
const (
	SignInRequired SignIn = "required" // it cannot be used until then
	SignInMore     SignIn = "more"     // it refused a call for a scope that was not granted
)

// maxChallenge bounds what is kept of a challenge, in bytes.
const maxChallenge = 2048

// challenge is a refusal of a server that a sign-in may change (RFC 6750).
type challenge struct {
	statusError

	need             SignIn
	resourceMetadata string // URL (RFC 9728); may be empty
	scope            string // that is needed; may be empty
}

// Unwrap returns the status.
func (c *challenge) Unwrap() error { return c.statusError }

// ownError is the header with the code of an error of the credential broker's own.
const ownError = "X-Signalbox-Error"

// brokerError is the code of an error of the credential broker's own.
type brokerError string

// Error implements error.
func (e brokerError) Error() string {
	switch e {
	case "provider_unreachable", "provider_broke_off":
		return "it cannot be reached"
	case "provider_timeout":
		return "it does not answer in time"
	case "address_not_allowed":
		return notPublic
	}
	return "the credential broker does not send the request to it: " + clip(visible.Text(string(e)), maxSaid)
}

// refusalOf returns the error for an answer that is no success.
func refusalOf(res *http.Response) error {
	status := statusError(res.StatusCode)
	c := &challenge{statusError: status}
	var code string
	if all, err := oauthex.ParseWWWAuthenticate(short(res.Header.Values("WWW-Authenticate"))); err == nil {
		for _, one := range all {
			if one.Scheme == "bearer" {
				c.resourceMetadata, c.scope, code = one.Params["resource_metadata"], one.Params["scope"], one.Params["error"]
			}
		}
	}
	own := res.Header.Get(ownError)
	switch {
	case own == "no_credential", own == "account_unavailable" && status == http.StatusConflict: // the sign-in has ended
		c.need = SignInRequired
	case own != "":
		return brokerError(own)
	case status == http.StatusUnauthorized:
		c.need = SignInRequired
	case status == http.StatusForbidden && code == "insufficient_scope":
		c.need = SignInMore
	default:
		return status
	}
	return c
}

// short returns the headers that are short enough to be read, of the first few.
func short(headers []string) []string {
	if len(headers) > 4 {
		headers = headers[:4]
	}
	var all []string
	for _, h := range headers {
		if len(h) <= 2*maxChallenge {
			all = append(all, h)
		}
	}
	return all
}

// challenged stores that somebody has to sign in, if that is what an error says.
func (s *Servers) challenged(ctx context.Context, row Server, err error) error {
	c, ok := errors.AsType[*challenge](err)
	if !ok {
		return nil
	}
	defer s.forget(row.Workspace)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	return s.store.challenged(ctx, row, c)
}

// SignedIn asks a server for its tools after an owner has signed in to it. It returns the
// server, or a NotFound fault.
func (s *Servers) SignedIn(ctx context.Context, ws id.Workspace, name string) (Server, error) {
	all, err := s.store.all(ctx, ws)
	if err != nil {
		return Server{}, err
	}
	for _, n := range all {
		if n.Name != name || n.Operator {
			continue
		}
		if err := s.store.signedIn(ctx, n, true); err != nil {
			return Server{}, err
		}
		return s.Test(ctx, ws, n.ID)
	}
	return Server{}, fault.New(fault.NotFound, "there is no MCP server called %q", clip(name, 64))
}

// why says to people what a challenge asks for.
func (c *challenge) why() string {
	if c.need == SignInMore {
		return "it wants more permissions for this: an owner has to sign in to it again"
	}
	return "an owner has to sign in to it"
}

// unauthorized is the result of a call that a server has refused for want of a sign-in.
func (s *Servers) unauthorized(ctx context.Context, row Server, err error) (result tool.Result, ok bool) {
	c, ok := errors.AsType[*challenge](err)
	if !ok {
		return tool.Result{}, false
	}
	if storing := s.challenged(ctx, row, err); storing != nil {
		s.cfg.Log.WarnContext(ctx, "challenge of an MCP server not stored", "workspace", row.Workspace, "server", row.ID, "error", storing)
	}
	return tool.Errorf("needs_sign_in", "the MCP server %s refuses the call: %s; do without it", row.Name, c.why()).
		WithCause(&tool.Cause{Code: tool.NeedsSignIn, Server: row.Name, Reason: c.why()}), true
}

// challenged stores that somebody has to sign in to a server. A part of the challenge that is
// missing leaves what is known.
func (s store) challenged(ctx context.Context, n Server, c *challenge) error {
	keep := func(text string) string {
		if text = strings.TrimSpace(text); len(text) > maxChallenge || text != visible.Text(text) {
			return ""
		}
		return text
	}
	err := s.db.InWorkspace(ctx, n.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE mcp_servers SET sign_in = @need,
				resource_metadata = coalesce(nullif(@metadata, ''), resource_metadata), scope = coalesce(nullif(@scope, ''), scope)
			WHERE workspace_id = @workspace AND id = @id`,
			pg.Args{"workspace": n.Workspace, "id": n.ID, "need": string(c.need), "metadata": keep(c.resourceMetadata), "scope": keep(c.scope)})
		return err
	})
	if err != nil {
		return fmt.Errorf("store the challenge of MCP server %s: %w", n.ID, err)
	}
	return nil
}

// signedIn stores that somebody has signed in to a server: the context's member, or, if told is
// false, one whom only the broker knows.
func (s store) signedIn(ctx context.Context, n Server, told bool) error {
	err := s.db.InWorkspace(ctx, n.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE mcp_servers SET credential = true, sign_in = '' WHERE workspace_id = @workspace AND id = @id`,
			pg.Args{"workspace": n.Workspace, "id": n.ID})
		if err != nil || !told {
			return err
		}
		return record(ctx, tx, n, SignedInTo, "")
	})
	if err != nil {
		return fmt.Errorf("store the sign-in to MCP server %s: %w", n.ID, err)
	}
	return nil
}

// causeIn returns what HTTP knows of the failure of a context's operation.
func causeIn(ctx context.Context) error {
	if op, ok := ctx.Value(operationKey{}).(*operation); ok {
		return op.cause()
	}
	return nil
}
