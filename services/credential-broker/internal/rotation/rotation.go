package rotation

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	batch       = 100  // rows sealed anew in one transaction
	page        = 1000 // workspaces read at once
	maxFailures = 100  // that are told one by one
	passes      = 3    // over a workspace's rows, for what brokers write meanwhile
	grace       = time.Minute
)

// Rotation replaces keys. Its methods may be called at once.
type Rotation struct {
	db    *pg.DB
	store *store.Store
	vault *vault.Vault
	grace time.Duration
}

// New returns a Rotation over the tables, with the keys of a Vault.
func New(db *pg.DB, s *store.Store, v *vault.Vault) *Rotation {
	return &Rotation{db: db, store: s, vault: v, grace: grace}
}

// Report is what a rotation has done so far.
type Report struct {
	Workspaces int // that have been gone through
	Wrapped    int // data keys that have got another key-encryption key
	Made       int // new data keys
	Sealed     int // fields that were sealed anew
	Removed    int // data keys
	Failed     int // data keys and fields that do not open
	// Failures are the first of them.
	Failures []Failure
}

// Failure is something that does not open. Account is zero for a data key.
type Failure struct {
	Workspace id.Workspace
	Account   id.Account
	Err       error
}

func (r *Report) fail(ws id.Workspace, account id.Account, err error) {
	r.Failed++
	if len(r.Failures) < maxFailures {
		r.Failures = append(r.Failures, Failure{ws, account, err})
	}
}

// Run wraps all data keys by the present key-encryption key and, unless wrapOnly, gives
// every workspace a new data key and seals everything with it. It calls progress, if
// any, after each workspace. With an error it has done what the report says, and may
// be called again.
func (r *Rotation) Run(ctx context.Context, wrapOnly bool, progress func(Report)) (Report, error) {
	var report Report
	err := r.each(ctx, false, func(ws id.Workspace) error {
		err := r.wrap(ctx, ws, &report)
		if err == nil && !wrapOnly {
			err = r.renew(ctx, ws, &report)
		}
		if err != nil {
			return err
		}
		report.Workspaces++
		if progress != nil {
			progress(report)
		}
		return nil
	})
	return report, err
}

// Sweep seals anew what retired data keys have sealed, and removes those that no row
// uses.
func (r *Rotation) Sweep(ctx context.Context) (Report, error) {
	var report Report
	err := r.each(ctx, true, func(ws id.Workspace) error {
		report.Workspaces++
		version, err := r.vault.Newest(ctx, ws)
		if vault.Lasting(err) {
			report.fail(ws, id.Account{}, err) // another broker has its key
			return nil
		}
		if err != nil {
			return err
		}
		return r.finish(ctx, ws, version, &report)
	})
	return report, err
}

// each calls fn for the workspaces that have data keys, or of which one is retired.
func (r *Rotation) each(ctx context.Context, retired bool, fn func(id.Workspace) error) error {
	var after *id.Workspace
	for {
		all, err := r.store.Keyed(ctx, retired, after, page)
		if err != nil || len(all) == 0 {
			return err
		}
		for i := range all {
			if err := fn(all[i]); err != nil {
				return fmt.Errorf("workspace %s: %w", all[i], err)
			}
			after = &all[i]
		}
	}
}

// wrap wraps a workspace's data keys by the present key-encryption key.
func (r *Rotation) wrap(ctx context.Context, ws id.Workspace, report *Report) error {
	all, err := r.store.DataKeys(ctx, ws)
	if err != nil {
		return err
	}
	for _, old := range all {
		k, need, err := r.vault.Rewrap(ctx, ws, old)
		switch {
		case vault.Lasting(err):
			report.fail(ws, id.Account{}, err)
			continue
		case err != nil:
			return err
		case !need:
			continue
		}
		done, err := r.store.Rewrap(ctx, ws, old, k)
		if err != nil {
			return err
		}
		if done {
			report.Wrapped++
		}
	}
	return nil
}

// renew gives a workspace a new data key.
func (r *Rotation) renew(ctx context.Context, ws id.Workspace, report *Report) error {
	version, err := r.vault.NewDataKey(ctx, ws)
	if err != nil {
		return err
	}
	report.Made++
	return r.finish(ctx, ws, version, report)
}

// finish seals what is older than a version anew with it, and removes retired keys.
func (r *Rotation) finish(ctx context.Context, ws id.Workspace, version int, report *Report) error {
	for _, f := range fields {
		// What a broker has sealed with the former key meanwhile comes with the next pass.
		for pass := range passes {
			changed, err := r.reseal(ctx, ws, &f, version, pass == 0, report)
			if err != nil {
				return err
			}
			if !changed {
				break
			}
		}
	}
	return r.remove(ctx, ws, report)
}

// reseal seals a field of all rows anew. It reports whether rows had changed since
// they were read.
func (r *Rotation) reseal(ctx context.Context, ws id.Workspace, f *field, version int, tell bool, report *Report) (changed bool, err error) {
	var after uuid.UUID
	for {
		rows, err := r.read(ctx, ws, f, version, after)
		if err != nil || len(rows) == 0 {
			return changed, err
		}
		after = rows[len(rows)-1].Key
		args, n, err := r.sealAll(ctx, ws, f, version, rows, tell, report)
		if err != nil {
			return changed, err
		}
		if n == 0 {
			continue
		}
		written, err := r.write(ctx, ws, f, args)
		if err != nil {
			return changed, err
		}
		report.Sealed += written
		changed = changed || written < n
	}
}

func (r *Rotation) read(ctx context.Context, ws id.Workspace, f *field, version int, after uuid.UUID) (all []row, err error) {
	err = r.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, f.behind(), pg.Args{"workspace": ws, "version": version, "after": after, "n": batch})
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[row])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what is sealed in %s: %w", f.table, err)
	}
	return all, nil
}

// sealAll returns the arguments that write rows anew, and how many there are.
func (r *Rotation) sealAll(ctx context.Context, ws id.Workspace, f *field, version int, rows []row, tell bool, report *Report) (pg.Args, int, error) {
	var keys []uuid.UUID
	var olds, news [][]byte
	var versions []int
	for i := range rows {
		now := rows[i].Sealed // empty where the account's secret is its grant's
		if len(now) > 0 {
			sealed, err := r.vault.Reseal(ctx, f.place(ws, &rows[i]), vault.Sealed{KeyVersion: rows[i].Version, Bytes: now}, version)
			if vault.Lasting(err) {
				if tell {
					report.fail(ws, rows[i].Account, err)
				}
				continue
			}
			if err != nil {
				return nil, 0, err
			}
			now = sealed.Bytes
		}
		keys, olds, news = append(keys, rows[i].Key), append(olds, rows[i].Sealed), append(news, now)
		versions = append(versions, rows[i].Version)
	}
	return pg.Args{"workspace": ws, "version": version, "keys": keys, "olds": olds, "versions": versions, "news": news}, len(keys), nil
}

func (r *Rotation) write(ctx context.Context, ws id.Workspace, f *field, args pg.Args) (written int, err error) {
	err = r.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		// Two rotations could lock the same rows in different orders.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('key rotation ' || $1, 0))`, ws.String()); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, f.swap(), args)
		written = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("write what was sealed anew in %s: %w", f.table, err)
	}
	return written, nil
}

// remove deletes a workspace's retired data keys that no row uses.
func (r *Rotation) remove(ctx context.Context, ws id.Workspace, report *Report) error {
	err := r.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			DELETE FROM data_keys AS k WHERE workspace_id = @workspace AND retired_at <= now() - @grace::interval AND `+unused(),
			pg.Args{"workspace": ws, "grace": r.grace})
		report.Removed += int(tag.RowsAffected())
		return err
	})
	if err != nil && !pg.IsForeignKeyViolation(err, "") { // a row has just come to use it: later, then
		return fmt.Errorf("remove retired data keys: %w", err)
	}
	return nil
}
