package credentialbroker_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
)

// TestGoneElsewhere: an account that was signed out or removed through one instance is used by
// another one for at most a second, even without a bus.
func TestGoneElsewhere(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	second := &broker{t: t, db: s.db, keyFile: s.keyFile, log: &lines{}, done: make(chan error, 1)}
	second.serve(s.cfg)
	c := s.client()
	for _, tt := range []struct {
		name string
		end  func(ctx context.Context, owner identity.Actor, account id.Account) error
	}{
		{"signed out", func(ctx context.Context, _ identity.Actor, account id.Account) error {
			return call(c.LogoutAccount(ctx, &credentialv1.LogoutAccountRequest{Id: account.String()}))
		}},
		{"removed", func(ctx context.Context, _ identity.Actor, account id.Account) error {
			return call(c.RemoveAccount(ctx, &credentialv1.RemoveAccountRequest{Id: account.String()}))
		}},
		{"removed here alone", func(ctx context.Context, _ identity.Actor, account id.Account) error {
			return call(c.RemoveAccount(ctx, &credentialv1.RemoveAccountRequest{Id: account.String(), KeepAtProvider: true}))
		}},
		{"removed by a command", func(ctx context.Context, owner identity.Actor, account id.Account) error {
			return s.operator(nil).Operator(owner.Workspace).Forget(ctx, account)
		}},
	} {
		for _, service := range []string{subject.AgentRunner, subject.ToolExecutor} {
			t.Run(tt.name+" for "+service, func(t *testing.T) {
				t.Parallel()
				owner := member(identity.Owner)
				ctx := identity.With(t.Context(), owner)
				ref := s.add(owner)
				if status, body, err := second.askOf(service, owner, "/egress/sim/thing"); status != http.StatusOK || err != nil {
					t.Fatalf("at first: %d %s, %v", status, body, err)
				}
				if err := tt.end(ctx, owner, ref.Account); err != nil {
					t.Fatal(err)
				}
				ended := time.Now()
				tick := time.NewTicker(10 * time.Millisecond)
				defer tick.Stop()
				for {
					asked := time.Since(ended)
					status, _, err := second.askOf(service, owner, "/egress/sim/thing")
					if err != nil {
						t.Fatal(err)
					}
					if status != http.StatusOK {
						break
					}
					if asked > 3*time.Second { // a second, on a machine that is not busy
						t.Fatalf("after %s it is used still", asked)
					}
					<-tick.C
				}
			})
		}
	}
}
