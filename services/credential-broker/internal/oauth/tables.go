package oauth

import (
	"context"
	"time"

	"signalbox.dev/pkg/fault"
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
	// of what an account had, and ends the login. All others of that account are over
	// then: where this one is among those, or was begun anew since, it stores nothing and
	// returns errStrange.
	admit(ctx context.Context, who Who, p *Provider, l loginRow, s *sealedTokens) error
	// due returns grants of these providers that should be renewed and that nobody renews,
	// dueAtOnce of each provider at most.
	due(ctx context.Context, providers []string, except []id.Account) ([]dueGrant, error)
	// interrupted returns grants of these providers that somebody began to sign out who is
	// gone, resumeMost at most.
	interrupted(ctx context.Context, providers []string) ([]Ref, error)
	// changed returns grants that have changed a short while ago; all of them where it can
	// as well, and says so then.
	changed(ctx context.Context) (grants []change, all bool, err error)

	// canRecord returns a fault where what is about to be asked of a provider could not be
	// recorded after, as far as can be told without a transaction.
	canRecord() error
	// open begins an attempt and takes the lease: look, again, with the grant locked,
	// decides whether there is still a need. Both are durable when it returns. ok is
	// false where another attempt is open, or look said no.
	open(ctx context.Context, ref Ref, kind string, look func(*grant) bool) (g grant, a attempt, ok bool, err error)
	// extend lengthens the lease and reports whether it is still the attempt's own.
	extend(ctx context.Context, a attempt) (ours bool, err error)
	// keep stores what an attempt brought, unless the grant has changed since it began.
	keep(ctx context.Context, a attempt, p *Provider, s sealedTokens) (stored bool, err error)
	// fail ends an attempt that brought nothing.
	fail(ctx context.Context, a attempt, p *Provider, f *failure) error
	// giveUp says that somebody must sign in again, unless the grant has changed.
	giveUp(ctx context.Context, ref Ref, version int64, reason string) error
	// openRevocation is open for a sign-out, unless that was done before. With the lease it
	// marks the grant, so that nobody uses it any more. erase ends the sign-out.
	openRevocation(ctx context.Context, who Who, ref Ref) (g grant, a attempt, ok bool, err error)
	erase(ctx context.Context, a attempt, r Revocation, f *failure) error

	// begin stores a login that has begun and expires after its LeftS. Where they have one
	// of that id it stores nothing and returns that one, but begins a device's anew. Where
	// somebody else has one it returns errReused.
	begin(ctx context.Context, who Who, row loginRow, sealed vault.Sealed) (there *loginRow, err error)
	// turn returns the login that is wanted, if it has ended or if it is time to ask the
	// provider: then nobody else has a turn until postpone or end, or until whoever has
	// it must be dead. Else it returns for how long to wait.
	turn(ctx context.Context, who Who, w wanted) (loginRow, time.Duration, error)
	// postpone sets when the next turn may be, unless the login was begun anew since.
	postpone(ctx context.Context, who Who, l *loginRow, interval int, wait time.Duration) error
	// end ends a login that brought nothing, unless it has ended, or was begun anew since.
	end(ctx context.Context, who Who, l *loginRow, f *fault.Error) error
	// sweep removes logins of a while ago, and attempts of long ago.
	sweep(ctx context.Context) error
}
