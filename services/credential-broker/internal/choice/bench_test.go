package choice_test

import (
	"fmt"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/choice"
)

// BenchmarkPick chooses among accounts of which every tenth is parked.
func BenchmarkPick(b *testing.B) {
	for _, s := range []choice.Strategy{choice.Sticky, choice.RoundRobin, choice.Hybrid} {
		for _, n := range []int{100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", s, n), func(b *testing.B) {
				settings := choice.Defaults()
				settings.Strategy = s
				now := start
				p := choice.New(now, settings)
				ids := accounts(n)
				p.SetMembers(now, now, ids)
				for i := 0; i < n; i += 10 {
					k, err := p.Pick(now, choice.Request{Tried: append(append([]id.Account{}, ids[:i]...), ids[i+1:]...)})
					if err != nil {
						b.Fatal(err)
					}
					p.Report(now, k, choice.Outcome{Reason: limited, Wait: 6 * time.Hour})
				}
				r := choice.Request{Family: "opus", Session: id.New[id.Session]()}
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(time.Millisecond)
					k, err := p.Pick(now, r)
					if err != nil {
						b.Fatal(err)
					}
					_ = k
				}
			})
		}
	}
}

// BenchmarkPickPassedOver chooses where others go before every second account.
func BenchmarkPickPassedOver(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			settings := choice.Defaults()
			settings.Strategy = choice.Hybrid
			p := choice.New(start, settings)
			ids := accounts(n)
			p.SetMembers(start, start, ids)
			for i := 0; i < n; i += 2 {
				k, err := p.Pick(start, choice.Request{Tried: append(append([]id.Account{}, ids[:i]...), ids[i+1:]...)})
				if err != nil {
					b.Fatal(err)
				}
				p.Report(start, k, choice.Outcome{Reason: choice.Unreachable, Unsent: true, Later: time.Minute})
			}
			r := choice.Request{Family: "opus", Model: "opus-1", Session: id.New[id.Session]()}
			now := start
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Microsecond)
				if _, err := p.Pick(now, r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRequest is a choice and its good outcome.
func BenchmarkRequest(b *testing.B) {
	settings := choice.Defaults()
	settings.Strategy = choice.Hybrid
	now := start
	p := choice.New(now, settings)
	p.SetMembers(now, now, accounts(100))
	r := choice.Request{Session: id.New[id.Session]()}
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		k, err := p.Pick(now, r)
		if err != nil {
			b.Fatal(err)
		}
		p.Report(now, k, choice.Outcome{Reason: choice.OK})
	}
}
