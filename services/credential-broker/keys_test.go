package credentialbroker_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "gocloud.dev/secrets/localsecrets" // The scheme of keyInURL.

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pgtest"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
)

const keyInURL = "base64key://smGbjm71Nxd1Ig5FS0wj9SlbzAIrnolCz9bQQ6uAhl4="

// A change from a key file to a key service, while a broker with both runs.
func TestKeyFileToService(t *testing.T) {
	t.Parallel()
	m := credentialbroker.Migrations()
	db := pgtest.New(t, m).Open(t, m)
	file := filepath.Join(t.TempDir(), "key")
	open := func(file string, k admin.Keys) *admin.Accounts {
		t.Helper()
		a, err := admin.Open(admin.Config{DB: db, KeyFile: file, Keys: k, AllowPrivate: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		return a
	}
	before := open(file, admin.Keys{})
	if _, err := before.Operator(id.Workspace{}).Add(t.Context(), admin.NewAccount{Provider: "openai", Secret: conf.Secret("sk-" + canary)}); err != nil {
		t.Fatal(err)
	}
	both := open(file, admin.Keys{URL: keyInURL})
	steps := 0
	got, err := both.RotateKeys(t.Context(), false, func(admin.KeyRotation) { steps++ })
	if diff := cmp.Diff(admin.KeyRotation{Workspaces: 1, Wrapped: 1, Made: 1, Sealed: 1}, got); diff != "" || err != nil || steps != 1 {
		t.Errorf("RotateKeys: %v, %d steps (-want +got):\n%s", err, steps, diff)
	}
	if rows := audit(t, both.Operator(id.Workspace{})); !strings.HasSuffix(rows[0], ": keys rotated: 1 rewrapped, 1 created, 1 secrets resealed, 0 that cannot be decrypted") {
		t.Errorf("the audit ends with %q, want the rotation", rows[0])
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got, err := open("", admin.Keys{URL: keyInURL}).RotateKeys(t.Context(), false, nil); err != nil || got.Failed != 0 || got.Sealed != 1 {
		t.Errorf("RotateKeys without the file = %+v, %v", got, err)
	}
	got, err = open(filepath.Join(t.TempDir(), "other"), admin.Keys{}).RotateKeys(t.Context(), true, nil)
	if err != nil || got.Failed == 0 || !strings.Contains(got.Failures[0].Err.Error(), "sealed with another key") || got.Failures[0].Workspace != (id.Workspace{}) {
		t.Errorf("RotateKeys with a strange key = %+v, %v, want failures", got, err)
	}
}

// A rotation is recorded before it changes anything, and its outcome afterwards, even if it
// was interrupted.
func TestRotationOnRecord(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		inFile bool
		scopes []id.Workspace
		want   []string
	}{
		"in a database": {false, []id.Workspace{{}, id.New[id.Workspace]()}, []string{
			"keys rotated: 0 rewrapped, 2 created, 2 secrets resealed, 0 that cannot be decrypted", "key rotation began",
			"keys partly rotated: 0 rewrapped, 1 created, 1 secrets resealed, 0 that cannot be decrypted", "key rotation began",
			"keys rotated: 0 rewrapped, 0 created, 0 secrets resealed, 0 that cannot be decrypted", "key rotation began, rewrapping data keys only",
		}},
		"in a file": {true, []id.Workspace{{}}, []string{
			"keys rotated: 0 rewrapped, 1 created, 1 secrets resealed, 0 that cannot be decrypted", "key rotation began",
			"keys rotated: 0 rewrapped, 1 created, 1 secrets resealed, 0 that cannot be decrypted", "key rotation began",
			"keys rotated: 0 rewrapped, 0 created, 0 secrets resealed, 0 that cannot be decrypted", "key rotation began, rewrapping data keys only",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &broker{t: t, keyFile: filepath.Join(t.TempDir(), "key")}
			var file string
			if tt.inFile {
				file = filepath.Join(t.TempDir(), "accounts.json")
			} else {
				m := credentialbroker.Migrations()
				b.db = pgtest.New(t, m).Open(t, m)
			}
			accounts := b.operator(func(c *admin.Config) { c.File = file })
			for _, ws := range tt.scopes {
				if _, err := accounts.Operator(ws).Add(t.Context(), admin.NewAccount{Provider: "openai", Secret: conf.Secret("sk-" + canary)}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := accounts.RotateKeys(t.Context(), true, nil); err != nil {
				t.Fatal(err)
			}
			// The process dies here.
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			dies := func(k admin.KeyRotation) {
				if rows := audit(t, accounts.Operator(id.Workspace{})); !strings.HasSuffix(rows[0], tt.want[3]) {
					t.Errorf("after %d workspaces the audit ends with %q, want %q", k.Workspaces, rows[0], tt.want[3])
				}
				if len(tt.scopes) > 1 {
					stop()
				}
			}
			if _, err := accounts.RotateKeys(ctx, false, dies); (err != nil) != (len(tt.scopes) > 1) {
				t.Errorf("RotateKeys that is stopped before it is at its end = %v", err)
			}
			if _, err := accounts.RotateKeys(t.Context(), false, nil); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, row := range audit(t, accounts.Operator(id.Workspace{})) {
				if what, ok := strings.CutPrefix(row, "changed by cli from ann@desk: "); ok {
					got = append(got, what)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("the audit (-want +got):\n%s", diff)
			}
			if v, err := accounts.VerifyAudit(t.Context(), nil); err != nil || len(v.Problems) > 0 {
				t.Errorf("VerifyAudit = %+v, %v, want nothing wrong", v, err)
			}
		})
	}
}

// TestStrangeKey: a broker whose key decrypts nothing serves, and logs it at once.
func TestStrangeKey(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	if _, err := b.operator(nil).Operator(id.Workspace{}).Add(t.Context(), admin.NewAccount{Provider: "openai", Secret: conf.Secret("sk-" + canary)}); err != nil {
		t.Fatal(err)
	}
	strange := &broker{t: t, db: b.db, keyFile: filepath.Join(t.TempDir(), "other.key"), log: &lines{}, done: make(chan error, 1)}
	strange.serve(credentialbroker.Config{})
	again := &broker{t: t, db: b.db, keyFile: b.keyFile, log: &lines{}, done: make(chan error, 1)}
	again.serve(credentialbroker.Config{})
	const said = `"level":"ERROR","msg":"stored accounts cannot be used"`
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(strange.log.String(), said); {
		if time.Now().After(deadline) {
			t.Fatalf("the log is %s, want that the key opens nothing", strange.log)
		}
		<-time.After(10 * time.Millisecond)
	}
	if strings.Contains(again.log.String(), said) {
		t.Errorf("with the right key the log is %s", again.log)
	}
}

func TestKeySettings(t *testing.T) {
	t.Parallel()
	needed := []string{"DATABASE_URL=postgres://x", "TRUSTED_KEYS=gateway=x"}
	for _, tt := range []struct{ in, want string }{
		{"CREDENTIAL_BROKER_KEY_FILE=/k", ""},
		{"CREDENTIAL_BROKER_KEY_URL=" + keyInURL, ""},
		{"CREDENTIAL_BROKER_OTHER_KEYS=/k", "CREDENTIAL_BROKER_KEY_FILE is not set: name a file"},
	} {
		var cfg credentialbroker.Config
		err := conf.Load(&cfg, append(needed, tt.in))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.in, err, tt.want)
		}
	}
	for _, others := range []conf.Secret{"nosuch://x", "/none, " + keyInURL} {
		_, err := admin.Open(admin.Config{KeyFile: filepath.Join(t.TempDir(), "k"), Keys: admin.Keys{Others: others}})
		if err == nil || !strings.Contains(err.Error(), "other key 1: there is no key ") || strings.Contains(err.Error(), "smGb") {
			t.Errorf("OTHER_KEYS=%s: %v", others.Reveal(), err)
		}
	}
}
