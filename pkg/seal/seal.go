// Package seal encrypts a text for the credential broker alone, so that whatever carries it
// (the gateway, logs, memory) has nothing to give away: HPKE (RFC 9180), base mode, one
// message, with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES-256-GCM. The public key comes
// from GET /api/accounts/sealing-key. The broker's side is in its vault.
//
// What is sealed is bound to a purpose, to a workspace, and to what else is said in the
// clear: the info of HPKE is these texts with a line feed between them, and there is no
// associated data. So it opens nowhere else, and nobody on the way can have a key sent to
// another address.
package seal

import (
	"crypto/ecdh"
	"crypto/hpke"
	"fmt"
	"strings"
)

// The algorithms, as the RFC calls them.
const (
	KEM  = "DHKEM(X25519, HKDF-SHA256)"
	KDF  = "HKDF-SHA256"
	AEAD = "AES-256-GCM"
)

// Secret is the info of an account's secret. Provider and base URL are those of the request,
// empty where it has none.
func Secret(workspace, provider, baseURL string) []byte {
	return info("account secret", workspace, provider, baseURL)
}

// Body is the info of a whole request that asks for an account.
func Body(workspace string) []byte { return info("account request", workspace) }

func info(parts ...string) []byte {
	return []byte("signalbox v1\n" + strings.Join(parts, "\n"))
}

// Seal seals a text with a public key: the encapsulated key, and behind it the ciphertext.
func Seal(public, info, text []byte) ([]byte, error) {
	key, err := hpke.DHKEM(ecdh.X25519()).NewPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("read the sealing key: %w", err)
	}
	sealed, err := hpke.Seal(key, hpke.HKDFSHA256(), hpke.AES256GCM(), info, text)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return sealed, nil
}
