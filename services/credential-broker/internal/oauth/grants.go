package oauth

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Ref names a grant: it belongs to an account.
type Ref struct {
	Workspace id.Workspace // zero for the operator's shared accounts
	Account   id.Account
}

func (r Ref) place(field string) vault.Place {
	return vault.Place{Workspace: r.Workspace, Account: r.Account, Field: field}
}

// The fields that tokens are sealed to.
const (
	accessField  = "access_token"
	refreshField = "refresh_token"
)

// State is what a grant is good for.
type State string

// The states.
const (
	Active      State = "active"
	Reauthorize State = "reauthorize" // somebody must sign in again
	Revoking    State = "revoking"    // of no use any more; the provider may not know yet
	Revoked     State = "revoked"
)

// The outcomes of an attempt. An open one has none.
const (
	outcomeDone       = "done"
	outcomeSuperseded = "superseded" // the grant had changed when the answer came
	outcomeRefused    = "refused"    // the grant is over
	outcomeFailed     = "failed"     // the server said no to the request, not to the grant
	outcomeUnsent     = "unsent"     // the server was not reached
	outcomeUnknown    = "unknown"    // sent, and no answer that says what became of it
	outcomeLost       = "lost"       // whoever sent it is gone
)

// grant is a row, with its times as what was left of them when it was read: of the
// database's clock nothing else is used.
type grant struct {
	Provider          string
	State             State
	Reason            string
	Version           int64
	AccessSealed      []byte
	AccessKeyVersion  *int
	RefreshSealed     []byte
	RefreshKeyVersion *int
	Doubtful          bool
	Failures          int
	LastError         string
	AttemptID         *uuid.UUID
	AgeS              float64  // since the tokens were issued
	LeftS             *float64 // until they expire; nil for never
	DueS              *float64 // until they should be renewed
	LeaseS            *float64 // of the attempt that is open
	RetryS            *float64

	read time.Time // on our clock, before the database was asked
	// stray says that the lease is longer than any is when it is taken.
	stray bool
}

// bound makes sense of what a clock has left behind that was ahead and has been set right:
// no time is longer than what is ever written, so that no grant waits until the clock is
// there again. A step of less than that makes a difference to nobody.
func (g *grant) bound(lease time.Duration) {
	if g.AgeS < -youth.Seconds() { // nobody knows how old the tokens are: old enough, and due
		old := youth.Seconds()
		if g.LeftS != nil {
			g.LeftS = new(g.AgeS + *g.LeftS - old)
		}
		if g.DueS != nil {
			g.DueS = new(float64)
		}
		g.AgeS = old
	}
	if g.RetryS != nil && *g.RetryS > maxWait.Seconds() {
		g.RetryS = nil
	}
	g.stray = g.AttemptID != nil && g.LeaseS != nil && *g.LeaseS > stray(lease).Seconds()
}

// stray is the lease that nobody takes. Some of a second's step must not make one of a
// lease that was taken just now.
func stray(lease time.Duration) time.Duration { return 2 * lease }

func (g *grant) access() vault.Sealed  { return sealedOf(g.AccessSealed, g.AccessKeyVersion) }
func (g *grant) refresh() vault.Sealed { return sealedOf(g.RefreshSealed, g.RefreshKeyVersion) }

func sealedOf(bytes []byte, version *int) vault.Sealed {
	if version == nil {
		return vault.Sealed{}
	}
	return vault.Sealed{KeyVersion: *version, Bytes: bytes}
}

// margin is how long before its expiry an access token is not sent any more.
func (g *grant) margin() float64 { return min(30, (g.AgeS+*g.LeftS)/10) }

// alive reports whether the access token can still be sent.
func (g *grant) alive() bool {
	return g.AccessKeyVersion != nil && (g.LeftS == nil || *g.LeftS > g.margin())
}

// unrevoked reports whether there is something to be signed out.
func unrevoked(g *grant) bool { return g.State != Revoked }

func (g *grant) due() bool { return g.DueS != nil && *g.DueS <= 0 }
func (g *grant) leased() bool {
	return g.AttemptID != nil && g.LeaseS != nil && *g.LeaseS > 0 && !g.stray
}

// pause returns for how long no attempt is made after one that failed.
func (g *grant) pause() time.Duration {
	if g.RetryS == nil || *g.RetryS <= 0 {
		return 0
	}
	return duration(*g.RetryS)
}

func duration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// The kinds of attempts.
const (
	kindRefresh = "refresh"
	kindRevoke  = "revoke"
)

// attempt is one that this instance has open.
type attempt struct {
	ref   Ref
	id    uuid.UUID
	base  int64     // the version of the grant that it began with
	taken time.Time // on our clock, not later than the lease began
	by    Who       // who it is done for
}

// sealedTokens are tokens as they are stored.
type sealedTokens struct {
	access  *vault.Sealed // nil where only a refresh token is known
	refresh *vault.Sealed // nil where the former one stays
	// The rest of their lives, as of now; nil for ever.
	life, due *time.Duration
	scope     string
}

func (k *Keeper) seal(ctx context.Context, sealer vault.Sealer, ref Ref, p *Provider, t issued, taken time.Duration) (s sealedTokens, err error) {
	if s.access, err = sealOne(ctx, sealer, ref.place(accessField), t.Access); err != nil {
		return s, err
	}
	if s.refresh, err = sealOne(ctx, sealer, ref.place(refreshField), t.Refresh); err != nil {
		return s, err
	}
	s.scope = t.Scope
	s.life, s.due = k.schedule(p, t, taken)
	return s, nil
}

func sealOne(ctx context.Context, sealer vault.Sealer, at vault.Place, secret vault.Secret) (*vault.Sealed, error) {
	if secret.IsZero() {
		return nil, nil
	}
	sealed, err := sealer.Seal(ctx, at, secret)
	return &sealed, err
}

// schedule returns how long tokens live from now on, when it took a while to get and
// to store them, and when they should be renewed: somewhat before, each grant at a
// moment of its own, and long before a refresh token dies of not being used.
func (k *Keeper) schedule(p *Provider, t issued, taken time.Duration) (life, due *time.Duration) {
	soonest := func(d time.Duration) {
		if due == nil || d < *due {
			due = &d
		}
	}
	jitter := func(d time.Duration) time.Duration { return time.Duration(k.cfg.Rand() * float64(d)) }
	if t.Access.IsZero() {
		soonest(0)
	}
	if t.Life > 0 {
		left := max(t.Life-taken, 0)
		life = &left
		ahead := min(p.Ahead, t.Life/3)
		soonest(max(left-ahead-jitter(ahead/2), 0))
	}
	if t.Unclear { // it may be good for ever, and there may be no refresh token
		soonest(unclearLife)
	}
	idle := t.RefreshLife
	if p.Idle > 0 && (idle == 0 || p.Idle < idle) {
		idle = p.Idle
	}
	if idle > 0 {
		soonest(idle/2 - jitter(idle/10))
	}
	return life, due
}

// verdict says what a failure means for the attempt, and whether the grant is over.
func verdict(p *Provider, f *failure) (outcome string, over bool) {
	switch {
	case f.Answered && p.void(f.Code):
		return outcomeRefused, true
	case f.Answered:
		return outcomeFailed, false
	case f.Sent:
		return outcomeUnknown, false
	}
	return outcomeUnsent, false
}

func overBecause(p *Provider, g *grant) string {
	if g.Doubtful {
		return fmt.Sprintf("the answer to an earlier renewal was lost, and %s does not take the former token any more", p.Name)
	}
	return fmt.Sprintf("%s does not accept the sign-in any more: it was withdrawn, or has expired", p.Name)
}

const (
	firstPause = time.Second
	lastPause  = 5 * time.Minute
)

// backoff returns how long to wait after the nth failure in a row, from half of a
// doubling time up.
func backoff(n int, random float64) time.Duration {
	d := min(firstPause<<min(n, 20), lastPause)
	return d/2 + time.Duration(random*float64(d/2))
}
