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
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

// KeyPrefix is the beginning of every API key.
const KeyPrefix = "sb_"

// KeyID is the id of an API key.
type KeyID struct{ uuid.UUID }

// Key is an API key without its secret.
type Key struct {
	ID        KeyID
	Name      string
	Hint      string // the secret's first characters
	Role      identity.Role
	CreatedBy id.Member
	CreatedAt time.Time
}

// Position returns the key's place in a list.
func (k Key) Position() Position { return Position{k.CreatedAt, k.ID.UUID} }

func scanKey(row pgx.CollectableRow) (k Key, err error) {
	err = row.Scan(&k.ID, &k.Name, &k.Hint, scanRole{&k.Role}, &k.CreatedBy, &k.CreatedAt)
	return k, err
}

// Holder is the member that an API key acts for.
type Holder struct {
	Key       KeyID
	Workspace id.Workspace
	Member    id.Member
	Role      identity.Role // the lower of the key's and the member's
}

// CreateKey creates an API key and returns its secret, which cannot be read again. If the
// id exists, it returns a Conflict.
func (s *Store) CreateKey(ctx context.Context, ws id.Workspace, k Key) (_ Key, secret conf.Secret, err error) {
	var random [32]byte
	rand.Read(random[:]) // never fails
	secret = conf.Secret(KeyPrefix + base64.RawURLEncoding.EncodeToString(random[:]))
	err = s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		k, err = collectOne(ctx, tx, scanKey, `
			INSERT INTO api_keys (workspace_id, key_id, hash, hint, name, role, created_by)
			VALUES (@workspace, @key, @hash, @hint, @name, @role, @member)
			ON CONFLICT (workspace_id, key_id) DO NOTHING
			RETURNING key_id, name, hint, role, created_by, created_at`, pg.Args{
			"workspace": ws, "key": k.ID, "hash": hash(secret), "hint": secret.Reveal()[:len(KeyPrefix)+6], "name": k.Name,
			"role": k.Role.String(), "member": k.CreatedBy,
		})
		if pg.NoRows(err) {
			return fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "an API key was already created with this Idempotency-Key, and its secret is not shown again: revoke that key and create another one with a new Idempotency-Key")
		}
		if err != nil {
			return err
		}
		return record(ctx, tx, ws, Change{Member: k.CreatedBy, Action: KeyCreated, Subject: k.ID.String(), Detail: k.Name + ", " + k.Role.String()})
	})
	if err != nil {
		return Key{}, "", wrap(err, "create an API key")
	}
	return k, secret, nil
}

// Keys returns a workspace's API keys, oldest first.
func (s *Store) Keys(ctx context.Context, ws id.Workspace, p Page) (out []Key, err error) {
	err = s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		out, err = collect(ctx, tx, scanKey, `
			SELECT key_id, name, hint, role, created_by, created_at FROM api_keys
			WHERE workspace_id = @workspace AND (created_at, key_id) > (@after, @id)
			ORDER BY created_at, key_id LIMIT @limit`, p.args(pg.Args{"workspace": ws}))
		return err
	})
	return out, wrap(err, "list API keys")
}

// DeleteKey revokes an API key, effective at once.
func (s *Store) DeleteKey(ctx context.Context, ws id.Workspace, k KeyID) error {
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		var name string
		err := tx.QueryRow(ctx, `DELETE FROM api_keys WHERE workspace_id = @workspace AND key_id = @key RETURNING name`,
			pg.Args{"workspace": ws, "key": k}).Scan(&name)
		if pg.NoRows(err) {
			return fault.New(fault.NotFound, "no such key")
		}
		if err != nil {
			return err
		}
		return record(ctx, tx, ws, Change{Member: actor(ctx), Action: KeyRevoked, Subject: k.String(), Detail: name})
	})
	return wrap(err, "delete an API key")
}

// Holder returns the holder of the API key with a secret. It returns false if there is no
// such key.
func (s *Store) Holder(ctx context.Context, secret conf.Secret) (Holder, bool, error) {
	if !strings.HasPrefix(secret.Reveal(), KeyPrefix) {
		return Holder{}, false, nil
	}
	var h Holder
	var member identity.Role
	// AsSystem: the query finds out the workspace.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT k.key_id, k.workspace_id, k.created_by, k.role, m.role
			FROM api_keys k JOIN members m ON m.workspace_id = k.workspace_id AND m.member_id = k.created_by
			WHERE k.hash = @hash`, pg.Args{"hash": hash(secret)}).
			Scan(&h.Key, &h.Workspace, &h.Member, scanRole{&h.Role}, scanRole{&member})
	})
	if pg.NoRows(err) {
		return Holder{}, false, nil
	}
	if err != nil {
		return Holder{}, false, wrap(err, "look up an API key")
	}
	h.Role = min(h.Role, member)
	return h, true, nil
}

// Grant is the permission of an open stream: a membership with at least a role and, if the
// stream was opened with an API key, a browser session or a share link, that key, session or link.
type Grant struct {
	Workspace id.Workspace
	Member    id.Member
	Role      identity.Role
	Key       KeyID            // zero without a key
	Session   BrowserSessionID // zero without a browser session
	Share     ShareID          // zero without a share link
}

// ascending lists the roles from the lowest to the highest.
var ascending = []string{identity.Viewer.String(), identity.Editor.String(), identity.Owner.String()}

// Ended returns the grants that are no longer valid.
func (s *Store) Ended(ctx context.Context, grants []Grant) (out []Grant, err error) {
	workspaces, members := make([]uuid.UUID, len(grants)), make([]uuid.UUID, len(grants))
	keys, sessions, shares := make([]uuid.UUID, len(grants)), make([]uuid.UUID, len(grants)), make([]uuid.UUID, len(grants))
	roles := make([]string, len(grants))
	for i, g := range grants {
		workspaces[i], members[i], roles[i] = g.Workspace.UUID, g.Member.UUID, g.Role.String()
		keys[i], sessions[i], shares[i] = g.Key.UUID, g.Session.UUID, g.Share.UUID
	}
	// AsSystem: the streams of one gateway belong to many workspaces.
	err = s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		numbers, err := collect(ctx, tx, pgx.RowTo[int], `
			SELECT g.n
			FROM unnest(@workspaces::uuid[], @members::uuid[], @roles::text[], @keys::uuid[], @sessions::uuid[], @shares::uuid[])
				WITH ORDINALITY AS g (workspace, member, role, key, session, share, n)
			WHERE NOT EXISTS (
				SELECT FROM members m WHERE m.workspace_id = g.workspace AND m.member_id = g.member
					AND array_position(@ascending::text[], m.role) >= array_position(@ascending::text[], g.role))
			OR g.key <> '00000000-0000-0000-0000-000000000000'
				AND NOT EXISTS (SELECT FROM api_keys k WHERE k.workspace_id = g.workspace AND k.key_id = g.key)
			OR g.session <> '00000000-0000-0000-0000-000000000000'
				AND NOT EXISTS (SELECT FROM browser_sessions b WHERE b.session_id = g.session AND b.expires_at > now())
			OR g.share <> '00000000-0000-0000-0000-000000000000'
				AND NOT EXISTS (SELECT FROM shares s WHERE s.workspace_id = g.workspace AND s.share_id = g.share
					AND (s.expires_at IS NULL OR s.expires_at > now()))`,
			pg.Args{"workspaces": workspaces, "members": members, "roles": roles, "ascending": ascending, "keys": keys, "sessions": sessions, "shares": shares})
		for _, n := range numbers {
			out = append(out, grants[n-1])
		}
		return err
	})
	return out, wrap(err, "check the permissions of open streams")
}
