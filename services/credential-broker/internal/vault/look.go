package vault

import (
	"context"
	"crypto/cipher"
	"fmt"
	"time"

	"signalbox.dev/pkg/id"
)

// lookTime is how long one Look waits for key services.
const lookTime = 2 * time.Second

// Look finds out of many secrets whether they open, without opening them for anybody. It
// reads a workspace's data keys once, asks for each of them once, and waits for key services
// no longer than lookTime in all. It is for one moment, and for one goroutine.
type Look struct {
	vault  *Vault
	until  time.Time
	stored map[id.Workspace][]WrappedKey
	keys   map[dataKeyID]lookedKey
}

// lookedKey is a data key, or why it does not open.
type lookedKey struct {
	aead cipher.AEAD
	err  error
}

// Look begins a Look.
func (v *Vault) Look() *Look {
	return &Look{vault: v, until: time.Now().Add(lookTime), stored: map[id.Workspace][]WrappedKey{}, keys: map[dataKeyID]lookedKey{}}
}

// Lost returns the Lasting error with which a secret does not open. It is nil where it does,
// and where that cannot be told now: a key service is away, or what stores the data keys.
func (l *Look) Lost(ctx context.Context, at Place, sealed Sealed) error {
	k := l.key(ctx, dataKeyID{at.Workspace, sealed.KeyVersion})
	if k.err == nil {
		if _, err := k.aead.Open(nil, nil, sealed.Bytes, at.bound(sealed.KeyVersion)); err != nil {
			k.err = ErrDamaged
		}
	}
	if !Lasting(k.err) {
		return nil
	}
	return fmt.Errorf("open account %s: %w", at.Account, k.err)
}

func (l *Look) key(ctx context.Context, at dataKeyID) lookedKey {
	k, ok := l.keys[at]
	if !ok {
		k.aead, k.err = l.open(ctx, at)
		l.keys[at] = k
	}
	return k
}

// open returns a data key as it is stored now.
func (l *Look) open(ctx context.Context, at dataKeyID) (cipher.AEAD, error) {
	all, ok := l.stored[at.workspace]
	if !ok {
		var err error
		if all, err = l.vault.keys.DataKeys(ctx, at.workspace); err != nil {
			return nil, err
		}
		l.stored[at.workspace] = all
	}
	ctx, cancel := context.WithDeadline(ctx, l.until)
	defer cancel()
	for _, k := range all {
		if k.Version == at.version {
			return l.vault.unwrapped(ctx, at.workspace, k)
		}
	}
	return nil, noDataKey(at.version)
}
