package pool

import (
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/recent"
)

// Use makes an account the current one, because somebody has asked for it at a time:
// sessions that were served by others follow, also those that are being served. What was asked for no later than what was
// done before is not done again.
func (p *Pool) Use(asked time.Time, account id.Account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.index[account]
	if !ok || !asked.After(p.asked) {
		return
	}
	p.asked = asked
	p.orders++
	p.setCurrent(i)
	p.cursor = (i + 1) % len(p.ids)
	p.sessions = recent.Map[id.Session, id.Account]{}
}

// Order is that somebody wants an account to be as new.
type Order struct {
	Account id.Account
	Asked   time.Time
	// Known is of when all is that is known of the account, where it was restored; zero
	// where it was learned here.
	Known time.Time
}

// Heal makes an account healthy, ends its limits, has it passed over no more, and fills its bucket, because somebody
// has asked for it. What was asked for no later than what was done before is not done
// again. Of what was learned here all limits end, whatever the clocks say: they were
// learned before anybody here knew of the order. Of what was restored those end that are
// not newer than the order.
func (p *Pool) Heal(now time.Time, o Order) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.index[o.Account]
	if !ok || !o.Asked.After(p.cold[i].healed) {
		return
	}
	p.cold[i].healed = o.Asked
	t := p.since(now)
	for f := range p.limits {
		if l := &p.limits[f].of[i]; l.set() && (o.Known.IsZero() || p.wall.Add(l.at).Compare(o.Asked) <= 0) {
			p.clear(t, f, i)
		}
	}
	for model, one := range p.avoided.by {
		if o.Known.IsZero() || p.wall.Add(one.of[i].at).Compare(o.Asked) <= 0 {
			p.pardon(t, model, i)
		}
	}
	if !o.Known.IsZero() && o.Asked.Before(o.Known) {
		return
	}
	p.setHealth(&p.hot[i], t, maxHealth)
	p.setTokens(&p.hot[i], t, p.settings.MaxTokens)
	p.changed(i, ToStore)
}
