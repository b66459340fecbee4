package agentrunner

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/audit"
)

// audits implements AuditService.
type audits struct {
	store *audit.Store
}

// ListAudit implements AuditService.
func (s *audits) ListAudit(ctx context.Context, req *agentv1.ListAuditRequest) (*agentv1.ListAuditResponse, error) {
	actor, err := identity.Require(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	search, err := hashchain.NewSearch(req.GetQuery(), req.GetQueryMembers())
	if err != nil {
		return nil, err
	}
	rows, next, err := s.store.List(ctx, actor, audit.Query{Token: req.GetPageToken(), Limit: int(req.GetLimit()), Search: search})
	if err != nil {
		return nil, err
	}
	res := &agentv1.ListAuditResponse{NextPageToken: next}
	for i := range rows {
		r := &rows[i]
		out := &agentv1.AuditRow{Id: r.ID.String(), At: timestamppb.New(r.At), Action: r.Action, Subject: r.Subject, ToolName: r.Tool, Detail: r.Detail}
		if r.Member != nil {
			out.MemberId = r.Member.String()
		}
		if r.Session != nil {
			out.SessionId = r.Session.String()
		}
		if r.Run != nil {
			out.RunId = r.Run.String()
		}
		res.Rows = append(res.Rows, out)
	}
	return res, nil
}
