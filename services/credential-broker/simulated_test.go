package credentialbroker_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/simulator/apis"
	"signalbox.dev/services/simulator/authserver"
)

// TestSimulatedServices reaches Google before somebody connects it, when the simulator stands
// in, while it is connected, when the person has taken the sign-in back, and after it is
// disconnected.
func TestSimulatedServices(t *testing.T) {
	t.Parallel()
	issuer := authserver.New(authserver.Settings{ClientID: "us"})
	fakes := apis.New(apis.Config{Good: issuer.Good})
	var token atomic.Value // of the last request
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/google/") {
			token.Store(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
			fakes.ServeHTTP(w, r)
			return
		}
		issuer.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	providers, profiles := t.TempDir(), t.TempDir()
	for file, text := range map[string]string{
		filepath.Join(providers, "google.yaml"): fmt.Sprintf("name: google\nprofile: google\nendpoints: {authorize: %[1]s/authorize, token: %[1]s/token, revoke: %[1]s/revoke}\nclient: {auth: none}\nconnection: {title: Google, whoami: {url: %[1]s/me, at: [name]}}\n", front.URL),
		filepath.Join(profiles, "google.yaml"):  fmt.Sprintf("name: google\ndefault_for: google\ndialect: google\nbase_url: %s/google\nauth: {header: authorization, scheme: Bearer}\nroutes: [{path: /*, wait: 1m}]\n", front.URL),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := &connector{start(t, credentialbroker.Config{
		AllowPrivate: true, Profiles: profiles, SimulatorURL: front.URL, SimulatedServices: true,
		OAuth: admin.OAuth{Clients: "google=us", Providers: providers, Redirect: consolePage},
	}), issuer}
	person := member(identity.Owner)
	ctx := identity.With(t.Context(), person)
	const tasks = "/egress/google/tasks/v1/lists/@default/tasks"
	want := func(when string, status int, said string, origin credentialv1.ConnectionOrigin, state credentialv1.ConnectionState) {
		t.Helper()
		got, body, err := c.askOf(subject.ToolExecutor, person, tasks)
		if err != nil || got != status || !strings.Contains(body, said) {
			t.Errorf("%s: %d %.300s, %v, want %d with %s", when, got, body, err, status, said)
		}
		if g := c.google(person); g.GetState() != state || g.GetOrigin() != origin {
			t.Errorf("%s: the connection is %v, want %v of %v", when, g, state, origin)
		}
	}
	connected, again := credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED, credentialv1.ConnectionState_CONNECTION_STATE_REAUTHORIZE
	byMember, simulated := credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_MEMBER, credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_SIMULATED
	want("before it is connected", http.StatusOK, `"kind":"tasks#task"`, simulated, connected)
	if got, _ := token.Load().(string); strings.HasPrefix(got, "access-") {
		t.Error("the simulator got somebody's token")
	}
	mine, _ := token.Load().(string)
	want("again", http.StatusOK, `"kind":"tasks#task"`, simulated, connected)
	if again, _ := token.Load().(string); again != mine {
		t.Errorf("the workspace has the data of %q at the simulator, and then of %q", mine, again)
	}
	if _, _, err := c.askOf(subject.ToolExecutor, member(identity.Owner), tasks); err != nil || token.Load() == mine {
		t.Errorf("another workspace has the same data at the simulator (%v)", err)
	}

	gate := c.connections(subject.Gateway)
	began, err := gate.StartConnection(ctx, &credentialv1.StartConnectionRequest{Provider: "google"})
	if err != nil {
		t.Fatal(err)
	}
	sign, code := c.consent(ctx, began.GetUrl())
	if _, err := gate.CompleteConnection(ctx, &credentialv1.CompleteConnectionRequest{Provider: "google", State: sign, Code: code}); err != nil {
		t.Fatal(err)
	}
	want("connected", http.StatusOK, `"kind":"tasks#task"`, byMember, connected)

	access, _ := token.Load().(string)
	issuer.End(access)
	want("taken back, which nobody has noticed", http.StatusUnauthorized, `"reason":"authError"`, byMember, connected)
	accounts, err := c.client().ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	if err != nil || len(accounts.GetAccounts()) != 1 {
		t.Fatalf("accounts = %v, %v, want one", accounts, err)
	}
	// The token is too young to be renewed because of one refusal.
	if _, err := c.client().RefreshAccount(ctx, &credentialv1.RefreshAccountRequest{Id: accounts.GetAccounts()[0].GetId()}); err == nil {
		t.Error("a sign-in that was taken back was renewed")
	}
	if g := c.google(person); g.GetState() != again || g.GetOrigin() != byMember {
		t.Errorf("taken back: the connection is %v", g)
	}

	if _, err := gate.Disconnect(ctx, &credentialv1.DisconnectRequest{Provider: "google"}); err != nil {
		t.Fatal(err)
	}
	want("disconnected", http.StatusOK, `"kind":"tasks#task"`, simulated, connected)
	if _, err := gate.Disconnect(ctx, &credentialv1.DisconnectRequest{Provider: "google"}); err == nil {
		t.Error("what is simulated was disconnected")
	}
}

// google returns the connection to Google.
func (c *connector) google(a identity.Actor) *credentialv1.Connection {
	c.t.Helper()
	res, err := c.connections(subject.ToolExecutor).ListConnections(identity.With(c.t.Context(), a), &credentialv1.ListConnectionsRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, x := range res.GetConnections() {
		if x.GetProvider() == "google" {
			return x
		}
	}
	c.t.Fatal("Google cannot be connected")
	return nil
}
