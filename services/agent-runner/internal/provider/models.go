package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/price"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/agent-runner/internal/llm/catalogue"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Model is a model that a workspace can call.
type Model struct {
	Provider, ID, Name string
	// Context and MaxOutput are tokens; 0 when unknown.
	Context, MaxOutput int
	// Prices is nil when they are unknown.
	Prices                              *price.Price
	Tools, Images, Reasoning, WebSearch bool
	// Simulated is true if the simulator answers instead of a model.
	Simulated bool
	// Default is true for the model of sessions that name none.
	Default bool
}

// Problem says why some or all models of a provider are missing.
type Problem struct{ Provider, Reason string }

// Models returns the models that the context's workspace can call, sorted by provider, and
// the problems of providers that it cannot call. The models come from the catalogue for
// well-known providers, and from the provider's own list for others.
func (p *Providers) Models(ctx context.Context) ([]Model, []Problem, error) {
	routes, err := p.routes(ctx)
	if err != nil {
		return nil, nil, err
	}
	offers := make([][]Model, len(routes))
	reasons := make([]string, len(routes))
	var all sync.WaitGroup
	for i, r := range routes {
		all.Go(func() { offers[i], reasons[i] = p.modelsOf(ctx, r) })
	}
	all.Wait()
	models := slices.Concat(offers...)
	// Without a default no model is marked. Choose returns the reason when one is needed.
	if provider, model, err := p.defaultModel(ctx, routes); err == nil {
		for i := range models {
			models[i].Default = models[i].Provider == provider && models[i].ID == model
		}
		if !slices.ContainsFunc(models, func(m Model) bool { return m.Default }) {
			m := p.describe(listed{ID: model}, provider)
			m.Default = true
			models = append(models, m)
		}
	}
	slices.SortStableFunc(models, func(a, b Model) int { return cmp.Compare(a.Provider, b.Provider) })
	var problems []Problem
	for i, r := range routes {
		if reasons[i] != "" {
			problems = append(problems, Problem{r.GetName(), reasons[i]})
		}
	}
	return models, problems, nil
}

// modelsOf returns the models of one provider, or its problem as shown to people.
func (p *Providers) modelsOf(ctx context.Context, r *credentialv1.Provider) (models []Model, problem string) {
	if r.GetProblem() != "" {
		return nil, r.GetProblem()
	}
	known := p.cfg.Catalogue.Models(r.GetName())
	if !listsModels(r) {
		for _, m := range known {
			models = append(models, p.describe(listed{ID: m.ID}, r.GetName()))
		}
		return models, ""
	}
	list, err := p.listing(ctx, r, false)
	if err != nil {
		return nil, err.Error()
	}
	for _, l := range list {
		models = append(models, p.describe(l, r.GetName()))
	}
	return models, ""
}

// listsModels reports whether a provider's models come from its own list. Those of Anthropic
// and OpenAI at their own addresses come from the catalogue, because OpenAI's list has many
// models that do not chat.
func listsModels(r *credentialv1.Provider) bool {
	switch r.GetName() {
	case run.Simulator:
		return false
	case "anthropic", "openai":
		return r.GetOwnBaseUrl()
	}
	return true
}

// describe merges what the catalogue, the prices and the provider's list say of a model.
func (p *Providers) describe(l listed, provider string) Model {
	known, _ := p.cfg.Catalogue.Describe(provider, l.ID)
	m := Model{
		Provider: provider, ID: l.ID, Name: cmp.Or(l.Name, known.Name, l.ID), Context: cmp.Or(l.Context, known.Context), MaxOutput: cmp.Or(l.MaxOutput, known.MaxOutput),
		Tools: l.Tools == nil || *l.Tools, Images: known.Images || l.Images, Reasoning: known.Reasoning || l.Reasoning, WebSearch: known.HasServerTool("web_search"),
		Simulated: run.IsSimulator(provider),
	}
	if cost, ok := p.cfg.Prices.Of(provider, l.ID); ok {
		m.Prices = &cost
	}
	return m
}

// Request names a provider, a model, or both. Empty fields are left to the defaults.
type Request struct {
	Provider, Model string
	// Prefer is the provider that is tried first if only a model is named.
	Prefer string
}

// Choose returns the provider and the model for a request in the context's workspace. If the
// workspace cannot call them, it returns an Invalid fault that lists the alternatives. If a
// provider cannot be asked whether it has a model, Choose accepts the model; the call fails
// later if the provider lacks it.
func (p *Providers) Choose(ctx context.Context, w Request) (provider, model string, err error) {
	routes, err := p.routes(ctx)
	switch {
	case err != nil && w.Provider != "" && w.Model != "":
		return w.Provider, w.Model, nil // the broker is unavailable; runs wait for it
	case err != nil:
		return "", "", err
	case w.Provider != "":
		return p.chooseByProvider(ctx, routes, w)
	case w.Model != "":
		return p.chooseByModel(ctx, routes, w)
	}
	return p.defaultModel(ctx, routes)
}

// chooseByProvider is Choose for a request that names the provider.
func (p *Providers) chooseByProvider(ctx context.Context, routes []*credentialv1.Provider, w Request) (provider, model string, err error) {
	listedAs := w.Provider
	if slices.Contains([]string{run.Simulator + "-openai", run.Simulator + "-openrouter"}, w.Provider) {
		listedAs = run.Simulator
	}
	i := slices.IndexFunc(routes, func(r *credentialv1.Provider) bool { return r.GetName() == listedAs })
	if i < 0 {
		return "", "", unknownProvider(w.Provider, routes)
	}
	r := routes[i]
	switch {
	case r.GetProblem() != "":
		return "", "", fault.Coded(fault.Conflict, "PROVIDER_UNUSABLE", "%s", r.GetProblem())
	case w.Model == "":
		model, err = p.defaultOf(ctx, r)
		return w.Provider, model, err
	}
	has, err := p.has(ctx, r, w.Model)
	if !has && err == nil {
		return "", "", p.unknownModel(ctx, w.Model, []*credentialv1.Provider{r})
	}
	return w.Provider, w.Model, nil
}

// chooseByModel is Choose for a request that names only a model.
func (p *Providers) chooseByModel(ctx context.Context, routes []*credentialv1.Provider, w Request) (provider, model string, err error) {
	candidates := slices.DeleteFunc(slices.Clone(routes), func(r *credentialv1.Provider) bool { return r.GetProblem() != "" })
	preferred, _, _ := p.defaultModel(ctx, routes) // without one nothing is preferred
	slices.SortStableFunc(candidates, func(a, b *credentialv1.Provider) int {
		return cmp.Compare(rank(a.GetName(), w.Prefer, preferred), rank(b.GetName(), w.Prefer, preferred))
	})
	silent := ""
	for _, r := range candidates {
		has, err := p.has(ctx, r, w.Model)
		if has {
			return r.GetName(), w.Model, nil
		}
		if err != nil && silent == "" {
			silent = r.GetName()
		}
	}
	if silent != "" {
		return silent, w.Model, nil
	}
	return "", "", p.unknownModel(ctx, w.Model, candidates)
}

// rank returns the index of a name in a list, or the length of the list.
func rank(name string, list ...string) int {
	if i := slices.Index(list, name); i >= 0 {
		return i
	}
	return len(list)
}

// defaultModel returns the model of sessions that name none: one that an account serves, or
// without any account the simulator if there is one.
func (p *Providers) defaultModel(ctx context.Context, routes []*credentialv1.Provider) (provider, model string, err error) {
	candidates := slices.Clone(routes)
	slices.SortStableFunc(candidates, func(a, b *credentialv1.Provider) int {
		return cmp.Compare(defaultRank(p.cfg.DefaultProvider, a.GetName()), defaultRank(p.cfg.DefaultProvider, b.GetName()))
	})
	var failed error
	for _, r := range candidates {
		switch {
		case r.GetProblem() != "":
			failed = cmp.Or(failed, error(fault.Coded(fault.Conflict, "PROVIDER_UNUSABLE", "%s", r.GetProblem())))
			continue
		case r.GetName() == run.Simulator && failed != nil:
			continue // the simulator does not replace an account that has a problem
		}
		model, err := p.defaultOf(ctx, r)
		if err == nil {
			return r.GetName(), model, nil
		}
		failed = cmp.Or(failed, err)
	}
	if failed != nil {
		return "", "", failed
	}
	return "", "", fault.Coded(fault.Conflict, "NO_PROVIDER", "this workspace has no account for a model provider: an owner adds one with POST /api/accounts, an operator with `signalbox accounts add anthropic`")
}

// defaultRank orders the candidates for the default: the configured provider, the well-known
// ones, the others, and the simulator.
func defaultRank(configured, name string) int {
	if name == run.Simulator && name != configured {
		return 9
	}
	return rank(name, configured, "anthropic", "openai", "openrouter")
}

// defaultOf returns the model for requests that name only the provider.
func (p *Providers) defaultOf(ctx context.Context, r *credentialv1.Provider) (string, error) {
	name := r.GetName()
	if name == p.cfg.DefaultProvider {
		return p.listedOr(ctx, r, p.cfg.DefaultModel), nil
	}
	listedHere := p.cfg.Catalogue.Models(name)
	if i := slices.IndexFunc(listedHere, func(m catalogue.Model) bool { return m.Default }); i >= 0 && (!listsModels(r) || !r.GetOwnBaseUrl() || name == "openrouter") {
		return p.listedOr(ctx, r, listedHere[i].ID), nil
	}
	list, err := p.listing(ctx, r, false)
	if err != nil {
		return "", fault.New(fault.Unavailable, "the provider %s does not say which models it has: name one. %v", name, err)
	}
	if model, ok := nearest(list, ""); ok {
		return model, nil
	}
	return "", fault.Coded(fault.Conflict, "NO_MODEL", "the provider %s has no model: load one there, or use another provider", name)
}

// listedOr returns the wanted model or, if the provider's list lacks it, the nearest model on
// the list. A list without any usable model is ignored, because some proxies send one.
func (p *Providers) listedOr(ctx context.Context, r *credentialv1.Provider, want string) string {
	if !listsModels(r) {
		return want
	}
	list, err := p.listing(ctx, r, false)
	if err != nil || slices.ContainsFunc(list, func(l listed) bool { return l.ID == want || isVariant(l.ID, want) }) {
		return want
	}
	if model, ok := nearest(list, want); ok {
		return model
	}
	return want
}

// nearest returns the first listed model whose id shares the most leading parts with the
// wanted one (claude-sonnet-4-5 has four parts). It skips embedding models, which local
// servers list too. ok is false if no model remains.
func nearest(list []listed, want string) (model string, ok bool) {
	parts := func(id string) []string {
		return strings.FieldsFunc(id, func(r rune) bool { return strings.ContainsRune("-/:.", r) })
	}
	wanted, most := parts(want), -1
	for _, l := range list {
		if strings.Contains(l.ID, "embed") {
			continue
		}
		shared := 0
		for i, part := range parts(l.ID) {
			if i == len(wanted) || wanted[i] != part {
				break
			}
			shared++
		}
		if shared > most {
			model, most = l.ID, shared
		}
	}
	return model, most >= 0
}

// has reports whether a provider has a model. An error means that it could not be asked.
func (p *Providers) has(ctx context.Context, r *credentialv1.Provider, model string) (bool, error) {
	name := r.GetName()
	_, ofFamily := p.cfg.Catalogue.Describe(name, model)
	_, isListed := p.cfg.Catalogue.Lookup(name, model)
	switch {
	case isListed, name == p.cfg.DefaultProvider && model == p.cfg.DefaultModel:
		return true, nil
	case run.IsSimulator(name):
		return ofFamily, nil
	}
	for _, fresh := range []bool{false, true} {
		list, err := p.listing(ctx, r, fresh)
		if err != nil && !listsModels(r) {
			return ofFamily, nil // the catalogue decides
		}
		if err != nil {
			return ofFamily, err
		}
		if slices.ContainsFunc(list, func(l listed) bool { return matches(l.ID, model) }) {
			return true, nil
		}
	}
	return false, nil
}

// matches reports whether a provider accepts asked for a listed id: a date or a tag of the
// listed id may be left out, and OpenRouter accepts variants (isVariant).
func matches(listed, asked string) bool {
	if rest, ok := strings.CutPrefix(listed, strings.TrimSuffix(asked, "-latest")); ok && (rest == "" || rest[0] == '-' || rest[0] == ':') {
		return true
	}
	return isVariant(listed, asked)
}

// isVariant reports whether asked is the listed id with a variant after a colon, which
// OpenRouter accepts but does not list.
func isVariant(listed, asked string) bool {
	base, variant, _ := strings.Cut(asked, ":")
	return variant != "" && strings.Contains(base, "/") && base == listed
}

func unknownProvider(name string, routes []*credentialv1.Provider) error {
	return fault.Coded(fault.Invalid, "UNKNOWN_PROVIDER",
		"provider: this workspace has no account for %q: an owner adds one with POST /api/accounts, an operator with `signalbox accounts add %s`. It can use %s", name, name, names(routes))
}

func names(routes []*credentialv1.Provider) string {
	var out []string
	for _, r := range routes {
		out = append(out, r.GetName())
	}
	return cmp.Or(strings.Join(out, ", "), "none yet")
}

// maxNamed bounds the models that an error lists.
const maxNamed = 30

// unknownModel returns an error that lists the available models.
func (p *Providers) unknownModel(ctx context.Context, model string, routes []*credentialv1.Provider) error {
	var available []string
	for _, r := range routes {
		models, _ := p.modelsOf(ctx, r) // a provider with a problem adds none
		for _, m := range models {
			available = append(available, m.ID+" ("+m.Provider+")")
		}
	}
	if n := len(available) - maxNamed; n > 0 {
		available = append(available[:maxNamed], fmt.Sprintf("and %d more in GET /api/models", n))
	}
	hint := ""
	for _, m := range p.cfg.Catalogue.Models("") {
		if m.ID == model && !slices.ContainsFunc(routes, func(r *credentialv1.Provider) bool { return r.GetName() == m.Provider }) {
			hint = fmt.Sprintf(". %s has it: `signalbox accounts add %[1]s` or POST /api/accounts adds an account for it", m.Provider)
		}
	}
	return fault.Coded(fault.Invalid, "UNKNOWN_MODEL", "model: %s has no model %q: use %s%s", names(routes), model, cmp.Or(strings.Join(available, ", "), "another provider"), hint)
}

// routes returns the providers of the context's workspace, by name. While the broker is
// unavailable it returns the last known ones.
func (p *Providers) routes(ctx context.Context) ([]*credentialv1.Provider, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	res, err := p.cfg.Accounts.ListProviders(limited, &credentialv1.ListProvidersRequest{})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		kind := fault.KindOf(err)
		if last, ok := p.lastRoutes[actor.Workspace]; ok && (kind == fault.Unavailable || kind == fault.Deadline) && ctx.Err() == nil {
			return last, nil
		}
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return nil, fault.Wrap(err, fault.Unavailable, "the credential broker does not answer: try again in a moment")
		}
		return nil, fmt.Errorf("list providers: %w", err)
	}
	if len(p.lastRoutes) >= maxKnown {
		clear(p.lastRoutes)
	}
	p.lastRoutes[actor.Workspace] = res.GetProviders()
	return res.GetProviders(), nil
}
