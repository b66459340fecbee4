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

// Bounds of the look-ups of memberships.
const (
	rolesAtOnce = 256             // in a query
	roleReaders = 2               // queries at a time
	rolesLimit  = 5 * time.Second // of a query
)

// roles are the memberships that are being looked up at this moment. Thousands come in
// a moment when another gateway has gone: those that are asked for while some are
// being read are read next, together. Nothing is kept.
//
// Whoever asks reads, for all who wait, or is read for.
type roles struct {
	readers chan struct{} // holds one element for each query in hand

	mu      sync.Mutex // guards waiting
	waiting []*lookup
}

func newRoles() *roles { return &roles{readers: make(chan struct{}, roleReaders)} }

// lookup is the question for one membership.
type lookup struct {
	workspace id.Workspace
	member    id.Member

	done chan struct{} // closed when the rest is set
	role identity.Role
	err  error
}

// Role returns a person's role in a workspace, NoRole when they have none.
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
	case <-l.done: // by this one, or by the other reader
		return l.role, l.err
	case <-ctx.Done():
		return identity.NoRole, context.Cause(ctx)
	}
}

// readRoles reads those that wait, also when the one who came to do it leaves.
func (s *Store) readRoles(ctx context.Context) {
	r := s.roles
	r.mu.Lock()
	n := min(len(r.waiting), rolesAtOnce)
	some := r.waiting[:n:n]
	if r.waiting = r.waiting[n:]; len(r.waiting) == 0 {
		r.waiting = nil
	}
	r.mu.Unlock()
	if n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rolesLimit)
	defer cancel()
	err := s.readSome(ctx, some)
	for _, l := range some {
		if err != nil {
			l.role, l.err = identity.NoRole, fmt.Errorf("look up a membership: %w", err)
		}
		close(l.done)
	}
}

func (s *Store) readSome(ctx context.Context, some []*lookup) error {
	workspaces, members := make([]string, len(some)), make([]string, len(some))
	for i, l := range some {
		workspaces[i], members[i] = l.workspace.String(), l.member.String()
	}
	b := &pgx.Batch{}
	b.Queue(`
		select asked.n, m.role from unnest(@workspaces::uuid[], @members::uuid[]) with ordinality as asked (workspace_id, member_id, n)
		join members m using (workspace_id, member_id)`,
		pg.Args{"workspaces": workspaces, "members": members}).Query(func(rows pgx.Rows) error {
		var (
			n    int
			text string
		)
		_, err := pgx.ForEachRow(rows, []any{&n, &text}, func() (err error) {
			some[n-1].role, err = identity.ParseRole(text)
			return err
		})
		return err
	})
	// AsSystem: they are people of many workspaces.
	return s.db.ReadAsSystem(ctx, b)
}
