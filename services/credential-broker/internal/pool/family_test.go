package pool

import (
	"strings"
	"testing"

	"signalbox.dev/services/credential-broker/internal/profile"
)

func TestFamily(t *testing.T) {
	t.Parallel()
	openai, anthropic := &profile.Profile{}, &profile.Profile{Dialect: profile.Anthropic}
	for _, tt := range []struct {
		p                     *profile.Profile
		provider, model, want string
	}{
		{anthropic, "anthropic", "claude-opus-4-1", "opus"},
		{anthropic, "anthropic", "claude-x", "claude-x"},
		{openai, "openai", "gpt-5", "gpt-5"},
		{openai, "openai", "gpt-5-2025-08-07", "gpt-5"},
		{openai, "openai", "gpt-5-2024-13-45", "gpt-5"},
		{openai, "openai", "-2025-08-07", "-2025-08-07"},
		{openai, "other", "gpt-5", ""},
		{openai, "openai", "~gpt-5", ""},
		{anthropic, "anthropic", "~claude-opus", ""},
		{openai, "openai", "", ""},
		{openai, "openai", "gpt\n", ""},
		{openai, "openai", strings.Repeat("x", maxFamily+1), ""},
	} {
		if got := family(tt.p, tt.provider, tt.model); got != tt.want {
			t.Errorf("family(%s, %q) = %q, want %q", tt.provider, tt.model, got, tt.want)
		}
	}
}
