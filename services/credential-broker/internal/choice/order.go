package choice

import (
	"time"

	"signalbox.dev/pkg/id"
)

// Use makes an account the current one, because somebody has asked for it at a time:
// sessions that were served by others follow. What was asked for no later than what was
// done before is not done again.
func (p *Pool) Use(asked time.Time, account id.Account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.index[account]
	if !ok || !asked.After(p.asked) {
		return
	}
	p.asked = asked
	p.setCurrent(i)
	p.cursor = (i + 1) % len(p.ids)
	p.sessions = affinity{}
}

// Heal makes an account healthy, because somebody has asked for it at a time, and fills
// its bucket. What was asked for no later than what was done before is not done again;
// done says that what is known of the account contains it.
func (p *Pool) Heal(now, asked time.Time, account id.Account, done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.index[account]
	if !ok || !asked.After(p.cold[i].healed) {
		return
	}
	p.cold[i].healed = asked
	if done {
		return
	}
	t := p.since(now)
	p.setHealth(&p.hot[i], t, maxHealth)
	p.setTokens(&p.hot[i], t, p.settings.MaxTokens)
	p.changed(i, Store)
}
