package agentrunner_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

// Providers as a broker lists them.
var (
	simulatorOnly = &credentialv1.Provider{Name: "simulator", Origin: credentialv1.Origin_ORIGIN_SIMULATOR, Dialect: "anthropic", OwnBaseUrl: true}
	claude        = &credentialv1.Provider{Name: "anthropic", Origin: credentialv1.Origin_ORIGIN_SHARED, Dialect: "anthropic"}
	gpt           = &credentialv1.Provider{Name: "openai", Origin: credentialv1.Origin_ORIGIN_WORKSPACE, Dialect: "openai"}
	local         = &credentialv1.Provider{Name: "ollama", Origin: credentialv1.Origin_ORIGIN_SHARED, Dialect: "openai", OwnBaseUrl: true}
	disabled      = &credentialv1.Provider{Name: "openrouter", Dialect: "openai", Problem: "all accounts of this workspace for openrouter are disabled (1)"}
)

const llamas = `{"object":"list","data":[{"id":"nomic-embed-text"},{"id":"llama3.2:latest","max_model_len":8192},{"id":"bad\u0001id"},{"id":""}]}`

func (w *world) chosen(req *agentv1.CreateSessionRequest) (string, error) {
	res, err := w.conversations.CreateSession(w.as(identity.Editor), req)
	return res.GetSession().GetProvider() + " " + res.GetSession().GetModel(), err
}

// A session gets a model that one of the workspace's accounts serves, or the simulator if the
// workspace has no account. The simulator never replaces an account that does not work.
func TestDefaultModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.accounts.answer("ollama", llamas)
	for _, tt := range []struct {
		have []*credentialv1.Provider
		want string
	}{
		{[]*credentialv1.Provider{simulatorOnly}, "simulator simulated"},
		{[]*credentialv1.Provider{claude, gpt, local, simulatorOnly}, "anthropic claude-sonnet-4-5-20250929"},
		{[]*credentialv1.Provider{local, gpt, simulatorOnly}, "openai gpt-5.1"},
		{[]*credentialv1.Provider{disabled, local, simulatorOnly}, "ollama llama3.2:latest"},
		{[]*credentialv1.Provider{disabled, simulatorOnly}, "CONFLICT: all accounts of this workspace for openrouter are disabled"},
		{nil, "CONFLICT: this workspace has no account for a model provider: an owner adds one"},
	} {
		w.accounts.setProviders(tt.have...)
		got, err := w.chosen(&agentv1.CreateSessionRequest{})
		if f := fault.From(err); err != nil && f.Kind == fault.Conflict {
			got = "CONFLICT: " + f.Message
		}
		if !strings.HasPrefix(got, tt.want) {
			t.Errorf("with %v a session gets %q, %v, want %q", tt.have, got, err, tt.want)
		}
	}
}

// A provider that lists its models offers only those, and one of them is its default.
func TestListedDefault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	const configured = "claude-sonnet-4-5-20250929"
	w.accounts.setProviders(&credentialv1.Provider{Name: "anthropic", Origin: credentialv1.Origin_ORIGIN_WORKSPACE, Dialect: "anthropic", OwnBaseUrl: true}, simulatorOnly)
	for _, tt := range []struct {
		name   string
		listed []string // nil where there is no list
		want   string
	}{
		{"the configured one", []string{"claude-sonnet-4-5-20990101", configured}, configured},
		{"one of its family", []string{"nomic-embed-text", "claude-opus-4-5-20251101", "claude-sonnet-4-20250514", "claude-sonnet-4-5-20990101"}, "claude-sonnet-4-5-20990101"},
		{"an older one of its family", []string{"gpt-5", "claude-opus-4-5-20251101", "claude-sonnet-4-20250514"}, "claude-sonnet-4-20250514"},
		{"the first of several that are as near", []string{"gpt-5", "claude-opus-4-5-20251101", "claude-haiku-4-5-20251001"}, "claude-opus-4-5-20251101"},
		{"the first", []string{"nomic-embed-text", "gpt-5", "gemma"}, "gpt-5"},
		{"without a list the configured one", nil, configured},
		{"with an empty list the configured one", []string{}, configured},
	} {
		w.workspace = id.New[id.Workspace]() // lists are remembered for each
		answer := ""
		if tt.listed != nil {
			var entries []string
			for _, m := range tt.listed {
				entries = append(entries, fmt.Sprintf(`{"id":%q}`, m))
			}
			answer = `{"data":[` + strings.Join(entries, ",") + `]}`
		}
		w.accounts.answer("anthropic", answer)
		res, err := w.models.ListModels(w.as(identity.Viewer), &agentv1.ListModelsRequest{})
		if err != nil {
			t.Fatalf("%s: ListModels: %v", tt.name, err)
		}
		var offered, defaults []string
		for _, m := range res.GetModels() {
			if m.GetProvider() == "anthropic" {
				offered = append(offered, m.GetId())
			}
			if m.GetDefault() {
				defaults = append(defaults, m.GetId())
			}
		}
		want := tt.listed
		if len(want) == 0 {
			want = []string{configured}
		}
		if diff := cmp.Diff(want, offered); diff != "" {
			t.Errorf("%s: offered (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff([]string{tt.want}, defaults); diff != "" {
			t.Errorf("%s: default (-want +got):\n%s", tt.name, diff)
		}
		if got, err := w.chosen(&agentv1.CreateSessionRequest{}); err != nil || got != "anthropic "+tt.want {
			t.Errorf("%s: a session gets %q, %v, want %q", tt.name, got, err, tt.want)
		}
	}
	// The same holds for the catalogue's default of a provider that lists its models.
	w.accounts.answer("openrouter", `{"data":[{"id":"x/y"}]}`)
	w.accounts.setProviders(&credentialv1.Provider{Name: "openrouter", Dialect: "openai"}, simulatorOnly)
	if got, err := w.chosen(&agentv1.CreateSessionRequest{}); err != nil || got != "openrouter x/y" {
		t.Errorf("a session gets %q, %v, want what openrouter lists", got, err)
	}
}

// A provider at its own address has the catalogue's default, also if the catalogue is its only
// mention in the code.
func TestDefaultOfTheCatalogue(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "models.json")
	if err := os.WriteFile(file, []byte(`{"models": [{"provider": "mistral", "id": "mistral-large", "default": true, "name": "Large", "context": 9000, "maxOutput": 900}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.start(func(c *agentrunner.Config) { c.ModelCatalogue = file })
	w.accounts.answer("mistral", `{"data":[{"id":"mistral-small"},{"id":"mistral-large"}]}`)
	w.accounts.setProviders(&credentialv1.Provider{Name: "mistral", Dialect: "openai"}, simulatorOnly)
	if got, err := w.chosen(&agentv1.CreateSessionRequest{}); err != nil || got != "mistral mistral-large" {
		t.Errorf("a session gets %q, %v, want the catalogue's default", got, err)
	}
}

// An error about an unavailable provider or model lists the alternatives and how to add more.
func TestUnavailableModels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("doc_read", func(context.Context, *toolv1.Call) string { return "" })
	w.start()
	w.accounts.answer("ollama", llamas)
	w.accounts.setProviders(claude, local, disabled, simulatorOnly)
	for _, tt := range []struct {
		name            string
		provider, model string
		tools           []string
		want            string // provider and model, or the kind and parts of the message
	}{
		{"provider alone", "ollama", "", nil, "ollama llama3.2:latest"},
		{"the simulator, by name", "simulator", "", nil, "simulator simulated"},
		{"the simulator in another protocol", "simulator-openai", "", nil, "simulator-openai simulated"},
		{"a script of the simulator", "", "sim/anything", nil, "simulator sim/anything"},
		{"model alone", "", "llama3.2", nil, "ollama llama3.2"},
		{"both", "anthropic", "claude-opus-4-5-20251101", nil, "anthropic claude-opus-4-5-20251101"},
		{"a tool", "", "", []string{"doc_read"}, "anthropic claude-sonnet-4-5-20250929"},
		{"a prefix of tools", "", "", []string{"doc_*"}, "anthropic claude-sonnet-4-5-20250929"},
		{"a prefix of no tool", "", "", []string{"dco_*"}, `invalid: tools[0]|no tool "dco_*"|use doc_read`},
		{"every tool", "", "", []string{"*"}, "anthropic claude-sonnet-4-5-20250929"},
		{"every tool but some", "", "", []string{"*", "-doc_*"}, "anthropic claude-sonnet-4-5-20250929"},
		{"without a tool that there is not", "", "", []string{"*", "-dco_*"}, `invalid: tools[1]|no tool "-dco_*"|use doc_read`},
		{"no name", "", "", []string{"-"}, "invalid: tools[0]|with - in front"},
		{"no account", "openai", "", nil, `invalid: no account for "openai"|accounts add openai|POST /api/accounts|anthropic, ollama`},
		{"disabled", "openrouter", "", nil, "conflict: are disabled (1)"},
		{"unknown model", "ollama", "gemma", nil, `invalid: no model "gemma"|llama3.2:latest (ollama)`},
		{"unknown model anywhere", "", "gemma", nil, `invalid: no model "gemma"|claude-sonnet-4-5-20250929 (anthropic)|simulated (simulator)`},
		{"a model of a provider without an account", "", "gpt-5", nil, `invalid: no model "gpt-5"|accounts add openai`},
		{"a model that the simulator lacks", "simulator", "claude-opus-4-5-20251101", nil, `invalid: simulator has no model|simulated (simulator)`},
		{"unknown tool", "", "", []string{"doc_read", "doc_raed"}, `invalid: tools[1]|no tool "doc_raed"|use doc_read`},
	} {
		req := &agentv1.CreateSessionRequest{Provider: tt.provider, Model: tt.model}
		if tt.tools != nil {
			req.Tools = &agentv1.ToolSelection{Names: tt.tools}
		}
		got, err := w.chosen(req)
		kind, parts, isError := strings.Cut(tt.want, ": ")
		if !isError {
			if err != nil || got != tt.want {
				t.Errorf("%s: %q, %v, want %q", tt.name, got, err, tt.want)
			}
			continue
		}
		f := fault.From(err)
		for part := range strings.SplitSeq(parts, "|") {
			if err == nil || f.Kind.String() != kind || !strings.Contains(f.Message, part) {
				t.Errorf("%s: %q, %v, want %s with %q", tt.name, got, err, kind, part)
			}
		}
	}
	// A provider that does not list its models counts as having the model, and Submit does not
	// wait for an unavailable broker.
	w.accounts.answer("other", "")
	w.accounts.setProviders(&credentialv1.Provider{Name: "other", Dialect: "openai", OwnBaseUrl: true}, claude)
	if got, err := w.chosen(&agentv1.CreateSessionRequest{Provider: "other", Model: "m"}); err != nil || got != "other m" {
		t.Errorf("of a provider without a list: %q, %v", got, err)
	}
	w.accounts.lose(true)
	if got, err := w.chosen(&agentv1.CreateSessionRequest{}); err != nil || got != "anthropic claude-sonnet-4-5-20250929" {
		t.Errorf("while the broker is away: %q, %v, want what it said before", got, err)
	}
}

// A session, or a single message in it, can change to another provider and model.
func TestAnotherModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.accounts.setProviders(claude, gpt, simulatorOnly)
	w.model.as("simulator")
	w.model.then(says("Made up."))
	ctx := w.as(identity.Editor)
	session := w.session(&agentv1.CreateSessionRequest{Provider: "openai", Model: "gpt-4o"})
	update := func(provider, model *string, want string) {
		t.Helper()
		res, err := w.conversations.UpdateSession(ctx, &agentv1.UpdateSessionRequest{Id: session, Provider: provider, Model: model})
		if got := res.GetSession().GetProvider() + " " + res.GetSession().GetModel(); err != nil || got != want {
			t.Errorf("UpdateSession(%v, %v) = %q, %v, want %q", provider, model, got, err, want)
		}
	}
	update(new("openai"), nil, "openai gpt-4o")
	update(nil, new("gpt-5"), "openai gpt-5")
	update(nil, new("claude-opus-4-5-20251101"), "anthropic claude-opus-4-5-20251101")
	update(new("openai"), nil, "openai gpt-5.1")
	update(nil, new(""), "anthropic claude-sonnet-4-5-20250929")
	if _, err := w.conversations.UpdateSession(ctx, &agentv1.UpdateSessionRequest{Id: session, Model: new("gemma")}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("UpdateSession to an unknown model = %v, want Invalid", err)
	}
	v := w.watch(session)
	sent := w.submit(session, "hello", func(r *agentv1.SubmitRequest) { r.Provider = "simulator" })
	if got := sent.GetRun().GetProvider() + " " + sent.GetRun().GetModel(); got != "simulator simulated" || !sent.GetRun().GetSimulated() {
		t.Errorf("the run is answered by %q, simulated %t", got, sent.GetRun().GetSimulated())
	}
	for _, ev := range v.until(isEnd) {
		if start, ok := ev.GetBody().(*runv1.Event_RunStart); ok && !start.RunStart.GetSimulated() {
			t.Errorf("%v does not say that it is simulated", start)
		}
	}
	for _, m := range w.look(session).GetMessages() {
		if m.GetSimulated() != (m.GetRole() == "assistant") {
			t.Errorf("message of role %s: simulated %t", m.GetRole(), m.GetSimulated())
		}
	}
	if _, err := w.conversations.Submit(ctx, &agentv1.SubmitRequest{SessionId: session, ContentJson: `"hi"`, Model: "gemma"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("Submit with an unknown model = %v, want Invalid", err)
	}
	if _, err := w.conversations.Submit(ctx, &agentv1.SubmitRequest{SessionId: session, ContentJson: `"hi"`, Tools: &agentv1.ToolSelection{Names: []string{"nope"}}}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("Submit with an unknown tool = %v, want Invalid", err)
	}
}

// ListModels lists the models that a workspace can call, and the reason for each provider that
// it cannot call.
func TestListModels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.accounts.answer("ollama", llamas)
	w.accounts.answer("openrouter", `{"data":[{"id":"x/y","name":"Y","context_length":9000,"architecture":{"input_modalities":["text","image"]},"supported_parameters":["reasoning"],"top_provider":{"max_completion_tokens":100}}]}`)
	away := &credentialv1.Provider{Name: "vllm", Dialect: "openai", OwnBaseUrl: true}
	router := &credentialv1.Provider{Name: "openrouter", Dialect: "openai"}
	w.accounts.setProviders(claude, local, router, simulatorOnly, away, &credentialv1.Provider{Name: "broken", Dialect: "openai", Problem: "all accounts are disabled"})
	list := func() map[string]*agentv1.Model {
		t.Helper()
		res, err := w.models.ListModels(w.as(identity.Viewer), &agentv1.ListModelsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var problems []string
		for _, p := range res.GetProblems() {
			problems = append(problems, p.GetProvider()+": "+p.GetReason())
		}
		want := []string{
			"vllm: localhost:11434 cannot be reached: connection refused (GET /v1/models answers 502)",
			"broken: all accounts are disabled",
		}
		if diff := cmp.Diff(want, problems); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
		out := map[string]*agentv1.Model{}
		for _, m := range res.GetModels() {
			out[m.GetProvider()+" "+m.GetId()] = m
		}
		return out
	}
	all := list()
	for name, want := range map[string]string{
		"anthropic claude-sonnet-4-5-20250929": `Claude Sonnet 4.5 200000/64000 tools=true images=true reasoning=true web=true simulated=false default=true 3/15/0.3/3.75`,
		"anthropic claude-opus-4-5-20251101":   `Claude Opus 4.5 200000/64000 tools=true images=true reasoning=true web=true simulated=false default=false 5/25/0.5/6.25`,
		"ollama llama3.2:latest":               `llama3.2:latest 8192/0 tools=true images=false reasoning=false web=false simulated=false default=false 0/0/0/0`,
		"openrouter x/y":                       `Y 9000/100 tools=false images=true reasoning=true web=false simulated=false default=false 0/0/0/0`,
		"simulator simulated":                  `Simulated answers 200000/64000 tools=true images=true reasoning=true web=true simulated=true default=false 0/0/0/0`,
	} {
		m, p := all[name], all[name].GetPrices()
		got := fmt.Sprintf("%s %d/%d tools=%t images=%t reasoning=%t web=%t simulated=%t default=%t %v/%v/%v/%v", m.GetName(), m.GetContext(), m.GetMaxOutput(),
			m.GetTools(), m.GetImages(), m.GetReasoning(), m.GetWebSearch(), m.GetSimulated(), m.GetDefault(), p.GetInput(), p.GetOutput(), p.GetCacheRead(), p.GetCacheWrite())
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if all["ollama llama3.2:latest"].GetPrices() != nil || all["simulator simulated"].GetPrices() == nil {
		t.Error("an unknown price is one of nothing, or the other way round")
	}
	asked := w.accounts.asked()
	list()
	if again := w.accounts.asked(); again != asked {
		t.Errorf("providers were asked %d times more for their models, want none within a minute", again-asked)
	}
}
