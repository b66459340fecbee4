package store

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/audit"
)

// RecordIn is Record for the State of a file: the row is written with what is changed.
func RecordIn(st *accountfile.State, ev Event) {
	r := audit.Row{
		Action: ev.Action, Account: ev.Account, Provider: ev.Provider, Origin: ev.Origin, Service: ev.Service, Address: ev.Address,
		Session: ev.Session, Detail: ev.detail(),
	}
	if !id.IsZero(ev.Member) {
		r.Member = &ev.Member
	}
	st.Record(r)
}

// Record is Store.Record.
func (s *File) Record(ctx context.Context, ev Event) error {
	err := s.file.Update(ctx, func(st *accountfile.State) error {
		RecordIn(st, ev)
		return nil
	})
	if err == nil {
		s.tell(ctx, ev)
	}
	return err
}

// Used is Store.Used. The rows are in the one chain that there is, and say whose workspace
// it was. When an account was used is written once a minute.
func (s *File) Used(ctx context.Context, all []Use) error {
	all = slices.Clone(all)
	for i := range all {
		u := &all[i]
		u.Action, u.Detail = "used", "in workspace "+u.Workspace.String()
		if time.Since(u.At) > late {
			u.Detail += " at " + u.At.UTC().Format(time.RFC3339)
		}
	}
	err := s.file.Update(ctx, func(st *accountfile.State) error {
		for _, u := range all {
			if a := st.Account(u.Account); a != nil && (a.LastUsedAt == nil || u.At.Sub(*a.LastUsedAt) >= time.Minute) {
				a.LastUsedAt = new(u.At.UTC().Truncate(time.Microsecond))
			}
			if !u.Again {
				RecordIn(st, u.Event)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, u := range all {
		if !u.Again {
			s.tell(ctx, u.Event)
		}
	}
	return nil
}

// Audit is Store.Audit.
func (s *File) Audit(ctx context.Context, ws id.Workspace, before int64, limit int) ([]audit.Row, error) {
	if !id.IsZero(ws) {
		return nil, ErrOwn
	}
	_, rows, err := s.file.Recorded(ctx)
	if err != nil {
		return nil, err
	}
	var page []audit.Row
	for r, err := range rows {
		if err != nil {
			return nil, err
		}
		if before != 0 && r.Sequence >= before {
			continue
		}
		if len(page) == limit {
			page = slices.Delete(page, 0, 1)
		}
		page = append(page, r)
	}
	slices.Reverse(page)
	return page, nil
}

// VerifyAudit is Store.VerifyAudit.
func (s *File) VerifyAudit(ctx context.Context, ws id.Workspace, c *audit.Chain) ([]audit.Problem, *audit.Head, error) {
	if !id.IsZero(ws) {
		return c.End(nil), nil, nil
	}
	head, rows, err := s.file.Recorded(ctx)
	if err != nil {
		return nil, nil, err
	}
	var last *audit.Head
	var problems []audit.Problem
	for r, err := range rows {
		if err != nil {
			return nil, nil, err
		}
		c.Add(r)
		if last == nil || r.Sequence > last.Sequence {
			last = &audit.Head{Sequence: r.Sequence, Hash: r.Hash}
		}
		if head != nil && r.Sequence == head.Sequence && !bytes.Equal(r.Hash, head.Hash) {
			problems = append(problems, audit.Problem{
				Sequence: r.Sequence, ID: r.ID, Kind: audit.Replaced, Message: "the row is not the one that the accounts file ends the audit with",
			})
		}
	}
	if head == nil || last == nil || last.Sequence <= head.Sequence {
		return c.End(head), cmp.Or(head, last), nil
	}
	// The file that the last rows are about did not come into its place, or is an older
	// one that was put back.
	return append(problems, c.End(last)...), last, nil
}

// AuditChains is Store.AuditChains.
func (s *File) AuditChains(ctx context.Context) ([]id.Workspace, error) {
	head, rows, err := s.file.Recorded(ctx)
	if err != nil || head != nil {
		return []id.Workspace{{}}, err
	}
	for _, err := range rows {
		return []id.Workspace{{}}, err
	}
	return nil, nil
}
