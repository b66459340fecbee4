// Package pg is the only way to the tables: transactions that carry who is
// acting, migrations that make the policies possible, and a check that no table
// was forgotten.
//
// # Claims
//
// A service connects as a role that owns nothing and sees no row but through
// row-level security. What a transaction may see follows from its claims, which
// this package sets with the statement that begins it:
//
//	InWorkspace  signalbox.workspace = '<uuid>'   the rows of one tenant
//	AsMember     signalbox.member    = '<uuid>'   what a person sees in all workspaces: their memberships
//	AsSystem     signalbox.system    = 'on'       sweepers, outbox, key lookup: all rows
//
// Claims are local to the transaction (set_config(…, true)) and every begin
// sets all three, so that a connection which comes back from the pool brings
// nothing along. A claim that is not set is NULL and matches no row.
//
// # Policies
//
// [Migrate] makes three functions in a service's schema before its first
// migration runs: claim_workspace() and claim_member(), both uuid or NULL, and
// claim_system(), never NULL. They are plain SQL and inlined by the planner. A
// migration writes for every table with a workspace:
//
//	ALTER TABLE sessions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
//	CREATE POLICY tenant ON sessions
//		USING (workspace_id = claim_workspace() OR claim_system());
//
// USING without WITH CHECK guards writes as well. The policy is the net and not
// the query plan: because of the OR, Postgres takes no index from it, so every
// WHERE names the workspace itself, first. Tables get their rights from Migrate
// (SELECT, INSERT, UPDATE, DELETE; not TRUNCATE, which ignores policies).
// [CheckCatalogue] lists what breaks these rules; a test calls it.
//
// Migrations run with signalbox.system on, so that one which changes data works
// for an administrator who is no superuser too.
//
// # Failure
//
// A [DB] connects when it is first used and again whenever it has to: Postgres
// may restart, and the process need not. What fails because Postgres is away,
// full, out of connections or too slow is fault.Unavailable, which doors answer
// with 503. If it dies here: a transaction that was not committed did not
// happen; one whose commit failed because the connection or the caller's context
// ended may have happened, and the caller repeats it under the same idempotency
// key.
//
// The DB owns its pool; a connection belongs to one transaction at a time and
// fn's tx to fn alone: it must not be used after fn returned, nor by two
// goroutines.
package pg
