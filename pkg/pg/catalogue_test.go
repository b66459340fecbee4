package pg_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
)

func TestCheckCatalogue(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	checkNoProblems(t, d.AdminURL, notes())
	c := connect(t, d.AdminURL)
	exec(t, c, `
		drop role if exists pgtest_mighty, pgtest_bypass; -- of a run that was killed
		create role pgtest_mighty superuser;
		create role pgtest_bypass bypassrls;
		set search_path = notes;
		create table plain (workspace_id uuid);
		create table unforced (workspace_id uuid);
		alter table unforced enable row level security;
		create policy p on unforced using (workspace_id = claim_workspace());
		create table wide (workspace_id uuid);
		alter table wide enable row level security, force row level security;
		create policy p on wide using (workspace_id = claim_workspace()) with check (true);
		create table owned (workspace_id uuid);
		alter table owned enable row level security, force row level security;
		create policy p on owned using (workspace_id = claim_workspace());
		grant create on schema notes to pgtest_notes;
		alter table owned owner to pgtest_notes;
		create table forgotten (id uuid);
		grant truncate on forgotten to pgtest_notes;
		create view leaky as select * from notes;
		create view tight with (security_invoker = true) as select * from notes;
		create materialized view frozen as select * from notes;
		create function all_notes() returns setof notes language sql security definer as 'select * from notes.notes';
		create table ranges (workspace_id uuid) partition by hash (workspace_id);
		alter table ranges enable row level security, force row level security;
		create policy p on ranges using (workspace_id = claim_workspace());
		create table ranges_0 partition of ranges for values with (modulus 1, remainder 0);
	`)
	t.Cleanup(func() { exec(t, c, "drop role pgtest_mighty; drop role pgtest_bypass") })
	got, err := pgtest.CheckCatalogue(t.Context(), d.AdminURL, []string{"notes.numbers", "notes.plain", "notes.gone"}, notes(),
		pg.Migrations{Schema: "a", Role: "pgtest_mighty"}, pg.Migrations{Schema: "b", Role: "pgtest_bypass"}, pg.Migrations{Schema: "c", Role: "pgtest_nobody"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"function notes.all_notes is SECURITY DEFINER: it reads with its owner's rights",
		"notes.forgotten has no workspace_id and is not on the list of shared tables",
		"notes.forgotten may be truncated by the role: TRUNCATE ignores policies",
		"notes.frozen is a materialized view or foreign table, to which policies do not apply",
		"notes.leaky is a view without security_invoker: it reads with its owner's rights",
		"notes.owned is owned by role pgtest_notes, which can switch its policies off",
		"notes.owned may be truncated by the role: TRUNCATE ignores policies",
		"notes.plain does not have row-level security enabled",
		"notes.plain does not have row-level security forced",
		"notes.plain has a workspace_id and is on the list of shared tables",
		"notes.plain has no policy",
		"notes.ranges_0 does not have row-level security enabled",
		"notes.ranges_0 does not have row-level security forced",
		"notes.ranges_0 has no policy",
		"notes.unforced does not have row-level security forced",
		"notes.wide has a permissive policy that is true for all rows",
		"role pgtest_bypass has BYPASSRLS: no policy applies to it",
		"role pgtest_mighty is a superuser: no policy applies to it",
		"role pgtest_nobody does not exist",
		"table notes.gone is on the list of shared tables and does not exist",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("CheckCatalogue (-want +got):\n%s", diff)
	}
}
