package proxy_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/proxy"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// grants is a store of one account with a grant.
type grants struct{ account store.Account }

func (g *grants) Pool(_ context.Context, ws id.Workspace, _ string) (store.Pool, error) {
	if ws != g.account.WorkspaceID {
		return store.Pool{}, nil
	}
	return store.Pool{Accounts: []store.Account{g.account}}, nil
}

func (*grants) Marks(context.Context, []store.PoolKey) (map[store.PoolKey]store.Mark, error) {
	return nil, nil
}

func (g *grants) List(context.Context, id.Workspace) ([]store.Account, error) {
	return []store.Account{g.account}, nil
}

func (*grants) Used(context.Context, []store.Use) error { return nil }

func (*grants) Learn(context.Context, store.Learned) error { return nil }

// renewer returns a new token whenever one was rejected.
type renewer struct{}

func (renewer) Token(context.Context, oauth.Ref) (oauth.Token, error) {
	return oauth.Token{Secret: vault.NewSecret("token-number-1"), Version: 1}, nil
}

func (renewer) Rejected(_ context.Context, _ oauth.Ref, version int64) (oauth.Token, error) {
	return oauth.Token{Secret: vault.NewSecret(fmt.Sprint("token-number-", version+1)), Version: version + 1}, nil
}

// After a 401 the request is repeated once with a new token. If that is refused too, the
// provider's answer goes back.
func TestRenewedOnce(t *testing.T) {
	t.Parallel()
	for good, want := range map[string][]string{
		"token-number-2": {"token-number-1", "token-number-2"},
		"token-number-4": {"token-number-1", "token-number-2"},
	} {
		profiles, err := profile.Load("1", profile.Shipped())
		if err != nil {
			t.Fatal(err)
		}
		g := &grants{}
		set, err := pool.New(pool.Config{
			Store: g, Tokens: renewer{}, Profiles: profiles, CheckBase: func(*url.URL, bool) error { return nil }, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(set.Wait)
		r := newRig(t, &memory{}, func(cfg *proxy.Config) { cfg.Pool = set })
		var mu sync.Mutex // guards sent
		var sent []string
		base := r.serve(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			secret := strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer ")
			mu.Lock()
			sent = append(sent, secret)
			mu.Unlock()
			if secret != good {
				answer(401, `{"type":"error","error":{"type":"authentication_error","message":"m"}}`)(w, q)
				return
			}
			stream(goodAnswer)(w, q)
		}))
		g.account = store.Account{WorkspaceID: r.actor.Workspace, ID: id.New[id.Account](), Provider: "anthropic", Profile: "anthropic-oauth", BaseURL: base}
		status := http.StatusUnauthorized
		if good == want[len(want)-1] {
			status = http.StatusOK
		}
		if got := r.post(messages, asking); got.status != status {
			t.Errorf("where %s is good: got %d %q, want %d", good, got.status, got.body, status)
		}
		mu.Lock()
		if diff := cmp.Diff(want, sent); diff != "" {
			t.Errorf("where %s is good, it was sent with (-want +got):\n%s", good, diff)
		}
		mu.Unlock()
	}
}
