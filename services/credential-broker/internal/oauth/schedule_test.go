package oauth

import (
	"testing"
	"time"

	"signalbox.dev/services/credential-broker/internal/vault"
)

func TestSchedule(t *testing.T) {
	t.Parallel()
	const never = -1
	access := vault.NewSecret("a")
	for _, tt := range []struct {
		name      string
		p         Provider
		in        issued
		taken     time.Duration
		life      time.Duration
		due       time.Duration // with no jitter
		dueJitter time.Duration // with all of it
	}{
		{"an hour", Provider{Tokens: Tokens{Ahead: 5 * time.Minute}}, issued{Access: access, Life: time.Hour}, 0, time.Hour, 55 * time.Minute, 55*time.Minute - 150*time.Second},
		{"storing took a minute", Provider{Tokens: Tokens{Ahead: 5 * time.Minute}}, issued{Access: access, Life: time.Hour}, time.Minute, 59 * time.Minute, 54 * time.Minute, 54*time.Minute - 150*time.Second},
		{"a short life", Provider{Tokens: Tokens{Ahead: 5 * time.Minute}}, issued{Access: access, Life: 30 * time.Second}, 0, 30 * time.Second, 20 * time.Second, 15 * time.Second},
		{"for ever", Provider{Tokens: Tokens{Ahead: 5 * time.Minute}}, issued{Access: access}, 0, never, never, never},
		{"for ever, with an idle limit", Provider{Tokens: Tokens{Idle: 100 * time.Hour}}, issued{Access: access}, 0, never, 50 * time.Hour, 40 * time.Hour},
		{"the server says a shorter one", Provider{Tokens: Tokens{Idle: 100 * time.Hour}}, issued{Access: access, RefreshLife: 20 * time.Hour}, 0, never, 10 * time.Hour, 8 * time.Hour},
		{"nothing to send yet", Provider{Tokens: Tokens{}}, issued{}, 0, never, 0, 0},
		{"stored too late", Provider{Tokens: Tokens{Ahead: time.Minute}}, issued{Access: access, Life: time.Minute}, time.Hour, 0, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for jitter, want := range map[float64]time.Duration{0: tt.due, 1: tt.dueJitter} {
				k := New(Config{Rand: func() float64 { return jitter }})
				life, due := k.schedule(&tt.p, tt.in, tt.taken)
				if got := orNever(life); got != tt.life {
					t.Errorf("life = %v, want %v", got, tt.life)
				}
				if got := orNever(due); got != want {
					t.Errorf("due with jitter %v = %v, want %v", jitter, got, want)
				}
			}
		})
	}
}

func orNever(d *time.Duration) time.Duration {
	if d == nil {
		return -1
	}
	return *d
}

func BenchmarkCachedToken(b *testing.B) {
	k := New(Config{})
	ref := Ref{}
	k.put(ref, cached{token: Token{vault.NewSecret("a"), 1}, soft: time.Now().Add(time.Hour), hard: time.Now().Add(time.Hour)})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := k.Token(b.Context(), ref); err != nil {
				b.Fatal(err)
			}
		}
	})
}
