package admin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/rotation"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// sweepEvery is how often a broker completes unfinished key rotations.
const sweepEvery = time.Minute

// Keys names the key-encryption keys apart from the key file.
type Keys struct {
	URL    conf.Secret `env:"CREDENTIAL_BROKER_KEY_URL" doc:"URL of the key that seals stored credentials, at a key service: hashivault://name (with VAULT_SERVER_URL and VAULT_SERVER_TOKEN), awskms://alias/name?region=…, gcpkms://projects/…. It takes precedence over the key file, which then only decrypts what it has sealed. A different spelling of the URL counts as a different key."`
	Others conf.Secret `env:"CREDENTIAL_BROKER_OTHER_KEYS" doc:"Files and URLs of further keys, separated by commas, which decrypt what they have sealed. To change the key without downtime: create a new one (signalbox accounts new-key creates a file) and add it here, in every broker; then swap the two; then run signalbox accounts rotate-keys --wrap-only; then remove the old one."`
}

// Check says what is wrong if there is no key at all.
func (k *Keys) Check(file string) error {
	if file == "" && k.URL == "" {
		return errors.New("CREDENTIAL_BROKER_KEY_FILE is not set: name a file, which is created, or a key service in CREDENTIAL_BROKER_KEY_URL")
	}
	return nil
}

// open opens the keys, which the caller closes; later has the file made when it first seals.
//
//nolint:contextcheck // drivers keep the context for the tokens that they will need: it belongs to no call
func (k *Keys) open(file string, later bool) (vault.Ring, error) {
	n := vault.RingConfig{File: file, URL: k.URL.Reveal(), Later: later}
	for name := range strings.SplitSeq(k.Others.Reveal(), ",") {
		if name = strings.TrimSpace(name); name != "" {
			n.Others = append(n.Others, name)
		}
	}
	ring, err := vault.OpenRing(context.Background(), n)
	if err != nil {
		return ring, fmt.Errorf("open the key of stored credentials: %w", err)
	}
	return ring, nil
}

// CheckKey returns a Conflict fault if everything is sealed with keys that are not at hand:
// no broker could decrypt what would be sealed with this one, so that it is probably the
// wrong key. If nothing is sealed yet, any key is right.
func (a *Accounts) CheckKey(ctx context.Context) error {
	var after *id.Workspace
	other := ""
	for {
		all, err := a.Store.Keyed(ctx, false, after, 1000)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			break
		}
		for _, ws := range all {
			keys, err := a.Store.DataKeys(ctx, ws)
			if err != nil {
				return err
			}
			for _, k := range keys {
				if a.Vault.Knows(k.KEK) {
					return nil
				}
				other = k.KEK
			}
		}
		after = &all[len(all)-1]
	}
	if other == "" {
		return nil
	}
	what := "the key " + a.keys.KEK.ID() + " decrypts none of the stored credentials"
	if f, ok := a.keys.KEK.(*vault.FileKey); ok {
		if path, pending := f.Pending(); pending {
			what = "there is no key file " + path
		}
	}
	return fault.New(fault.Conflict, "%s, and stored credentials are sealed with the key %s: set CREDENTIAL_BROKER_KEY_FILE or CREDENTIAL_BROKER_KEY_URL to the credential broker's key", what, other)
}

// ReportKey logs an error if the key decrypts nothing.
func (a *Accounts) ReportKey(ctx context.Context) {
	if err := a.CheckKey(ctx); fault.KindOf(err) == fault.Conflict {
		a.log.ErrorContext(ctx, "stored accounts cannot be used", "error", err)
	}
}

// NewKeyFile makes a file with a new key, mode 0600, and returns the key's name. An
// existing file is an error.
func NewKeyFile(path string) (name string, err error) {
	k, err := vault.NewFile(path)
	if err != nil {
		return "", err
	}
	return k.ID(), nil
}

// KeyRotation is the progress of a rotation of keys.
type KeyRotation = rotation.Report

// RotateKeys rewraps every data key with the current key and, unless wrapOnly, replaces
// the data keys and seals every secret again, while brokers run. It calls progress,
// if any, after each workspace. After an error it can be called again. It writes a row to the operator's
// audit before it changes anything, and one with the outcome; the first without the second
// is a rotation whose process died.
func (a *Accounts) RotateKeys(ctx context.Context, wrapOnly bool, progress func(KeyRotation)) (KeyRotation, error) {
	ev := a.Operator(id.Workspace{}).event("changed")
	ev.Detail = "key rotation began"
	if wrapOnly {
		ev.Detail += ", rewrapping data keys only"
	}
	if err := a.Store.Record(ctx, ev); err != nil {
		return KeyRotation{}, fmt.Errorf("rotate keys: %w", err)
	}
	done, err := a.rotation.Run(ctx, wrapOnly, progress)
	ended := "keys rotated"
	if err != nil {
		err, ended = fmt.Errorf("rotate keys: %w", err), "keys partly rotated"
	}
	ev.Detail = fmt.Sprintf("%s: %d rewrapped, %d created, %d secrets resealed, %d that cannot be decrypted", ended, done.Wrapped, done.Made, done.Sealed, done.Failed)
	return done, errors.Join(err, a.Store.Record(context.WithoutCancel(ctx), ev))
}

// SweepKeys completes unfinished key rotations, until ctx is done.
func (a *Accounts) SweepKeys(ctx context.Context) {
	failed := 0
	for {
		next := time.NewTimer(sweepEvery/2 + rand.N(sweepEvery)) // spread over the instances
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		}
		report, err := a.rotation.Sweep(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			a.log.WarnContext(ctx, "cannot check retired keys", "error", err)
		case report.Failed != failed && report.Failed > 0:
			a.log.ErrorContext(ctx, "stored credentials cannot be decrypted", "number", report.Failed, "at_key_services", report.Unavailable, "error", report.Failures[0].Err)
		case report.Sealed+report.Removed > 0:
			a.log.InfoContext(ctx, "a key rotation was completed", "sealed", report.Sealed, "keys_removed", report.Removed)
		}
		if err == nil { // else it has not seen everything
			failed = report.Failed
		}
	}
}
