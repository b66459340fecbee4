package credentialbroker_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/testing/protocmp"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/simulator/authserver"
)

// connector is a broker with two providers that share an authorisation server: sim, which
// tools connect to, and model, which is only for owners' accounts.
type connector struct {
	*broker
	server *authserver.Server
}

func startConnector(t *testing.T, redirect string) *connector {
	t.Helper()
	server := authserver.New(authserver.Settings{ClientID: "us"})
	front := httptest.NewServer(server)
	t.Cleanup(front.Close)
	yaml := func(name, more string) string {
		return fmt.Sprintf("name: %[1]s\nprofile: generic\nendpoints: {authorize: %[2]s/authorize, token: %[2]s/token, revoke: %[2]s/revoke}\nclient: {auth: none}\n%[3]s", name, front.URL, more)
	}
	dir := folder(t, yaml("sim", fmt.Sprintf("scopes: [email, https://api.example/calendar]\nconnection: {title: Sim, whoami: {url: %s/me, at: [name]}}\n", front.URL)))
	if err := os.WriteFile(filepath.Join(dir, "model.yaml"), []byte(yaml("model", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return &connector{start(t, credentialbroker.Config{
		AllowPrivate: true, OAuth: admin.OAuth{Clients: "sim=us,model=us", Providers: dir, Redirect: redirect},
	}), server}
}

func (c *connector) connections(service string) credentialv1connect.ConnectionServiceClient {
	c.t.Helper()
	opts, err := rpc.Client{Signer: c.signers[service], Audience: subject.CredentialBroker}.ClientOptions()
	if err != nil {
		c.t.Fatal(err)
	}
	return credentialv1connect.NewConnectionServiceClient(c.http, c.url, opts...)
}

// consent returns the query with which the provider sends the browser back.
func (c *connector) consent(ctx context.Context, link string) (state, code string) {
	c.t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	_ = res.Body.Close()
	back, err := url.Parse(res.Header.Get("Location"))
	if err != nil {
		c.t.Fatal(err)
	}
	return back.Query().Get("state"), back.Query().Get("code")
}

// of returns the state of the connection to sim.
func (c *connector) of(ctx context.Context, service string) *credentialv1.Connection {
	c.t.Helper()
	res, err := c.connections(service).ListConnections(ctx, &credentialv1.ListConnectionsRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, x := range res.GetConnections() {
		switch x.GetProvider() {
		case "sim":
			return x
		case "model", "anthropic":
			c.t.Errorf("%s is not for tools", x.GetProvider())
		}
	}
	c.t.Fatal("sim cannot be connected")
	return nil
}

// begin begins to connect sim and consents.
func (c *connector) begin(ctx context.Context, gate credentialv1connect.ConnectionServiceClient) (state, code string) {
	c.t.Helper()
	began, err := gate.StartConnection(ctx, &credentialv1.StartConnectionRequest{Provider: "sim"})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.consent(ctx, began.GetUrl())
}

// connect connects sim.
func (c *connector) connect(ctx context.Context, gate credentialv1connect.ConnectionServiceClient) *credentialv1.Connection {
	c.t.Helper()
	state, code := c.begin(ctx, gate)
	done, err := complete(ctx, gate, state, code)
	if err != nil {
		c.t.Fatal(err)
	}
	return done
}

func complete(ctx context.Context, gate credentialv1connect.ConnectionServiceClient, state, code string) (*credentialv1.Connection, error) {
	res, err := gate.CompleteConnection(ctx, &credentialv1.CompleteConnectionRequest{Provider: "sim", State: state, Code: code})
	return res.GetConnection(), err
}

// exec changes tables without the broker.
func (b *broker) exec(sql string, args ...any) {
	b.t.Helper()
	admin, err := pgx.Connect(b.t.Context(), b.adminDB)
	if err != nil {
		b.t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(b.t.Context()))
	if _, err := admin.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func wantCode(t *testing.T, what string, err error, kind fault.Kind, code string) {
	t.Helper()
	if f := fault.From(err); err == nil || f.Kind != kind || f.Code != code {
		t.Errorf("%s = %v, want a fault %v %s", what, err, kind, code)
	}
}

const consolePage = "https://console.example/api/connections/callback"

func TestConnection(t *testing.T) {
	t.Parallel()
	c := startConnector(t, consolePage)
	admin, err := pgx.Connect(t.Context(), c.adminDB)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(t.Context()))
	actor := member(identity.Editor)
	ctx := identity.With(t.Context(), actor)
	gate := c.connections(subject.Gateway)
	want := &credentialv1.Connection{Provider: "sim", Title: "Sim", State: credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONNECTED}
	if diff := cmp.Diff(want, c.of(ctx, subject.ToolExecutor), protocmp.Transform()); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	began, err := gate.StartConnection(ctx, &credentialv1.StartConnectionRequest{Provider: "sim"})
	if err != nil {
		t.Fatal(err)
	}
	state, code := c.consent(ctx, began.GetUrl())
	done, err := gate.CompleteConnection(ctx, &credentialv1.CompleteConnectionRequest{Provider: "sim", State: state, Code: code})
	if err != nil {
		t.Fatal(err)
	}
	want = &credentialv1.Connection{
		Provider: "sim", Title: "Sim", State: credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED,
		Origin: credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_MEMBER, Subject: "Somebody", MemberId: actor.Member.String(),
	}
	for name, got := range map[string]*credentialv1.Connection{"completed": done.GetConnection(), "listed": c.of(ctx, subject.Gateway)} {
		if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(want, "connected_at")); diff != "" || got.GetConnectedAt() == nil {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for allowed, reason := range map[string]string{
		"https://api.example/calendar https://api.example/userinfo.email": "", "": "",
		"https://api.example/userinfo.email": "some permissions were declined, so some tools will not work: connect again, and allow https://api.example/calendar",
	} {
		if _, err := admin.Exec(t.Context(), `UPDATE credentials.grants SET scope = $1`, allowed); err != nil {
			t.Fatal(err)
		}
		if got := c.of(ctx, subject.Gateway); got.GetState() != want.GetState() || got.GetReason() != reason {
			t.Errorf("with %q allowed it is %v, want the reason %q", allowed, got, reason)
		}
	}
	if _, err := gate.Disconnect(ctx, &credentialv1.DisconnectRequest{Provider: "sim"}); err != nil {
		t.Fatal(err)
	}
	if calls := c.server.Calls(); calls.Revoke != 1 {
		t.Errorf("the provider was told %d times, want once", calls.Revoke)
	}
	if _, err := gate.Disconnect(ctx, &credentialv1.DisconnectRequest{Provider: "sim"}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Disconnect() again = %v, want NotFound", err)
	}
}

// TestConnectionPurpose: a member who may connect tools cannot complete a sign-in that an
// owner began for a model, and nobody can connect anything through other services.
func TestConnectionPurpose(t *testing.T) {
	t.Parallel()
	c := startConnector(t, consolePage)
	owner := member(identity.Owner)
	ctx := identity.With(t.Context(), owner)
	began, err := c.client().StartLogin(ctx, &credentialv1.StartLoginRequest{Provider: "model", Kind: credentialv1.LoginKind_LOGIN_KIND_BROWSER})
	if err != nil {
		t.Fatal(err)
	}
	state, code := c.consent(ctx, began.GetUrl())
	less := owner
	less.Role = identity.Editor // since then
	gate := c.connections(subject.Gateway)
	for provider, kind := range map[string]fault.Kind{"model": fault.Invalid, "sim": fault.Conflict} {
		_, err := gate.CompleteConnection(identity.With(t.Context(), less), &credentialv1.CompleteConnectionRequest{Provider: provider, State: state, Code: code})
		if fault.KindOf(err) != kind && fault.KindOf(err) != fault.NotFound {
			t.Errorf("CompleteConnection(%s) of a sign-in to model = %v, want %s", provider, err, kind)
		}
	}
	if calls := c.server.Calls(); calls.Exchange != 0 {
		t.Error("the code was exchanged")
	}

	// Nor one for the account behind a connection, nor vice versa.
	mine := identity.With(t.Context(), less)
	c.connect(mine, gate)
	own, err := c.client().ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	if err != nil || len(own.GetAccounts()) != 1 {
		t.Fatalf("the accounts are %v, %v", own, err)
	}
	again, err := c.client().StartLogin(ctx, &credentialv1.StartLoginRequest{AccountId: own.GetAccounts()[0].GetId(), Kind: credentialv1.LoginKind_LOGIN_KIND_BROWSER})
	if err != nil {
		t.Fatal(err)
	}
	exchanged := c.server.Calls().Exchange
	state, code = c.consent(ctx, again.GetUrl())
	_, err = gate.CompleteConnection(mine, &credentialv1.CompleteConnectionRequest{Provider: "sim", State: state, Code: code})
	wantCode(t, "CompleteConnection() of a sign-in to an account", err, fault.Conflict, "LOGIN_UNKNOWN")
	state, code = c.begin(ctx, gate)
	_, err = c.client().CompleteLogin(ctx, &credentialv1.CompleteLoginRequest{State: state, Code: code})
	wantCode(t, "CompleteLogin() of a connection", err, fault.Conflict, "LOGIN_UNKNOWN")
	if got := c.server.Calls().Exchange; got != exchanged {
		t.Error("a code was exchanged")
	}
	if _, err := gate.StartConnection(ctx, &credentialv1.StartConnectionRequest{Provider: "model"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("StartConnection(model) = %v, want Invalid", err)
	}
	for _, service := range []string{subject.AgentRunner, subject.ToolExecutor} {
		other := c.connections(service)
		_, start := other.StartConnection(ctx, &credentialv1.StartConnectionRequest{Provider: "sim"})
		_, complete := other.CompleteConnection(ctx, &credentialv1.CompleteConnectionRequest{Provider: "sim", State: "x", Code: "x"})
		_, end := other.Disconnect(ctx, &credentialv1.DisconnectRequest{Provider: "sim"})
		for _, err := range []error{start, complete, end} {
			if fault.KindOf(err) != fault.Forbidden {
				t.Errorf("through %s: %v, want Forbidden", service, err)
			}
		}
	}
}

// TestConnectAgain repeats the start and the completion of a connection.
func TestConnectAgain(t *testing.T) {
	t.Parallel()
	c := startConnector(t, consolePage)
	ctx, gate := identity.With(t.Context(), member(identity.Editor)), c.connections(subject.Gateway)
	req := &credentialv1.StartConnectionRequest{Provider: "sim", Id: id.New[id.Run]().String()}
	began, err := gate.StartConnection(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := gate.StartConnection(ctx, req); err != nil || again.GetUrl() != began.GetUrl() {
		t.Errorf("StartConnection() again = %v, %v, want the same", again, err)
	}
	_, err = gate.StartConnection(ctx, &credentialv1.StartConnectionRequest{Provider: "sim", Id: "x"})
	wantCode(t, "StartConnection() with an id that is none", err, fault.Invalid, "")
	state, code := c.consent(ctx, began.GetUrl())
	first, err := complete(ctx, gate, state, code)
	if err != nil {
		t.Fatal(err)
	}
	// As if the broker had died before it asked for the subject.
	c.exec(`UPDATE credentials.connections SET subject = ''`)
	again, err := complete(ctx, gate, state, code)
	if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("CompleteConnection() again (-want +got):\n%s%v", diff, err)
	}
	if diff := cmp.Diff(first, c.of(ctx, subject.Gateway), protocmp.Transform()); diff != "" {
		t.Errorf("it stands (-want +got):\n%s", diff)
	}
	if got := c.server.Calls().Exchange; got != 1 {
		t.Errorf("the provider was asked %d times, want once", got)
	}
	if _, err := gate.Disconnect(ctx, &credentialv1.DisconnectRequest{Provider: "sim"}); err != nil {
		t.Fatal(err)
	}
	_, err = complete(ctx, gate, state, code)
	wantCode(t, "CompleteConnection() of what was disconnected", err, fault.Conflict, "LOGIN_UNKNOWN")
}

// TestConnectedMeanwhile lets several members return from the provider at different times.
func TestConnectedMeanwhile(t *testing.T) {
	t.Parallel()
	c := startConnector(t, consolePage)
	gate := c.connections(subject.Gateway)
	ada := member(identity.Editor)
	bob, owner := ada, ada
	bob.Member, owner.Member, owner.Role = id.New[id.Member](), id.New[id.Member](), identity.Owner
	as := func(a identity.Actor) context.Context { return identity.With(t.Context(), a) }
	of := func(want identity.Actor) {
		t.Helper()
		if got := c.of(as(owner), subject.Gateway).GetMemberId(); got != want.Member.String() {
			t.Errorf("it is the connection of %s, want %s", got, want.Member)
		}
	}
	type back struct{ state, code string }
	begin := func(a identity.Actor) back {
		t.Helper()
		state, code := c.begin(as(a), gate)
		return back{state, code}
	}

	// The first member to return gets a new connection.
	first, second, other := begin(ada), begin(ada), begin(bob)
	if _, err := complete(as(ada), gate, first.state, first.code); err != nil {
		t.Fatal(err)
	}
	exchanged := c.server.Calls().Exchange
	_, err := complete(as(ada), gate, second.state, second.code)
	wantCode(t, "who was in another window", err, fault.Conflict, "CONNECTED_MEANWHILE")
	if text := fault.From(err).Message; !strings.HasPrefix(text, "you have") {
		t.Errorf("who was in another window is told %q", text)
	}
	_, err = complete(as(bob), gate, other.state, other.code)
	wantCode(t, "who comes second", err, fault.Conflict, "CONNECTED_MEANWHILE")
	_, err = complete(as(bob), gate, other.state, other.code)
	wantCode(t, "who comes second, again", err, fault.Conflict, "CONNECTED_MEANWHILE")
	of(ada)

	// A former owner, who began to replace it while an owner.
	demoted := begin(owner)
	less := owner
	less.Role = identity.Editor
	_, err = complete(as(less), gate, demoted.state, demoted.code)
	wantCode(t, "who is no owner any more", err, fault.Forbidden, "CONNECTED_BY_ANOTHER")
	if got := c.server.Calls().Exchange; got != exchanged {
		t.Errorf("codes were exchanged in vain")
	}
	if _, err := complete(as(owner), gate, demoted.state, demoted.code); err != nil {
		t.Errorf("who is an owner again: %v", err)
	}
	of(owner)

	// Anybody may replace a connection that no longer works: the first to return gets it.
	c.exec(`UPDATE credentials.grants SET state = 'reauthorize'`)
	late, early := begin(ada), begin(bob)
	if _, err := complete(as(bob), gate, early.state, early.code); err != nil {
		t.Fatal(err)
	}
	_, err = complete(as(ada), gate, late.state, late.code)
	wantCode(t, "who comes late", err, fault.Conflict, "LOGIN_UNKNOWN")
	of(bob)
}

// TestConnectAtOnce lets many members return at the same moment: there is one account.
func TestConnectAtOnce(t *testing.T) {
	t.Parallel()
	c := startConnector(t, consolePage)
	gate := c.connections(subject.Gateway)
	owner := member(identity.Owner)
	var wg sync.WaitGroup
	var connected atomic.Int32
	come := make(chan struct{})
	for range 8 {
		a := owner
		a.Member, a.Role = id.New[id.Member](), identity.Editor
		ctx := identity.With(t.Context(), a)
		state, code := c.begin(ctx, gate)
		wg.Go(func() {
			<-come
			_, err := complete(ctx, gate, state, code)
			if err == nil {
				connected.Add(1)
			} else if f := fault.From(err); f.Code != "CONNECTED_MEANWHILE" {
				t.Errorf("CompleteConnection() = %v", err)
			}
		})
	}
	close(come)
	wg.Wait()
	own, err := c.client().ListAccounts(identity.With(t.Context(), owner), &credentialv1.ListAccountsRequest{})
	if err != nil || len(own.GetAccounts()) != 1 || connected.Load() != 1 {
		t.Errorf("%d have connected it, with %d accounts, %v", connected.Load(), len(own.GetAccounts()), err)
	}
}

// TestOwnerSignsInToConnection: once an owner has signed in to an account, it is no longer a
// member's connection.
func TestOwnerSignsInToConnection(t *testing.T) {
	t.Parallel()
	c := startConnector(t, consolePage)
	gate := c.connections(subject.Gateway)
	owner := member(identity.Owner)
	editor := owner
	editor.Member, editor.Role = id.New[id.Member](), identity.Editor
	ctx, mine := identity.With(t.Context(), owner), identity.With(t.Context(), editor)
	state, code := c.begin(mine, gate)
	if _, err := complete(mine, gate, state, code); err != nil {
		t.Fatal(err)
	}
	own, err := c.client().ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	if err != nil || len(own.GetAccounts()) != 1 {
		t.Fatalf("the accounts are %v, %v", own, err)
	}
	began, err := c.client().StartLogin(ctx, &credentialv1.StartLoginRequest{AccountId: own.GetAccounts()[0].GetId(), Kind: credentialv1.LoginKind_LOGIN_KIND_BROWSER})
	if err != nil {
		t.Fatal(err)
	}
	theirs, answer := c.consent(ctx, began.GetUrl())
	if _, err := c.client().CompleteLogin(ctx, &credentialv1.CompleteLoginRequest{State: theirs, Code: answer}); err != nil {
		t.Fatal(err)
	}
	want := &credentialv1.Connection{
		Provider: "sim", Title: "Sim", State: credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED,
		Origin: credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_ACCOUNT,
	}
	if diff := cmp.Diff(want, c.of(mine, subject.Gateway), protocmp.Transform()); diff != "" {
		t.Errorf("after the owner's sign-in (-want +got):\n%s", diff)
	}
	_, err = gate.Disconnect(mine, &credentialv1.DisconnectRequest{Provider: "sim"})
	wantCode(t, "Disconnect() by who had connected it", err, fault.Conflict, "CONNECTED_AS_ACCOUNT")
	_, err = complete(mine, gate, state, code)
	wantCode(t, "CompleteConnection() by who had connected it", err, fault.Conflict, "LOGIN_UNKNOWN")
}

// TestSharedConnection: the operator shares a connection until a workspace has its own.
func TestSharedConnection(t *testing.T) {
	t.Parallel()
	c := startConnector(t, consolePage)
	operator, err := admin.Open(admin.Config{DB: c.db, KeyFile: c.keyFile, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(operator.Close)
	_, err = operator.Operator(id.Workspace{}).Add(t.Context(), admin.NewAccount{Provider: "sim", Profile: "generic", BaseURL: "http://127.0.0.1:1", Secret: conf.Secret(canary)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := identity.With(t.Context(), member(identity.Editor))
	if got := c.of(ctx, subject.Gateway); got.GetState() != credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED || got.GetOrigin() != credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_SHARED {
		t.Errorf("the operator's connection is %v", got)
	}
	gate := c.connections(subject.Gateway)
	if _, err := gate.Disconnect(ctx, &credentialv1.DisconnectRequest{Provider: "sim"}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("Disconnect() of the operator's = %v, want Conflict", err)
	}
	began, err := gate.StartConnection(ctx, &credentialv1.StartConnectionRequest{Provider: "sim"})
	if err != nil {
		t.Fatal(err)
	}
	state, code := c.consent(ctx, began.GetUrl())
	own, err := gate.CompleteConnection(ctx, &credentialv1.CompleteConnectionRequest{Provider: "sim", State: state, Code: code})
	if err != nil || own.GetConnection().GetOrigin() != credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_MEMBER {
		t.Errorf("an own connection beside it = %v, %v", own, err)
	}
}

func TestConnectionsNotSetUp(t *testing.T) {
	t.Parallel()
	c := startConnector(t, "")
	ctx := identity.With(t.Context(), member(identity.Editor))
	got := c.of(ctx, subject.Gateway)
	if got.GetState() != credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONFIGURED || !strings.Contains(got.GetReason(), "CREDENTIAL_BROKER_OAUTH_REDIRECT") {
		t.Errorf("without a page for browsers it is %v", got)
	}
	_, err := c.connections(subject.Gateway).StartConnection(ctx, &credentialv1.StartConnectionRequest{Provider: "sim"})
	if f := fault.From(err); f.Kind != fault.Conflict || f.Code != "OAUTH_REDIRECT_MISSING" {
		t.Errorf("StartConnection() = %v, want a Conflict that says what the operator does", err)
	}
}
