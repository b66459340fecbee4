package pool

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/services/credential-broker/internal/profile"
)

// maxFamily bounds a family's name: it comes from a request.
const maxFamily = 64

// versionDate ends the names of OpenAI's versions of a model.
const versionDate = "-2006-01-02"

// family returns the model family that a request counts for, or nothing if the provider is
// not known to limit by it. Anthropic limits its classes of models, OpenAI a model in all its
// versions.
func family(p *profile.Profile, provider, model string) string {
	if model == "" || len(model) > maxFamily || !isText(model) {
		return ""
	}
	switch {
	case p.Dialect == profile.Anthropic:
		for _, class := range [...]string{"opus", "sonnet", "haiku"} {
			if strings.Contains(model, class) {
				return class
			}
		}
		return model
	case provider == "openai":
		if i := len(model) - len(versionDate); i > 0 {
			if _, err := time.Parse(versionDate, model[i:]); err == nil {
				return model[:i]
			}
		}
		return model
	}
	return ""
}

// isText reports whether a name can be announced and stored.
func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
