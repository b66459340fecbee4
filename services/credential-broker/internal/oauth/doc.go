// Package oauth gets, keeps and gives back grants: what a person has authorised the broker to
// use, at a provider's authorisation server. For the rest of the broker a grant is an account
// whose secret is an access token: Token returns the one that can be sent now, and Rejected
// another one after a 401. Providers are YAML files (Shipped, Load; docs/sign-in-providers.md).
//
// # States
//
// Rows are in package store, times are on the store's clock, and a state is a function of the
// row and the time:
//
//	grant        row                              means
//	fresh        active, refresh_at ahead         the access token is good
//	due          active, refresh_at over          still good: a worker, or the next caller, renews it
//	expired      active, expires_at near or over  callers wait for the renewal
//	renewing     + attempt, lease_until ahead     no other instance begins an attempt
//	lost         + attempt, lease_until over      the instance died; its answer may be lost
//	doubtful     + doubtful                       an answer was lost: the stored token may be void
//	backing off  + retry_at ahead                 no attempt after a failure
//	reauthorize  reauthorize                      refused, or expired without a refresh token
//	revoking     revoking                         signed out here, the provider may not know yet
//	revoked      revoked                          signed out, the tokens are erased
//
//	attempt      outcome                          the grant then
//	open         none                             renewing, or lost
//	done         done                             fresh, its version one higher
//	superseded   superseded                       unchanged: it had changed when the answer came
//	refused      refused                          reauthorize
//	failed       failed, unsent                   backing off
//	unknown      unknown, lost                    backing off; doubtful if the token rotates
//
//	login        row                              means
//	begun        poll_at over                     anybody may claim it
//	claimed      poll_at ahead                    the provider is being asked, or not to be asked yet
//	ended        ended_at                         completed, or refused for a reason
//
// # A renewal
//
// Within a process all callers share a flight. Between instances:
//
//  1. A transaction locks the grant, checks that there is still a need, writes the attempt and
//     takes the lease. It is committed before anything is sent.
//  2. One POST on a connection of its own, without a retry in any layer. The lease is extended
//     while a slow server is waited for.
//  3. A transaction stores the tokens if the version is still the one that was sent, closes the
//     attempt and ends the lease. Only then is the new token used.
//
// A lease and not a row lock, so that a thousand renewals that wait for servers need no
// connections. A lease may be outlived by its holder; the version makes that harmless: a late
// answer is stored only if nobody has stored another.
//
// # If it dies
//
// Before 1 is committed nothing has happened. After it the attempt has no outcome: once the
// lease is over the next instance marks the attempt as lost and, if the provider rotates
// refresh tokens, the grant as doubtful, and sends the stored token again. That is harmless if
// the POST did not arrive, or the server has a grace period; if the server takes the second use
// for theft, the tokens that it ends were lost already. Only invalid_grant (and what a provider's
// file says means the same), for the version that the row still has, ends a grant.
//
// A login's claim ends after some seconds more than a POST may take. A code that the provider
// had accepted is refused then, and the person starts again. An ended login stays for a while,
// without its secret, so that a caller whose answer was lost gets it again. A sign-in to an
// account ends all other logins of that account; what those are granted later is logged and left
// with the provider, because revoking it could end the grant of the first.
//
// # Caches
//
// Each Keeper that has cached a token looks once a second for grants that others have changed, so
// that a token is not sent for longer than that after a sign-out elsewhere. A token that nobody
// asks for leaves the cache after a minute: an idle instance does not look. After a gap (the
// database was unavailable, the machine slept) it drops its whole cache. The pool tells it of
// removed accounts (ForgetOf).
//
// No token is in a log, an error or a String: outside of the store and of the body of one request
// they are vault.Secret. Of an authorisation server's answers only the error code is kept.
package oauth
