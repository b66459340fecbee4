package vault

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"signalbox.dev/pkg/id"
)

// KEK is a key-encryption key: a FileKey, or a ServiceKey, whose errors are faults of kind
// Unavailable while the key service does not answer.
type KEK interface {
	// ID names the key without revealing it.
	ID() string
	Wrap(ctx context.Context, key, bound []byte) ([]byte, error)
	Unwrap(ctx context.Context, wrapped, bound []byte) ([]byte, error)
}

// WrappedKey is a data key as it is stored.
type WrappedKey struct {
	Version int    `json:"version"`
	KEK     string `json:"kek"` // ID of the KEK that wrapped it
	Wrapped []byte `json:"wrapped"`
}

// Keys stores wrapped data keys.
type Keys interface {
	// DataKeys returns all data keys of a workspace, in any order.
	DataKeys(ctx context.Context, ws id.Workspace) ([]WrappedKey, error)
	// AddDataKey stores a key unless its version is taken, and retires those before it; the
	// caller reads the keys again.
	AddDataKey(ctx context.Context, ws id.Workspace, k WrappedKey) error
}

// Place is where a sealed field belongs.
type Place struct {
	Workspace id.Workspace // zero for the operator's shared accounts
	Account   id.Account
	Field     string
}

// Sealed is a secret as it is stored.
type Sealed struct {
	KeyVersion int    `json:"key_version"`
	Bytes      []byte `json:"sealed" db:"sealed"`
}

// ErrKeyLost is in the chain of an error about a secret that no key of this broker opens.
var ErrKeyLost = errors.New("sealed with another key")

// ErrDamaged is in the chain of an error about sealed bytes that do not open in their place:
// they were changed, or belong to another row.
var ErrDamaged = errors.New("cannot decrypt: the sealed bytes were changed, or belong to another row")

// Why tells people what is wrong if an error is Lasting.
func Why(err error) string {
	if errors.Is(err, ErrKeyLost) {
		return "it was sealed with a key other than those in CREDENTIAL_BROKER_KEY_FILE, CREDENTIAL_BROKER_KEY_URL and CREDENTIAL_BROKER_OTHER_KEYS"
	}
	return "its sealed bytes were changed, or belong to another account"
}

// ErrUnavailable is in the chain of an error about what its key service does not open now: the
// service is unavailable, or refuses the key in a way that cannot be told from that.
var ErrUnavailable = errors.New("its key service cannot decrypt it now")

const (
	keySize   = 32
	maxCached = 10_000
	attempts  = 4 // to agree with other brokers on a new data key
	// failureTTL is how long a key service that did not open a data key is not asked for it
	// again, so that callers need not wait for the same answer.
	failureTTL = 5 * time.Second
)

// Vault seals and opens.
type Vault struct {
	kek  KEK
	keks []KEK // all
	keys Keys

	mu     sync.Mutex // guards what follows
	opened map[dataKeyID]*opening
}

// opening is the unwrapping of a data key, under way or ended.
type opening struct {
	// wrapped is what is unwrapped: an accounts file that was set aside as damaged is followed
	// by one whose versions start again.
	wrapped [sha256.Size]byte
	done    chan struct{} // closed when the rest is set

	ended time.Time
	aead  *dataKey
	err   error
}

// valid reports whether the outcome may be used again. An error may for a moment, if it is a
// key service's answer, and not if the caller had left.
func (o *opening) valid() bool {
	answered := errors.Is(o.err, ErrUnavailable) || errors.Is(o.err, ErrDamaged)
	return o.aead != nil || answered && time.Since(o.ended) < failureTTL
}

type dataKeyID struct {
	workspace id.Workspace
	version   int
}

// New returns a Vault over the store of the data keys. New data keys are wrapped by kek; those
// that others have wrapped open too. The caller closes the KEKs.
func New(kek KEK, keys Keys, others ...KEK) *Vault {
	return &Vault{
		kek: kek, keks: append([]KEK{kek}, others...), keys: keys,
		opened: map[dataKeyID]*opening{},
	}
}

// Knows reports whether the KEK of that ID is one of this Vault's.
func (v *Vault) Knows(kek string) bool { return v.named(kek) != nil }

// named returns one of the KEKs. Their IDs are not cached: a key file that is not created yet may
// become another process's.
func (v *Vault) named(kek string) KEK {
	for _, k := range v.keks {
		if k.ID() == kek {
			return k
		}
	}
	return nil
}

// Seal seals a secret for a place.
func (v *Vault) Seal(ctx context.Context, at Place, s Secret) (Sealed, error) {
	version, aead, err := v.current(ctx, at.Workspace)
	if err != nil {
		return Sealed{}, fmt.Errorf("seal: %w", err)
	}
	return Sealed{version, aead.Seal(nil, nil, []byte(s.Reveal()), at.bound(version))}, nil
}

// Sealer seals for one workspace. It is made before something is obtained that must not get lost,
// and seals it even if the data key that Seal would take does not open by then.
type Sealer struct {
	vault     *Vault
	workspace id.Workspace
	version   int
	aead      *dataKey
}

// Sealer returns a Sealer, or an error if nothing can be sealed now.
func (v *Vault) Sealer(ctx context.Context, ws id.Workspace) (Sealer, error) {
	version, aead, err := v.current(ctx, ws)
	if err != nil {
		return Sealer{}, fmt.Errorf("seal: %w", err)
	}
	return Sealer{v, ws, version, aead}, nil
}

// Seal seals a secret for a place in the Sealer's workspace with the current data key, or if that
// does not open with the Sealer's own, as long as it is stored.
func (s Sealer) Seal(ctx context.Context, at Place, secret Secret) (Sealed, error) {
	version, aead, err := s.vault.current(ctx, s.workspace)
	if err != nil {
		if !s.stored(ctx) {
			return Sealed{}, fmt.Errorf("seal: %w", err)
		}
		version, aead = s.version, s.aead
	}
	return Sealed{version, aead.Seal(nil, nil, []byte(secret.Reveal()), at.bound(version))}, nil
}

// stored reports whether the Sealer's own data key still exists: what is sealed with a removed one
// never opens.
func (s Sealer) stored(ctx context.Context) bool {
	all, err := s.vault.keys.DataKeys(ctx, s.workspace)
	return err == nil && slices.ContainsFunc(all, func(k WrappedKey) bool { return k.Version == s.version })
}

// Open opens what Seal made for the same place.
func (v *Vault) Open(ctx context.Context, at Place, sealed Sealed) (Secret, error) {
	s, err := v.open(ctx, at, sealed)
	if errors.Is(err, ErrDamaged) && v.forget(at.Workspace, sealed.KeyVersion) {
		return v.open(ctx, at, sealed) // with the key as it is stored now
	}
	return s, err
}

func (v *Vault) open(ctx context.Context, at Place, sealed Sealed) (Secret, error) {
	aead, err := v.dataKey(ctx, at.Workspace, sealed.KeyVersion)
	if err != nil {
		return Secret{}, fmt.Errorf("open account %s: %w", at.Account, err)
	}
	text, err := aead.Open(nil, nil, sealed.Bytes, at.bound(sealed.KeyVersion))
	if err != nil {
		return Secret{}, fmt.Errorf("open account %s: %w", at.Account, ErrDamaged)
	}
	return NewSecret(string(text)), nil
}

// current returns the data key that new secrets of a workspace are sealed with.
func (v *Vault) current(ctx context.Context, ws id.Workspace) (int, *dataKey, error) {
	for range attempts {
		all, err := v.keys.DataKeys(ctx, ws)
		if err != nil {
			return 0, nil, err
		}
		newest, mine := 0, WrappedKey{}
		for _, k := range all {
			newest = max(newest, k.Version)
			if v.Knows(k.KEK) && k.Version > mine.Version {
				mine = k
			}
		}
		if mine.Version > 0 {
			aead, err := v.unwrapped(ctx, ws, mine)
			return mine.Version, aead, err
		}
		if err := v.makeDataKey(ctx, ws, newest+1); err != nil {
			return 0, nil, err
		}
		// Read it back: another broker may have taken the version.
	}
	return 0, nil, errors.New("agree on a new data key: too many brokers try at once")
}

func (v *Vault) makeDataKey(ctx context.Context, ws id.Workspace, version int) error {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails: crypto/rand
	wrapped, err := v.kek.Wrap(ctx, key, boundKey(ws, version))
	if err != nil {
		return fmt.Errorf("wrap a new data key: %w", err)
	}
	return v.keys.AddDataKey(ctx, ws, WrappedKey{Version: version, KEK: v.kek.ID(), Wrapped: wrapped})
}

// dataKey returns one version of a workspace's data key.
func (v *Vault) dataKey(ctx context.Context, ws id.Workspace, version int) (*dataKey, error) {
	if aead := v.cached(ws, version); aead != nil {
		return aead, nil
	}
	all, err := v.keys.DataKeys(ctx, ws)
	if err != nil {
		return nil, err
	}
	for _, k := range all {
		if k.Version == version {
			return v.unwrapped(ctx, ws, k)
		}
	}
	return nil, noDataKey(version)
}

func noDataKey(version int) error {
	return fmt.Errorf("data key %d does not exist: %w", version, ErrDamaged)
}

func (v *Vault) cached(ws id.Workspace, version int) *dataKey {
	v.mu.Lock()
	defer v.mu.Unlock()
	if o := v.opened[dataKeyID{ws, version}]; o != nil && !o.ended.IsZero() {
		return o.aead
	}
	return nil
}

// forget drops a data key from the cache, and says whether it was there.
func (v *Vault) forget(ws id.Workspace, version int) bool {
	if v.cached(ws, version) == nil {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.opened, dataKeyID{ws, version})
	return true
}

// unwrapped returns a data key from the cache, or unwraps and caches it. If another caller is
// unwrapping it, it waits for the result.
func (v *Vault) unwrapped(ctx context.Context, ws id.Workspace, k WrappedKey) (*dataKey, error) {
	at, wrapped := dataKeyID{ws, k.Version}, sha256.Sum256(k.Wrapped)
	for {
		o, found := v.opening(at, wrapped)
		if !found {
			defer v.finish(at, o)
			var key []byte
			if key, o.err = v.unwrap(ctx, ws, k); o.err == nil {
				o.aead, o.err = newDataKey(key)
			}
			return o.aead, o.err
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for data key %d: %w", k.Version, ctx.Err())
		}
		if o.wrapped == wrapped && o.valid() {
			return o.aead, o.err
		}
	}
}

// opening returns the opening of a data key that is under way, or has a valid outcome. If there
// is none, it returns a new one, which the caller carries out and finishes.
func (v *Vault) opening(at dataKeyID, wrapped [sha256.Size]byte) (o *opening, found bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if o := v.opened[at]; o != nil && (o.ended.IsZero() || o.wrapped == wrapped && o.valid()) {
		return o, true
	}
	if len(v.opened) >= maxCached {
		clear(v.opened)
	}
	o = &opening{wrapped: wrapped, done: make(chan struct{})}
	v.opened[at] = o
	return o, false
}

func (v *Vault) finish(at dataKeyID, o *opening) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o.ended = time.Now()
	if !o.valid() && v.opened[at] == o {
		delete(v.opened, at)
	}
	close(o.done)
}

func (v *Vault) unwrap(ctx context.Context, ws id.Workspace, k WrappedKey) ([]byte, error) {
	kek := v.named(k.KEK)
	if kek == nil {
		return nil, fmt.Errorf("%w: the credential was sealed with key %s and this broker has key %s; restore the other key, or remove the account and add it again", ErrKeyLost, k.KEK, v.known())
	}
	key, err := kek.Unwrap(ctx, k.Wrapped, boundKey(ws, k.Version))
	if err != nil {
		return nil, fmt.Errorf("unwrap data key %d: %w", k.Version, err)
	}
	return key, nil
}

// Opens returns an error unless a data key opens.
func (v *Vault) Opens(ctx context.Context, ws id.Workspace, k WrappedKey) error {
	_, err := v.unwrap(ctx, ws, k)
	return err
}

func (v *Vault) known() string {
	var ids []string
	for _, k := range v.keks {
		ids = append(ids, k.ID())
	}
	return strings.Join(ids, ", ")
}

// newAEAD returns AES-256-GCM that puts a random nonce before what it seals. 96 random bits are
// safe for 2^32 messages under one key; a workspace has some thousands at most.
func newAEAD(key []byte) (cipher.AEAD, error) {
	if len(key) != keySize {
		return nil, fmt.Errorf("key of %d bytes, want %d", len(key), keySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// dataKey seals what is stored, and has the seed of the key pair that others seal with.
type dataKey struct {
	cipher.AEAD
	seed []byte
}

func newDataKey(key []byte) (*dataKey, error) {
	aead, err := newAEAD(key)
	if err != nil {
		return nil, err
	}
	seed, err := hkdf.Key(sha256.New, key, nil, "signalbox.credential.v1 sealing key", keySize)
	return &dataKey{aead, seed}, err
}

func (p Place) bound(version int) []byte {
	return bind("field", p.Workspace.String(), p.Account.String(), p.Field, version)
}

func boundKey(ws id.Workspace, version int) []byte {
	return bind("data key", ws.String(), "", "", version)
}

// bind encodes associated data so that different places never give the same bytes: each part is
// preceded by its length.
func bind(what, ws, account, field string, version int) []byte {
	b := []byte("signalbox.credential.v1")
	for _, part := range []string{what, ws, account, field} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return binary.BigEndian.AppendUint64(b, uint64(version))
}
