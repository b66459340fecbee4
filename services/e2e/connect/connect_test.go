package connect_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestConnect runs all stories on one cluster.
func TestConnect(t *testing.T) {
	t.Parallel()
	r := start(t)
	t.Cleanup(func() {
		r.noSecrets()
		for _, wrong := range r.far.complaints() {
			t.Error(wrong)
		}
	})
	for name, story := range map[string]func(*rig){
		"google":          func(r *rig) { life(r, "google", "Google", true) },
		"notion":          func(r *rig) { life(r, "notion", "Notion", true) },
		"github":          func(r *rig) { life(r, "github", "GitHub", false) },
		"signed in again": again, "whose it is": whose, "problems": problems, "accounts": administer, "sign-ins": signIns, "roles": roles,
		"mix-up": mixUp, "client document": document,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(r.in(t))
		})
	}
}

// life tests the life cycle of a connection: a tool is refused, a member connects, the tool's
// request carries the member's token, the member disconnects, and the tool is refused.
func life(r *rig, provider, title string, revokes bool) {
	b := r.browser(r.editor)
	if got, want := b.connection(provider), (connection{State: "not_connected", Title: title}); got != want {
		r.t.Errorf("at first it is %+v, want %+v", got, want)
	}
	if got, want := b.connection("linear").State, "not_configured"; got != want {
		r.t.Errorf("a provider that is not set up is %q, want %q", got, want)
	}
	r.wantEgress("before", provider, http.StatusUnauthorized, "no_credential")
	b.connect(provider)
	want := connection{State: "connected", Origin: "member", Subject: "ada@" + provider + ".example", ConnectedBy: r.editor.ID, Title: title}
	for _, who := range []*browser{b, r.browser(r.viewer), r.browser(r.owner)} {
		if got := who.connection(provider); got != want {
			r.t.Errorf("after the sign-in it is %+v, want %+v", got, want)
		}
	}
	r.wantEgress("connected", provider, http.StatusOK, `"path":"/`+provider+`/api/things"`)
	stranger := r.in(r.t)
	if got := stranger.browser(stranger.owner).connection(provider).State; got != "not_connected" {
		r.t.Errorf("for another workspace it is %q", got)
	}

	gone := b.want(http.StatusOK, http.MethodDelete, "/api/connections/"+provider, "").object()
	if gone["success"] != true || gone["at_provider"] != revokes || (gone["reason"] == nil) != revokes {
		r.t.Errorf("DELETE = %v, want at_provider %t", gone, revokes)
	}
	r.wantEgress("disconnected", provider, http.StatusUnauthorized, "no_credential")
	if got := b.connection(provider).State; got != "not_connected" {
		r.t.Errorf("after disconnecting, it is %q", got)
	}
	b.want(http.StatusNotFound, http.MethodDelete, "/api/connections/"+provider, "")

	// The owner reads the audit log.
	rows := r.browser(r.owner).want(http.StatusOK, http.MethodGet, "/api/accounts/audit?limit=100", "").object()["rows"]
	var actions []string
	for _, row := range rows.([]any) {
		row := row.(map[string]any)
		if row["action"] == "used" || row["member_id"] != r.editor.ID || row["provider"] != provider {
			continue
		}
		actions = append(actions, fmt.Sprint(row["action"]))
		if row["address"] != somewhere || row["service"] != "gateway" {
			r.t.Errorf("the audit has %v, want an origin", row)
		}
		if row["action"] == "removed" && strings.HasPrefix(fmt.Sprint(row["detail"]), "revoked at the provider") != revokes {
			r.t.Errorf("the removal is recorded as %v", row)
		}
	}
	if got := strings.Join(actions, " "); got != "removed changed changed created" { // the sign-out, and the provider's response
		r.t.Errorf("the audit has %q for the editor", got)
	}
}

// again tests a connection that the provider ends: everybody sees why, and any member who may
// connect can replace it.
func again(r *rig) {
	b, owner := r.browser(r.editor), r.browser(r.owner)
	b.connect("google")
	account := owner.want(http.StatusOK, http.MethodGet, "/api/accounts", "").object()["accounts"].([]any)[0].(map[string]any)
	r.wantEgress("connected", "google", http.StatusOK, "path")
	r.far.providers["google"].auth.End(r.far.seen(r.owner.Workspace))
	owner.want(http.StatusConflict, http.MethodPost, fmt.Sprintf("/api/accounts/%s/refresh", account["id"]), "")
	got := r.browser(r.viewer).connection("google")
	if got.State != "reauthorize" || !strings.Contains(got.Reason, "no longer accepts the sign-in") || got.Subject == "" {
		r.t.Errorf("after the provider ended it, it is %+v", got)
	}
	r.wantEgress("ended by the provider", "google", http.StatusConflict, "sign in again")
	other := r.browser(r.member(r.owner.Workspace, "editor"))
	other.connect("google")
	if got := b.connection("google"); got.State != "connected" || got.ConnectedBy != other.who.ID || got.Reason != "" {
		r.t.Errorf("connected again by another member, it is %+v", got)
	}
	r.wantEgress("connected again", "google", http.StatusOK, "path")
}

// whose checks that only owners can change a connection of another member.
func whose(r *rig) {
	b, owner, other := r.browser(r.editor), r.browser(r.owner), r.browser(r.member(r.owner.Workspace, "editor"))
	b.connect("notion")
	refused := func(got answer, status int, code string) {
		r.t.Helper()
		if got.status != status || got.object()["code"] != code {
			r.t.Errorf("%s, want %d %s", got, status, code)
		}
	}
	refused(other.call(http.MethodDelete, "/api/connections/notion", ""), http.StatusForbidden, "CONNECTED_BY_ANOTHER")
	refused(other.call(http.MethodPost, "/api/connections", `{"provider":"notion"}`), http.StatusForbidden, "CONNECTED_BY_ANOTHER")
	b.connect("notion") // their own, again
	r.wantEgress("connected twice", "notion", http.StatusOK, "path")
	owner.want(http.StatusOK, http.MethodDelete, "/api/connections/notion", "")

	// Two members begin at the same time: the first one to return gets the connection.
	first, second := b.begin("notion"), other.begin("notion")
	other.open(other.consent(second))
	late := b.open(b.consent(first))
	if late.status != http.StatusConflict || !strings.Contains(late.body, "Somebody else has connected") {
		r.t.Errorf("the second member gets %s", late)
	}
	if got := b.connection("notion").ConnectedBy; got != other.who.ID {
		r.t.Errorf("it is connected by %s, want %s", got, other.who.ID)
	}

	// Only owners can change an account that an owner added.
	owner.want(http.StatusCreated, http.MethodPost, "/api/accounts", `{"provider":"github","secret":"ghp_0123456789"}`)
	if got := b.connection("github"); got.State != "connected" || got.Origin != "account" || got.ConnectedBy != "" {
		r.t.Errorf("with an owner's account, the connection is %+v", got)
	}
	refused(b.call(http.MethodDelete, "/api/connections/github", ""), http.StatusConflict, "CONNECTED_AS_ACCOUNT")
	refused(b.call(http.MethodPost, "/api/connections", `{"provider":"github"}`), http.StatusConflict, "CONNECTED_AS_ACCOUNT")

	// A disabled account is not used by tools, and members cannot connect another one instead.
	accounts := owner.want(http.StatusOK, http.MethodGet, "/api/accounts", "").object()["accounts"].([]any)
	for _, a := range accounts {
		if a := a.(map[string]any); a["provider"] == "notion" {
			owner.want(http.StatusOK, http.MethodPatch, fmt.Sprintf("/api/accounts/%s", a["id"]), `{"enabled":false}`)
		}
	}
	if got := b.connection("notion").State; got != "disabled" {
		r.t.Errorf("with a disabled account, the connection is %q", got)
	}
	refused(other.call(http.MethodPost, "/api/connections", `{"provider":"notion"}`), http.StatusConflict, "CONNECTION_DISABLED")
	refused(other.call(http.MethodDelete, "/api/connections/notion", ""), http.StatusForbidden, "CONNECTION_DISABLED")
}

// problems tests everything that can go wrong on the way, and the messages for it.
func problems(r *rig) {
	const provider = "gitea"
	b := r.browser(r.editor)
	expect := func(what string, got answer, status int, text string) {
		r.t.Helper()
		if got.status != status || !strings.Contains(got.body, text) || !strings.HasPrefix(got.header.Get("Content-Type"), "text/html") {
			r.t.Errorf("%s: %s %q, want a page with %d and %q", what, got, got.header.Get("Content-Type"), status, text)
		}
	}
	callback := r.front + "/api/connections/callback"
	expect("nothing", b.open(callback), http.StatusBadRequest, "A provider redirects your browser to this page")
	expect("declined", b.open(b.deny(b.begin(provider))), http.StatusConflict, "was declined")
	expect("a strange state", b.open(callback+"?code=x&state=strange"), http.StatusConflict, "has expired or is unknown to this server")
	expect("a long code", b.open(callback+"?state=s&code="+strings.Repeat("x", 5000)), http.StatusBadRequest, "longer than")

	back := b.consent(b.begin(provider))
	expect("another browser", r.browser(r.viewer).open(back), http.StatusForbidden, "not started in this browser")
	if head := b.send(http.MethodHead, back, "", nil); head.status != http.StatusMethodNotAllowed {
		r.t.Errorf("HEAD = %s", head)
	}
	if got := b.open(back); got.status != http.StatusSeeOther {
		r.t.Errorf("the right browser afterwards: %s", got)
	}
	if got := b.open(back); got.status != http.StatusSeeOther {
		r.t.Errorf("the right browser once more: %s", got)
	}
	b.want(http.StatusOK, http.MethodDelete, "/api/connections/"+provider, "")
	expect("when it was disconnected", b.open(back), http.StatusConflict, "its account has changed since")

	// A used or invalid code.
	link := b.begin(provider)
	wrong := strings.Replace(b.consent(link), "code=", "code=not", 1)
	expect("a wrong code", b.open(wrong), http.StatusConflict, "did not accept the code")

	// The sign-in expires.
	back = b.consent(b.begin(provider))
	r.exec(`update gateway.sign_ins set expires_at = now() - interval '1 second' where workspace_id = $1`, r.owner.Workspace)
	expect("too late", b.open(back), http.StatusConflict, "has expired")
	back = b.consent(b.begin(provider))
	r.exec(`update credentials.logins set expires_at = now() - interval '1 second' where workspace_id = $1`, r.owner.Workspace)
	expect("too late at the broker", b.open(back), http.StatusConflict, "it has expired")

	// The provider is down.
	back = b.consent(b.begin(provider))
	r.far.providers[provider].down.Store(true)
	expect("the provider is down", b.open(back), http.StatusServiceUnavailable, "To try again, reload this page")
	r.far.providers[provider].down.Store(false)
	if got := b.open(back); got.status != http.StatusSeeOther {
		r.t.Errorf("after the outage: %s", got)
	}
	b.want(http.StatusOK, http.MethodDelete, "/api/connections/"+provider, "")

	// The member is removed, or has a lower role, when the browser returns.
	other := r.browser(r.member(r.owner.Workspace, "editor"))
	back = other.consent(other.begin(provider))
	r.exec(`update gateway.members set role = 'viewer' where member_id = $1`, other.who.ID)
	expect("a viewer", other.open(back), http.StatusForbidden, "needs the role editor")
	r.exec(`update gateway.members set role = 'editor' where member_id = $1`, other.who.ID)
	back = other.consent(other.begin(provider))
	r.exec(`delete from gateway.members where member_id = $1`, other.who.ID)
	expect("no member", other.open(back), http.StatusConflict, "has expired")

	// A front end's page can complete a sign-in for its own member only.
	u, err := url.Parse(b.consent(b.begin(provider)))
	if err != nil {
		r.t.Fatal(err)
	}
	body := fmt.Sprintf(`{"state":%q,"code":%q}`, u.Query().Get("state"), u.Query().Get("code"))
	for who, status := range map[*browser]int{r.browser(r.owner): http.StatusConflict, r.browser(r.viewer): http.StatusForbidden} {
		if got := who.call(http.MethodPost, "/api/connections/"+provider+"/complete", body); got.status != status {
			r.t.Errorf("completing another member's sign-in = %s, want %d", got, status)
		}
	}
	if got := b.call(http.MethodPost, "/api/connections/google/complete", body); got.status != http.StatusConflict || got.object()["code"] != "LOGIN_UNKNOWN" {
		r.t.Errorf("completing it with another provider = %s, want 409", got)
	}

	// Invalid requests.
	for body, want := range map[string]string{
		`{}`:                       "provider is required",
		`{"provider":"elsewhere"}`: "provider: there is no connection called",
		`{"provider":"anthropic"}`: "provider: there is no connection called",
		`{"provider":"gitea","return_to":"//evil.example"}`:       "return_to:",
		`{"provider":"gitea","return_to":"https://evil.example"}`: "return_to:",
		`{"provider":"gitea","return_to":"/settings"}`:            "return_to:",
	} {
		if got := b.call(http.MethodPost, "/api/connections", body); got.status != http.StatusBadRequest || !strings.Contains(got.body, want) {
			r.t.Errorf("POST /api/connections %s = %s, want 400 %q", body, got, want)
		}
	}
	if got := b.call(http.MethodPost, "/api/connections", `{"provider":"linear"}`); got.status != http.StatusConflict || got.object()["code"] != "OAUTH_CLIENT_MISSING" {
		r.t.Errorf("connecting a provider that is not set up = %s, want 409", got)
	}
	welcome := b.open(b.consent(b.begin(provider, `,"return_to":"/welcome"`)))
	if got := welcome.header.Get("Location"); welcome.status != http.StatusSeeOther || got != "/welcome?connected="+provider {
		r.t.Errorf("with another return path: %s %q", welcome, got)
	}
	r.wantEgress("after all that", provider, http.StatusOK, "path")
}
