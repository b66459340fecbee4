package store

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// SignIn is a sign-in at a provider that a member has started in a browser.
type SignIn struct {
	Workspace id.Workspace
	Member    id.Member
	Kind      SignInKind
	Provider  string // the sign-in provider's name
	ReturnTo  string // path that the browser is redirected to afterwards; empty for none
}

// SignInKind is what a sign-in is for.
type SignInKind string

// The kinds.
const (
	ForConnection SignInKind = "connection"
	ForAccount    SignInKind = "account"
)

// maxSignIns bounds the stored sign-ins of a member. It is above the number that can be
// open, and concerns sign-ins that were abandoned.
const maxSignIns = 50

// BeginSignIn stores a sign-in until it expires. The browser must present both secrets to
// complete it. If the same sign-in is started again, the new cookie replaces the previous one.
func (s *Store) BeginSignIn(ctx context.Context, in SignIn, state, cookie conf.Secret, expires time.Time) error {
	err := s.db.InWorkspace(ctx, in.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			DELETE FROM sign_ins WHERE workspace_id = @workspace AND (expires_at < now()
				OR state_hash IN (SELECT s.state_hash FROM sign_ins AS s WHERE s.workspace_id = @workspace AND s.member_id = @member
					ORDER BY s.expires_at DESC OFFSET @most::integer))`,
			pg.Args{"workspace": in.Workspace, "member": in.Member, "most": maxSignIns - 1})
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO sign_ins (workspace_id, state_hash, cookie_hash, member_id, kind, provider, return_to, expires_at)
			VALUES (@workspace, @state, @cookie, @member, @kind, @provider, @return_to, @expires)
			ON CONFLICT (workspace_id, state_hash) DO UPDATE SET cookie_hash = excluded.cookie_hash, return_to = excluded.return_to
			WHERE sign_ins.member_id = excluded.member_id`, pg.Args{
			"workspace": in.Workspace, "state": hash(state), "cookie": hash(cookie), "member": in.Member, "kind": string(in.Kind),
			"provider": in.Provider, "return_to": in.ReturnTo, "expires": expires,
		})
		return err
	})
	return wrap(err, "begin a sign-in")
}

// FindSignIn returns the sign-in with that state, if the cookie is the one that was set for
// it. The sign-in stays until it expires, so that a browser that got no answer can try
// again: credential-broker ensures that the provider is asked only once.
func (s *Store) FindSignIn(ctx context.Context, state, cookie conf.Secret) (SignIn, error) {
	var in SignIn
	var fits bool
	// AsSystem: a provider sends back only the state, and the query finds out the workspace.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT workspace_id, member_id, kind, provider, return_to, cookie_hash = @cookie
			FROM sign_ins WHERE state_hash = @state AND expires_at > now()`, pg.Args{"state": hash(state), "cookie": hash(cookie)}).
			Scan(&in.Workspace, &in.Member, &in.Kind, &in.Provider, &in.ReturnTo, &fits)
	})
	switch {
	case pg.NoRows(err):
		return SignIn{}, fault.Coded(fault.Conflict, "LOGIN_UNKNOWN", "this sign-in has expired or is unknown to this server: start again")
	case err != nil:
		return SignIn{}, wrap(err, "find a sign-in")
	case !fits:
		return SignIn{}, fault.Coded(fault.Forbidden, "OTHER_BROWSER", "this sign-in was not started in this browser, or under another host name: continue where you started it, or start again here. If you did not start it, somebody is trying to make you sign in for them: do not continue")
	}
	return in, nil
}

func hash(secret conf.Secret) []byte {
	sum := sha256.Sum256([]byte(secret.Reveal()))
	return sum[:]
}
