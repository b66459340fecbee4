package admin

import (
	"context"
	"encoding/hex"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/audit"
)

// AuditRow is a row of the audit: what happened to a credential, who did it, and when.
type AuditRow struct {
	Sequence int64      `json:"sequence"`
	At       time.Time  `json:"at"`
	Action   string     `json:"action"`
	Account  id.Account `json:"account_id,omitzero"` // zero if it is about a whole pool
	Provider string     `json:"provider,omitempty"`
	Origin   string     `json:"origin"`
	Member   id.Member  `json:"member_id,omitzero"` // zero for the operator's command line and the broker itself
	Service  string     `json:"service"`
	Address  string     `json:"address,omitempty"`
	Session  id.Session `json:"session_id,omitzero"`
	Detail   string     `json:"detail,omitempty"`
	Hash     string     `json:"hash"`
}

const (
	maxAuditPage     = 100
	defaultAuditPage = 50
	maxAuditOf       = 10000
)

// AuditQuery selects a page of the audit; 50 rows if Limit is 0.
type AuditQuery = audit.Query

// Audit returns rows, newest first, and the number for the next page, 0 after the last.
func (s *Scope) Audit(ctx context.Context, q AuditQuery) (page []AuditRow, next int64, err error) {
	if q.Before < 0 {
		return nil, 0, fault.New(fault.Invalid, "before: it is negative: use the number that the previous page returned, or 0")
	}
	limit, err := auditLimit(q.Limit, maxAuditPage)
	if err != nil {
		return nil, 0, err
	}
	q.Limit = limit + 1
	rows, err := s.accounts.Store.Audit(ctx, s.by.Workspace, q)
	if err != nil {
		return nil, 0, err
	}
	if len(rows) > limit {
		rows = rows[:limit]
		next = rows[limit-1].Sequence
	}
	page = make([]AuditRow, len(rows))
	for i := range rows {
		page[i] = auditRow(&rows[i])
	}
	return page, next, nil
}

func auditLimit(limit, most int) (int, error) {
	if limit < 0 || limit > most {
		return 0, fault.New(fault.Invalid, "limit: %d is out of range: use 1 to %d", limit, most)
	}
	if limit == 0 {
		limit = defaultAuditPage
	}
	return limit, nil
}

// ChainRow is an audit row together with the chain that it belongs to.
type ChainRow struct {
	Workspace id.Workspace `json:"workspace_id,omitzero"` // zero for the operator's chain
	AuditRow
}

// AuditOf returns the rows of an account, which may have been removed, from the chains of
// all workspaces, newest first; 50 if limit is 0.
func (a *Accounts) AuditOf(ctx context.Context, account id.Account, limit int) ([]ChainRow, error) {
	limit, err := auditLimit(limit, maxAuditOf)
	if err != nil {
		return nil, err
	}
	rows, err := a.Store.AuditOf(ctx, account, limit)
	out := make([]ChainRow, len(rows))
	for i := range rows {
		out[i] = ChainRow{rows[i].Workspace, auditRow(&rows[i])}
	}
	return out, err
}

func auditRow(r *audit.Row) AuditRow {
	out := AuditRow{
		Sequence: r.Sequence, At: r.At, Action: r.Action, Account: r.Account, Provider: r.Provider, Origin: r.Origin,
		Service: r.Service, Address: r.Address, Session: r.Session, Detail: r.Detail, Hash: hex.EncodeToString(r.Hash),
	}
	if r.Member != nil {
		out.Member = *r.Member
	}
	return out
}

// VerifyAudit recomputes the chains of all workspaces. They must include the given heads,
// which an earlier verification returned.
func (a *Accounts) VerifyAudit(ctx context.Context, earlier []hashchain.Head) (hashchain.Verification, error) {
	return hashchain.Verify(ctx, "", a.Store, earlier)
}
