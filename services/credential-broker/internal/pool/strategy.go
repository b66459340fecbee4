package pool

import "strings"

// Strategy names the rule by which an account is chosen.
type Strategy string

// Rule is what there is to know of a strategy.
type Rule struct {
	Name Strategy
	// About is what operators read about it.
	About string
	// Current says that there is a current account, which Use can set.
	Current bool
	// Health says that accounts below Settings.MinUsable come last.
	Health bool

	pick func(*Pool) *member // for Pool.search; nil for none
}

// rules has a row for each strategy, the default first. A new strategy is a file and a row.
var rules = [...]Rule{sticky, roundRobin, hybrid}

// Strategies returns all strategies, the default first.
func Strategies() []Rule { return rules[:] }

// Rule returns what there is to know of the strategy, nil if there is none of this name.
func (s Strategy) Rule() *Rule {
	for i := range rules {
		if rules[i].Name == s {
			return &rules[i]
		}
	}
	return nil
}

// List returns the names of strategies as a sentence lists them, such as "a, b or c".
func List(rules []Rule) string {
	var b strings.Builder
	for i, r := range rules {
		switch {
		case i > 0 && i == len(rules)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(string(r.Name))
	}
	return b.String()
}
