// Package usage reads from answers how many tokens a request took. Where providers
// count is data of a request profile (Places); what an answer said so far is a Tally,
// which a stream fills event by event: a number that comes again replaces the one
// before, because providers count up. What the tokens cost is package price's.
package usage

import (
	"slices"
	"strconv"

	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/scan"
)

// MaxMembers bounds the members that are read of one answer.
const MaxMembers = 16

// maxTokens bounds what is believed.
const maxTokens = 1_000_000_000

// Path is the names of members from the outside to the inside.
type Path []string

// Places says where an answer counts tokens.
type Places struct {
	// At are the places of objects that hold counts, in an event or a whole answer.
	At []Path
	// The rest are places in such an object; each kind adds up, but for two names of one
	// count, where the larger number is it. Input is all of the prompt; CacheRead and
	// CacheWrite are parts of it. Together they are at most MaxMembers.
	Input, Output, CacheRead, CacheWrite []Path
}

// Members returns how many places there are in an object.
func (p *Places) Members() int {
	return len(p.Input) + len(p.Output) + len(p.CacheRead) + len(p.CacheWrite)
}

// Tally is what one answer has said. The zero Tally of its Places has heard nothing.
type Tally struct {
	places *Places
	counts [MaxMembers]int64
}

// NewTally returns an empty Tally. A nil p counts nothing.
func NewTally(p *Places) Tally { return Tally{places: p} }

// Counts reports whether there is anything to look for.
func (t *Tally) Counts() bool { return t.places != nil }

// Paths returns where the objects are that hold counts: of an answer that is too large to
// hold, these members are enough.
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

// Read takes what an event, or the body of a whole answer, says. What is no JSON says
// nothing.
func (t *Tally) Read(data []byte) {
	if t.places == nil {
		return
	}
	for _, at := range t.places.At {
		object := find(data, at)
		if len(object) == 0 {
			continue
		}
		var heard [MaxMembers]bool // in this object
		base := 0
		for _, kind := range t.places.kinds() {
			for _, m := range kind {
				i := base + first(kind, m)
				if n, ok := number(find(object, m)); ok && (!heard[i] || n > t.counts[i]) {
					t.counts[i], heard[i] = n, true
				}
			}
			base += len(kind)
		}
	}
}

// first returns the index of the first place in a list that counts the same as m.
func first(kind []Path, m Path) int {
	return slices.IndexFunc(kind, func(o Path) bool {
		return slices.EqualFunc(o, m, func(a, b string) bool { return plain(a) == plain(b) })
	})
}

// plain returns the name of a count: OpenAI's two APIs have a name each, and some gateways
// send both at once.
func plain(name string) string {
	switch name {
	case "prompt_tokens":
		return "input_tokens"
	case "completion_tokens":
		return "output_tokens"
	case "prompt_tokens_details":
		return "input_tokens_details"
	case "completion_tokens_details":
		return "output_tokens_details"
	}
	return name
}

// kinds returns the places in an object in the order of a Tally's counts.
func (p *Places) kinds() [4][]Path { return [...][]Path{p.Input, p.CacheRead, p.CacheWrite, p.Output} }

// Sum returns the tokens that were counted so far.
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

// number returns a count that is believed.
func number(text []byte) (int64, bool) {
	if len(text) == 0 || len(text) > 20 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil && 0 <= n && n <= maxTokens
}

// find returns the value at a path, or nothing. Of members that are there twice the last
// one counts.
func find(data []byte, path Path) []byte {
	for _, want := range path {
		s := scan.New(data)
		if !s.Object() {
			return nil
		}
		var value []byte
		for name, ok := s.Member(); ok; name, ok = s.Member() {
			if s.Is(name, want) {
				value = s.Bytes(s.Skip())
			} else {
				s.Skip()
			}
		}
		if s.Bad() {
			return nil
		}
		data = value
	}
	return data
}
