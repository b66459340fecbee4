package agentrunner_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

// Answers to approvals, rules and budgets are in the audit, once each and without arguments. The
// rows outlive their session, and the service cannot change them.
func TestAudit(t *testing.T) {
	t.Parallel()
	w := asking(t)
	w.model.then(calls([3]string{"a", "send", `{"to":"secret-address"}`}, [3]string{"b", "send", `{"to":"y"}`}), says("Sent."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	v.until(parked)
	for range 2 { // the second time changes nothing
		err := w.decide(session, "a", agentv1.Decision_DECISION_APPROVED, func(r *agentv1.DecideRequest) { r.Remember = agentv1.Remember_REMEMBER_ARGUMENTS })
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.decide(session, "b", agentv1.Decision_DECISION_REFUSED, func(r *agentv1.DecideRequest) { r.Reason = "not today" }); err != nil {
		t.Fatal(err)
	}
	v.until(isEnd)
	owner := w.as(identity.Owner)
	rules, err := w.approvals.ListRules(owner, &agentv1.ListRulesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.approvals.DeleteRule(owner, &agentv1.DeleteRuleRequest{Id: rules.GetRules()[0].GetId()}); err != nil {
		t.Fatal(err)
	}
	set, err := w.usage.SetBudget(owner, &agentv1.SetBudgetRequest{Scope: "run", Steps: new(int64(5))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.usage.DeleteBudget(owner, &agentv1.DeleteBudgetRequest{Id: set.GetBudget().GetId()}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.conversations.DeleteSession(owner, &agentv1.DeleteSessionRequest{Id: session}); err != nil {
		t.Fatal(err)
	}

	person, err := identity.Require(owner, identity.Owner)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for token, more := "", true; more; more = token != "" {
		res, err := w.audit.ListAudit(owner, &agentv1.ListAuditRequest{Limit: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range res.GetRows() {
			if r.GetMemberId() != person.Member.String() || r.GetAt() == nil || strings.Contains(r.String(), "secret-address") {
				t.Errorf("a row is %v, want it by %s and without arguments", r, person.Member)
			}
			got = append(got, fmt.Sprintf("%s %s %t %s", r.GetAction(), r.GetToolName(), r.GetSessionId() == session, r.GetDetail()))
		}
		token = res.GetNextPageToken()
	}
	want := []string{
		"budget-deleted  false run, steps 5", "budget-set  false run, steps 5", "rule-deleted send true allow", "call-refused send true not today",
		"rule-set send true allow, for certain arguments", "call-approved send true ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the audit differs (-want +got):\n%s", diff)
	}
	for query, want := range map[string]int{"NOT TODAY": 1, "rule": 2, "send": 4, "%": 0, person.Member.String(): 6, "nothing": 0} {
		res, err := w.audit.ListAudit(owner, &agentv1.ListAuditRequest{Query: query})
		if err != nil || len(res.GetRows()) != want {
			t.Errorf("the audit of %q has %d rows (%v), want %d", query, len(res.GetRows()), err, want)
		}
	}
	res, err := w.audit.ListAudit(owner, &agentv1.ListAuditRequest{Query: "nothing", QueryMembers: []string{person.Member.String()}})
	if err != nil || len(res.GetRows()) != len(want) {
		t.Errorf("the audit of a member has %d rows (%v), want %d", len(res.GetRows()), err, len(want))
	}
	for _, req := range []*agentv1.ListAuditRequest{{Query: strings.Repeat("x", 201)}, {Query: "x", QueryMembers: []string{"x"}}} {
		if _, err := w.audit.ListAudit(owner, req); fault.KindOf(err) != fault.Invalid {
			t.Errorf("ListAudit(%v) = %v, want it invalid", req, err)
		}
	}
	if _, err := w.audit.ListAudit(w.as(identity.Editor), &agentv1.ListAuditRequest{}); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("ListAudit by an editor = %v, want it forbidden", err)
	}
	err = w.db.Open(t, agentrunner.Migrations()).InWorkspace(t.Context(), w.workspace, func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{`UPDATE audit SET detail = 'x'`, `DELETE FROM audit`} {
			if tag, err := tx.Exec(ctx, sql); err != nil || tag.RowsAffected() > 0 {
				t.Errorf("%s changes %d rows (%v), want none", sql, tag.RowsAffected(), err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
