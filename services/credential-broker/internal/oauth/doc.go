// Package oauth gets, keeps and gives back grants: what a person let the broker have
// at a provider's authorisation server. For the rest of the broker a grant is an
// account whose secret is an access token; Token gives the one that can be sent now,
// and Rejected another one after a 401.
//
// Providers are YAML files, shipped ones (Shipped) and an operator's own:
//
//	name: google                    # unique; letters, digits and dashes
//	account: google                 # the provider's name in the pool; its own without
//	profile: google                 # the request profile that its accounts use
//	endpoints:
//	  authorize: https://…          # for browser and paste
//	  token: https://…
//	  device: https://…             # RFC 8628
//	  revoke: https://…             # RFC 7009
//	  code_page: https://…          # of the provider's, that shows codes to be pasted
//	client:
//	  id: …                         # or the operator's setting, which goes before it
//	  auth: body                    # none (a public client), body or basic; never guessed
//	  loopback: false               # http://127.0.0.1 and http://[::1], any port, /callback,
//	                                # are registered as redirect URIs (RFC 8252, 7.3)
//	request:
//	  encoding: form                # or json
//	  state: false                  # the token endpoint wants the state too
//	  authorize: {prompt: consent}  # more parameters
//	  token: {}
//	scopes: [read]
//	tokens:
//	  rotate: true                  # a refresh token is good once
//	  refresh_ends_access: false    # a refresh ends the former access token
//	  idle: 4320h                   # a refresh token dies of not being used for so long
//	  ahead: 5m                     # how long before its expiry a token is renewed
//	errors: [bad_refresh_token]     # codes that mean the same as invalid_grant
//	connection:                     # for tools, which members connect: not for models
//	  title: Google                 # for people
//	  whoami:                       # asked once, with a new token, whose it is
//	    url: https://…
//	    headers: {}
//	    at: [email, user.name]      # the first that is there
//
// # A grant
//
// A row of the table grants owns a grant; the Keepers of all instances are equal and
// remember of it only what they may forget. Tokens are sealed to its row and field.
// Each change of the tokens raises the version by one.
//
//	fresh        the access token is good, and refresh_at is to come
//	due          refresh_at is over, the token is good still: a worker of any instance
//	             renews it, or the next who asks, and nobody waits
//	expired      within 30 s of its expiry, or a tenth of its life: whoever asks waits
//	refreshing   an attempt is open: attempt_id says which, its row which instance
//	             and which version, lease_until how long nobody else may begin one
//	lapsed       the lease is over and the attempt has no outcome: its instance is gone
//	reauthorize  the server has refused the refresh token, or the token has expired and
//	             there is none: reason says so, and only a new sign-in helps
//	revoking     signed out here; the provider may not know yet. Of one whose instance died
//	             another one tells it, within minutes
//	revoked      signed out, the tokens are erased
//
// All but the last three have the state active; nothing but the times tells them
// apart, and these are the database's: of a row that is read, what is left until a
// time is what counts, so that the clocks of instances do not matter. Where the database's
// was ahead and has been set right, no time that is left counts for longer than such a
// time can be: tokens of the future are due, and a lease is one that was taken just now.
//
// What others have changed every Keeper looks for once a second, with one query for all
// grants, so that a token is not sent for longer than that after a sign-out elsewhere.
// Who could not look for longer than a look goes back, because the database was away or
// the machine slept, forgets all that it holds with its next look. Of an account that was
// removed no row is left that could say so: the pool, which finds that within a second, has
// the Keeper forget what it holds of the workspace (ForgetOf). So it does with what it hears
// of other instances, at once.
//
// # A renewal
//
// Within a process all who ask for the same wait for one goroutine. Between instances:
//
//  0. Who cannot open the refresh token, or could not seal what comes, begins nothing.
//  1. One transaction locks the row, looks again whether there is a need, writes the
//     attempt and takes the lease. It is committed before anything is sent.
//  2. One POST, on a connection of its own, without a retry of any layer. A slow server
//     is waited for, and the lease extended, for a minute.
//  3. One transaction stores what was issued where the version is still the one that
//     was sent, closes the attempt and lets go of the lease. Only then does anybody
//     get to see the new token. While the database is away this is tried for long.
//
// The lock is a lease and not a row lock that is held during the POST: a renewal takes
// no connection while it waits for a server, so that a thousand accounts that are due
// at once need no more of them than one. What a lease lacks against a lock, that its
// holder may outlive it, the version makes good: a late answer is stored if nobody has
// stored another, and thrown away if somebody has. Who was stopped between 1 and 2 for
// more than half a lease sends nothing.
//
// # What if it dies here
//
// Before 1 is committed: nothing happened. After it: the attempt has no outcome, which
// is how the crash shows. When the lease is over (15 s) the next instance marks the
// attempt as lost and, where the provider rotates refresh tokens, the grant as
// doubtful: the server may have issued tokens that nobody has. Then the stored refresh
// token is sent again. Where it does not rotate this is harmless. Where it does, the
// POST may not have reached the server, or the server gives grace to a token that it
// has just replaced; and where it takes the second use for theft and ends the grant,
// nothing is lost that could have been kept, for the tokens it issued are gone. A
// refusal of a doubtful grant asks for a new sign-in with that reason. An answer that
// got lost on the way is the same case without a death.
//
// Only the error code invalid_grant (and what a provider's data says means the same),
// for the version that the row still has, ends a grant. Everything else (the network,
// an overloaded server, a client that the operator has set wrong) is tried again
// after a pause, from half a second up to 5 minutes, or what Retry-After asks for up to
// 15; meanwhile the access token is used as long as it is good.
//
// # A login
//
// A row of the table logins is a login. It belongs to a workspace and a member, is for one
// Purpose and holds the hash of the state and, sealed, the PKCE verifier or the device
// code. A login makes a new account, or replaces the tokens of one that is there, which
// raises the version and so throws away what a renewal under way will bring.
//
//	begun    nobody works on it
//	turn     until poll_at: somebody asks the provider, or has to wait for the next poll
//	ended    ended_at is there: with a reason it was refused, without it made an account
//
// The provider is asked by whoever has the turn, and others wait for some seconds. What it
// decides ends the login, in one transaction with the tokens and, of a connection, with who made it; the
// secret is erased. An ended row stays until a quarter of an hour after it would have
// expired, so that a member whose answer was lost asks again and is told the same. What
// decides nothing (the network, an overloaded server, our database) gives the turn back:
// the code is sent again when the person tries again. If it dies with the turn, that is
// over after a minute and some seconds, and the same holds. A code that the provider had
// taken is refused then; the person starts again, and nothing is lost that anybody had.
//
// A device's login that is begun again under its id is another one: the hash of its state
// is, and what the provider answers of the codes of before is not about it.
//
// An instance of a version that removes a login's row when it is completed (before
// migration 00008) knows neither turns nor ends. While one runs beside those of this
// version, a login that is completed at both at once has its code sent twice, which
// providers may refuse the tokens for; one that this version is completing is gone where
// the other finds it expired; and of one that has ended the other answers with an error,
// and removes it when it would have expired. The person starts again: nothing is lost that
// anybody had.
//
// Who signs in to an account ends all other logins of it, those under way too: of several
// who have begun to authorise one again the first has it, and the others start anew; what
// these were granted is left with the provider, and logged, for to revoke it could end what
// the first was granted. An
// owner who signs in to the account of a connection makes it an account like others.
//
// # Without a database
//
// The grants of a single user are in a file (inFile, package accountfile), under the same
// states, leases and versions, so that the command line and a broker, or two, work on it
// at once. A change of it is durable before anybody sees what it brings, as a commit is.
// Of attempts it has the open one alone; the log has the others. A login that has ended is
// gone.
//
// No token is in a log, an error or a String: outside of SQL and of the body of one
// request they are vault.Secret. Of what authorisation servers answer only the error
// code is kept.
package oauth
