package choice

import "signalbox.dev/pkg/id"

// maxSessions is how many sessions a pool remembers the account of, at most.
const maxSessions = 16_384

// affinity remembers which account served a session, for the sessions that were heard
// of last. It keeps two generations: when the young one is full, the old one, in
// which nobody was asked for since, is dropped.
type affinity struct{ young, old map[id.Session]id.Account }

func (a *affinity) get(s id.Session) (id.Account, bool) {
	account, ok := a.young[s]
	if !ok {
		account, ok = a.old[s]
	}
	return account, ok
}

// put is called for each answer, which is what keeps a session young.
func (a *affinity) put(s id.Session, account id.Account) {
	if a.young == nil {
		a.young = map[id.Session]id.Account{}
	}
	if _, ok := a.young[s]; !ok && len(a.young) >= maxSessions/2 {
		a.old, a.young = a.young, make(map[id.Session]id.Account, maxSessions/2)
	}
	a.young[s] = account
}
