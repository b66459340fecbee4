package vault_test

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/vault"
)

func TestLook(t *testing.T) {
	t.Parallel()
	keys := &memory{}
	v := vault.New(openFile(t, filepath.Join(t.TempDir(), "key")), keys)
	at := place()
	sealed, err := v.Seal(t.Context(), at, vault.NewSecret(canary))
	if err != nil {
		t.Fatal(err)
	}
	changed := vault.Sealed{KeyVersion: 1, Bytes: append([]byte{}, sealed.Bytes...)}
	changed.Bytes[len(changed.Bytes)-1] ^= 1
	elsewhere := at
	elsewhere.Account = id.New[id.Account]()
	look := v.Look()
	for _, tt := range []struct {
		name string
		look *vault.Look
		at   vault.Place
		in   vault.Sealed
		want error
	}{
		{"well", look, at, sealed, nil},
		{"changed", look, at, changed, vault.ErrDamaged},
		{"of another account", look, elsewhere, sealed, vault.ErrDamaged},
		{"well, after those", look, at, sealed, nil},
		{"without its data key", look, at, vault.Sealed{KeyVersion: 2, Bytes: sealed.Bytes}, vault.ErrDamaged},
		{"without its key", vault.New(openFile(t, filepath.Join(t.TempDir(), "other")), keys).Look(), at, sealed, vault.ErrKeyLost},
	} {
		if err := tt.look.Lost(t.Context(), tt.at, tt.in); !errors.Is(err, tt.want) {
			t.Errorf("%s: Lost = %v, want %v", tt.name, err, tt.want)
		}
	}
}

// However many secrets do not open, a key service is called once for each data key, for a bounded
// time in all; what it does not open now is not reported as lost.
func TestLookAtKeyService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys, file := &memory{}, openFile(t, filepath.Join(t.TempDir(), "key"))
		places := []vault.Place{place(), place(), place()}
		changed := map[vault.Place]vault.Sealed{}
		for _, at := range places {
			sealed, err := vault.New(file, keys).Seal(t.Context(), at, vault.NewSecret(canary))
			if err != nil {
				t.Fatal(err)
			}
			sealed.Bytes[0] ^= 1
			changed[at] = sealed
		}
		for _, tt := range []struct {
			name                 string
			answers, away, known bool
			asked                int32
			took                 time.Duration
		}{
			{name: "well", answers: true, known: true, asked: 3},
			{name: "away", answers: true, away: true, asked: 3},
			{name: "silent", asked: 3, took: 2 * time.Second},
		} {
			service := &counting{KEK: file, answer: make(chan struct{})}
			service.away.Store(tt.away)
			if tt.answers {
				close(service.answer)
			}
			began, look := time.Now(), vault.New(service, keys).Look()
			for _, at := range places {
				for range 1000 {
					if err := look.Lost(t.Context(), at, changed[at]); errors.Is(err, vault.ErrDamaged) != tt.known || err != nil && !tt.known {
						t.Fatalf("%s: Lost = %v, want ErrDamaged: %v", tt.name, err, tt.known)
					}
				}
			}
			if n, took := service.asked.Load(), time.Since(began); n != tt.asked || took != tt.took {
				t.Errorf("%s: the service was asked %d times and waited for %s, want %d and %s", tt.name, n, took, tt.asked, tt.took)
			}
		}
	})
}
