// Package pg is the services' only access to Postgres: transactions that carry claims about
// who is acting, and the migrations that row-level security builds on.
//
// # Claims
//
// A service connects as a role that owns nothing and sees rows only through row-level
// security. The claims of a transaction decide what it may see. This package sets them in the
// statement that begins it:
//
//	InWorkspace  signalbox.workspace = '<uuid>'   the rows of one tenant
//	AsMember     signalbox.member    = '<uuid>'   a person's memberships in all workspaces
//	AsSystem     signalbox.system    = 'on'       sweepers, outbox, key lookup: all rows
//
// Claims are local to the transaction (set_config(…, true)), and every begin sets all three,
// so that a pooled connection carries nothing over. An unset claim is NULL and matches no
// row.
//
// # Policies
//
// [Migrate] creates three functions in a service's schema before its first migration runs:
// claim_workspace() and claim_member(), both uuid or NULL, and claim_system(), never NULL.
// They are plain SQL, which the planner inlines. A migration writes for every table with a
// workspace:
//
//	ALTER TABLE sessions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
//	CREATE POLICY tenant ON sessions
//		USING (workspace_id = claim_workspace() OR claim_system());
//
// USING without WITH CHECK guards writes as well. The policy is a safety net: because of the
// OR, Postgres uses no index for it, so every WHERE names the workspace itself, first. Migrate
// grants SELECT, INSERT, UPDATE and DELETE, but not TRUNCATE, which ignores policies. A test
// of each service calls pgtest.CheckCatalogue, which lists violations of these rules.
//
// Migrations run with signalbox.system on, so that they can change data even if the
// administrator is not a superuser.
//
// # Failure
//
// A [DB] connects on first use, and reconnects after Postgres restarts. An error because
// Postgres is unreachable, full, out of connections or too slow is fault.Unavailable, which
// doors answer with 503. If the process dies here, a transaction that was not committed did
// not happen. One whose commit failed with the connection or the caller's context may have
// happened: the caller repeats it under the same idempotency key.
//
// The DB owns its pool. A connection serves one transaction at a time. fn must not keep its
// tx, nor share it between goroutines.
package pg
