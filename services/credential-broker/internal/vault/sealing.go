package vault

import (
	"context"
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"signalbox.dev/pkg/id"
)

// SealingKey is the public half of a key pair, with which others seal texts that only a broker
// opens (RFC 9180, package seal). It is derived from a workspace's data key, so that it is the
// same for all instances and after a restart. A rotation of keys replaces it; the former one
// opens as long as its data key is stored.
type SealingKey struct {
	ID     string
	Public []byte
}

// ErrSealingKey says that a text was sealed with a key that this broker does not have, or no
// longer has.
var ErrSealingKey = errors.New("there is no such sealing key")

// ErrSealed says that a sealed text does not open: it was changed, or sealed for something
// else.
var ErrSealed = errors.New("the sealed text cannot be decrypted")

// SealingKey returns the key with which texts for a workspace are to be sealed now.
func (v *Vault) SealingKey(ctx context.Context, ws id.Workspace) (SealingKey, error) {
	version, key, err := v.current(ctx, ws)
	if err != nil {
		return SealingKey{}, fmt.Errorf("sealing key: %w", err)
	}
	private, err := key.private()
	if err != nil {
		return SealingKey{}, err
	}
	return sealingKey(version, private), nil
}

// Unseal opens a text that was sealed with a SealingKey of a workspace and for this info. Its
// errors are ErrSealingKey, ErrSealed, and those of an unavailable key service or store.
func (v *Vault) Unseal(ctx context.Context, ws id.Workspace, keyID string, info, sealed []byte) ([]byte, error) {
	text, _, _ := strings.Cut(keyID, "-")
	version, err := strconv.Atoi(text)
	if err != nil {
		return nil, ErrSealingKey
	}
	key, err := v.dataKey(ctx, ws, version)
	switch {
	case errors.Is(err, ErrDamaged), errors.Is(err, ErrKeyLost):
		return nil, ErrSealingKey
	case err != nil:
		return nil, fmt.Errorf("sealing key: %w", err)
	}
	private, err := key.private()
	if err != nil {
		return nil, err
	}
	if sealingKey(version, private).ID != keyID {
		return nil, ErrSealingKey
	}
	opened, err := hpke.Open(private, hpke.HKDFSHA256(), hpke.AES256GCM(), info, sealed)
	if err != nil {
		return nil, ErrSealed
	}
	return opened, nil
}

func (k *dataKey) private() (hpke.PrivateKey, error) {
	return hpke.DHKEM(ecdh.X25519()).DeriveKeyPair(k.seed)
}

// sealingKey names a key by the version of its data key and by a hash: versions start again
// after an accounts file was set aside.
func sealingKey(version int, private hpke.PrivateKey) SealingKey {
	public := private.PublicKey().Bytes()
	sum := sha256.Sum256(public)
	return SealingKey{ID: fmt.Sprintf("%d-%s", version, hex.EncodeToString(sum[:8])), Public: public}
}
