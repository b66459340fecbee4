package credentialbroker

import (
	"context"
	"encoding/hex"
	"slices"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/audit"
)

// AuditRow is a row of the audit: what happened to a credential, who did it, and when.
type AuditRow struct {
	Sequence int64     `json:"sequence"`
	At       time.Time `json:"at"`
	Action   string    `json:"action"`
	// Account is empty where all of the pool are meant.
	Account  string `json:"account_id,omitempty"`
	Provider string `json:"provider,omitempty"`
	Origin   string `json:"origin"`
	// Member is empty for the operator's command line, and the broker itself.
	Member  string `json:"member_id,omitempty"`
	Service string `json:"service"`
	Address string `json:"address,omitempty"`
	Session string `json:"session_id,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Hash    string `json:"hash"`
}

const (
	maxAuditPage     = 100
	defaultAuditPage = 50
	maxAuditOf       = 10000
)

// Audit returns rows before a number, 0 for the end, newest first; and what to ask for
// next, 0 when there is no more.
func (s *Scope) Audit(ctx context.Context, before int64, limit int) (page []AuditRow, next int64, err error) {
	switch {
	case before < 0:
		return nil, 0, fault.New(fault.Invalid, "before: it is negative: use the number that the page before ended with, or 0")
	case limit < 0 || limit > maxAuditPage:
		return nil, 0, fault.New(fault.Invalid, "limit: %d is out of range: use 1 to %d", limit, maxAuditPage)
	case limit == 0:
		limit = defaultAuditPage
	}
	rows, err := s.accounts.store.Audit(ctx, s.workspace, before, limit+1)
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

// AuditRowOf is a row of an account's audit, and the chain in which it stands.
type AuditRowOf struct {
	// Workspace is empty for the operator's chain.
	Workspace string `json:"workspace_id,omitempty"`
	AuditRow
}

// AuditOf returns the rows of an account, also of one that was removed, in the chains of
// all workspaces, newest first; 50 where limit is 0.
func (a *Accounts) AuditOf(ctx context.Context, account id.Account, limit int) ([]AuditRowOf, error) {
	switch {
	case limit < 0 || limit > maxAuditOf:
		return nil, fault.New(fault.Invalid, "limit: %d is out of range: use 1 to %d", limit, maxAuditOf)
	case limit == 0:
		limit = defaultAuditPage
	}
	rows, err := a.store.AuditOf(ctx, account, limit)
	if err != nil {
		return nil, err
	}
	out := make([]AuditRowOf, len(rows))
	for i := range rows {
		out[i] = AuditRowOf{Workspace: nameOf(rows[i].Workspace), AuditRow: auditRow(&rows[i])}
	}
	return out, nil
}

func auditRow(r *audit.Row) AuditRow {
	out := AuditRow{
		Sequence: r.Sequence, At: r.At, Action: r.Action, Provider: r.Provider, Origin: r.Origin,
		Service: r.Service, Address: r.Address, Detail: r.Detail, Hash: hex.EncodeToString(r.Hash),
	}
	if !id.IsZero(r.Account) {
		out.Account = r.Account.String()
	}
	if !id.IsZero(r.Session) {
		out.Session = r.Session.String()
	}
	if r.Member != nil {
		out.Member = r.Member.String()
	}
	return out
}

// AuditHead is where the chain of a workspace ended when it was verified. Kept where
// nobody who can write the database can change it, it shows a chain that was made anew.
type AuditHead struct {
	// Workspace is empty for the operator's.
	Workspace string `json:"workspace_id,omitempty"`
	Sequence  int64  `json:"sequence"`
	Hash      string `json:"hash"`
}

// AuditProblem is something wrong with the audit.
type AuditProblem struct {
	Workspace string `json:"workspace_id,omitempty"`
	Sequence  int64  `json:"sequence"`
	// Row is the id of the row; empty where it is missing.
	Row string `json:"row_id,omitempty"`
	// Kind is changed, removed, inserted, moved, replaced or rewound.
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// Verification is how the audit was found.
type Verification struct {
	Rows     int            `json:"rows"`
	Problems []AuditProblem `json:"problems"`
	// CutOff are rows whose writers died before they were whole: what they were to tell of
	// was not done, and nothing is wrong.
	CutOff []AuditProblem `json:"cut_off,omitempty"`
	Heads  []AuditHead    `json:"heads"`
}

// VerifyAudit recomputes the chains of all workspaces. They must go through the heads
// that an earlier verification returned, if some are given.
func (a *Accounts) VerifyAudit(ctx context.Context, earlier []AuditHead) (Verification, error) {
	out := Verification{Problems: []AuditProblem{}, Heads: []AuditHead{}}
	chains, err := a.store.AuditChains(ctx)
	if err != nil {
		return out, err
	}
	expected := map[id.Workspace][]audit.Head{}
	for _, h := range earlier {
		parsed, err := parseHead(h)
		if err != nil {
			return out, err
		}
		if len(expected[parsed.Workspace]) == 0 && !slices.Contains(chains, parsed.Workspace) {
			chains = append(chains, parsed.Workspace)
		}
		expected[parsed.Workspace] = append(expected[parsed.Workspace], parsed)
	}
	for _, ws := range chains {
		c := audit.New(ws)
		for _, h := range expected[ws] {
			c.Expect(h)
		}
		problems, head, err := a.store.VerifyAudit(ctx, ws, c)
		if err != nil {
			return out, err
		}
		out.Rows += c.Rows()
		for _, p := range problems {
			if p.Kind == audit.CutOff {
				out.CutOff = append(out.CutOff, auditProblem(p))
				continue
			}
			out.Problems = append(out.Problems, auditProblem(p))
		}
		if head != nil {
			out.Heads = append(out.Heads, AuditHead{Workspace: nameOf(ws), Sequence: head.Sequence, Hash: hex.EncodeToString(head.Hash)})
		}
	}
	return out, nil
}

func parseHead(h AuditHead) (audit.Head, error) {
	var out audit.Head
	var err error
	if h.Workspace != "" {
		if out.Workspace, err = id.Parse[id.Workspace](h.Workspace); err != nil {
			return out, fault.New(fault.Invalid, "heads: %v", err)
		}
	}
	if out.Hash, err = hex.DecodeString(h.Hash); err != nil || h.Sequence < 0 {
		return out, fault.New(fault.Invalid, "heads: they are not those that a verification printed")
	}
	out.Sequence = h.Sequence
	return out, nil
}

func auditProblem(p audit.Problem) AuditProblem {
	out := AuditProblem{Workspace: nameOf(p.Workspace), Sequence: p.Sequence, Kind: string(p.Kind), Message: p.Message}
	if p.ID != [16]byte{} {
		out.Row = p.ID.String()
	}
	return out
}

func nameOf(ws id.Workspace) string {
	if id.IsZero(ws) {
		return ""
	}
	return ws.String()
}
