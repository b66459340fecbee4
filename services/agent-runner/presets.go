package agentrunner

import (
	"cmp"
	"context"
	"slices"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/llm/catalogue"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/prompt"
)

// presets implements PresetService.
type presets struct {
	store *preset.Store
	// tools returns the tools of the context's workspace.
	tools  func(context.Context) ([]*toolv1.Tool, error)
	models *catalogue.Catalogue
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
			out.UnavailableTools = unavailable(own.Tools, tools, (*toolv1.Tool).GetUnavailableReason)
		}
		res.Presets = append(res.Presets, out)
	}
	return res, nil
}

// toolsWait bounds how long a reader of a session waits for what is said about its tools.
const toolsWait = time.Second

// ofSession returns the tools of a session that cannot be used now, or not with its model. It
// returns none if they cannot be listed in time.
func (p *presets) ofSession(ctx context.Context, ws id.Workspace, s *agentv1.Session) []*agentv1.UnavailableTool {
	ctx, cancel := context.WithTimeout(ctx, toolsWait)
	defer cancel()
	tools, err := p.tools(ctx)
	if err != nil {
		return nil
	}
	var selection, own []string
	if s.GetTools() != nil {
		selection = append([]string{}, s.GetTools().GetNames()...)
	}
	all, err := p.store.List(ctx, ws)
	if err != nil {
		return nil
	}
	if i := slices.IndexFunc(all, func(x *preset.Preset) bool { return x.Name == cmp.Or(s.GetPreset(), preset.Default) }); i >= 0 {
		own = all[i].Tools
	}
	selection = preset.Resolve(selection, own)
	m, _ := p.models.Lookup(s.GetProvider(), s.GetModel())
	return unavailable(selection, tools, func(t *toolv1.Tool) string { return prompt.WhyNot(t, s.GetProvider(), &m, p.models.ServerTool) })
}

// unavailable returns the tools of a selection that cannot be used now. why says why one cannot, and
// is empty if it can.
func unavailable(selection []string, tools []*toolv1.Tool, why func(*toolv1.Tool) string) (out []*agentv1.UnavailableTool) {
	for _, pattern := range selection {
		if _, excluded := preset.Excluded(pattern); excluded {
			continue
		}
		found := false
		for _, t := range tools {
			if !preset.Match(pattern, t.GetName()) {
				continue
			}
			found = true
			if !preset.Includes(selection, t.GetName()) {
				continue
			}
			if reason := why(t); reason != "" || !t.GetAvailable() {
				out = append(out, &agentv1.UnavailableTool{Name: t.GetName(), Reason: reason, ConnectUrl: t.GetConnectUrl()})
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
