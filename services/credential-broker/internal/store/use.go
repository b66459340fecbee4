package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Use is that an account was used in a session.
type Use struct {
	Workspace id.Workspace // that used it
	At        time.Time
	// Again says that its first use in the session is on record: it is only used later.
	Again bool
	// Of the Event, Action and Detail are filled in.
	Event
}

// late is how long after it happened a use is written for its row to say when that was:
// the row's own time is when it was written.
const late = 2 * time.Second

// Used records uses, once for each account and session, and sets when accounts were last
// used; all or nothing. Writing them again changes nothing.
func (s *Store) Used(ctx context.Context, all []Use) error {
	// As the system: an account may be the operator's, which a workspace cannot write.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		// All take their locks in this order: the accounts, then the ends of the chains.
		for _, u := range lastUses(all) {
			b.Queue(`
				UPDATE accounts SET last_used_at = least(@at, now()) WHERE workspace_id IN (@workspace, `+shared+`) AND id = @account
					AND (last_used_at IS NULL OR last_used_at < @at)`, pg.Args{"workspace": u.Workspace, "account": u.Account, "at": u.At})
		}
		for _, u := range inChains(all) {
			if u.Again {
				continue
			}
			ev := u.Event
			ev.Action = "used"
			if time.Since(u.At) > late {
				ev.Detail = "at " + u.At.UTC().Format(time.RFC3339)
			}
			args, err := auditArgs(u.Workspace, ev)
			if err != nil {
				return err
			}
			b.Queue(insertAudit, args)
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("record uses of accounts: %w", err)
	}
	return nil
}

// lastUses returns the newest use of each account, by its id.
func lastUses(all []Use) []Use {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Use) int {
		return cmp.Or(bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]), b.At.Compare(a.At))
	})
	return slices.CompactFunc(all, func(a, b Use) bool { return a.Account == b.Account })
}

// inChains returns uses by workspace, and of each in their order.
func inChains(all []Use) []Use {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Use) int {
		return cmp.Or(bytes.Compare(a.Workspace.UUID[:], b.Workspace.UUID[:]), a.At.Compare(b.At))
	})
	return all
}
