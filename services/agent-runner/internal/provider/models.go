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
	// Simulated says that the simulator answers, and no model.
	Simulated bool
	// Default says that sessions which name no model get this one.
	Default bool
}

// Problem is why a provider has no models to offer, or not all.
type Problem struct{ Provider, Reason string }

// Models returns what the context's workspace can call, sorted by provider, and what is
// wrong with the providers that it cannot. Providers of well-known models have those of the
// catalogue; others are asked for theirs.
func (p *Providers) Models(ctx context.Context) ([]Model, []Problem, error) {
	routes, err := p.routes(ctx)
	if err != nil {
		return nil, nil, err
	}
	offers := make([][]Model, len(routes))
	wrong := make([]string, len(routes))
	var all sync.WaitGroup
	for i, r := range routes {
		all.Go(func() { offers[i], wrong[i] = p.offer(ctx, r) })
	}
	all.Wait()
	models := slices.Concat(offers...)
	// Where nothing can be the default, no model is marked; whoever needs one hears why.
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
		if wrong[i] != "" {
			problems = append(problems, Problem{r.GetName(), wrong[i]})
		}
	}
	return models, problems, nil
}

// offer returns the models of one provider, and what is wrong with it for people.
func (p *Providers) offer(ctx context.Context, r *credentialv1.Provider) (models []Model, problem string) {
	if r.GetProblem() != "" {
		return nil, r.GetProblem()
	}
	known := p.cfg.Catalogue.Models(r.GetName())
	if !asks(r) {
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

// asks reports whether a provider has to be asked for its models. Those of Anthropic and
// OpenAI, at their own addresses, are in the catalogue; OpenAI's list has much that does
// not chat.
func asks(r *credentialv1.Provider) bool {
	switch r.GetName() {
	case run.Simulator:
		return false
	case "anthropic", "openai":
		return r.GetOwnBaseUrl()
	}
	return true
}

// describe puts together what the catalogue, the prices and the provider say of a model.
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

// Wish is what somebody asks for; empty fields are left to the workspace's defaults.
type Wish struct {
	Provider, Model string
	// Prefer is the provider to look at first for a model that is named alone.
	Prefer string
}

// Choose returns the provider and the model that answer to a wish, in the context's
// workspace. What nobody there can call is an Invalid fault that says what there is. Where
// it cannot be found out whether a provider has a model, the model is taken: the provider
// will say.
func (p *Providers) Choose(ctx context.Context, w Wish) (provider, model string, err error) {
	routes, err := p.routes(ctx)
	switch {
	case err != nil && w.Provider != "" && w.Model != "":
		return w.Provider, w.Model, nil // the broker is away, and runs wait for it
	case err != nil:
		return "", "", err
	case w.Provider != "":
		return p.chooseOf(ctx, routes, w)
	case w.Model != "":
		return p.chooseModel(ctx, routes, w)
	}
	return p.defaultModel(ctx, routes)
}

// chooseOf answers to a wish that names the provider.
func (p *Providers) chooseOf(ctx context.Context, routes []*credentialv1.Provider, w Wish) (provider, model string, err error) {
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

// chooseModel answers to a wish that names a model alone.
func (p *Providers) chooseModel(ctx context.Context, routes []*credentialv1.Provider, w Wish) (provider, model string, err error) {
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

// rank is the place of a name in a list, or behind it.
func rank(name string, list ...string) int {
	if i := slices.Index(list, name); i >= 0 {
		return i
	}
	return len(list)
}

// defaultModel is what a session gets that names nothing: a model that an account can
// serve; without any account the simulator, where there is one.
func (p *Providers) defaultModel(ctx context.Context, routes []*credentialv1.Provider) (provider, model string, err error) {
	candidates := slices.Clone(routes)
	slices.SortStableFunc(candidates, func(a, b *credentialv1.Provider) int {
		return cmp.Compare(order(p.cfg.DefaultProvider, a.GetName()), order(p.cfg.DefaultProvider, b.GetName()))
	})
	var failed error
	for _, r := range candidates {
		switch {
		case r.GetProblem() != "":
			failed = cmp.Or(failed, error(fault.Coded(fault.Conflict, "PROVIDER_UNUSABLE", "%s", r.GetProblem())))
			continue
		case r.GetName() == run.Simulator && failed != nil:
			continue // it stands in for nobody
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

// order sorts the candidates for the default: what is configured, the well-known, others by
// name as the broker lists them, and the simulator.
func order(configured, name string) int {
	if name == run.Simulator && name != configured {
		return 9
	}
	return rank(name, configured, "anthropic", "openai", "openrouter")
}

// defaultOf is the model for whoever names the provider alone.
func (p *Providers) defaultOf(ctx context.Context, r *credentialv1.Provider) (string, error) {
	name := r.GetName()
	if name == p.cfg.DefaultProvider {
		return p.offered(ctx, r, p.cfg.DefaultModel), nil
	}
	listedHere := p.cfg.Catalogue.Models(name)
	if i := slices.IndexFunc(listedHere, func(m catalogue.Model) bool { return m.Default }); i >= 0 && (!asks(r) || name == "openrouter") {
		return p.offered(ctx, r, listedHere[i].ID), nil
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

// offered is the wanted model or, where the provider lists its models and that is not among
// them, the nearest that it lists. A list without any model to choose counts as none: some
// proxies answer so.
func (p *Providers) offered(ctx context.Context, r *credentialv1.Provider, want string) string {
	if !asks(r) {
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

// nearest returns the listed model whose id shares the most leading parts with the wanted
// one (claude-sonnet-4-5 has four parts), the first of equals. It leaves out embedding
// models, which local servers list among the others; ok is false where nothing remains.
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

// has reports whether a provider has a model; an error means that it could not be asked.
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
		if err != nil && !asks(r) {
			return ofFamily, nil // as far as the catalogue knows
		}
		if err != nil {
			return ofFamily, err
		}
		if slices.ContainsFunc(list, func(l listed) bool { return same(l.ID, model) }) {
			return true, nil
		}
	}
	return false, nil
}

// same reports whether a provider that lists one id takes another for the same model: ids
// with a date or a tag may be used without it, and OpenRouter takes a variant behind a colon.
func same(listed, asked string) bool {
	if rest, ok := strings.CutPrefix(listed, strings.TrimSuffix(asked, "-latest")); ok && (rest == "" || rest[0] == '-' || rest[0] == ':') {
		return true
	}
	return isVariant(listed, asked)
}

// isVariant reports whether asked is the listed id with a variant behind a colon, which
// OpenRouter takes but does not list.
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

// maxNamed bounds what an error lists.
const maxNamed = 30

// unknownModel says which models there are.
func (p *Providers) unknownModel(ctx context.Context, model string, routes []*credentialv1.Provider) error {
	var there []string
	for _, r := range routes {
		offer, _ := p.offer(ctx, r) // where it does not answer there is nothing to name
		for _, m := range offer {
			there = append(there, m.ID+" ("+m.Provider+")")
		}
	}
	if n := len(there) - maxNamed; n > 0 {
		there = append(there[:maxNamed], fmt.Sprintf("and %d more in GET /api/models", n))
	}
	hint := ""
	for _, m := range p.cfg.Catalogue.Models("") {
		if m.ID == model && !slices.ContainsFunc(routes, func(r *credentialv1.Provider) bool { return r.GetName() == m.Provider }) {
			hint = fmt.Sprintf(". %s has it: `signalbox accounts add %[1]s` or POST /api/accounts adds an account for it", m.Provider)
		}
	}
	return fault.Coded(fault.Invalid, "UNKNOWN_MODEL", "model: %s has no model %q: use %s%s", names(routes), model, cmp.Or(strings.Join(there, ", "), "another provider"), hint)
}

// routes returns the providers of the context's workspace, by name. While the broker is
// away what it said last counts.
func (p *Providers) routes(ctx context.Context) ([]*credentialv1.Provider, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := p.cfg.Accounts.ListProviders(limited, &credentialv1.ListProvidersRequest{})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		kind := fault.KindOf(err)
		if before, ok := p.before[actor.Workspace]; ok && (kind == fault.Unavailable || kind == fault.Deadline) && ctx.Err() == nil {
			return before, nil
		}
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return nil, fault.Wrap(err, fault.Unavailable, "the credential broker does not answer: try again in a moment")
		}
		return nil, fmt.Errorf("list providers: %w", err)
	}
	if len(p.before) >= maxKnown {
		clear(p.before)
	}
	p.before[actor.Workspace] = res.GetProviders()
	return res.GetProviders(), nil
}
