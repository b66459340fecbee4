package hashchain

import (
	"context"
	"slices"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
)

// Audit is where the rows of an audit are stored.
type Audit interface {
	// AuditChains returns the workspaces that have rows, or a head, the operator's first.
	AuditChains(ctx context.Context) ([]id.Workspace, error)
	// VerifyAudit gives a workspace's rows to a chain, and returns what is wrong and the head
	// of the chain, nil if there is none. What is written meanwhile is not looked at.
	VerifyAudit(ctx context.Context, ws id.Workspace, c *Chain) ([]Problem, *Head, error)
}

// Verification is the outcome of Verify.
type Verification struct {
	Rows     int       `json:"rows"`
	Problems []Problem `json:"problems"`
	// CutOff are incomplete rows of processes that died while writing: what they announce
	// was not done, and nothing is wrong.
	CutOff []Problem `json:"cut_off,omitempty"`
	Heads  []Head    `json:"heads"`
}

// Verify recomputes the chains of all workspaces. They must include the given heads, which an
// earlier verification returned. The name of the audit, which may be empty, is noted in what it
// returns.
func Verify(ctx context.Context, name string, a Audit, earlier []Head) (Verification, error) {
	out := Verification{Problems: []Problem{}, Heads: []Head{}}
	workspaces, err := a.AuditChains(ctx)
	if err != nil {
		return out, err
	}
	for _, h := range earlier {
		if h.Sequence < 0 {
			return out, fault.New(fault.Invalid, "heads: these are not the heads that an earlier verification printed")
		}
		if !slices.Contains(workspaces, h.Workspace) {
			workspaces = append(workspaces, h.Workspace)
		}
	}
	for _, ws := range workspaces {
		c := New(ws)
		for _, h := range earlier {
			if h.Workspace == ws {
				c.Expect(h)
			}
		}
		problems, head, err := a.VerifyAudit(ctx, ws, c)
		if err != nil {
			return out, err
		}
		out.Rows += c.Rows()
		for _, p := range problems {
			p.Audit = name
			kept := &out.Problems
			if p.Kind == CutOff {
				kept = &out.CutOff
			}
			*kept = append(*kept, p)
		}
		if head != nil {
			head.Audit, head.Workspace = name, ws
			out.Heads = append(out.Heads, *head)
		}
	}
	return out, nil
}
