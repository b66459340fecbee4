package pg

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

// scramVerifier returns the verifier that Postgres stores for a password (RFC 5803), so that
// no statement or server log contains the password.
func scramVerifier(password string) (string, error) {
	for _, c := range []byte(password) {
		if c < 0x20 || c > 0x7e {
			// Other characters would have to be normalized by SASLprep.
			return "", errors.New("the password must be printable ASCII")
		}
	}
	const rounds = 4096
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("derive the password's key: %w", err)
	}
	sum := func(text string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(sum("Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, b64(salt), b64(stored[:]), b64(sum("Server Key"))), nil
}
