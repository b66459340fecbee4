package credentialbroker_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/identity"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/simulator/authserver"
)

// signedIn is a broker, a provider with an authorisation server, and another instance
// on the same database.
type signedIn struct {
	*broker
	server *authserver.Server
	other  *oauth.Keeper
	cfg    credentialbroker.Config
}

// startSignedIn accepts more endpoints of the authorization server, as ", revoke: $FRONT/…".
func startSignedIn(t *testing.T, endpoints ...string) *signedIn {
	t.Helper()
	server := authserver.New(authserver.Settings{ClientID: "us", Rotate: true, ReuseEnds: true, EndsAccess: true})
	mux := http.NewServeMux()
	mux.Handle("/oauth/", http.StripPrefix("/oauth", server))
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		if !server.Good(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) {
			http.Error(w, `{"error":{"message":"who are you?","type":"authentication_error"}}`, http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"hello":"you"}`)
	})
	front := httptest.NewServer(mux)
	t.Cleanup(front.Close)
	providerYAML := fmt.Sprintf("name: sim\nprofile: sim\nendpoints: {authorize: %[1]s/oauth/authorize, token: %[1]s/oauth/token%[2]s}\nclient: {auth: none}\ntokens: {rotate: true}\n",
		front.URL, strings.ReplaceAll(strings.Join(endpoints, ""), "$FRONT", front.URL))
	profileYAML := fmt.Sprintf("name: sim\ndefault_for: sim\ndialect: openai\nbase_url: %s/api\nauth: {header: authorization, scheme: Bearer}\n", front.URL)
	cfg := credentialbroker.Config{
		Profiles: folder(t, profileYAML),
		OAuth:    admin.OAuth{Clients: "sim=us", Providers: folder(t, providerYAML)},
	}
	b := start(t, cfg)
	key, err := vault.OpenFile(b.keyFile)
	if err != nil {
		t.Fatal(err)
	}
	providers, err := oauth.Load(map[string]oauth.Client{"sim": {ID: "us"}}, fstest.MapFS{"sim.yaml": {Data: []byte(providerYAML)}})
	if err != nil {
		t.Fatal(err)
	}
	other := oauth.New(oauth.Config{Store: store.New(b.db), Vault: vault.New(key, store.New(b.db)), Providers: providers, Log: slog.New(slog.DiscardHandler), Instance: "other", Redirect: "https://console.example/callback"})
	t.Cleanup(other.Close)
	return &signedIn{b, server, other, cfg}
}

func folder(t *testing.T, yaml string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sim.yaml"), []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (s *signedIn) add(a identity.Actor) oauth.Ref {
	s.t.Helper()
	access, refresh := s.server.Grant()
	ref, err := s.other.Add(s.t.Context(), identity.Actor{Workspace: a.Workspace, Member: a.Member, Service: "gateway"},
		oauth.NewGrant{Provider: "sim", Access: vault.NewSecret(access), Refresh: vault.NewSecret(refresh), Life: time.Hour})
	if err != nil {
		s.t.Fatal(err)
	}
	return ref
}

func (s *signedIn) wantAnswer(when string, a identity.Actor, want int) {
	s.t.Helper()
	status, body, err := s.ask(a, "/egress/sim/thing")
	if status != want || err != nil {
		s.t.Errorf("%s: %d %s, %v, want %d", when, status, body, err, want)
	}
}

func TestSignedInAccount(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	owner := member(identity.Owner)
	ref := s.add(owner)
	s.wantAnswer("a token that is good", owner, http.StatusOK)

	// Another instance renews the token, which invalidates the one that this instance holds.
	if err := s.other.Refresh(t.Context(), identity.Actor{}, ref); err != nil {
		t.Fatal(err)
	}
	s.wantAnswer("after a rotation elsewhere", owner, http.StatusOK)
	if diff := cmp.Diff(authserver.Calls{Refresh: 1, Refreshed: 1}, s.server.Calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}

	// The provider refuses a new token: the 401 is passed on.
	token, err := s.other.Token(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	s.server.End(token.Secret.Reveal())
	s.wantAnswer("a grant that was withdrawn, at once", owner, http.StatusUnauthorized)
	if log := s.log.String(); strings.Contains(log, "access-") || strings.Contains(log, "refresh-") {
		t.Error("the log holds a token")
	}
}

func TestExpiredAccount(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	owner := member(identity.Owner)
	ref := s.add(owner)
	admin, err := pgx.Connect(t.Context(), s.adminDB)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(t.Context()))
	if _, err := admin.Exec(t.Context(), `UPDATE credentials.grants SET expires_at = now() - interval '1 second', refresh_at = now() - interval '1 second'`); err != nil {
		t.Fatal(err)
	}
	s.wantAnswer("an expired token", owner, http.StatusOK)
	s.wantAnswer("its successor", owner, http.StatusOK)
	if diff := cmp.Diff(authserver.Calls{Refresh: 1, Refreshed: 1}, s.server.Calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	s.used(owner, 1)
	var actions string
	if err := admin.QueryRow(t.Context(), `SELECT string_agg(action, ' ' ORDER BY at, id) FROM credentials.audit WHERE account_id = $1`, ref.Account).Scan(&actions); err != nil || actions != "created refreshed used" {
		t.Errorf("the audit has %q, %v", actions, err)
	}
}

func TestOAuthSettings(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		set  admin.OAuth
		want string
	}{
		"nothing":        {admin.OAuth{}, ""},
		"clients":        {admin.OAuth{Clients: "google=id:secret", Redirect: "https://console.example/back"}, ""},
		"no pair":        {admin.OAuth{Clients: "google"}, "CREDENTIAL_BROKER_OAUTH_CLIENTS: OAuth client 1: want provider=id"},
		"not a redirect": {admin.OAuth{Redirect: "back"}, "CREDENTIAL_BROKER_OAUTH_REDIRECT is not a page: use https://host/path"},
	} {
		err := tt.set.Validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Validate() = %v, want %q", name, err, tt.want)
		}
	}
	var cfg credentialbroker.Config
	if err := conf.Load(&cfg, []string{"DATABASE_URL=x", "TRUSTED_KEYS=x", "CREDENTIAL_BROKER_KEY_FILE=x", "CREDENTIAL_BROKER_OAUTH_CLIENTS=google"}); err == nil {
		t.Error("Load() with a wrong client = nil, want an error")
	}
}
