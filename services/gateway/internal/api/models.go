package api

import (
	"context"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

// Model is a model that the workspace can call.
type Model struct {
	ID        string         `json:"id" example:"claude-sonnet-4-5-20250929"`
	Provider  string         `json:"provider" example:"anthropic"`
	Name      string         `json:"name" doc:"The name to show."`
	Context   *int32         `json:"context" doc:"Size of the context window in tokens; null if unknown."`
	MaxOutput *int32         `json:"max_output" doc:"Maximum tokens of one answer; null if unknown."`
	Prices    *ModelPrices   `json:"prices" doc:"Null if unknown."`
	Abilities ModelAbilities `json:"abilities"`
	Simulated bool           `json:"simulated" doc:"The simulator answers from a script; no model is called."`
	Default   bool           `json:"default" doc:"The model of sessions that name neither a model nor a provider."`
}

// ModelPrices are in US dollars per million tokens.
type ModelPrices struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cache_read" doc:"For input that is read from the provider's cache."`
	CacheWrite float64 `json:"cache_write"`
}

// ModelAbilities are the known abilities of a model.
type ModelAbilities struct {
	Tools     bool `json:"tools" doc:"Also true if the provider does not say."`
	Images    bool `json:"images"`
	Reasoning bool `json:"reasoning"`
	WebSearch bool `json:"web_search" doc:"The provider can search the web for the model."`
}

// ModelProblem is the reason why models of a provider are missing.
type ModelProblem struct {
	Provider string `json:"provider"`
	Reason   string `json:"reason"`
}

type modelsOutputBody struct {
	Models     []Model        `json:"models" nullable:"false" doc:"Ordered by provider. At most one is the default."`
	Problems   []ModelProblem `json:"problems" nullable:"false" doc:"Providers whose accounts cannot be used now, or that did not list their models."`
	NextCursor *string        `json:"next_cursor" doc:"Always null: the list has one page."`
}

func (a *API) models() {
	handle(a, op("list-models", "GET /api/models", "Models", "List the models that the workspace can call",
		about("Models of the providers for which the workspace, the operator or the environment has an account, and the simulator if it is on. "+
			"Self-hosted model servers are asked for their models at most once a minute.")), viewers, a.listModels)
}

func (a *API) listModels(ctx context.Context, _ *struct{}) (*modelsOutputBody, error) {
	res, err := a.cfg.Models.ListModels(ctx, &agentv1.ListModelsRequest{})
	return &modelsOutputBody{Models: each(res.GetModels(), viewModel), Problems: each(res.GetProblems(), func(p *agentv1.ProviderProblem) ModelProblem {
		return ModelProblem{p.GetProvider(), p.GetReason()}
	})}, err
}

func viewModel(m *agentv1.Model) Model {
	v := Model{
		ID: m.GetId(), Provider: m.GetProvider(), Name: m.GetName(), Simulated: m.GetSimulated(), Default: m.GetDefault(),
		Context: orNull(m.GetContext()), MaxOutput: orNull(m.GetMaxOutput()),
		Abilities: ModelAbilities{Tools: m.GetTools(), Images: m.GetImages(), Reasoning: m.GetReasoning(), WebSearch: m.GetWebSearch()},
	}
	if p := m.GetPrices(); p != nil {
		v.Prices = &ModelPrices{p.GetInput(), p.GetOutput(), p.GetCacheRead(), p.GetCacheWrite()}
	}
	return v
}
