package chat

import (
	"crypto/sha256"
	"encoding/binary"
)

// Seed determines the ids of one answer: the nth repetition of a request has the same ids on
// every machine.
type Seed [sha256.Size]byte

// NewSeed derives a seed from the request's bytes and how often they were seen before.
func NewSeed(content [sha256.Size]byte, attempt int) Seed {
	var b [sha256.Size + 8]byte
	copy(b[:], content[:])
	binary.BigEndian.PutUint64(b[sha256.Size:], uint64(attempt))
	return sha256.Sum256(b[:])
}

const alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// ID returns the nth id with a prefix: the prefix and 22 characters.
func (s Seed) ID(prefix string, n int) string {
	var in [sha256.Size + 8]byte
	copy(in[:], s[:])
	binary.BigEndian.PutUint64(in[sha256.Size:], uint64(n))
	sum := sha256.Sum256(append(in[:], prefix...))
	out := make([]byte, 0, len(prefix)+22)
	out = append(out, prefix...)
	for _, c := range sum[:22] {
		out = append(out, alphabet[int(c)%len(alphabet)])
	}
	return string(out)
}
