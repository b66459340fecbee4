package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

// Bounds of membership queries.
const (
	maxRoles    = 256             // lookups in one query
	roleReaders = 2               // concurrent queries
	rolesLimit  = 5 * time.Second // timeout of a query
)

// roles batches lookups of memberships, which come by the thousand when clients of a failed
// gateway reconnect. Lookups that arrive while queries are running wait for the next query.
// A waiting caller becomes a reader when there is room for one, and reads for all that wait.
// Nothing is cached.
type roles struct {
	readers chan struct{} // one element for each running query

	mu      sync.Mutex // guards waiting
	waiting []*lookup
}

func newRoles() *roles { return &roles{readers: make(chan struct{}, roleReaders)} }

// lookup is a request for one membership.
type lookup struct {
	workspace id.Workspace
	member    id.Member

	done chan struct{} // closed when role and err are set
	role identity.Role
	err  error
}

// Role returns a person's role in a workspace, or NoRole without a membership.
func (s *Store) Role(ctx context.Context, ws id.Workspace, m id.Member) (identity.Role, error) {
	l := &lookup{workspace: ws, member: m, done: make(chan struct{})}
	r := s.roles
	r.mu.Lock()
	r.waiting = append(r.waiting, l)
	r.mu.Unlock()
	select {
	case <-l.done:
		return l.role, l.err
	case r.readers <- struct{}{}:
		s.readRoles(ctx)
		<-r.readers
	case <-ctx.Done():
		return identity.NoRole, context.Cause(ctx)
	}
	select {
	case <-l.done: // by this caller or by another reader
		return l.role, l.err
	case <-ctx.Done():
		return identity.NoRole, context.Cause(ctx)
	}
}

// readRoles reads a batch of the waiting lookups. It finishes even if ctx is cancelled.
func (s *Store) readRoles(ctx context.Context) {
	r := s.roles
	r.mu.Lock()
	n := min(len(r.waiting), maxRoles)
	batch := r.waiting[:n:n]
	if r.waiting = r.waiting[n:]; len(r.waiting) == 0 {
		r.waiting = nil
	}
	r.mu.Unlock()
	if n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rolesLimit)
	defer cancel()
	err := s.readBatch(ctx, batch)
	for _, l := range batch {
		if err != nil {
			l.role, l.err = identity.NoRole, fmt.Errorf("look up a membership: %w", err)
		}
		close(l.done)
	}
}

func (s *Store) readBatch(ctx context.Context, batch []*lookup) error {
	workspaces, members := make([]string, len(batch)), make([]string, len(batch))
	for i, l := range batch {
		workspaces[i], members[i] = l.workspace.String(), l.member.String()
	}
	b := &pgx.Batch{}
	b.Queue(`
		SELECT asked.n, m.role FROM unnest(@workspaces::uuid[], @members::uuid[]) WITH ORDINALITY AS asked (workspace_id, member_id, n)
		JOIN members m USING (workspace_id, member_id)`,
		pg.Args{"workspaces": workspaces, "members": members}).Query(func(rows pgx.Rows) error {
		var n int
		var role identity.Role
		_, err := pgx.ForEachRow(rows, []any{&n, scanRole{&role}}, func() error {
			batch[n-1].role = role
			return nil
		})
		return err
	})
	// AsSystem: the lookups concern many workspaces.
	return s.db.ReadAsSystem(ctx, b)
}
