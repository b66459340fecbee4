package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
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

// KeyPrefix is what every API key begins with.
const KeyPrefix = "sb_"

// KeyID names an API key.
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

// Holder is for whom a key speaks.
type Holder struct {
	Key       KeyID
	Workspace id.Workspace
	Member    id.Member
	Role      identity.Role // the lower one of the key's and its maker's
}

// CreateKey makes an API key and returns its secret, which nobody can see again.
// An id that is taken is a Conflict.
func (s *Store) CreateKey(ctx context.Context, ws id.Workspace, k Key) (Key, conf.Secret, error) {
	var random [32]byte
	rand.Read(random[:]) // never fails
	secret := KeyPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	hash := sha256.Sum256([]byte(secret))
	k.Hint = secret[:len(KeyPrefix)+6]
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			insert into api_keys (workspace_id, key_id, hash, hint, name, role, created_by)
			values (@workspace, @key, @hash, @hint, @name, @role, @member)
			on conflict (workspace_id, key_id) do nothing
			returning key_id, name, hint, role, created_by, created_at`,
			pg.Args{"workspace": ws, "key": k.ID, "hash": hash[:], "hint": k.Hint, "name": k.Name, "role": k.Role.String(), "member": k.CreatedBy})
		if err != nil {
			return err
		}
		k, err = pgx.CollectExactlyOneRow(rows, scanKey)
		if pg.NoRows(err) {
			return fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this Idempotency-Key has made an API key, whose secret is not shown again: revoke that key, and make another with another Idempotency-Key")
		}
		return err
	})
	if err != nil {
		return Key{}, "", fmt.Errorf("create an API key: %w", err)
	}
	return k, conf.Secret(secret), nil
}

func scanKey(row pgx.CollectableRow) (k Key, err error) {
	var role string
	if err = row.Scan(&k.ID, &k.Name, &k.Hint, &role, &k.CreatedBy, &k.CreatedAt); err == nil {
		k.Role, err = identity.ParseRole(role)
	}
	return k, err
}

// Keys returns a workspace's API keys, oldest first.
func (s *Store) Keys(ctx context.Context, ws id.Workspace, p Page) ([]Key, error) {
	var out []Key
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			select key_id, name, hint, role, created_by, created_at from api_keys
			where workspace_id = @workspace and (created_at, key_id) > (@after, @id)
			order by created_at, key_id limit @limit`,
			pg.Args{"workspace": ws, "after": p.After, "id": p.ID, "limit": p.Limit})
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, scanKey)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	return out, nil
}

// DeleteKey revokes a key at once.
func (s *Store) DeleteKey(ctx context.Context, ws id.Workspace, k KeyID) error {
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `delete from api_keys where workspace_id = @workspace and key_id = @key`,
			pg.Args{"workspace": ws, "key": k})
		if err == nil && tag.RowsAffected() == 0 {
			return fault.New(fault.NotFound, "no such key")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete an API key: %w", err)
	}
	return nil
}

// Holder returns for whom a key's secret speaks; false when it is nobody's.
func (s *Store) Holder(ctx context.Context, secret conf.Secret) (Holder, bool, error) {
	if !strings.HasPrefix(secret.Reveal(), KeyPrefix) {
		return Holder{}, false, nil
	}
	hash := sha256.Sum256([]byte(secret.Reveal()))
	var h Holder
	var key, member string
	// As the system: the workspace is what the look-up is to find out.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			select k.key_id, k.workspace_id, k.created_by, k.role, m.role
			from api_keys k join members m on m.workspace_id = k.workspace_id and m.member_id = k.created_by
			where k.hash = @hash`, pg.Args{"hash": hash[:]}).Scan(&h.Key, &h.Workspace, &h.Member, &key, &member)
	})
	if pg.NoRows(err) {
		return Holder{}, false, nil
	}
	if err != nil {
		return Holder{}, false, fmt.Errorf("look up an API key: %w", err)
	}
	ours, err := identity.ParseRole(key)
	if err != nil {
		return Holder{}, false, err
	}
	theirs, err := identity.ParseRole(member)
	if err != nil {
		return Holder{}, false, err
	}
	h.Role = min(ours, theirs)
	return h, true, nil
}

// Grant is what an open stream rests on: a membership with at least a role and, where
// the stream was opened with a key, that key.
type Grant struct {
	Workspace id.Workspace
	Member    id.Member
	Role      identity.Role
	Key       KeyID // zero for none
}

// rising are the roles, each of which may do what those before it may.
var rising = []string{identity.Viewer.String(), identity.Editor.String(), identity.Owner.String()}

// Ended returns those of the grants that do not hold any more.
func (s *Store) Ended(ctx context.Context, grants []Grant) ([]Grant, error) {
	workspaces, members, keys := make([]uuid.UUID, len(grants)), make([]uuid.UUID, len(grants)), make([]uuid.UUID, len(grants))
	roles := make([]string, len(grants))
	for i, g := range grants {
		workspaces[i], members[i], roles[i], keys[i] = g.Workspace.UUID, g.Member.UUID, g.Role.String(), g.Key.UUID
	}
	var out []Grant
	// As the system: the streams of one gateway belong to many workspaces.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			select g.place
			from unnest(@workspaces::uuid[], @members::uuid[], @roles::text[], @keys::uuid[]) with ordinality as g (workspace, member, role, key, place)
			where not exists (
				select from members m where m.workspace_id = g.workspace and m.member_id = g.member
					and array_position(@rising::text[], m.role) >= array_position(@rising::text[], g.role))
			or g.key <> '00000000-0000-0000-0000-000000000000'
				and not exists (select from api_keys k where k.workspace_id = g.workspace and k.key_id = g.key)`,
			pg.Args{"workspaces": workspaces, "members": members, "roles": roles, "rising": rising, "keys": keys})
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Grant, error) {
			var place int
			err := row.Scan(&place)
			if err != nil {
				return Grant{}, err
			}
			return grants[place-1], nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("check what open streams rest on: %w", err)
	}
	return out, nil
}
