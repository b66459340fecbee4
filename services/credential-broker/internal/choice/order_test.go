package choice_test

import (
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/choice"
)

func TestOrders(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := choice.New(now, choice.Defaults())
	a, b := id.New[id.Account](), id.New[id.Account]()
	p.SetMembers(now, now, []id.Account{a, b})
	session := id.New[id.Session]()
	pick := func(when string, want id.Account) {
		t.Helper()
		k, err := p.Pick(now, choice.Request{Session: session})
		if err != nil || k.Account != want {
			t.Errorf("%s: Pick = %v, %v, want %v", when, k.Account, err, want)
		}
		p.Report(now, k, choice.Outcome{Reason: choice.OK})
	}
	pick("at first", a)
	asked := now.Add(time.Second)
	p.Use(asked, b)
	pick("after a switch, also for a session that was served before", b)
	p.Use(asked, a)
	pick("after the same order again", b)
	p.Use(asked.Add(time.Second), id.New[id.Account]())
	pick("after a switch to nobody", b)

	for range 3 {
		p.Report(now, choice.Ticket{Account: b}, choice.Outcome{Reason: choice.Overloaded})
	}
	health := func(when string, want float64) {
		t.Helper()
		if got := p.States(now)[1].Health; got != want {
			t.Errorf("%s: health %v, want %v", when, got, want)
		}
	}
	health("after failures", 70)
	p.Heal(now, asked, b, true)
	health("after a reset that is in what was read", 70)
	p.Heal(now, asked.Add(time.Second), b, false)
	health("after a reset", 100)
	p.Report(now, choice.Ticket{Account: b}, choice.Outcome{Reason: choice.Overloaded})
	p.Heal(now, asked.Add(time.Second), b, false)
	health("after the same reset again", 90)
}
