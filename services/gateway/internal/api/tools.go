package api

import (
	"context"
	"fmt"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

type toolsOutputBody struct {
	Tools      []Tool  `json:"tools" nullable:"false"`
	NextCursor *string `json:"next_cursor" doc:"Always null: the list has one page."`
}

func (a *API) tools() {
	handle(a, op("list-tools", "GET /api/tools", "Tools", "List the tools that a session can enable",
		about("With a model, tools that providers run, such as web_search, are unavailable if the model has none.")), viewers, a.listTools)
}

func (a *API) listTools(ctx context.Context, in *struct {
	Provider string `query:"provider" maxLength:"128" doc:"The provider of the model."`
	Model    string `query:"model" maxLength:"256" doc:"The model that the tools are for."`
},
) (*toolsOutputBody, error) {
	res, err := a.cfg.Tools.ListTools(ctx, &toolv1.ListToolsRequest{})
	if err != nil {
		return nil, err
	}
	out := &toolsOutputBody{Tools: each(res.GetTools(), viewTool)}
	if in.Model == "" {
		return out, nil
	}
	models, err := a.cfg.Models.ListModels(ctx, &agentv1.ListModelsRequest{})
	if err != nil {
		return nil, err
	}
	if lacksSearch(models.GetModels(), in.Provider, in.Model) {
		for i := range out.Tools {
			if t := &out.Tools[i]; t.Source == "provider" && t.Available {
				t.Available = false
				t.UnavailableReason = new(fmt.Sprintf("%s is run by the model's provider, and there is none for %s: choose another model", t.Name, in.Model))
			}
		}
	}
	return out, nil
}

// lacksSearch reports whether a model is known and has no search of its provider, which is the
// only tool that providers run.
func lacksSearch(all []*agentv1.Model, provider, model string) bool {
	known := false
	for _, m := range all {
		if m.GetId() == model && (provider == "" || m.GetProvider() == provider) {
			if m.GetWebSearch() {
				return false
			}
			known = true
		}
	}
	return known
}
