package oauth

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// tables is where grants, attempts and logins are: a database (postgres), or the file of
// a single user (inFile). Each method is one transaction, and knows no plaintext.
type tables interface {
	// read reads a grant. An account without one is a NotFound fault.
	read(ctx context.Context, ref Ref) (grant, error)
	// statuses returns the grants of a workspace's own accounts.
	statuses(ctx context.Context, ws id.Workspace) (map[id.Account]Status, error)
	// admit stores what a login or an import brought, as a new account or in the place
	// of what an account had, and removes the login.
	admit(ctx context.Context, who Who, p *Provider, l loginRow, s *sealedTokens) error
	// due returns grants that should be renewed and that nobody renews.
	due(ctx context.Context) ([]Ref, error)
	// changed returns grants that have changed a short while ago.
	changed(ctx context.Context) ([]change, error)

	// open begins an attempt and takes the lease: look, again, with the grant locked,
	// decides whether there is still a need. Both are durable when it returns. ok is
	// false where another attempt is open, or look said no.
	open(ctx context.Context, ref Ref, kind string, look func(*grant) bool) (g grant, a attempt, ok bool, err error)
	// extend lengthens the lease and reports whether it is still the attempt's own.
	extend(ctx context.Context, a attempt) (ours bool, err error)
	// keep stores what an attempt brought, unless the grant has changed since it began.
	keep(ctx context.Context, a attempt, p *Provider, s sealedTokens) error
	// fail ends an attempt that brought nothing.
	fail(ctx context.Context, a attempt, p *Provider, f *failure) error
	// giveUp says that somebody must sign in again, unless the grant has changed.
	giveUp(ctx context.Context, ref Ref, version int64, reason string) error
	// markRevoking says that a grant is being signed out, erase ends that.
	markRevoking(ctx context.Context, who Who, ref Ref, g *grant) error
	erase(ctx context.Context, a attempt, outcome string, f *failure) error

	// begin stores a login that has begun.
	begin(ctx context.Context, who Who, row loginRow, stateHash []byte, sealed vault.Sealed, life time.Duration) error
	// take removes the login that an answer belongs to and returns it.
	take(ctx context.Context, who Who, a Answer) (loginRow, error)
	// turn returns a device's login if it is time to ask, else for how long to wait.
	turn(ctx context.Context, who Who, login uuid.UUID) (loginRow, time.Duration, error)
	// postpone sets when a device may be asked about again.
	postpone(ctx context.Context, who Who, login uuid.UUID, interval int, wait time.Duration) error
	// drop removes a login.
	drop(ctx context.Context, who Who, login uuid.UUID) error
	// sweep removes logins that nobody completed, and attempts of long ago.
	sweep(ctx context.Context) error
}
