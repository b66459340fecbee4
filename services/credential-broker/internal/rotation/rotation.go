// Package rotation replaces the keys that seal secrets while brokers run.
//
// A rotation handles the workspaces one by one (Run); in the file of a single user there is
// one, the operator's:
//
//  1. Each of the workspace's data keys that another key-encryption key has wrapped is
//     wrapped by the present one.
//  2. A new data key is stored, which retires those before it. From then on every broker
//     seals with it, because it reads the newest key each time.
//  3. Every sealed field of an older key version is opened and sealed anew, in batches. A
//     field is written only if it still has the bytes and the version that were read; what a
//     broker has written meanwhile stays.
//  4. Retired keys that no row uses are removed, a minute after they were retired, so that a
//     broker that has just read a row can still open it.
//
// Sweep does the last two for what is retired, and every broker calls it once a minute: that
// completes a rotation that was killed, and reseals what a broker had sealed with the former
// key at the last moment.
//
// If it dies anywhere, nothing is lost: a row names the key version that opens it, both
// change in one statement, and a foreign key keeps each data key as long as a row names it. A
// rotation that is started again begins with new data keys, and replaces those that the first
// one left. Any number may run at once; batches of one workspace wait for each other.
//
// A field that does not open, because it is damaged, its key-encryption key is missing, or a
// key service does not open it now, is reported and left alone, with its data key, and the
// rotation continues. It ends only if the present key does not wrap new data keys.
package rotation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	batch       = 100  // rows sealed anew in one transaction
	page        = 1000 // workspaces read at once
	maxFailures = 100  // that are reported one by one
	passes      = 3    // over a workspace's rows, for what brokers write meanwhile
	grace       = time.Minute
)

// Rotation replaces keys. Its methods may be called concurrently.
type Rotation struct {
	store *store.Store
	vault *vault.Vault
}

// New returns a Rotation of what is stored, with the keys of a Vault.
func New(s *store.Store, v *vault.Vault) *Rotation { return &Rotation{s, v} }

// Report is what a rotation has done so far.
type Report struct {
	Workspaces int `json:"workspaces"` // that it has finished; the shared accounts count as one
	Wrapped    int `json:"wrapped"`    // data keys that were wrapped by another key-encryption key
	Made       int `json:"made"`       // new data keys
	Sealed     int `json:"sealed"`     // fields that were sealed anew
	Removed    int `json:"removed"`    // data keys
	Failed     int `json:"failed"`     // data keys and fields that do not open, and stay as they are
	// Unavailable are those of Failed that a key service may open another time.
	Unavailable int       `json:"away,omitempty"`
	Failures    []Failure `json:"failures,omitempty"` // the first of Failed
}

// Failure is something that does not open. Account is zero for a data key.
type Failure struct {
	Workspace id.Workspace
	Account   id.Account
	Err       error
}

// MarshalJSON writes the error as a reason.
func (f Failure) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Workspace id.Workspace `json:"workspace_id,omitzero"`
		Account   id.Account   `json:"account_id,omitzero"`
		Reason    string       `json:"reason"`
	}{f.Workspace, f.Account, f.Err.Error()})
}

func (r *Report) fail(ws id.Workspace, account id.Account, err error) {
	r.Failed++
	if errors.Is(err, vault.ErrUnavailable) {
		r.Unavailable++
	}
	if len(r.Failures) < maxFailures {
		r.Failures = append(r.Failures, Failure{ws, account, err})
	}
}

// isLocal reports whether an error is about one data key, or what it has sealed, which stays
// as it is while the rotation continues.
func isLocal(err error) bool { return vault.Lasting(err) || errors.Is(err, vault.ErrUnavailable) }

// Run wraps all data keys by the present key-encryption key and, unless wrapOnly, gives every
// workspace a new data key and seals everything with it. It calls progress, if any, after
// each workspace. With an error it has done what the report says, and may be called again.
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

// Sweep seals anew what retired data keys have sealed, and removes those that no row uses.
func (r *Rotation) Sweep(ctx context.Context) (Report, error) {
	var report Report
	err := r.each(ctx, true, func(ws id.Workspace) error {
		report.Workspaces++
		version, err := r.vault.Newest(ctx, ws)
		if isLocal(err) {
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

// each calls fn for the workspaces that have data keys, or retired ones.
func (r *Rotation) each(ctx context.Context, retired bool, fn func(id.Workspace) error) error {
	var after *id.Workspace
	for {
		all, err := r.store.Keyed(ctx, retired, after, page)
		if err != nil || len(all) == 0 {
			return err
		}
		for i := range all {
			if err := fn(all[i]); err != nil {
				if id.IsZero(all[i]) {
					return fmt.Errorf("the shared accounts: %w", err)
				}
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
		k, needed, err := r.vault.Rewrap(ctx, ws, old)
		switch {
		case isLocal(err):
			report.fail(ws, id.Account{}, err)
			continue
		case err != nil:
			return err
		case !needed:
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
	for _, f := range store.SealedFields {
		// The next pass handles what a broker has sealed with the former key meanwhile.
		for pass := range passes {
			changed, err := r.reseal(ctx, ws, f, version, pass == 0, report)
			if err != nil {
				return err
			}
			if !changed {
				break
			}
		}
	}
	removed, err := r.store.RemoveDataKeys(ctx, ws, grace)
	report.Removed += removed
	return err
}

// reseal seals a field of all rows anew. It reports whether rows had changed since they were
// read.
func (r *Rotation) reseal(ctx context.Context, ws id.Workspace, f store.SealedField, version int, first bool, report *Report) (changed bool, err error) {
	var after uuid.UUID
	for {
		rows, err := r.store.SealedBefore(ctx, ws, f, version, after, batch)
		if err != nil || len(rows) == 0 {
			return changed, err
		}
		after = rows[len(rows)-1].Key
		var resealed []store.Resealed
		for _, row := range rows {
			var err error
			next := vault.Sealed{KeyVersion: version, Bytes: row.Bytes}
			if len(row.Bytes) > 0 { // else the account's secret is its grant's
				next, err = r.vault.Reseal(ctx, row.Place, row.Sealed, version)
			}
			switch {
			case isLocal(err):
				if first {
					report.fail(ws, row.Place.Account, err)
				}
			case err != nil:
				return changed, err
			default:
				resealed = append(resealed, store.Resealed{SealedRow: row, Next: next})
			}
		}
		if len(resealed) == 0 {
			continue
		}
		written, err := r.store.Reseal(ctx, ws, f, resealed)
		if err != nil {
			return changed, err
		}
		report.Sealed += written
		changed = changed || written < len(resealed)
	}
}
