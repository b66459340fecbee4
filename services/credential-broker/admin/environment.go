package admin

import (
	"strings"

	"signalbox.dev/pkg/conf"
)

// Environment are credentials from the environment. They serve every workspace that has
// neither an account of its own nor a shared one for the provider.
type Environment struct {
	AnthropicKey  conf.Secret `env:"ANTHROPIC_API_KEY" doc:"API key for Anthropic, for workspaces without an account of their own."`
	AnthropicURL  string      `env:"ANTHROPIC_BASE_URL" doc:"Base URL instead of https://api.anthropic.com."`
	OpenAIKey     conf.Secret `env:"OPENAI_API_KEY" doc:"API key for OpenAI, or a server that speaks its API, for workspaces without an account of their own."`
	OpenAIURL     string      `env:"OPENAI_BASE_URL" doc:"Base URL instead of https://api.openai.com/v1; a server that needs no key can be set without one."`
	OpenRouterKey conf.Secret `env:"OPENROUTER_API_KEY" doc:"API key for OpenRouter, for workspaces without an account of their own."`
	OpenRouterURL string      `env:"OPENROUTER_BASE_URL" doc:"Base URL instead of https://openrouter.ai/api/v1."`
}

// EnvironmentKey is what an Environment has for one provider. An empty field is not set.
type EnvironmentKey struct {
	Provider string
	Key      conf.Secret
	BaseURL  string
}

// KeyVariable names the variable with the Key.
func (k *EnvironmentKey) KeyVariable() string { return strings.ToUpper(k.Provider) + "_API_KEY" }

// URLVariable names the variable with the BaseURL.
func (k *EnvironmentKey) URLVariable() string { return strings.ToUpper(k.Provider) + "_BASE_URL" }

// Keys has a row for each provider that can have a key in the environment.
func (e *Environment) Keys() []EnvironmentKey {
	return []EnvironmentKey{
		{"anthropic", e.AnthropicKey, e.AnthropicURL},
		{"openai", e.OpenAIKey, e.OpenAIURL},
		{"openrouter", e.OpenRouterKey, e.OpenRouterURL},
	}
}

// KeyProviders names the providers of Environment.Keys.
func KeyProviders() []string {
	var all []string
	for _, k := range (&Environment{}).Keys() {
		all = append(all, k.Provider)
	}
	return all
}

// KeyVariables names the variables with providers' keys.
func KeyVariables() []string {
	var all []string
	for _, k := range (&Environment{}).Keys() {
		all = append(all, k.KeyVariable())
	}
	return all
}
