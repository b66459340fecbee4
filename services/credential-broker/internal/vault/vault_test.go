package vault_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// memory is a store of data keys.
type memory struct {
	mu   sync.Mutex // guards keys
	keys map[id.Workspace][]vault.WrappedKey
}

func (m *memory) DataKeys(_ context.Context, ws id.Workspace) ([]vault.WrappedKey, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keys[ws], nil
}

func (m *memory) AddDataKey(_ context.Context, ws id.Workspace, k vault.WrappedKey) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, have := range m.keys[ws] {
		if have.Version == k.Version {
			return nil
		}
	}
	if m.keys == nil {
		m.keys = map[id.Workspace][]vault.WrappedKey{}
	}
	m.keys[ws] = append(slices.Clip(m.keys[ws]), k)
	return nil
}

func openFile(t *testing.T, path string) *vault.FileKey {
	t.Helper()
	k, err := vault.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const canary = "sk-canary-0123456789abcdef"

func place() vault.Place {
	return vault.Place{Workspace: id.New[id.Workspace](), Account: id.New[id.Account](), Field: "secret"}
}

func TestSealAndOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	keys := &memory{}
	v := vault.New(openFile(t, path), keys)
	at := place()
	sealed, err := v.Seal(t.Context(), at, vault.NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed.Bytes, []byte("canary")) {
		t.Error("the sealed bytes hold the secret's text")
	}
	again, err := v.Seal(t.Context(), at, vault.NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(sealed.Bytes, again.Bytes) {
		t.Error("the same secret sealed twice gives the same bytes")
	}
	// Another process with the same file and tables.
	other := vault.New(openFile(t, path), keys)
	got, err := other.Open(t.Context(), at, sealed)
	if err != nil || got.Reveal() != canary {
		t.Errorf("Open = %q, %v, want %q", got.Reveal(), err, canary)
	}
}

// If the data keys were lost and start again, as after a damaged file was set aside, a running
// process seals and opens with the new ones.
func TestDataKeysStartAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	keys := &memory{}
	seals, opens := vault.New(openFile(t, path), keys), vault.New(openFile(t, path), keys)
	at := place()
	check := func(what string, sealing, opening *vault.Vault) {
		t.Helper()
		sealed, err := sealing.Seal(t.Context(), at, vault.NewSecret(canary))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := opening.Open(t.Context(), at, sealed); err != nil || got.Reveal() != canary {
			t.Errorf("%s: Open = %q, %v, want %q", what, got.Reveal(), err, canary)
		}
	}
	check("at first", seals, opens)
	keys.keys = nil
	check("opened by who knows the former key", vault.New(openFile(t, path), keys), opens)
	check("sealed by who knows the former key", seals, vault.New(openFile(t, path), keys))
}

func TestSealedRowsDoNotOpenElsewhere(t *testing.T) {
	t.Parallel()
	keys := &memory{}
	v := vault.New(openFile(t, filepath.Join(t.TempDir(), "key")), keys)
	at := place()
	sealed, err := v.Seal(t.Context(), at, vault.NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := at
	elsewhere.Workspace = id.New[id.Workspace]()
	if _, err := v.Seal(t.Context(), elsewhere, vault.NewSecret("x")); err != nil { // so that it has a key of the same version
		t.Fatal(err)
	}
	otherAccount, otherField := at, at
	otherAccount.Account = id.New[id.Account]()
	otherField.Field = "refresh_token"
	flipped := vault.Sealed{KeyVersion: 1, Bytes: bytes.Clone(sealed.Bytes)}
	flipped.Bytes[len(flipped.Bytes)-1] ^= 1
	for name, tt := range map[string]struct {
		at     vault.Place
		sealed vault.Sealed
	}{
		"other workspace":     {elsewhere, sealed},
		"other account":       {otherAccount, sealed},
		"other field":         {otherField, sealed},
		"other key version":   {at, vault.Sealed{KeyVersion: 2, Bytes: sealed.Bytes}},
		"one bit changed":     {at, flipped},
		"cut short":           {at, vault.Sealed{KeyVersion: 1, Bytes: sealed.Bytes[:10]}},
		"nothing":             {at, vault.Sealed{KeyVersion: 1}},
		"workspace of shared": {vault.Place{Account: at.Account, Field: at.Field}, sealed},
	} {
		if got, err := v.Open(t.Context(), tt.at, tt.sealed); !errors.Is(err, vault.ErrDamaged) {
			t.Errorf("%s: Open = %q, %v, want ErrDamaged", name, got.Reveal(), err)
		}
	}
	// A wrapped data key that was copied to another workspace does not unwrap.
	stolen := &memory{}
	ws := id.New[id.Workspace]()
	k, _ := keys.DataKeys(t.Context(), at.Workspace)
	if err := stolen.AddDataKey(t.Context(), ws, k[0]); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key")
	thief := vault.New(openFile(t, path), stolen)
	if _, err := thief.Open(t.Context(), vault.Place{Workspace: ws, Account: at.Account, Field: at.Field}, sealed); err == nil {
		t.Error("a data key copied to another workspace opens")
	}
}

func TestLostKeyFile(t *testing.T) {
	t.Parallel()
	keys := &memory{}
	at := place()
	first := vault.New(openFile(t, filepath.Join(t.TempDir(), "key")), keys)
	sealed, err := first.Seal(t.Context(), at, vault.NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	second := vault.New(openFile(t, filepath.Join(t.TempDir(), "key")), keys)
	_, err = second.Open(t.Context(), at, sealed)
	if !errors.Is(err, vault.ErrKeyLost) || !strings.Contains(err.Error(), "restore the other key, or remove the account and add it again") {
		t.Errorf("Open with another key file = %v, want ErrKeyLost and what to do", err)
	}
	// New accounts go on under the new file, and both brokers open their own.
	renewed, err := second.Seal(t.Context(), at, vault.NewSecret("new"))
	if err != nil || renewed.KeyVersion != 2 {
		t.Fatalf("Seal with another key file = version %d, %v, want version 2", renewed.KeyVersion, err)
	}
	if got, err := second.Open(t.Context(), at, renewed); err != nil || got.Reveal() != "new" {
		t.Errorf("Open = %q, %v", got.Reveal(), err)
	}
	if got, err := first.Open(t.Context(), at, sealed); err != nil || got.Reveal() != canary {
		t.Errorf("Open with the first file = %q, %v", got.Reveal(), err)
	}
}

func TestBrokersAgreeOnDataKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sub")
	keys := &memory{}
	at := place()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			k, err := vault.OpenFile(path) // also races for the file
			if err != nil {
				t.Errorf("OpenFile: %v", err)
				return
			}
			v := vault.New(k, keys)
			sealed, err := v.Seal(t.Context(), at, vault.NewSecret(canary))
			if err != nil {
				t.Errorf("Seal: %v", err)
				return
			}
			if got, err := vault.New(k, keys).Open(t.Context(), at, sealed); err != nil || got.Reveal() != canary {
				t.Errorf("Open = %q, %v", got.Reveal(), err)
			}
		})
	}
	wg.Wait()
	if n := len(keys.keys[at.Workspace]); n != 1 {
		t.Errorf("%d data keys were made, want 1", n)
	}
}

func TestKeyFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	first := openFile(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the key file's mode is %04o, want 0600", info.Mode().Perm())
	}
	if again := openFile(t, path); again.ID() != first.ID() {
		t.Errorf("the second start has key %s, want %s", again.ID(), first.ID())
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v, %v, want the key alone", left, err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if shown := fmt.Sprintf("%v %+v %s", first, first, first); strings.Contains(shown, string(good[len("signalbox-credential-key-v1:"):60])) {
		t.Errorf("the key shows: %s", shown)
	}
	changed := bytes.Clone(good)
	changed[40] ^= 1
	for name, tt := range map[string]struct {
		text []byte
		mode os.FileMode
		want string
	}{
		"empty":        {nil, 0o600, "is empty: put the file back from a backup"},
		"foreign":      {[]byte("hello\n"), 0o600, "is not a credential key file"},
		"changed":      {changed, 0o600, "is damaged"},
		"cut":          {good[:50], 0o600, "is damaged"},
		"world":        {good, 0o604, "run chmod 600"},
		"group writes": {good, 0o660, "run chmod 600"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, tt.text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tt.mode); err != nil {
			t.Fatal(err)
		}
		_, err := vault.OpenFile(path)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: OpenFile = %v, want the path and %q", name, err, tt.want)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(after, tt.text) {
			t.Errorf("%s: the file was changed", name)
		}
	}
	if _, err := vault.OpenFile(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("OpenFile of a folder = %v", err)
	}
	if _, err := vault.OpenFile(filepath.Join(dir, "no", "such")); err == nil {
		t.Error("OpenFile in a folder that is not there works")
	}
	if _, err := vault.OpenFile(""); err == nil {
		t.Error("OpenFile of nothing works")
	}
}

func TestSecretNeverPrints(t *testing.T) {
	t.Parallel()
	s := vault.NewSecret(canary)
	type hidden struct {
		Open   vault.Secret
		closed vault.Secret
		ptr    *vault.Secret
		list   []vault.Secret
	}
	h := hidden{s, s, &s, []vault.Secret{s}}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%c", "%p", "%5.2f", "%U"} {
		fmt.Fprintf(&out, verb+verb+verb+verb+"\n", s, &s, h, &h)
	}
	j, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(j)
	for _, l := range []*slog.Logger{slog.New(slog.NewJSONHandler(&out, nil)), slog.New(slog.NewTextHandler(&out, nil))} {
		l.InfoContext(t.Context(), "a secret", "secret", s, "pointer", &s, "struct", h, "error", fmt.Errorf("with %v: %w", s, errors.New("x")))
	}
	for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary), fmt.Sprintf("%v", []byte(canary))[1:20], "canary"} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the secret shows as %q in:\n%s", form, out.String())
		}
	}
	if !strings.Contains(out.String(), "[redacted]") {
		t.Error("nothing says [redacted]")
	}
}

func TestHint(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{{"", ""}, {"12345678901", ""}, {"123456789012", "9012"}, {canary, "cdef"}} {
		if got := vault.NewSecret(tt.in).Hint(); got != tt.want {
			t.Errorf("Hint of %q = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func FuzzOpen(f *testing.F) {
	path := filepath.Join(f.TempDir(), "key")
	k, err := vault.OpenFile(path)
	if err != nil {
		f.Fatal(err)
	}
	at := place()
	v := vault.New(k, &memory{})
	sealed, err := v.Seal(f.Context(), at, vault.NewSecret(canary))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed.Bytes)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := v.Open(t.Context(), at, vault.Sealed{KeyVersion: 1, Bytes: b})
		if (err == nil) != bytes.Equal(b, sealed.Bytes) {
			t.Fatalf("Open(%x) = %q, %v", b, got.Reveal(), err)
		}
	})
}

// A file that is created later exists once something is sealed, and not before. If two processes
// create it at once, both seal with the same key.
func TestOpenFileLater(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	keys := &memory{}
	var all []*vault.FileKey
	for range 4 {
		k, err := vault.OpenFileLater(path)
		if err != nil {
			t.Fatal(err)
		}
		if at, unmade := k.Pending(); at != path || !unmade {
			t.Errorf("Pending = %q, %v", at, unmade)
		}
		all = append(all, k)
	}
	at := place()
	if _, err := vault.New(all[0], keys).Open(t.Context(), at, vault.Sealed{KeyVersion: 1}); err == nil {
		t.Error("Open of nothing gives no error")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file was made although nothing was sealed")
	}
	for _, k := range all[:2] { // each a data key of its own
		if _, err := vault.New(k, &memory{}).Seal(t.Context(), place(), vault.NewSecret(canary)); err != nil {
			t.Fatal(err)
		}
	}
	if _, unmade := all[1].Pending(); unmade || all[0].ID() != all[1].ID() || openFile(t, path).ID() != all[0].ID() {
		t.Errorf("the keys are %s and %s, want the one in the file", all[0], all[1])
	}
	first, err := vault.New(all[0], keys).Seal(t.Context(), at, vault.NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	if _, unmade := all[3].Pending(); unmade {
		t.Error("Pending does not see the file that another one has made")
	}
	for name, k := range map[string]vault.KEK{"the second": all[1], "one that has sealed nothing": all[2], "the file's": openFile(t, path)} {
		if got, err := vault.New(k, keys).Open(t.Context(), at, first); err != nil || got.Reveal() != canary {
			t.Errorf("Open with %s = %q, %v", name, got.Reveal(), err)
		}
	}
	if k, err := vault.OpenFileLater(path); err != nil || k.ID() != all[0].ID() {
		t.Errorf("OpenFileLater of a file that is there = %v, %v", k, err)
	}
}
