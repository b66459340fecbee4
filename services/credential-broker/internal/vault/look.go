package vault

import (
	"context"
	"crypto/cipher"
	"fmt"
	"time"

	"signalbox.dev/pkg/id"
)

// lookTimeout is how long one Look waits for key services.
const lookTimeout = 2 * time.Second

// Look finds out for many secrets whether they open, without returning them. It reads a
// workspace's data keys once, unwraps each of them once, and waits for key services no longer
// than lookTimeout in all. It is short-lived, and for one goroutine.
type Look struct {
	vault    *Vault
	deadline time.Time
	stored   map[id.Workspace][]WrappedKey
	keys     map[dataKeyID]lookKey
}

// lookKey is a data key, or why it does not open.
type lookKey struct {
	aead cipher.AEAD
	err  error
}

// Look begins a Look.
func (v *Vault) Look() *Look {
	return &Look{vault: v, deadline: time.Now().Add(lookTimeout), stored: map[id.Workspace][]WrappedKey{}, keys: map[dataKeyID]lookKey{}}
}

// Lost returns the Lasting error with which a secret does not open. It is nil if the secret
// opens, and if that is unknown because a key service or the store is unavailable.
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

func (l *Look) key(ctx context.Context, at dataKeyID) lookKey {
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
	ctx, cancel := context.WithDeadline(ctx, l.deadline)
	defer cancel()
	for _, k := range all {
		if k.Version == at.version {
			return l.vault.unwrapped(ctx, at.workspace, k)
		}
	}
	return nil, noDataKey(at.version)
}
