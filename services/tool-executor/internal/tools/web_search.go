package tools

import (
	"context"
	_ "embed"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

//go:embed web_search.md
var webSearchPage string

// webSearch only lists the tool. The model's provider runs it; the caller knows which models
// can.
func webSearch(Deps) (tool.Tool, error) {
	spec, err := tool.Spec{Name: "web_search", Source: tool.Provider, Effect: toolv1.Effect_EFFECT_PURE, ReadsUntrusted: true}.Describe(webSearchPage)
	return tool.Define(spec, func(context.Context, tool.Call, struct{}) (tool.Result, error) {
		return tool.Errorf("unavailable", "web_search is run by the model's provider, and this provider has none: continue without it"), nil
	}, nil), err
}
