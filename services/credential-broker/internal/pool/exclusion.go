package pool

import (
	"strings"
	"time"

	"signalbox.dev/pkg/id"
)

const (
	// denied is how long others go before an account for a model, once the provider has
	// said that the account may not do what a request for that model asked for, and has let
	// another one do it.
	denied = 10 * time.Minute
	// maxLater bounds how long others go before an account that cannot be sent to.
	maxLater = 5 * time.Minute
	// avoidedModels bounds the models for which there are such accounts.
	avoidedModels = 64
	// PassedOver begins the family of a Limit that parks nothing: others go before the
	// account for the model whose name follows, or for all where none does.
	PassedOver = "~"
)

// avoided is which members are passed over while there are others: by model, and for all
// models under the empty one. It refuses nobody and costs no health.
type avoided struct {
	by   map[string]*avoidedFor
	over time.Duration // when the last of it is
}

// exclusion is that a member is passed over.
type exclusion struct {
	at, until time.Duration // until is 0 once it was forgiven
	known     bool          // there was one
	reason    Reason
	status    int
}

// avoidedFor is which members are passed over by requests for one model.
type avoidedFor struct {
	of   []exclusion   // by member
	who  mask          // those for whom it is not over
	next time.Duration // when the next one's is
}

func newAvoidedFor(n int) *avoidedFor {
	return &avoidedFor{of: make([]exclusion, n), who: newMask(n), next: forever}
}

// any reports whether there may be such members.
func (s *avoided) any(t time.Duration) bool { return t < s.over }

// add has one of n members passed over by requests for a model.
func (s *avoided) add(t time.Duration, n int, model string, i int, e exclusion) {
	if !s.any(t) {
		*s = avoided{by: map[string]*avoidedFor{}}
	}
	one, ok := s.by[model]
	if !ok {
		if len(s.by) >= avoidedModels {
			s.makeRoom(t)
		}
		one = newAvoidedFor(n)
		s.by[model] = one
	}
	e.known = true
	one.set(i, e)
	s.over = max(s.over, e.until)
}

// makeRoom forgets models for which it is over, else one of them.
func (s *avoided) makeRoom(t time.Duration) {
	for model, one := range s.by {
		if one.at(t).next(0) < 0 {
			delete(s.by, model)
		}
	}
	for model := range s.by {
		if len(s.by) < avoidedModels {
			return
		}
		if model != "" {
			delete(s.by, model)
		}
	}
}

// regroup follows the members to their new places; was is where they were.
func (s *avoided) regroup(members []id.Account, was map[id.Account]int) {
	for model, old := range s.by {
		one := newAvoidedFor(len(members))
		for i, a := range members {
			if j, ok := was[a]; ok && old.of[j].known {
				one.set(i, old.of[j])
			}
		}
		s.by[model] = one
	}
}

func (s *avoidedFor) set(i int, e exclusion) {
	s.of[i] = e
	if e.until == 0 {
		s.who.clear(i)
		return
	}
	s.who.set(i)
	s.next = min(s.next, e.until)
}

// at returns those for whom it is not over.
func (s *avoidedFor) at(t time.Duration) mask {
	if t < s.next {
		return s.who
	}
	s.next = forever
	for i := range s.of {
		until := s.of[i].until
		if until <= t {
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
		if one := p.avoided.by[m]; one != nil && (n == 0 || m != "") {
			some = p.passed.add(one.at(t)) || some
		}
	}
	return some
}

// exclude has a member passed over by requests for a model. Others are told, but not each
// time that it is made a little longer, and not of what is over in no time.
func (p *Pool) exclude(t time.Duration, model string, i int, d time.Duration, e exclusion) {
	e.at, e.until = t, t+d
	if one := p.avoided.by[model]; one != nil && one.of[i].known {
		if one.of[i].until > t+d/2 {
			return
		}
		e.at = max(t, one.of[i].at+time.Microsecond)
	}
	p.avoided.add(t, len(p.ids), model, i, e)
	if d > time.Second {
		p.changed(i, ToPeers, ToStore)
	}
}

// later has the member of a ticket passed over for as long as an outcome says; where its
// server cannot be reached, all that are there.
func (p *Pool) later(t time.Duration, i int, k *Ticket, o *Outcome) {
	e, d := exclusion{reason: o.Reason, status: o.Status}, min(o.Later, maxLater)
	p.exclude(t, "", i, d, e)
	if o.Reason != Unreachable {
		return
	}
	for _, a := range k.Server {
		if j, ok := p.index[a]; ok && j != i {
			p.exclude(t, "", j, d, e)
		}
	}
}

// forgive ends it for a member that has served a request for a model: for that model, and
// for all; and where their server could not be reached, for all that are there.
func (p *Pool) forgive(t time.Duration, i int, k *Ticket) {
	if !p.avoided.any(t) {
		return
	}
	p.pardon(t, "", i)
	if k.model != "" {
		p.pardon(t, k.model, i)
	}
	for _, a := range k.Server {
		if j, ok := p.index[a]; ok && p.avoided.by[""] != nil && p.avoided.by[""].of[j].reason == Unreachable {
			p.pardon(t, "", j)
		}
	}
}

// pardon ends it for a member and a model.
func (p *Pool) pardon(t time.Duration, model string, i int) {
	one := p.avoided.by[model]
	if one == nil || one.of[i].until <= t {
		return
	}
	one.set(i, exclusion{at: max(t, one.of[i].at+time.Microsecond), known: true})
	p.changed(i, ToPeers, ToStore)
}

// exclusions adds those of a member to what is told of it.
func (p *Pool) exclusions(all []Limit, i int) []Limit {
	for model, one := range p.avoided.by {
		e := &one.of[i]
		if !e.known {
			continue
		}
		l := Limit{Family: PassedOver + model, At: p.wall.Add(e.at)}
		if e.until != 0 {
			l.Until, l.Reason, l.Status = p.wall.Add(e.until), e.reason, e.status
			l.Soon = l.Until
		}
		all = append(all, l)
	}
	return all
}

// adoptExclusion replaces one by what another instance tells of it, if that is newer, and
// reports whether it did. Of one that is over nothing is remembered.
func (p *Pool) adoptExclusion(t time.Duration, i int, l Limit) bool {
	model := strings.TrimPrefix(l.Family, PassedOver)
	e := exclusion{at: l.At.Sub(p.wall), reason: l.Reason, status: l.Status}
	known := exclusion{}
	if one := p.avoided.by[model]; one != nil && p.avoided.any(t) {
		known = one.of[i]
	}
	if known.known && e.at <= known.at {
		return false
	}
	if l.Until.IsZero() {
		if !known.known {
			return false
		}
		e.known = true
		p.avoided.by[model].set(i, e)
		return true
	}
	if e.until = min(l.Until.Sub(p.wall), e.at+denied); e.until <= t {
		return false
	}
	p.avoided.add(t, len(p.ids), model, i, e)
	return true
}
