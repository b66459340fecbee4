package vault_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/gcerrors"
	"gocloud.dev/secrets"
	_ "gocloud.dev/secrets/localsecrets" // base64key://

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// localURL is a key in a URL.
func localURL() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	return "base64key://" + base64.URLEncoding.EncodeToString(key)
}

func openURL(t *testing.T, text string) *vault.ServiceKey {
	t.Helper()
	k, err := vault.OpenURL(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return k
}

func TestServiceKey(t *testing.T) {
	t.Parallel()
	text := localURL()
	keys := &memory{}
	v := vault.New(openURL(t, text), keys)
	at := place()
	sealed, err := v.Seal(t.Context(), at, vault.NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	again := openURL(t, text)
	if got, err := vault.New(again, keys).Open(t.Context(), at, sealed); err != nil || got.Reveal() != canary {
		t.Errorf("Open = %q, %v, want %q", got.Reveal(), err, canary)
	}
	other := openURL(t, localURL())
	if _, err := vault.New(other, keys).Open(t.Context(), at, sealed); !errors.Is(err, vault.ErrKeyLost) || other.ID() == again.ID() {
		t.Errorf("Open with another key = %v, want ErrKeyLost", err)
	}
	// A wrapped data key opens in its own workspace and version alone, though key services
	// take no associated data.
	stolen := &memory{}
	ws := id.New[id.Workspace]()
	if err := stolen.AddDataKey(t.Context(), ws, keys.keys[at.Workspace][0]); err != nil {
		t.Fatal(err)
	}
	if _, err := vault.New(again, stolen).Open(t.Context(), vault.Place{Workspace: ws, Account: at.Account, Field: at.Field}, sealed); !errors.Is(err, vault.ErrDamaged) {
		t.Errorf("Open with a data key of another workspace = %v, want ErrDamaged", err)
	}
	changed := keys.keys[at.Workspace][0]
	changed.Wrapped = append([]byte{}, changed.Wrapped...)
	changed.Wrapped[len(changed.Wrapped)-1] ^= 1
	if _, err := vault.New(again, &memory{keys: map[id.Workspace][]vault.WrappedKey{at.Workspace: {changed}}}).Open(t.Context(), at, sealed); !errors.Is(err, vault.ErrDamaged) {
		t.Errorf("Open with a changed data key = %v, want ErrDamaged", err)
	}
	if shown := fmt.Sprintf("%v %+v %s %s", again, again, again, again.ID()); strings.Contains(shown, text[len("base64key://"):]) {
		t.Errorf("the key shows: %s", shown)
	}
}

func TestBadServer(t *testing.T) {
	t.Setenv("VAULT_ADDR", "http://u:sensitive %zz@vault.example")
	if _, err := vault.OpenURL(t.Context(), "hashivault://key"); err == nil || !strings.Contains(err.Error(), "VAULT_ADDR is not a URL") || strings.Contains(err.Error(), "sensitive") {
		t.Errorf("OpenURL with a bad address of the service = %v, want an error that names the variable alone", err)
	}
}

func TestBadURLs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"", "not the URL of a key"},
		{"key", "not the URL of a key"},
		{"nosuch://key", "there is no key service nosuch: use one of "},
		{"base64key://", "add one"},
		{"base64key://c2VjcmV0LXRoYXQtaXMtdG9vLXNob3J0", "needs 32 bytes"},
		{"refusing://sensitive", "open the refusing key"},
		{"refusing://c2Vuc2l0aXZl%zz", "not the URL of a key"},
	} {
		_, err := vault.OpenURL(t.Context(), tt.in)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "c2V") || strings.Contains(err.Error(), "sensitive") {
			t.Errorf("OpenURL(%q) = %v, want %q", tt.in, err, tt.want)
		}
	}
}

// refusing is a driver of a key service that does not even open.
type refusing struct{}

func (refusing) OpenKeeperURL(_ context.Context, u *url.URL) (*secrets.Keeper, error) {
	return nil, fmt.Errorf("open keeper %v: no", u)
}

// away is a driver of a key service that does not answer, or says code.
type away struct{ code gcerrors.ErrorCode }

func (a away) OpenKeeperURL(context.Context, *url.URL) (*secrets.Keeper, error) {
	return secrets.NewKeeper(a), nil
}

var errDial = errors.New("dial: refused")

func (away) Encrypt(context.Context, []byte) ([]byte, error) { return nil, errDial }
func (away) Decrypt(context.Context, []byte) ([]byte, error) { return nil, errDial }
func (away) Close() error                                    { return nil }
func (away) ErrorAs(error, any) bool                         { return false }
func (a away) ErrorCode(error) gcerrors.ErrorCode            { return a.code }

func TestMain(m *testing.M) {
	mux := secrets.DefaultURLMux()
	mux.RegisterKeeper("refusing", refusing{})
	mux.RegisterKeeper("away", away{gcerrors.Unknown})
	mux.RegisterKeeper("strict", away{gcerrors.InvalidArgument})
	os.Exit(m.Run())
}

// A key service that does not answer is waited for, and nothing is reported as lost.
func TestServiceUnavailable(t *testing.T) {
	t.Parallel()
	at := place()
	k := openURL(t, "away://key")
	if _, err := vault.New(k, &memory{}).Seal(t.Context(), at, vault.NewSecret(canary)); fault.KindOf(err) != fault.Unavailable || vault.Lasting(err) {
		t.Errorf("Seal = %v, want Unavailable", err)
	}
	keys := &memory{keys: map[id.Workspace][]vault.WrappedKey{at.Workspace: {{Version: 1, KEK: k.ID(), Wrapped: []byte("w")}}}}
	if _, err := vault.New(k, keys).Open(t.Context(), at, vault.Sealed{KeyVersion: 1, Bytes: []byte("s")}); fault.KindOf(err) != fault.Unavailable || !errors.Is(err, vault.ErrUnavailable) {
		t.Errorf("Open = %v, want Unavailable and ErrUnavailable", err)
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	if _, err := vault.New(k, keys).Open(left, at, vault.Sealed{KeyVersion: 1, Bytes: []byte("s")}); err == nil || errors.Is(err, vault.ErrUnavailable) {
		t.Errorf("Open for somebody who has left = %v, which says nothing of the service", err)
	}
	strict := openURL(t, "strict://key")
	keys.keys[at.Workspace][0].KEK = strict.ID()
	if _, err := vault.New(strict, keys).Open(t.Context(), at, vault.Sealed{KeyVersion: 1, Bytes: []byte("s")}); !errors.Is(err, vault.ErrDamaged) {
		t.Errorf("Open of what the service takes for no ciphertext = %v, want ErrDamaged", err)
	}
}

// distant is a key that may be away.
type distant struct {
	vault.KEK
	away atomic.Bool
}

func (d *distant) Unwrap(ctx context.Context, wrapped, bound []byte) ([]byte, error) {
	if d.away.Load() {
		return nil, vault.ErrUnavailable
	}
	return d.KEK.Unwrap(ctx, wrapped, bound)
}

// A data key that a key service did not open is tried again, but not at once.
func TestFailedDataKeyIsCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys := &memory{}
		k := &distant{KEK: openFile(t, filepath.Join(t.TempDir(), "key"))}
		at, other := place(), place()
		sealed, err := vault.New(k, keys).Seal(t.Context(), at, vault.NewSecret(canary))
		more, err2 := vault.New(k, keys).Seal(t.Context(), other, vault.NewSecret(canary))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		v := vault.New(k, keys)
		k.away.Store(true)
		if _, err := v.Open(t.Context(), at, sealed); !errors.Is(err, vault.ErrUnavailable) {
			t.Errorf("Open = %v, want ErrUnavailable", err)
		}
		k.away.Store(false)
		if _, err := v.Open(t.Context(), at, sealed); !errors.Is(err, vault.ErrUnavailable) {
			t.Errorf("Open a moment later = %v, want ErrUnavailable", err)
		}
		if _, err := v.Open(t.Context(), other, more); err != nil {
			t.Errorf("Open of another workspace's = %v", err)
		}
		time.Sleep(5 * time.Second) //nolint:forbidigo // synctest's clock
		if got, err := v.Open(t.Context(), at, sealed); err != nil || got.Reveal() != canary {
			t.Errorf("Open some seconds later = %q, %v", got.Reveal(), err)
		}
	})
}

func TestRing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, second := filepath.Join(dir, "file"), filepath.Join(dir, "second")
	openFile(t, second)
	at := place()
	keys := &memory{}
	open := func(n vault.RingConfig) *vault.Vault {
		t.Helper()
		r, err := vault.OpenRing(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		return vault.New(r.KEK, keys, r.Others...)
	}
	sealed, err := open(vault.RingConfig{File: file}).Seal(t.Context(), at, vault.NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	service := localURL()
	for name, n := range map[string]vault.RingConfig{
		"the file":                     {File: file},
		"a URL, and the file as well":  {File: file, URL: service},
		"a URL, and the file as other": {URL: service, Others: []string{file}},
		"a file, and others":           {File: second, Others: []string{service, file}},
	} {
		v := open(n)
		if got, err := v.Open(t.Context(), at, sealed); err != nil || got.Reveal() != canary {
			t.Errorf("%s: Open = %q, %v", name, got.Reveal(), err)
		}
		// The data key that is there goes on to seal: brokers that do not know the new key
		// yet can open it.
		if more, err := v.Seal(t.Context(), at, vault.NewSecret("more")); err != nil || more.KeyVersion != 1 {
			t.Errorf("%s: Seal = version %d, %v, want 1", name, more.KeyVersion, err)
		}
	}
	for name, n := range map[string]vault.RingConfig{
		"no such file: " + dir + "/none": {File: file, Others: []string{dir + "/none"}},
		"there is no key service none":   {File: file, Others: []string{"none://x"}},
		"no path is set":                 {},
		"not a regular file":             {URL: service, File: dir},
	} {
		_, want, _ := strings.Cut(": "+name, ": ")
		if _, after, ok := strings.Cut(name, "no such file: "); ok {
			want = "there is no key file " + after
		}
		if _, err := vault.OpenRing(t.Context(), n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("OpenRing(%+v) = %v, want %q", n, err, want)
		}
	}
	slashless := vault.RingConfig{File: file, Others: []string{"base64key:planted"}}
	if _, err := vault.OpenRing(t.Context(), slashless); err == nil || strings.Contains(err.Error(), "planted") {
		t.Errorf("OpenRing with a URL that lacks its slashes = %v, want an error without the key in it", err)
	}
	if _, err := vault.OpenRing(t.Context(), vault.RingConfig{URL: service, File: filepath.Join(dir, "unmade")}); err != nil {
		t.Errorf("OpenRing with a URL and a file that is not there = %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "unmade")); err == nil {
		t.Error("a key file was made although there is a URL")
	}
}

func TestNewDataKey(t *testing.T) {
	t.Parallel()
	keys := &memory{}
	former, present := openFile(t, filepath.Join(t.TempDir(), "key")), openURL(t, localURL())
	at := place()
	running := vault.New(former, keys)
	first, err := running.Seal(t.Context(), at, vault.NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	v := vault.New(present, keys, former)
	version, err := v.NewDataKey(t.Context(), at.Workspace)
	if newest, e := v.Newest(t.Context(), at.Workspace); version != 2 || err != nil || newest != 2 || e != nil {
		t.Errorf("NewDataKey = %d, %v, then Newest = %d, %v, want 2", version, err, newest, e)
	}
	second, err := v.Reseal(t.Context(), at, first, 2)
	if got, e := v.Open(t.Context(), at, second); err != nil || e != nil || got.Reveal() != canary || second.KeyVersion != 2 {
		t.Errorf("Reseal = version %d, %v, and opens as %q, %v", second.KeyVersion, err, got.Reveal(), e)
	}
	if _, err := running.Newest(t.Context(), at.Workspace); !errors.Is(err, vault.ErrKeyLost) {
		t.Errorf("Newest without its key = %v, want ErrKeyLost", err)
	}
	if n, err := v.Newest(t.Context(), id.New[id.Workspace]()); n != 0 || err != nil {
		t.Errorf("Newest of nothing = %d, %v", n, err)
	}
	k, ok, err := v.Rewrap(t.Context(), at.Workspace, keys.keys[at.Workspace][0])
	if !ok || err != nil || k.KEK != present.ID() || k.Version != 1 {
		t.Errorf("Rewrap = %+v, %v, %v", k, ok, err)
	}
	keys.keys[at.Workspace][0] = k
	if got, err := vault.New(present, keys).Open(t.Context(), at, first); err != nil || got.Reveal() != canary {
		t.Errorf("Open after Rewrap = %q, %v", got.Reveal(), err)
	}
	if _, ok, err := v.Rewrap(t.Context(), at.Workspace, k); ok || err != nil {
		t.Errorf("Rewrap once more = %v, %v, want nothing to do", ok, err)
	}
}

// counting is a key service that answers when it is let to.
type counting struct {
	vault.KEK
	away   atomic.Bool
	asked  atomic.Int32
	answer chan struct{}
}

func (c *counting) Unwrap(ctx context.Context, wrapped, bound []byte) ([]byte, error) {
	c.asked.Add(1)
	select {
	case <-c.answer:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.away.Load() {
		return nil, vault.ErrUnavailable
	}
	return c.KEK.Unwrap(ctx, wrapped, bound)
}

// A key service is called once for a data key, however many need it at once and whether or not it
// answers; a caller that leaves does not fail the others.
func TestKeyServiceIsCalledOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys, file, at := &memory{}, openFile(t, filepath.Join(t.TempDir(), "key")), place()
		sealed, err := vault.New(file, keys).Seal(t.Context(), at, vault.NewSecret(canary))
		if err != nil {
			t.Fatal(err)
		}
		for _, away := range []bool{false, true} {
			service := &counting{KEK: file, answer: make(chan struct{})}
			service.away.Store(away)
			v := vault.New(service, keys)
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error)
			go func() {
				_, err := v.Open(ctx, at, sealed)
				left <- err
			}()
			synctest.Wait()
			results := make(chan error)
			for range 100 {
				go func() {
					_, err := v.Open(t.Context(), at, sealed)
					results <- err
				}()
			}
			synctest.Wait()
			leave()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("Open for somebody who has left = %v", err)
			}
			close(service.answer)
			for range 100 {
				if err := <-results; errors.Is(err, vault.ErrUnavailable) != away || err != nil && !away {
					t.Errorf("Open of a service that is away %v = %v", away, err)
				}
			}
			if n := service.asked.Load(); n != 2 { // by who left, and for all others
				t.Errorf("a service that is away %v was asked %d times, want 2", away, n)
			}
		}
	})
}

// A Sealer seals after the current data key has stopped to open, but not with a key that was
// removed, and there is none if nothing can be sealed.
func TestSealer(t *testing.T) {
	t.Parallel()
	keys, file, at := &memory{}, openFile(t, filepath.Join(t.TempDir(), "key")), place()
	service := &distant{KEK: file}
	v := vault.New(service, keys)
	sealer, err := v.Sealer(t.Context(), at.Workspace)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := vault.New(file, keys).NewDataKey(t.Context(), at.Workspace); err != nil {
		t.Fatal(err)
	}
	service.away.Store(true)
	if _, err := v.Sealer(t.Context(), at.Workspace); !errors.Is(err, vault.ErrUnavailable) {
		t.Errorf("Sealer while its key service is away = %v, want ErrUnavailable", err)
	}
	sealed, err := sealer.Seal(t.Context(), at, vault.NewSecret(canary))
	if err != nil || sealed.KeyVersion != 1 {
		t.Fatalf("Seal = version %d, %v, want 1", sealed.KeyVersion, err)
	}
	if got, err := vault.New(file, keys).Open(t.Context(), at, sealed); err != nil || got.Reveal() != canary {
		t.Errorf("Open = %q, %v, want %q", got.Reveal(), err, canary)
	}
	keys.keys[at.Workspace] = keys.keys[at.Workspace][1:]
	if _, err := sealer.Seal(t.Context(), at, vault.NewSecret(canary)); !errors.Is(err, vault.ErrUnavailable) {
		t.Errorf("Seal when its data key was removed = %v, want ErrUnavailable", err)
	}
	if sealer, err = vault.New(file, keys).Sealer(t.Context(), at.Workspace); err != nil {
		t.Fatal(err)
	}
	if sealed, err := sealer.Seal(t.Context(), at, vault.NewSecret(canary)); err != nil || sealed.KeyVersion != 2 {
		t.Errorf("Seal = version %d, %v, want the one that is current", sealed.KeyVersion, err)
	}
}
