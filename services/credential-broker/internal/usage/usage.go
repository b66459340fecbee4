// Package usage reads from answers how many tokens a request used. Where a provider reports
// counts is data of a request profile (Places). A Tally holds the counts of one answer, which
// a stream updates event by event: a repeated number replaces the previous one, because
// providers count up. Package price knows what tokens cost.
package usage

import (
	"slices"
	"strconv"
	"strings"

	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/scan"
)

// MaxMembers bounds the members that are read from one answer.
const MaxMembers = 16

// maxTokens bounds a plausible count.
const maxTokens = 1_000_000_000

// Path is a list of member names from the outermost to the innermost.
type Path []string

// UnmarshalText splits a text at its dots.
func (p *Path) UnmarshalText(text []byte) error {
	*p = strings.Split(string(text), ".")
	return nil
}

// Places says where an answer counts tokens.
type Places struct {
	// At are the places of objects that hold counts, in an event or a whole answer.
	At []Path `yaml:"at"`
	// The others are places in such an object. Each kind is summed; of two names for the
	// same count, the larger number is taken. Input is the whole prompt; CacheRead and
	// CacheWrite are parts of it. Together they are at most MaxMembers.
	Input      []Path `yaml:"input"`
	Output     []Path `yaml:"output"`
	CacheRead  []Path `yaml:"cache_read"`
	CacheWrite []Path `yaml:"cache_write"`
}

// Members returns how many places there are in an object.
func (p *Places) Members() int {
	return len(p.Input) + len(p.Output) + len(p.CacheRead) + len(p.CacheWrite)
}

// Tally holds the counts of one answer.
type Tally struct {
	places *Places
	counts [MaxMembers]int64 // in the order of kinds
}

// NewTally returns an empty Tally. With nil places it counts nothing.
func NewTally(p *Places) Tally { return Tally{places: p} }

// Counts reports whether there is anything to look for.
func (t *Tally) Counts() bool { return t.places != nil }

// Paths returns the places of the objects that hold counts. For an answer that is too large
// to hold, these members are enough.
func (t *Tally) Paths() [][]string {
	if t.places == nil {
		return nil
	}
	paths := make([][]string, len(t.places.At))
	for i, at := range t.places.At {
		paths[i] = at
	}
	return paths
}

// Read takes the counts from an event or the body of a whole answer. Text that is not JSON
// has none.
func (t *Tally) Read(data []byte) {
	if t.places == nil {
		return
	}
	for _, at := range t.places.At {
		object := scan.Find(data, at...)
		if object == nil {
			continue
		}
		var seen [MaxMembers]bool // in this object
		base := 0
		for _, kind := range t.places.kinds() {
			for _, m := range kind {
				i := base + first(kind, m)
				if n, ok := number(scan.Find(object, m...)); ok && (!seen[i] || n > t.counts[i]) {
					t.counts[i], seen[i] = n, true
				}
			}
			base += len(kind)
		}
	}
}

// first returns the index of the first place in a list that counts the same as m.
func first(kind []Path, m Path) int {
	return slices.IndexFunc(kind, func(o Path) bool {
		return slices.EqualFunc(o, m, func(a, b string) bool { return canonical(a) == canonical(b) })
	})
}

// canonical returns the usual name of a count: OpenAI's two APIs use one name each, and some
// gateways send both at once.
func canonical(name string) string {
	name = strings.Replace(name, "prompt_tokens", "input_tokens", 1)
	return strings.Replace(name, "completion_tokens", "output_tokens", 1)
}

func (p *Places) kinds() [4][]Path { return [...][]Path{p.Input, p.CacheRead, p.CacheWrite, p.Output} }

// Sum returns the tokens counted so far.
func (t *Tally) Sum() price.Tokens {
	if t.places == nil {
		return price.Tokens{}
	}
	var sums [4]int64
	i := 0
	for k, kind := range t.places.kinds() {
		for range kind {
			sums[k] += t.counts[i]
			i++
		}
	}
	return price.Tokens{Input: sums[0], CacheRead: sums[1], CacheWrite: sums[2], Output: sums[3]}
}

// number reads a count; it is false for anything implausible.
func number(text []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil && 0 <= n && n <= maxTokens
}
