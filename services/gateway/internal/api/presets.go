package api

import (
	"context"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

func (a *API) presets() {
	const tag = "Presets"
	handle(a, op("list-presets", "GET /api/presets", tag, "List the kinds of agents that sessions can use",
		about("Presets ship with the product, and owners can add their own. The list shows tools of a preset that cannot be used now, and why.")), viewers, a.listPresets)
	handle(a, op("put-preset", "PUT /api/presets/{name}", tag, "Create or replace a preset of the workspace",
		about("A preset with the name of a shipped one takes its place until it is deleted. Runs use the new preset from their next claim on.")), owners, a.putPreset)
	handle(a, op("delete-preset", "DELETE /api/presets/{name}", tag, "Delete a preset of the workspace",
		about("Sessions that use it get the shipped preset of that name, or the default one.")), owners, a.deletePreset)
}

// Preset is a kind of agent.
type Preset struct {
	Name             string            `json:"name" example:"workspace"`
	Prompt           []string          `json:"prompt" nullable:"false" doc:"Parts of the system prompt, in order."`
	MaxSteps         int32             `json:"max_steps" doc:"Model calls that a run may make."`
	MaxOutputTokens  *int32            `json:"max_output_tokens" doc:"Of one model call; null for the provider's default."`
	Tools            []string          `json:"tools" nullable:"false" doc:"Names, or prefixes that end in *, and with a dash in front those that are left out."`
	Own              bool              `json:"own" doc:"The workspace's own, not a shipped one."`
	UnavailableTools []UnavailableTool `json:"unavailable_tools" nullable:"false" doc:"Tools of the preset that cannot be used now, and names and prefixes that no tool has."`
}

// UnavailableTool is a tool that cannot be used now.
type UnavailableTool struct {
	Name       string `json:"name"`
	Reason     string `json:"reason" doc:"For people: why, and what to do."`
	ConnectURL string `json:"connect_url,omitempty" doc:"Where a person connects what the tool needs."`
}

type presetsOutputBody struct {
	Presets    []Preset `json:"presets" nullable:"false" doc:"By name."`
	Complete   bool     `json:"complete" doc:"False if the tools could not be listed, so that unavailable_tools is empty."`
	NextCursor *string  `json:"next_cursor" doc:"Always null: the list has one page."`
}

func (a *API) listPresets(ctx context.Context, _ *struct{}) (*presetsOutputBody, error) {
	res, err := a.cfg.Presets.ListPresets(ctx, &agentv1.ListPresetsRequest{})
	return &presetsOutputBody{Presets: each(res.GetPresets(), viewPreset), Complete: !res.GetToolsUnknown()}, err
}

func viewPreset(p *agentv1.Preset) Preset {
	return Preset{
		Name: p.GetName(), Prompt: append([]string{}, p.GetPrompt()...), MaxSteps: p.GetMaxSteps(), MaxOutputTokens: orNull(p.GetMaxOutputTokens()),
		Tools: append([]string{}, p.GetTools()...), Own: p.GetOwn(),
		UnavailableTools: each(p.GetUnavailableTools(), viewUnavailable),
	}
}

func viewUnavailable(t *agentv1.UnavailableTool) UnavailableTool {
	return UnavailableTool{t.GetName(), t.GetReason(), t.GetConnectUrl()}
}

// PutPreset is the body of PUT /api/presets/{name}.
type PutPreset struct {
	Prompt          []string `json:"prompt,omitempty" doc:"Parts of the system prompt, in order."`
	MaxSteps        int32    `json:"max_steps" minimum:"1" maximum:"50"`
	MaxOutputTokens int32    `json:"max_output_tokens,omitempty" minimum:"0" doc:"Of one model call; the provider's default if absent."`
	Tools           []string `json:"tools,omitempty" doc:"Names, or prefixes that end in *, and with a dash in front those to leave out. Only tools that are always enabled if absent."`
}

func (a *API) putPreset(ctx context.Context, in *struct {
	Name string `path:"name" doc:"1 to 64 lower-case letters, digits and -."`
	Body PutPreset
	Repeatable
},
) (*Success, error) {
	b := in.Body
	_, err := a.cfg.Presets.PutPreset(ctx, &agentv1.PutPresetRequest{Preset: &agentv1.Preset{
		Name: in.Name, Prompt: b.Prompt, MaxSteps: b.MaxSteps, MaxOutputTokens: b.MaxOutputTokens, Tools: b.Tools,
	}})
	return succeeded(), err
}

func (a *API) deletePreset(ctx context.Context, in *struct {
	Name string `path:"name" doc:"The preset's name."`
	Repeatable
},
) (*Success, error) {
	_, err := a.cfg.Presets.DeletePreset(ctx, &agentv1.DeletePresetRequest{Name: in.Name})
	return succeeded(), err
}
