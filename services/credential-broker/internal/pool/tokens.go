package pool

import (
	"context"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/oauth"
)

// Tokens gives the access tokens of accounts that somebody signed in to; oauth.Keeper
// does. What it holds it gives at once, so that it is asked for each request, of the
// account that was chosen and no other.
type Tokens interface {
	Token(ctx context.Context, of oauth.Ref) (oauth.Token, error)
	Rejected(ctx context.Context, of oauth.Ref, version int64) (oauth.Token, error)
}

// withToken returns the account with a secret that can be sent, for which it waits so
// long. An account with a key is returned as it is. Its errors are faults, or that the
// time is up: the account cannot be used now.
func withToken(ctx context.Context, tokens Tokens, a Account, wait time.Duration) (Account, error) {
	if id.IsZero(a.Grant.Account) {
		return a, nil
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	t, err := tokens.Token(ctx, a.Grant)
	if err != nil {
		return Account{}, err
	}
	a.Secret, a.tokens, a.version = t.Secret, tokens, t.Version
	return a, nil
}

// Renewed is asked once after a 401. It returns the account with another access token,
// with which the request is sent again and the 401 counts for nothing, or false: the
// 401 is the account's.
func (a Account) Renewed(ctx context.Context) (Account, bool) {
	if a.tokens == nil {
		return a, false
	}
	ctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	t, err := a.tokens.Rejected(ctx, a.Grant, a.version)
	if err != nil {
		return a, false
	}
	a.Secret, a.version = t.Secret, t.Version
	return a, true
}
