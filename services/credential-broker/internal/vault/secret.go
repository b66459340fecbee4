package vault

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is a credential in memory. The zero value is empty. The text is in a closure, where not
// even a formatter that walks unexported fields by reflection finds it.
type Secret struct{ reveal func() string }

// NewSecret returns text as a Secret.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{func() string { return text }}
}

// Reveal returns the text. Keep it out of errors, logs and traces.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// IsZero reports whether the secret is empty.
func (s Secret) IsZero() bool { return s.reveal == nil }

// String hides the secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return redacted
}

// Format hides the secret from every verb of fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the secret from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// minForHint is how long a secret must be for its end to be shown: four characters of a shorter
// one would give away too much.
const minForHint = 12

// Hint returns the last four characters, for people to tell keys apart; nothing if the secret is
// short.
func (s Secret) Hint() string {
	text := s.Reveal()
	if len(text) < minForHint {
		return ""
	}
	return text[len(text)-4:]
}
