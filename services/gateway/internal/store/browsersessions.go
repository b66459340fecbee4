package store

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// SessionPrefix begins the secret of every browser session.
const SessionPrefix = "sbs_"

// BrowserSessionID identifies a browser session.
type BrowserSessionID struct{ uuid.UUID }

// BrowserSession is a person who is signed in with a browser.
type BrowserSession struct {
	ID        BrowserSessionID
	Member    id.Member
	UserAgent string
	CreatedAt time.Time
	SeenAt    time.Time // to some minutes
	ExpiresAt time.Time
}

// maxBrowserSessions bounds the sessions of a person; a new one replaces the oldest.
const maxBrowserSessions = 50

const sessionColumns = `session_id, member_id, user_agent, created_at, seen_at, expires_at`

func scanSession(row pgx.CollectableRow) (s BrowserSession, err error) {
	err = row.Scan(&s.ID, &s.Member, &s.UserAgent, &s.CreatedAt, &s.SeenAt, &s.ExpiresAt)
	return s, err
}

// SignIn creates a browser session and returns its secret, which cannot be read again.
func (s *Store) SignIn(ctx context.Context, m id.Member, userAgent string, expires time.Time) (made BrowserSession, secret conf.Secret, err error) {
	secret = conf.Secret(SessionPrefix + rand.Text() + rand.Text())
	err = s.db.AsMember(ctx, m, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `
			DELETE FROM browser_sessions WHERE member_id = @member AND (expires_at < now() OR session_id IN (
				SELECT b.session_id FROM browser_sessions AS b WHERE b.member_id = @member ORDER BY b.created_at DESC OFFSET @most::integer))`,
			pg.Args{"member": m, "most": maxBrowserSessions - 1}); err != nil {
			return err
		}
		made, err = collectOne(ctx, tx, scanSession, `
			INSERT INTO browser_sessions (session_id, hash, member_id, user_agent, expires_at)
			VALUES (@session, @hash, @member, @agent, @expires) RETURNING `+sessionColumns, pg.Args{
			"session": id.New[BrowserSessionID](), "hash": hash(secret), "member": m, "agent": userAgent, "expires": expires,
		})
		return err
	})
	return made, secret, wrap(err, "sign in")
}

// Session returns the browser session with a secret. It returns false if there is none, or if
// it has expired.
func (s *Store) Session(ctx context.Context, secret conf.Secret) (found BrowserSession, ok bool, err error) {
	// AsSystem: the query finds out the member.
	err = s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		found, err = collectOne(ctx, tx, scanSession, `
			WITH touched AS (UPDATE browser_sessions SET seen_at = now() WHERE hash = @hash AND seen_at < now() - interval '5 minutes')
			SELECT `+sessionColumns+` FROM browser_sessions WHERE hash = @hash AND expires_at > now()`, pg.Args{"hash": hash(secret)})
		return err
	})
	if pg.NoRows(err) {
		return BrowserSession{}, false, nil
	}
	return found, err == nil, wrap(err, "look up a browser session")
}

// BrowserSessions returns a person's browser sessions, newest first.
func (s *Store) BrowserSessions(ctx context.Context, m id.Member) (out []BrowserSession, err error) {
	err = s.db.AsMember(ctx, m, func(ctx context.Context, tx pgx.Tx) error {
		out, err = collect(ctx, tx, scanSession, `
			SELECT `+sessionColumns+` FROM browser_sessions WHERE member_id = @member AND expires_at > now() ORDER BY created_at DESC`,
			pg.Args{"member": m})
		return err
	})
	return out, wrap(err, "list browser sessions")
}

// SignOut ends a person's browser session, effective at once.
func (s *Store) SignOut(ctx context.Context, m id.Member, session BrowserSessionID) error {
	err := s.db.AsMember(ctx, m, func(ctx context.Context, tx pgx.Tx) error {
		return deleteOne(ctx, tx, "browser session", `DELETE FROM browser_sessions WHERE session_id = @session AND member_id = @member`,
			pg.Args{"session": session, "member": m})
	})
	return wrap(err, "sign out")
}

// maxAudited bounds the workspaces whose audit tells that a browser was signed out.
const maxAudited = 100

// SignOutBrowser is SignOut of another browser, which the audit of the person's workspaces records.
func (s *Store) SignOutBrowser(ctx context.Context, m id.Member, session BrowserSessionID) error {
	// AsSystem: the session is valid in all of the person's workspaces.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"session": session, "member": m, "action": BrowserSignedOut, "most": maxAudited}
		if err := deleteOne(ctx, tx, "browser session", `DELETE FROM browser_sessions WHERE session_id = @session AND member_id = @member`, args); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO audit (workspace_id, member_id, action, subject)
			SELECT workspace_id, @member, @action, @session::uuid::text FROM members WHERE member_id = @member ORDER BY workspace_id LIMIT @most`, args)
		return err
	})
	return wrap(err, "sign a browser out")
}

// CreateLink returns the key of a link that signs a person in once, until it expires.
func (s *Store) CreateLink(ctx context.Context, m id.Member, expires time.Time) (key conf.Secret, err error) {
	key = conf.Secret(rand.Text() + rand.Text())
	err = s.db.AsMember(ctx, m, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM sign_in_links WHERE member_id = @member AND expires_at < now()`, pg.Args{"member": m}); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO sign_in_links (hash, member_id, expires_at) VALUES (@hash, @member, @expires)`,
			pg.Args{"hash": hash(key), "member": m, "expires": expires})
		return err
	})
	return key, wrap(err, "create a sign-in link")
}

// UseLink returns the person whom a link signs in, and makes the link invalid.
func (s *Store) UseLink(ctx context.Context, key conf.Secret) (m id.Member, err error) {
	// AsSystem: the query finds out the member.
	err = s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `DELETE FROM sign_in_links WHERE hash = @hash AND expires_at > now() RETURNING member_id`, pg.Args{"hash": hash(key)}).Scan(&m)
	})
	if pg.NoRows(err) {
		return m, fault.Coded(fault.Unauthenticated, "LINK_USED", "this link was used before or has expired: get a new one with signalbox token --link")
	}
	return m, wrap(err, "use a sign-in link")
}
