package identity

import (
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
)

// The issuer and audience of development tokens.
const (
	DevIssuer   = "signalbox-development"
	DevAudience = "authenticated"
)

// DevToken signs an access token of the built-in issuer, for the local default and for tests.
// A deployment without a development secret accepts none.
func DevToken(secret conf.Secret, member id.Member, lifetime time.Duration) (token string, expires time.Time, err error) {
	now := time.Now()
	expires = now.Add(lifetime).Truncate(time.Second)
	token, err = jwt.NewWithClaims(jwt.SigningMethodHS256, accessClaims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer:    DevIssuer,
			Audience:  jwt.ClaimStrings{DevAudience},
			Subject:   member.String(),
			IssuedAt:  jwt.NewNumericDate(now),
			ExpiresAt: jwt.NewNumericDate(expires),
		},
		Role: "authenticated",
	}).SignedString([]byte(secret.Reveal()))
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign a development token: %w", err)
	}
	return token, expires, nil
}
