package proxy

import (
	"testing"

	"signalbox.dev/services/credential-broker/internal/pool"
)

func TestNext(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		in   outcome
		want decision
	}{
		{"a good answer", outcome{reason: pool.OK}, deliver},
		{"the caller's error", outcome{reason: pool.Caller}, deliver},
		{"the provider's error", outcome{reason: pool.Service}, deliver},

		{"no connection", outcome{reason: pool.Unreachable, failed: true, unconnected: true}, resend},
		{"no connection twice", outcome{reason: pool.Unreachable, failed: true, unconnected: true, resent: true}, giveUp},
		{"no connection twice, other servers", outcome{reason: pool.Unreachable, failed: true, unconnected: true, resent: true, elsewhere: true}, switchAccount},
		{"no connection to any server", outcome{reason: pool.Unreachable, failed: true, unconnected: true, resent: true, elsewhere: true, noOther: true}, giveUp},
		{"sent, and no answer", outcome{reason: pool.Unreachable, failed: true, elsewhere: true}, giveUp},
		{"an answer that cannot be shown", outcome{reason: pool.Service, failed: true}, giveUp},

		{"401", outcome{reason: pool.AuthFailed}, renewToken},
		{"401 with a renewed token", outcome{reason: pool.AuthFailed, renewed: true}, switchAccount},
		{"429", outcome{reason: pool.RateLimited}, switchAccount},
		{"429 from the only account", outcome{reason: pool.RateLimited, noOther: true, waiting: 1}, deliver},
		{"429 from the last of several", outcome{reason: pool.RateLimited, noOther: true, waiting: 3}, giveUp},
		{"429, and the pool cannot choose", outcome{reason: pool.RateLimited, noOther: true}, deliver},

		{"permission refused", outcome{reason: pool.QuotaExhausted, denials: 1}, switchAccount},
		{"permission refused by one, the others waiting", outcome{reason: pool.QuotaExhausted, denials: 1, noOther: true, waiting: 3}, giveUp},
		{"permission refused by two, the others waiting", outcome{reason: pool.QuotaExhausted, denials: 2, noOther: true, waiting: 3}, deliver},
		{"permission refused too often", outcome{reason: pool.QuotaExhausted, denials: maxDenials}, deliver},
	} {
		if got := next(tt.in); got != tt.want {
			t.Errorf("%s: next = %d, want %d", tt.name, got, tt.want)
		}
	}
}
