package oauth_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/simulator/authserver"
)

// service is a key service that may be away.
type service struct {
	*vault.FileKey
	away atomic.Bool
}

func (s *service) Unwrap(ctx context.Context, wrapped, bound []byte) ([]byte, error) {
	if s.away.Load() {
		return nil, fault.Wrap(vault.ErrUnavailable, fault.Unavailable, "the key service is away")
	}
	return s.FileKey.Unwrap(ctx, wrapped, bound)
}

// served returns a keeper whose key is at a service.
func (w *world) served() (*oauth.Keeper, *service) {
	w.t.Helper()
	file, err := vault.OpenFile(w.keyFile)
	if err != nil {
		w.t.Fatal(err)
	}
	s := &service{FileKey: file}
	return w.keeper(func(c *oauth.Config) { c.Vault = vault.New(s, c.Store) }), s
}

// newDataKey adds a data key, as a rotation does.
func (w *world) newDataKey() {
	w.t.Helper()
	file, err := vault.OpenFile(w.keyFile)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := vault.New(file, w.stored()).NewDataKey(w.t.Context(), w.who.Workspace); err != nil {
		w.t.Fatal(err)
	}
}

// Nothing that is good once is sent while the answer could not be sealed.
func TestNothingIsSentIfUnsealable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true}, rotating)
	k, keys := w.served()
	ref := w.grant(k)
	w.token(k, ref)
	w.expire(ref, k)
	login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Paste})
	if err != nil {
		t.Fatal(err)
	}
	answer := oauth.Answer{Code: w.authorize(login.URL)}
	device, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Device})
	if err != nil {
		t.Fatal(err)
	}
	w.server.Decide(device.UserCode, true)
	w.change(`UPDATE credentials.logins SET poll_at = now()`)
	before := w.server.Calls()

	// The former data key is open, the new one does not open.
	w.newDataKey()
	keys.away.Store(true)
	for what, do := range map[string]func() error{
		"Token()":    func() error { _, err := k.Token(t.Context(), ref); return err },
		"Complete()": func() error { _, err := k.Complete(t.Context(), w.who, answer); return err },
		"Poll()":     func() error { _, err := k.Poll(t.Context(), w.who, device.ID); return err },
	} {
		wantFault(t, what+" while the key service is away", do(), fault.Unavailable, "")
	}
	w.calls(before)
	w.attempts(ref)

	other := w.keeper()
	w.token(other, ref)
	if _, err := other.Complete(t.Context(), w.who, answer); err != nil {
		t.Errorf("Complete() where the key is = %v", err)
	}
	w.change(`UPDATE credentials.logins SET poll_at = now()`)
	if got, err := other.Poll(t.Context(), w.who, device.ID); err != nil || !got.Done {
		t.Errorf("Poll() where the key is = %+v, %v", got, err)
	}
}

// No token is lost when the key service becomes unavailable during a renewal.
func TestKeyServiceUnavailableDuringRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true}, rotating)
	k, keys := w.served()
	ref := w.grant(k)
	w.expire(ref, k)
	w.server.Watch(func(stage string) {
		if stage == "rotated" {
			w.newDataKey()
			keys.away.Store(true)
		}
	})
	if got := w.token(k, ref); got.Version != 2 {
		t.Errorf("Token() has version %d, want 2", got.Version)
	}
	other := w.keeper()
	w.server.Watch(nil)
	w.expire(ref, other)
	w.token(other, ref)
	w.calls(authserver.Calls{Refresh: 2, Refreshed: 2})
}

// An instance without the key leaves the grant to those that have it.
func TestInstanceWithoutTheKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	good := w.keeper()
	ref := w.grant(good)
	bad := w.keeper(func(c *oauth.Config) {
		key, err := vault.OpenFile(filepath.Join(t.TempDir(), "other"))
		if err != nil {
			t.Fatal(err)
		}
		c.Vault = vault.New(key, c.Store)
	})
	w.expire(ref, good, bad)
	before := w.status(ref)
	for range 3 {
		_, err := bad.Token(t.Context(), ref)
		wantFault(t, "Token() without the key", err, fault.Unavailable, "ACCOUNT_UNUSABLE")
		if f := fault.From(err); !errors.Is(err, vault.ErrKeyLost) || !strings.Contains(f.Message, "CREDENTIAL_BROKER_OTHER_KEYS") {
			t.Errorf("Token() without the key says %q, want what the operator does", f.Message)
		}
	}
	if now := w.status(ref); now.LastError != before.LastError || now.State != oauth.Active {
		t.Errorf("the grant is %+v, want it untouched", now)
	}
	w.attempts(ref)
	if n := strings.Count(w.log.String(), "cannot be decrypted, or new"); n != 1 {
		t.Errorf("the log says %d times that tokens do not open, want once a minute:\n%s", n, w.log)
	}
	w.token(good, ref)
	w.attempts(ref, "done")
}

// A token that was changed in the database does not open, and the error says so.
func TestDamagedTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	one, two := w.grant(k), w.grant(k)
	mine := w.who.Workspace
	w.who.Workspace = id.New[id.Workspace]()
	strange := w.grant(k)
	for _, tt := range []struct {
		name, sql string
		args      []any
	}{
		{"another field's", `UPDATE credentials.grants SET access_sealed = refresh_sealed WHERE account_id = $1`, []any{one.Account}},
		{
			"another account's", `UPDATE credentials.grants g SET access_sealed = o.access_sealed FROM credentials.grants o WHERE g.account_id = $1 AND o.account_id = $2`,
			[]any{one.Account, two.Account},
		},
		{
			"another workspace's, with its data key",
			`WITH k AS (UPDATE credentials.data_keys d SET wrapped = s.wrapped FROM credentials.data_keys s WHERE d.workspace_id = $3 AND s.workspace_id = $4 AND s.version = d.version)
			UPDATE credentials.grants g SET access_sealed = o.access_sealed FROM credentials.grants o WHERE g.account_id = $1 AND o.account_id = $2`,
			[]any{one.Account, strange.Account, mine, strange.Workspace},
		},
	} {
		w.change(tt.sql, tt.args...)
		_, err := w.keeper().Token(t.Context(), one)
		wantFault(t, "Token() of "+tt.name, err, fault.Unavailable, "ACCOUNT_UNUSABLE")
		if f := fault.From(err); !strings.Contains(f.Message, "sealed bytes were changed") {
			t.Errorf("Token() of %s says %q", tt.name, f.Message)
		}
	}
}
