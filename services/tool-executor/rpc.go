package toolexecutor

import (
	"context"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// calls implements ToolService.
type calls struct {
	catalogue *tool.Catalogue
	ledger    *ledger.Ledger
}

// ListTools implements ToolService.
func (c *calls) ListTools(ctx context.Context, _ *toolv1.ListToolsRequest) (*toolv1.ListToolsResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	all, err := c.catalogue.Of(ctx, actor.Workspace)
	if err != nil {
		return nil, err
	}
	res := &toolv1.ListToolsResponse{}
	for _, e := range all {
		a := e.Tool.Available(ctx)
		res.Tools = append(res.Tools, &toolv1.Tool{
			Name: e.Spec.Name, Description: e.Spec.Description, InputSchemaJson: string(e.Spec.InputSchema),
			Available: a.Available, UnavailableReason: a.Reason, ConnectUrl: a.ConnectURL,
			Source: e.Spec.Source, NeedsApproval: e.Spec.NeedsApproval, Effect: e.Spec.Effect, Guidance: e.Spec.Guidance,
			DeadlineMs: e.Spec.Longest.Milliseconds(), Always: e.Spec.Always,
			ReadsUntrusted: e.Spec.ReadsUntrusted, ReadsPrivate: e.Spec.ReadsPrivate, ActsOutside: e.Spec.ActsOutside, ReturnsImage: e.Spec.ReturnsImage, MayReturnImage: e.Spec.MayReturnImage,
		})
	}
	return res, nil
}

// maxKeys is documented in the contract of GetOutcomes.
const maxKeys = 256

// GetOutcomes implements ToolService.
func (c *calls) GetOutcomes(ctx context.Context, req *toolv1.GetOutcomesRequest) (*toolv1.GetOutcomesResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	if len(req.GetKeys()) > maxKeys {
		return nil, fault.New(fault.Invalid, "keys has %d elements; at most %d are allowed", len(req.GetKeys()), maxKeys)
	}
	keys := make([]id.Operation, 0, len(req.GetKeys()))
	for _, k := range req.GetKeys() {
		key, err := id.Parse[id.Operation](k)
		if err != nil {
			return nil, fault.New(fault.Invalid, "keys: %v", err)
		}
		keys = append(keys, key)
	}
	outcomes, err := c.ledger.Outcomes(ctx, actor.Workspace, keys)
	if err != nil {
		return nil, err
	}
	return &toolv1.GetOutcomesResponse{Outcomes: outcomes}, nil
}
