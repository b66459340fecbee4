package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

// Model is a model that the workspace can call.
type Model struct {
	ID        string         `json:"id" example:"claude-sonnet-4-5-20250929"`
	Provider  string         `json:"provider" example:"anthropic"`
	Name      string         `json:"name" doc:"For people."`
	Context   *int32         `json:"context" doc:"Tokens, prompt and answer together; null when unknown."`
	MaxOutput *int32         `json:"max_output" doc:"Tokens of one answer; null when unknown."`
	Prices    *ModelPrices   `json:"prices" doc:"Null when unknown."`
	Abilities ModelAbilities `json:"abilities"`
	Simulated bool           `json:"simulated" doc:"No model answers: a simulator plays a script."`
	Default   bool           `json:"default" doc:"Of sessions that name neither a model nor a provider."`
}

// ModelPrices are US dollars for a million tokens.
type ModelPrices struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cache_read" doc:"Of the prompt, read from the provider's cache."`
	CacheWrite float64 `json:"cache_write"`
}

// ModelAbilities are what a model can do, as far as it is known.
type ModelAbilities struct {
	Tools     bool `json:"tools" doc:"Also true where the provider does not say."`
	Images    bool `json:"images"`
	Reasoning bool `json:"reasoning"`
	WebSearch bool `json:"web_search" doc:"The provider searches the web for it."`
}

// ModelProblem is why there are no models of a provider, or not all.
type ModelProblem struct {
	Provider string `json:"provider"`
	Reason   string `json:"reason"`
}

type modelsOutput struct {
	Body struct {
		Models     []Model        `json:"models" nullable:"false" doc:"By provider. At most one is the default."`
		Problems   []ModelProblem `json:"problems" nullable:"false" doc:"Providers with accounts that cannot be used now, or that did not list their models."`
		NextCursor *string        `json:"next_cursor" doc:"Always null: the list comes whole."`
	}
}

func (a *API) models() {
	handle(a, huma.Operation{
		OperationID: "list-models", Method: http.MethodGet, Path: "/api/models",
		Tags: []string{"Models"}, Summary: "List the models that the workspace can call",
		Description: "Of providers that the workspace, the operator or the environment has an account for, and the simulator where there is one. " +
			"Servers of one's own are asked for their models, at most once a minute.",
	}, access{role: identity.Viewer}, a.listModels)
}

func (a *API) listModels(ctx context.Context, _ *struct{}) (*modelsOutput, error) {
	res, err := a.cfg.Models.ListModels(ctx, &agentv1.ListModelsRequest{})
	if err != nil {
		return nil, err
	}
	out := &modelsOutput{}
	out.Body.Models = make([]Model, len(res.GetModels()))
	for i, m := range res.GetModels() {
		out.Body.Models[i] = viewModel(m)
	}
	out.Body.Problems = make([]ModelProblem, len(res.GetProblems()))
	for i, p := range res.GetProblems() {
		out.Body.Problems[i] = ModelProblem{p.GetProvider(), p.GetReason()}
	}
	return out, nil
}

func viewModel(m *agentv1.Model) Model {
	v := Model{
		ID: m.GetId(), Provider: m.GetProvider(), Name: m.GetName(), Simulated: m.GetSimulated(), Default: m.GetDefault(),
		Abilities: ModelAbilities{Tools: m.GetTools(), Images: m.GetImages(), Reasoning: m.GetReasoning(), WebSearch: m.GetWebSearch()},
	}
	if n := m.GetContext(); n > 0 {
		v.Context = &n
	}
	if n := m.GetMaxOutput(); n > 0 {
		v.MaxOutput = &n
	}
	if p := m.GetPrices(); p != nil {
		v.Prices = &ModelPrices{p.GetInput(), p.GetOutput(), p.GetCacheRead(), p.GetCacheWrite()}
	}
	return v
}
