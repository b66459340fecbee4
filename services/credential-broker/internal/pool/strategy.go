package pool

import (
	"slices"
	"strings"
)

// Strategy names the rule by which an account is chosen.
type Strategy string

// Rule describes a strategy.
type Rule struct {
	Name Strategy
	// About is a description for operators.
	About string
	// Current says that there is a current account, which Switch sets.
	Current bool
	// Health says that accounts below Settings.MinUsable come last.
	Health bool

	pick func(*Pool) *member // serves Pool.search; nil if no member can
}

// rules has a row for each strategy, the default first. A new strategy is a file and a row.
var rules = []Rule{sticky, roundRobin, hybrid}

// Strategies returns all strategies, the default first.
func Strategies() []Rule { return slices.Clone(rules) }

// Rule returns the strategy's description, nil if there is no such strategy.
func (s Strategy) Rule() *Rule {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Name == s })
	if i < 0 {
		return nil
	}
	return &rules[i]
}

// List returns the names of strategies as a sentence lists them: "a, b or c".
func List(rules []Rule) string {
	var names []string
	for _, r := range rules {
		names = append(names, string(r.Name))
	}
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
