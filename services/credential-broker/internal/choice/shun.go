package choice

import (
	"time"

	"signalbox.dev/pkg/id"
)

const (
	// denied is how long others go before an account for a model, once the provider has
	// said that the account may not do what a request for that model asked for.
	denied = 10 * time.Minute
	// maxLater bounds how long others go before an account that has no token.
	maxLater = 5 * time.Minute
	// shunnedModels bounds the models for which there are such accounts.
	shunnedModels = 64
)

// shunned is which members are passed over while there are others: by model, and for all
// models under the empty one. It refuses nobody, costs no health, and is each instance's
// own.
type shunned struct {
	by   map[string]*shun
	over time.Duration // when the last of it is
}

// shun is which members are passed over by requests for one model.
type shun struct {
	until []time.Duration // by member; 0 for not
	who   mask            // those for whom it is not over
	next  time.Duration   // when the next one's is
}

func newShun(n int) *shun {
	return &shun{until: make([]time.Duration, n), who: newMask(n), next: forever}
}

// any reports whether there may be such members.
func (s *shunned) any(t time.Duration) bool { return t < s.over }

// add has one of n members passed over by requests for a model.
func (s *shunned) add(t time.Duration, n int, model string, i int, d time.Duration) {
	if !s.any(t) {
		*s = shunned{by: map[string]*shun{}}
	}
	one, ok := s.by[model]
	if !ok {
		if len(s.by) >= shunnedModels {
			s.makeRoom(t)
		}
		one = newShun(n)
		s.by[model] = one
	}
	one.set(i, max(one.until[i], t+d))
	s.over = max(s.over, t+d)
}

// makeRoom forgets models for which it is over, else one of them.
func (s *shunned) makeRoom(t time.Duration) {
	for model, one := range s.by {
		if one.at(t).next(0) < 0 {
			delete(s.by, model)
		}
	}
	for model := range s.by {
		if len(s.by) < shunnedModels {
			return
		}
		if model != "" {
			delete(s.by, model)
		}
	}
}

// forgive ends it for a member and a model, and for all models.
func (s *shunned) forgive(model string, i int) {
	for _, m := range [...]string{"", model} {
		if one, ok := s.by[m]; ok {
			one.until[i] = 0
			one.who.clear(i)
		}
	}
}

// regroup follows the members to their new places; was is where they were.
func (s *shunned) regroup(members []id.Account, was map[id.Account]int) {
	for model, old := range s.by {
		one := newShun(len(members))
		for i, a := range members {
			if j, ok := was[a]; ok && old.until[j] > 0 {
				one.set(i, old.until[j])
			}
		}
		s.by[model] = one
	}
}

func (s *shun) set(i int, until time.Duration) {
	s.until[i] = until
	s.who.set(i)
	s.next = min(s.next, until)
}

// at returns those for whom it is not over.
func (s *shun) at(t time.Duration) mask {
	if t < s.next {
		return s.who
	}
	s.next = forever
	for i, until := range s.until {
		if until <= t {
			s.until[i] = 0
			s.who.clear(i)
			continue
		}
		s.next = min(s.next, until)
	}
	return s.who
}

// passOver fills the scratch mask with the members that others go before, and reports
// whether there are any.
func (p *Pool) passOver(t time.Duration, model string) bool {
	clear(p.passed)
	some := false
	for n, m := range [...]string{"", model} {
		if one := p.shunned.by[m]; one != nil && (n == 0 || m != "") {
			some = p.passed.add(one.at(t)) || some
		}
	}
	return some
}
