package store

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// SharePrefix is the beginning of every share link's secret.
const SharePrefix = "sbl_"

// ShareID identifies a share link.
type ShareID struct{ uuid.UUID }

// Share is a link with which anybody can read a document.
type Share struct {
	ID        ShareID
	Workspace id.Workspace
	Document  id.Document
	CreatedBy id.Member
	CreatedAt time.Time
	ExpiresAt time.Time // zero for never
}

// maxShares bounds the links of a document that work.
const maxShares = 50

// A link works until it is revoked, which deletes it, or expires, and only as long as its creator may write.
const (
	shareColumns = `s.share_id, s.workspace_id, s.document_id, s.created_by, s.created_at, s.expires_at`
	shareWorks   = `(s.expires_at IS NULL OR s.expires_at > now()) AND EXISTS (
		SELECT FROM members m WHERE m.workspace_id = s.workspace_id AND m.member_id = s.created_by AND m.role <> 'viewer')`
)

func scanShare(row pgx.CollectableRow) (s Share, err error) {
	var expires *time.Time
	err = row.Scan(&s.ID, &s.Workspace, &s.Document, &s.CreatedBy, &s.CreatedAt, &expires)
	if expires != nil {
		s.ExpiresAt = *expires
	}
	return s, err
}

// CreateShare creates a share link and returns its secret, which cannot be read again. If the
// id exists, or the document has too many links, it returns a Conflict.
func (s *Store) CreateShare(ctx context.Context, in Share) (made Share, secret conf.Secret, err error) {
	var random [32]byte
	rand.Read(random[:]) // never fails
	secret = conf.Secret(SharePrefix + base64.RawURLEncoding.EncodeToString(random[:]))
	var expires *time.Time
	if !in.ExpiresAt.IsZero() {
		expires = &in.ExpiresAt
	}
	err = s.db.InWorkspace(ctx, in.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		var n int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM shares s WHERE s.workspace_id = @workspace AND s.document_id = @document AND `+shareWorks,
			pg.Args{"workspace": in.Workspace, "document": in.Document}).Scan(&n); err != nil {
			return err
		}
		if n >= maxShares {
			return fault.Coded(fault.Conflict, "TOO_MANY_LINKS", "the document has %d links: revoke one first", n)
		}
		made, err = collectOne(ctx, tx, scanShare, `
			INSERT INTO shares AS s (workspace_id, share_id, hash, document_id, created_by, expires_at)
			VALUES (@workspace, @share, @hash, @document, @member, @expires)
			ON CONFLICT (workspace_id, share_id) DO NOTHING
			RETURNING `+shareColumns, pg.Args{
			"workspace": in.Workspace, "share": in.ID, "hash": hash(secret), "document": in.Document, "member": in.CreatedBy, "expires": expires,
		})
		if pg.NoRows(err) {
			return fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "a link was already created with this Idempotency-Key, and it is not shown again: revoke it and create another one with a new Idempotency-Key")
		}
		if err != nil {
			return err
		}
		return record(ctx, tx, in.Workspace, Change{Member: in.CreatedBy, Action: LinkCreated, Subject: in.Document.String(), Detail: in.ID.String()})
	})
	if err != nil {
		return Share{}, "", wrap(err, "create a share link")
	}
	return made, secret, nil
}

// Shares returns a document's links that work, newest first.
func (s *Store) Shares(ctx context.Context, ws id.Workspace, doc id.Document) (out []Share, err error) {
	err = s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		out, err = collect(ctx, tx, scanShare, `
			SELECT `+shareColumns+` FROM shares s WHERE s.workspace_id = @workspace AND s.document_id = @document AND `+shareWorks+`
			ORDER BY s.created_at DESC, s.share_id LIMIT @most`, pg.Args{"workspace": ws, "document": doc, "most": maxShares})
		return err
	})
	return out, wrap(err, "list share links")
}

// RevokeShare makes a document's link invalid, effective at once.
func (s *Store) RevokeShare(ctx context.Context, ws id.Workspace, doc id.Document, share ShareID) error {
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		if err := deleteOne(ctx, tx, "link", `DELETE FROM shares WHERE workspace_id = @workspace AND document_id = @document AND share_id = @share`,
			pg.Args{"workspace": ws, "document": doc, "share": share}); err != nil {
			return err
		}
		return record(ctx, tx, ws, Change{Member: actor(ctx), Action: LinkRevoked, Subject: doc.String(), Detail: share.String()})
	})
	return wrap(err, "revoke a share link")
}

// Shared returns the link with a secret. It returns false if there is none that works.
func (s *Store) Shared(ctx context.Context, secret conf.Secret) (found Share, ok bool, err error) {
	if !strings.HasPrefix(secret.Reveal(), SharePrefix) {
		return Share{}, false, nil
	}
	// AsSystem: the query finds out the workspace.
	err = s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		found, err = collectOne(ctx, tx, scanShare, `SELECT `+shareColumns+` FROM shares s WHERE s.hash = @hash AND `+shareWorks, pg.Args{"hash": hash(secret)})
		return err
	})
	if pg.NoRows(err) {
		return Share{}, false, nil
	}
	return found, err == nil, wrap(err, "look up a share link")
}
