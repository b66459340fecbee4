package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/audit"
)

func (t *fileTx) Record(_ context.Context, ev Event) error {
	r := audit.Row{
		Action: ev.Action, Account: ev.Account, Provider: ev.Provider, Origin: ev.Origin, Service: ev.Service, Address: ev.Address,
		Session: ev.Session, Detail: ev.detail(),
	}
	if !id.IsZero(ev.Member) {
		r.Member = &ev.Member
	}
	t.State.Record(r)
	t.events = append(t.events, ev)
	return nil
}

func (s file) Audit(ctx context.Context, ws id.Workspace, q audit.Query) ([]audit.Row, error) {
	if !id.IsZero(ws) || !q.Search.All() {
		return nil, ErrNeedsDatabase
	}
	return s.lastRows(ctx, q.Limit, func(r *audit.Row) bool { return q.Before == 0 || r.Sequence < q.Before })
}

func (s file) AuditOf(ctx context.Context, account id.Account, limit int) ([]audit.Row, error) {
	return s.lastRows(ctx, limit, func(r *audit.Row) bool { return r.Account == account })
}

// lastRows returns the last of the wanted rows, newest first, up to limit.
func (s file) lastRows(ctx context.Context, limit int, wanted func(r *audit.Row) bool) ([]audit.Row, error) {
	_, rows, err := s.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	var page []audit.Row
	for r, err := range rows {
		if err != nil {
			return nil, err
		}
		if !r.IsRow() || !wanted(&r.Row) {
			continue
		}
		if len(page) == limit {
			page = slices.Delete(page, 0, 1)
		}
		page = append(page, r.Row)
	}
	slices.Reverse(page)
	return page, nil
}

// VerifyAudit reports rows that were cut off, too.
func (s file) VerifyAudit(ctx context.Context, ws id.Workspace, c *hashchain.Chain) ([]hashchain.Problem, *hashchain.Head, error) {
	if !id.IsZero(ws) {
		return c.End(nil), nil, nil
	}
	head, rows, err := s.Recorded(ctx)
	if err != nil {
		return nil, nil, err
	}
	var last *hashchain.Head
	var problems []hashchain.Problem
	for r, err := range rows {
		if err != nil {
			return nil, nil, err
		}
		if p, ok := inLine(&r, last); ok {
			problems = append(problems, p)
		}
		if !r.IsRow() {
			continue
		}
		c.Add(r.Link())
		if last == nil || r.Sequence > last.Sequence {
			last = &hashchain.Head{Sequence: r.Sequence, Hash: r.Hash}
		}
		if head != nil && r.Sequence == head.Sequence && !bytes.Equal(r.Hash, head.Hash) {
			problems = append(problems, hashchain.Problem{
				Sequence: r.Sequence, ID: r.ID, Kind: hashchain.Replaced, Message: "the row is not the last one according to the accounts file",
			})
		}
	}
	if head == nil || last == nil || last.Sequence <= head.Sequence {
		return inOrder(problems, c.End(head)), cmp.Or(head, last), nil
	}
	// The accounts file was not replaced after the last rows were written, or is an older one
	// that was put back.
	return inOrder(problems, c.End(last)), last, nil
}

func inOrder(a, b []hashchain.Problem) []hashchain.Problem {
	all := append(a, b...)
	slices.SortStableFunc(all, func(a, b hashchain.Problem) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return all
}

// inLine says what is wrong with a line itself; last is the row before it.
func inLine(l *accountfile.Line, last *hashchain.Head) (p hashchain.Problem, wrong bool) {
	if last != nil {
		p.Sequence = last.Sequence
	}
	switch l.Form {
	case accountfile.Touched:
		if !bytes.Equal(l.Sum(), l.Hash) {
			return p, false // the chain tells of it
		}
		p.Sequence, p.ID, p.Kind = l.Sequence, l.ID, hashchain.Changed
		p.Message = fmt.Sprintf("row %d was changed after it was written: something was inserted between its fields", l.Sequence)
	case accountfile.CutOff:
		p.Kind = hashchain.CutOff
		p.Message = fmt.Sprintf("after row %d comes an incomplete row: its writer died", p.Sequence)
	case accountfile.Strange:
		p.Kind = hashchain.Inserted
		p.Message = fmt.Sprintf("after row %d comes a line that is not a row", p.Sequence)
	case accountfile.Whole:
		return p, false
	}
	return p, true
}

func (s file) AuditChains(ctx context.Context) ([]id.Workspace, error) {
	head, rows, err := s.Recorded(ctx)
	if err != nil || head != nil {
		return []id.Workspace{{}}, err
	}
	for _, err := range rows { // a line that is no row is to be reported, too
		return []id.Workspace{{}}, err
	}
	return nil, nil
}
