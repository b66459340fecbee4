// Package seal encrypts a text for the credential broker, so that no other part that handles it
// (the gateway, logs) can read it: with HPKE (RFC 9180), base mode, one message,
// DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES-256-GCM. The public key comes from
// GET /api/accounts/sealing-key. The broker decrypts in its vault.
//
// A sealed text is bound to a purpose, to a workspace, and to the plain fields beside it: HPKE's
// info is these texts, separated by line feeds, without associated data. It cannot be opened in
// another context, so an attacker on the way cannot redirect a key to another address.
package seal

import (
	"crypto/ecdh"
	"crypto/hpke"
	"fmt"
	"strings"
)

// The names of the algorithms in the RFC.
const (
	KEM  = "DHKEM(X25519, HKDF-SHA256)"
	KDF  = "HKDF-SHA256"
	AEAD = "AES-256-GCM"
)

// Secret is the info of an account's secret, with provider and base URL as in the request; both
// may be empty.
func Secret(workspace, provider, baseURL string) []byte {
	return info("account secret", workspace, provider, baseURL)
}

// Body is the info of a whole request for an account.
func Body(workspace string) []byte { return info("account request", workspace) }

func info(parts ...string) []byte {
	return []byte("signalbox v1\n" + strings.Join(parts, "\n"))
}

// Seal seals a text with a public key. It returns the encapsulated key and the ciphertext.
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
