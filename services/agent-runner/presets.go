package agentrunner

import (
	"context"

	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/preset"
)

// presets implements PresetService.
type presets struct {
	store *preset.Store
	// tools returns the tools of the context's workspace.
	tools func(context.Context) ([]*toolv1.Tool, error)
}

func (p *presets) ListPresets(ctx context.Context, _ *agentv1.ListPresetsRequest) (*agentv1.ListPresetsResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	all, err := p.store.List(ctx, actor.Workspace)
	if err != nil {
		return nil, err
	}
	tools, err := p.tools(ctx)
	res := &agentv1.ListPresetsResponse{ToolsUnknown: err != nil}
	for _, own := range all {
		out := &agentv1.Preset{
			Name: own.Name, Prompt: own.Prompt, MaxSteps: int32(own.MaxSteps), MaxOutputTokens: int32(own.MaxOutputTokens), Tools: own.Tools, Own: own.Own,
		}
		if err == nil {
			out.UnavailableTools = unavailable(own, tools)
		}
		res.Presets = append(res.Presets, out)
	}
	return res, nil
}

// unavailable returns the tools of a preset that cannot be used now.
func unavailable(p *preset.Preset, tools []*toolv1.Tool) (out []*agentv1.UnavailableTool) {
	for _, pattern := range p.Tools {
		found := false
		for _, t := range tools {
			if !preset.Match(pattern, t.GetName()) {
				continue
			}
			found = true
			if !t.GetAvailable() {
				out = append(out, &agentv1.UnavailableTool{Name: t.GetName(), Reason: t.GetUnavailableReason(), ConnectUrl: t.GetConnectUrl()})
			}
		}
		if !found {
			out = append(out, &agentv1.UnavailableTool{Name: pattern, Reason: "no tool has this name: it is misspelt, or its server was removed"})
		}
	}
	return out
}

func (p *presets) PutPreset(ctx context.Context, req *agentv1.PutPresetRequest) (*agentv1.PutPresetResponse, error) {
	actor, err := identity.Require(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	in := req.GetPreset()
	return &agentv1.PutPresetResponse{}, p.store.Put(ctx, actor, preset.Preset{
		Name: in.GetName(), Prompt: append([]string{}, in.GetPrompt()...), MaxSteps: int(in.GetMaxSteps()), MaxOutputTokens: int(in.GetMaxOutputTokens()),
		Tools: append([]string{}, in.GetTools()...),
	})
}

func (p *presets) DeletePreset(ctx context.Context, req *agentv1.DeletePresetRequest) (*agentv1.DeletePresetResponse, error) {
	actor, err := identity.Require(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	return &agentv1.DeletePresetResponse{}, p.store.Delete(ctx, actor.Workspace, req.GetName())
}
