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

// maxSignIns is how many sign-ins of a member are kept. Fewer can be open: this is for who
// lets them fail all the time.
const maxSignIns = 50

// BeginSignIn keeps a sign-in until it expires, for who comes back with both secrets. The
// same sign-in begun again is for the cookie that came last.
func (s *Store) BeginSignIn(ctx context.Context, in SignIn, state, cookie conf.Secret, expires time.Time) error {
	err := s.db.InWorkspace(ctx, in.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			delete from sign_ins where workspace_id = @workspace and (expires_at < now()
				or state_hash in (select s.state_hash from sign_ins as s where s.workspace_id = @workspace and s.member_id = @member
					order by s.expires_at desc offset @most::integer))`,
			pg.Args{"workspace": in.Workspace, "member": in.Member, "most": maxSignIns - 1})
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			insert into sign_ins (workspace_id, state_hash, cookie_hash, member_id, kind, provider, return_to, expires_at)
			values (@workspace, @state, @cookie, @member, @kind, @provider, @return_to, @expires)
			on conflict (workspace_id, state_hash) do update set cookie_hash = excluded.cookie_hash, return_to = excluded.return_to
			where sign_ins.member_id = excluded.member_id`, pg.Args{
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

// FindSignIn returns the sign-in with that state, if the cookie is the one that was handed
// out with it. It stays until it expires, so that a browser that got no answer can come
// again: what may be done once only is credential-broker's to see to.
func (s *Store) FindSignIn(ctx context.Context, state, cookie conf.Secret) (SignIn, error) {
	var in SignIn
	var fits bool
	// As the system: the state is all that a provider sends back, and says whose it is.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			select workspace_id, member_id, kind, provider, return_to, cookie_hash = @cookie
			from sign_ins where state_hash = @state and expires_at > now()`, pg.Args{"state": hash(state), "cookie": hash(cookie)}).
			Scan(&in.Workspace, &in.Member, &in.Kind, &in.Provider, &in.ReturnTo, &fits)
	})
	switch {
	case pg.NoRows(err):
		return SignIn{}, fault.Coded(fault.Conflict, "LOGIN_UNKNOWN", "this sign-in has expired, or is not one of this server: start again")
	case err != nil:
		return SignIn{}, fmt.Errorf("look for a sign-in: %w", err)
	case !fits:
		return SignIn{}, fault.Coded(fault.Forbidden, "OTHER_BROWSER", "this sign-in was not begun in this browser, or under another name of this server: go on where you began it, or start again here. If you did not begin it, somebody else wants you to sign in for them: do not")
	}
	return in, nil
}

func hash(secret conf.Secret) []byte {
	sum := sha256.Sum256([]byte(secret.Reveal()))
	return sum[:]
}
