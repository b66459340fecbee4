package credentialbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/rotation"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// sweepEvery is how often a broker finishes what key rotations have left.
const sweepEvery = time.Minute

// Keys names the key-encryption keys beside the key file.
type Keys struct {
	URL    conf.Secret `env:"CREDENTIAL_BROKER_KEY_URL" doc:"URL of the key that seals stored credentials, at a key service: hashivault://name (with VAULT_SERVER_URL and VAULT_SERVER_TOKEN), awskms://alias/name?region=…, gcpkms://projects/…. It goes before the key file, which then only opens what it has sealed. Another spelling counts as another key."`
	Others conf.Secret `env:"CREDENTIAL_BROKER_OTHER_KEYS" doc:"Files and URLs of more keys, separated by commas, that open what they have sealed. To change the key while all runs: make a new one (signalbox accounts new-key makes a file) and name it here, in every broker; then exchange the two; then run signalbox accounts rotate-keys --wrap-only; then take the former away."`
}

// check says whether there is a key at all.
func (k *Keys) check(file string) error {
	if file == "" && k.URL == "" {
		return errors.New("CREDENTIAL_BROKER_KEY_FILE is not set: name a file, which is made, or a key service in CREDENTIAL_BROKER_KEY_URL")
	}
	return nil
}

// open opens the keys; later has the file made when it is first sealed with. The caller
// closes them.
//
//nolint:contextcheck // drivers keep the context for the tokens that they will need: it is no call's
func (k *Keys) open(file string, later bool) (vault.Ring, error) {
	n := vault.Named{File: file, URL: k.URL.Reveal(), Later: later}
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

// CheckKey refuses to go on where everything is sealed with keys that are not at hand:
// no broker could open what would be sealed. It is for who may have named a wrong key.
// Where nothing is sealed, every key is right.
func (a *Accounts) CheckKey(ctx context.Context) error {
	var after *id.Workspace
	other := ""
	for {
		all, err := a.store.Keyed(ctx, false, after, 1000)
		if err != nil {
			return err
		}
		for i := range all {
			keys, err := a.store.DataKeys(ctx, all[i])
			if err != nil {
				return err
			}
			for _, k := range keys {
				if a.vault.Knows(k.KEK) {
					return nil
				}
				other = k.KEK
			}
			after = &all[i]
		}
		if len(all) == 0 {
			break
		}
	}
	if other == "" {
		return nil
	}
	what := "the key " + a.keys.KEK.ID() + " opens nothing of what is stored here"
	if f, ok := a.keys.KEK.(*vault.FileKey); ok {
		if path, unmade := f.Unmade(); unmade {
			what = "there is no key file " + path
		}
	}
	return fault.New(fault.Conflict, "%s, and stored credentials are sealed with the key %s: name the credential broker's own in CREDENTIAL_BROKER_KEY_FILE or CREDENTIAL_BROKER_KEY_URL", what, other)
}

// tellKey tells operators where the key opens nothing.
func (a *Accounts) tellKey(ctx context.Context, log *slog.Logger) {
	if err := a.CheckKey(ctx); fault.KindOf(err) == fault.Conflict {
		log.ErrorContext(ctx, "stored accounts cannot be used", "error", err)
	}
}

// NewKeyFile makes a file with a new key, mode 0600, and returns the key's name. Where
// there is something at path it is an error.
func NewKeyFile(path string) (name string, err error) {
	k, err := vault.NewFile(path)
	if err != nil {
		return "", err
	}
	return k.ID(), nil
}

// KeyRotation is what a rotation of keys has done so far.
type KeyRotation struct {
	// Workspaces have been gone through; the operator's shared accounts are one.
	Workspaces int `json:"workspaces"`
	// Wrapped are data keys that the present key has wrapped anew.
	Wrapped int `json:"wrapped"`
	// Made are new data keys, Sealed the secrets that were sealed anew with them.
	Made   int `json:"made"`
	Sealed int `json:"sealed"`
	// Removed are former data keys that nothing uses.
	Removed int `json:"removed"`
	// Failed is how much does not open, and was left as it is; Failures are the first
	// of it. Away is how much of that a key service may open another time.
	Failed   int          `json:"failed"`
	Away     int          `json:"away,omitempty"`
	Failures []KeyFailure `json:"failures,omitempty"`
}

// KeyFailure is something that does not open.
type KeyFailure struct {
	// Workspace is empty for the operator's, Account for a data key.
	Workspace string `json:"workspace_id,omitempty"`
	Account   string `json:"account_id,omitempty"`
	Reason    string `json:"reason"`
}

// RotateKeys wraps every data key with the present key and, unless wrapOnly, replaces
// the data keys themselves and seals every secret anew, while brokers run. It calls
// progress, if any, after each workspace. With an error it may be called again. The
// operator's audit has a row from before anything is changed, and one that says what was: one
// without the other is a rotation that died.
func (a *Accounts) RotateKeys(ctx context.Context, wrapOnly bool, progress func(KeyRotation)) (KeyRotation, error) {
	tell := func(rotation.Report) {}
	if progress != nil {
		tell = func(r rotation.Report) { progress(describeRotation(r)) }
	}
	ev := a.Operator(id.Workspace{}).event("changed")
	ev.Detail = "rotation of keys began"
	if wrapOnly {
		ev.Detail += ", of what wraps data keys alone"
	}
	if err := a.store.Record(ctx, ev); err != nil {
		return KeyRotation{}, fmt.Errorf("rotate keys: %w", err)
	}
	report, err := a.rotation.Run(ctx, wrapOnly, tell)
	ended := "keys rotated"
	if err != nil {
		err, ended = fmt.Errorf("rotate keys: %w", err), "keys rotated in part"
	}
	done := describeRotation(report)
	ev.Detail = fmt.Sprintf("%s: %d wrapped anew, %d made, %d secrets sealed anew, %d that do not open", ended, done.Wrapped, done.Made, done.Sealed, done.Failed)
	return done, errors.Join(err, a.store.Record(context.WithoutCancel(ctx), ev))
}

func describeRotation(r rotation.Report) KeyRotation {
	out := KeyRotation{Workspaces: r.Workspaces, Wrapped: r.Wrapped, Made: r.Made, Sealed: r.Sealed, Removed: r.Removed, Failed: r.Failed, Away: r.Away}
	for _, f := range r.Failures {
		said := KeyFailure{Reason: f.Err.Error()}
		if !id.IsZero(f.Workspace) {
			said.Workspace = f.Workspace.String()
		}
		if !id.IsZero(f.Account) {
			said.Account = f.Account.String()
		}
		out.Failures = append(out.Failures, said)
	}
	return out
}

// closeKeys lets go of the key services. There is nothing to be done about an error.
func (a *Accounts) closeKeys() { _ = a.keys.Close() }

// sweepKeys finishes what key rotations have left, until ctx is done.
func (a *Accounts) sweepKeys(ctx context.Context, log *slog.Logger) {
	failed := 0
	for {
		next := time.NewTimer(sweepEvery/2 + rand.N(sweepEvery)) // each instance at a moment of its own
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		}
		report, err := a.rotation.Sweep(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			log.WarnContext(ctx, "retired keys not looked at", "error", err)
		case report.Failed != failed && report.Failed > 0:
			log.ErrorContext(ctx, "stored credentials do not open", "number", report.Failed, "at_key_services", report.Away, "error", report.Failures[0].Err)
		case report.Sealed+report.Removed > 0:
			log.InfoContext(ctx, "a rotation of keys was finished", "sealed", report.Sealed, "keys_removed", report.Removed)
		}
		if err == nil { // else it has not seen all
			failed = report.Failed
		}
	}
}
