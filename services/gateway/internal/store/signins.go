package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// SignIn is a sign-in at a provider that a member has begun in a browser.
type SignIn struct {
	Workspace id.Workspace
	Member    id.Member
	Kind      SignInKind
	Provider  string // the sign-in provider's name
	ReturnTo  string // path of the console that the browser goes on to; empty for none
}

// SignInKind is what a sign-in is for.
type SignInKind string

// The kinds.
const (
	ForConnection SignInKind = "connection"
	ForAccount    SignInKind = "account"
)

// BeginSignIn keeps a sign-in until it expires, for who comes back with both secrets.
func (s *Store) BeginSignIn(ctx context.Context, in SignIn, state, cookie conf.Secret, expires time.Time) error {
	err := s.db.InWorkspace(ctx, in.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `delete from sign_ins where workspace_id = @workspace and expires_at < now()`, pg.Args{"workspace": in.Workspace}); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			insert into sign_ins (workspace_id, state_hash, cookie_hash, member_id, kind, provider, return_to, expires_at)
			values (@workspace, @state, @cookie, @member, @kind, @provider, @return_to, @expires)`, pg.Args{
			"workspace": in.Workspace, "state": hash(state), "cookie": hash(cookie), "member": in.Member, "kind": string(in.Kind),
			"provider": in.Provider, "return_to": in.ReturnTo, "expires": expires,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("begin a sign-in: %w", err)
	}
	return nil
}

// EndSignIn takes the sign-in with that state, which is gone then, if the cookie is the
// one that was handed out with it. If it is not, the sign-in stays for who has it.
func (s *Store) EndSignIn(ctx context.Context, state, cookie conf.Secret) (SignIn, error) {
	var in SignIn
	var fits bool
	// As the system: the state is all that a provider sends back, and says whose it is.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"state": hash(state), "cookie": hash(cookie)}
		err := tx.QueryRow(ctx, `
			select workspace_id, member_id, kind, provider, return_to, cookie_hash = @cookie
			from sign_ins where state_hash = @state and expires_at > now() for update`, args).
			Scan(&in.Workspace, &in.Member, &in.Kind, &in.Provider, &in.ReturnTo, &fits)
		if err != nil || !fits {
			return err
		}
		_, err = tx.Exec(ctx, `delete from sign_ins where state_hash = @state`, args)
		return err
	})
	switch {
	case pg.NoRows(err):
		return SignIn{}, fault.Coded(fault.Conflict, "LOGIN_UNKNOWN", "this sign-in has expired, or was completed already: start again")
	case err != nil:
		return SignIn{}, fmt.Errorf("end a sign-in: %w", err)
	case !fits:
		return SignIn{}, fault.Coded(fault.Forbidden, "OTHER_BROWSER", "this sign-in was not begun in this browser, or under another name of this server: go on where you began it, or start again here. If you did not begin it, somebody else wants you to sign in for them: do not")
	}
	return in, nil
}

func hash(secret conf.Secret) []byte {
	sum := sha256.Sum256([]byte(secret.Reveal()))
	return sum[:]
}
