package pool

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/services/credential-broker/internal/profile"
)

// maxFamily bounds a family's name: it comes from a request.
const maxFamily = 64

// dated matches the names of OpenAI's versions of a model.
var dated = regexp.MustCompile(`^(.+)-[0-9]{4}-[0-9]{2}-[0-9]{2}$`)

// family returns the model family that a request counts for, or nothing if the provider is
// not known to limit by it. Anthropic limits its classes of models, OpenAI a model in all its
// versions. No family is named like an exclusion.
func family(p *profile.Profile, provider, model string) string {
	if model == "" || len(model) > maxFamily || !isText(model) || isExclusion(model) {
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
		return dated.ReplaceAllString(model, "$1")
	}
	return ""
}

// isText reports whether a name can be announced and stored.
func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
