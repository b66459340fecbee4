package vault

import (
	"context"
	"errors"
	"fmt"

	"signalbox.dev/pkg/id"
)

// What package rotation needs. None of it is needed to seal and to open.

// NewDataKey gives a workspace a new data key, with which everything is sealed from then on, and
// returns its version. Concurrent calls get the same key.
func (v *Vault) NewDataKey(ctx context.Context, ws id.Workspace) (version int, err error) {
	newest, err := v.newest(ctx, ws)
	if err != nil {
		return 0, err
	}
	version = newest.Version + 1
	if err := v.makeDataKey(ctx, ws, version); err != nil {
		return 0, err
	}
	_, err = v.dataKey(ctx, ws, version)
	return version, err
}

// Newest returns the version of a workspace's newest data key; 0 if there is none. If no key of
// this Vault opens it the error is ErrKeyLost.
func (v *Vault) Newest(ctx context.Context, ws id.Workspace) (version int, err error) {
	k, err := v.newest(ctx, ws)
	if err != nil || k.Version == 0 {
		return 0, err
	}
	_, err = v.unwrapped(ctx, ws, k)
	return k.Version, err
}

func (v *Vault) newest(ctx context.Context, ws id.Workspace) (k WrappedKey, err error) {
	all, err := v.keys.DataKeys(ctx, ws)
	for _, other := range all {
		if other.Version > k.Version {
			k = other
		}
	}
	return k, err
}

// Reseal seals with one version of the data key what was sealed with another.
func (v *Vault) Reseal(ctx context.Context, at Place, old Sealed, version int) (Sealed, error) {
	secret, err := v.Open(ctx, at, old)
	if err != nil {
		return Sealed{}, err
	}
	aead, err := v.dataKey(ctx, at.Workspace, version)
	if err != nil {
		return Sealed{}, fmt.Errorf("seal account %s anew: %w", at.Account, err)
	}
	return Sealed{version, aead.Seal(nil, nil, []byte(secret.Reveal()), at.bound(version))}, nil
}

// Rewrap returns a data key wrapped by the KEK that wraps new ones. ok is false if it is already.
func (v *Vault) Rewrap(ctx context.Context, ws id.Workspace, k WrappedKey) (out WrappedKey, ok bool, err error) {
	if k.KEK == v.kek.ID() {
		return k, false, nil
	}
	key, err := v.unwrap(ctx, ws, k)
	if err != nil {
		return k, false, err
	}
	wrapped, err := v.kek.Wrap(ctx, key, boundKey(ws, k.Version))
	if err != nil {
		return k, false, fmt.Errorf("wrap data key %d: %w", k.Version, err)
	}
	return WrappedKey{Version: k.Version, KEK: v.kek.ID(), Wrapped: wrapped}, true, nil
}

// Lasting reports whether an error of Open or Rewrap is about the secret or key itself, and
// trying again would not help.
func Lasting(err error) bool { return errors.Is(err, ErrKeyLost) || errors.Is(err, ErrDamaged) }
