package rotation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/accountfile"
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

// Keys are the wrapped data keys: a store.Store, or a store.File, whose methods these are.
type Keys interface {
	Keyed(ctx context.Context, retired bool, after *id.Workspace, n int) ([]id.Workspace, error)
	DataKeys(ctx context.Context, ws id.Workspace) ([]vault.WrappedKey, error)
	Rewrap(ctx context.Context, ws id.Workspace, old, k vault.WrappedKey) (done bool, err error)
}

// tables is where sealed fields are: a database (postgres), or the file of a single user
// (inFile).
type tables interface {
	// read reads rows of older versions than one, in order, behind a key.
	read(ctx context.Context, ws id.Workspace, f *field, version int, after uuid.UUID) ([]row, error)
	// write writes rows that are as they were read, and returns how many were.
	write(ctx context.Context, ws id.Workspace, f *field, version int, rows []resealed) (written int, err error)
	// remove deletes a workspace's data keys that were retired a while ago and that no row
	// uses.
	remove(ctx context.Context, ws id.Workspace, grace time.Duration) (removed int, err error)
}

// Rotation replaces keys. Its methods may be called at once.
type Rotation struct {
	tables tables
	store  Keys
	vault  *vault.Vault
	grace  time.Duration
}

// New returns a Rotation over the tables of a database, with the keys of a Vault.
func New(db *pg.DB, s *store.Store, v *vault.Vault) *Rotation {
	return &Rotation{tables: postgres{db}, store: s, vault: v, grace: grace}
}

// InFile is New for the file of a single user.
func InFile(file *accountfile.File, s *store.File, v *vault.Vault) *Rotation {
	return &Rotation{tables: inFile{file}, store: s, vault: v, grace: grace}
}

// Report is what a rotation has done so far.
type Report struct {
	Workspaces int // that have been gone through
	Wrapped    int // data keys that have got another key-encryption key
	Made       int // new data keys
	Sealed     int // fields that were sealed anew
	Removed    int // data keys
	Failed     int // data keys and fields that do not open
	Away       int // of those, what a key service may open another time
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
	if errors.Is(err, vault.ErrAway) {
		r.Away++
	}
	if len(r.Failures) < maxFailures {
		r.Failures = append(r.Failures, Failure{ws, account, err})
	}
}

// stays reports whether an error is about one data key, or what it has sealed, which
// stays as it is.
func stays(err error) bool { return vault.Lasting(err) || errors.Is(err, vault.ErrAway) }

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
		if stays(err) {
			report.fail(ws, id.Account{}, err) // another broker may have its key
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
				return fmt.Errorf("%s: %w", whose(all[i]), err)
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
		case stays(err):
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
	removed, err := r.tables.remove(ctx, ws, r.grace)
	report.Removed += removed
	return err
}

// reseal seals a field of all rows anew. It reports whether rows had changed since
// they were read.
func (r *Rotation) reseal(ctx context.Context, ws id.Workspace, f *field, version int, tell bool, report *Report) (changed bool, err error) {
	var after uuid.UUID
	for {
		rows, err := r.tables.read(ctx, ws, f, version, after)
		if err != nil || len(rows) == 0 {
			return changed, err
		}
		after = rows[len(rows)-1].Key
		sealed, err := r.sealAll(ctx, ws, f, version, rows, tell, report)
		if err != nil {
			return changed, err
		}
		if len(sealed) == 0 {
			continue
		}
		written, err := r.tables.write(ctx, ws, f, version, sealed)
		if err != nil {
			return changed, err
		}
		report.Sealed += written
		changed = changed || written < len(sealed)
	}
}

// resealed is a row and what it is to hold.
type resealed struct {
	row
	now []byte
}

// sealAll returns the rows that can be written anew.
func (r *Rotation) sealAll(ctx context.Context, ws id.Workspace, f *field, version int, rows []row, tell bool, report *Report) ([]resealed, error) {
	var all []resealed
	for i := range rows {
		now := rows[i].Sealed // empty where the account's secret is its grant's
		if len(now) > 0 {
			sealed, err := r.vault.Reseal(ctx, f.place(ws, &rows[i]), vault.Sealed{KeyVersion: rows[i].Version, Bytes: now}, version)
			if stays(err) {
				if tell {
					report.fail(ws, rows[i].Account, err)
				}
				continue
			}
			if err != nil {
				return nil, err
			}
			now = sealed.Bytes
		}
		all = append(all, resealed{rows[i], now})
	}
	return all, nil
}

func whose(ws id.Workspace) string {
	if id.IsZero(ws) {
		return "the shared accounts"
	}
	return "workspace " + ws.String()
}
