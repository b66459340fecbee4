package oauth_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/vault"
)

func TestShipped(t *testing.T) {
	t.Parallel()
	all, err := oauth.Load(map[string]oauth.Client{"google": {ID: "g", Secret: vault.NewSecret("s")}}, oauth.Shipped())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"anthropic", "github", "google", "notion"}, all.Names()); diff != "" {
		t.Errorf("Names (-want +got):\n%s", diff)
	}
	p, err := all.Get("anthropic")
	if err != nil || p.Token != "https://console.anthropic.com/v1/oauth/token" || p.Client.ID != "" || p.Encoding != oauth.JSON || !p.Rotates {
		t.Errorf("anthropic = %+v, %v", p, err)
	}
	if p, err = all.Get("google"); err != nil || p.Client.ID != "g" || p.Client.Secret.Reveal() != "s" {
		t.Errorf("google = %+v, %v, want the operator's client", p, err)
	}
}

// TestShippedProfiles is about two kinds of data that name each other.
func TestShippedProfiles(t *testing.T) {
	t.Parallel()
	profiles, err := profile.Load("v", profile.Shipped())
	if err != nil {
		t.Fatal(err)
	}
	all, err := oauth.Load(nil, oauth.Shipped())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all.Names() {
		p, err := all.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := profiles.Get(p.Profile); !ok {
			t.Errorf("%s: there is no request profile %s", name, p.Profile)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	t.Parallel()
	const good = "name: x\nprofile: generic\nendpoints:\n  authorize: https://x.example/a\n  token: https://x.example/t\nclient: {auth: none}\n"
	for _, tt := range []struct{ name, in, want string }{
		{"unknown field", good + "colour: red\n", `x.yaml:7: unknown field "colour"`},
		{"no name", strings.Replace(good, "name: x", "name: X", 1), `x.yaml:1: name: "X" is not a name`},
		{"no profile", strings.Replace(good, "profile: generic", "profile: ''", 1), `x.yaml:2: profile: "" is not the name of a request profile`},
		{"plain http", strings.Replace(good, "https://x.example/t", "http://x.example/t", 1), "x.yaml:5: endpoints.token: it must begin with https"},
		{"no URL", strings.Replace(good, "https://x.example/t", "x.example", 1), "x.yaml:5: endpoints.token: want https://host/path"},
		{"a user", strings.Replace(good, "https://x.example/t", "https://u:p@x.example/t", 1), "x.yaml:5: endpoints.token: it must not contain a user"},
		{"no way in", strings.Replace(good, "  authorize: https://x.example/a\n", "", 1), "x.yaml:4: endpoints: set authorize or device"},
		{"client auth", strings.Replace(good, "{auth: none}", "{auth: guess}", 1), `x.yaml:6: client.auth: "guess" is unknown: use none (a public client), body or basic`},
		{"loopback without a page", strings.NewReplacer("authorize:", "device:", "auth: none", "auth: none, loopback: true").Replace(good), "x.yaml:6: client.loopback: browsers are redirected from a page"},
		{"encoding", good + "request: {encoding: xml}\n", `x.yaml:7: request.encoding: "xml" is unknown: use form or json`},
		{"reserved parameter", good + "request: {token: {refresh_token: x}}\n", "x.yaml:7: request.token.refresh_token: refresh_token is set by the broker"},
		{"scope", good + "scopes: [a, 'b c']\n", `x.yaml:7: scopes[1]: "b c" is not a scope`},
		{"time", good + "tokens: {idle: ever}\n", `x.yaml:7: tokens.idle: "ever" is not a time`},
		{"title", good + "connection: {title: " + strings.Repeat("x", 61) + "}\n", "x.yaml:7: connection.title: it is longer than 60 characters"},
		{"tools without a browser", strings.Replace(good, "authorize:", "device:", 1) + "connection: {title: X}\n", "x.yaml:7: connection: tools are connected in a browser"},
		{"whoami without a path", good + "connection: {whoami: {url: https://x.example/me}}\n", "x.yaml:7: connection.whoami: set url, and set at"},
		{"whoami's path", good + "connection: {whoami: {url: https://x.example/me, at: [a..b]}}\n", `x.yaml:7: connection.whoami.at[0]: "a..b" is not a path`},
		{"whoami in the open", good + "connection: {whoami: {url: http://x.example/me, at: [a]}}\n", "x.yaml:7: connection.whoami.url: it must begin with https"},
		{"whoami's header", good + "connection: {whoami: {url: https://x.example/me, at: [a], headers: {authorization: x}}}\n", `x.yaml:7: connection.whoami.headers.authorization: "authorization" is not a header to set`},
		{"two documents", good + "---\n" + good, "x.yaml:7: want exactly one YAML document"},
		{"too large", good + "#" + strings.Repeat("x", 70_000), "x.yaml: 70120 bytes are over the limit of 65536"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := oauth.Load(nil, fstest.MapFS{"x.yaml": {Data: []byte(tt.in)}})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load() = %v, want %s", err, tt.want)
			}
		})
	}
	if _, err := oauth.Load(map[string]oauth.Client{"y": {ID: "c"}}, fstest.MapFS{"x.yaml": {Data: []byte(good)}}); err == nil || !strings.Contains(err.Error(), "there is no such provider: use one of [x]") {
		t.Errorf("Load() with a client of nobody = %v", err)
	}
	if _, err := oauth.Load(nil, fstest.MapFS{"x.yaml": {Data: []byte(good)}, "y.yaml": {Data: []byte(good)}}); err == nil || !strings.Contains(err.Error(), "is taken by") {
		t.Errorf("Load() of two with one name = %v", err)
	}
}

func TestParseClients(t *testing.T) {
	t.Parallel()
	got, err := oauth.ParseClients("google=id.example:s%3Ae%2Cc, anthropic=plain")
	if err != nil || got["google"].ID != "id.example" || got["google"].Secret.Reveal() != "s:e,c" || got["anthropic"].ID != "plain" || !got["anthropic"].Secret.IsZero() {
		t.Errorf("ParseClients() = %v, %v", got, err)
	}
	if got, err := oauth.ParseClients(" "); err != nil || len(got) != 0 {
		t.Errorf("ParseClients() of nothing = %v, %v", got, err)
	}
	// After a comma that is not escaped there may be the rest of a secret.
	for _, in := range []string{"anthropic=id:top,planted=part", "anthropic=id:top,planted=%zz", "anthropic=id:top,anthropic=part"} {
		clients, err := oauth.ParseClients(in)
		if err == nil {
			_, err = oauth.Load(clients, oauth.Shipped())
		}
		if err == nil || strings.Contains(err.Error(), "planted") || strings.Contains(err.Error(), "part") || !strings.Contains(err.Error(), "OAuth client 2: ") {
			t.Errorf("the clients %q: %v, want the second of them refused, and not said", in, err)
		}
	}
	for _, in := range []string{"google", "google=", "=x", "a=b,a=c", "a=b:topsecret%zz", "Google=x"} {
		if _, err := oauth.ParseClients(in); err == nil || strings.Contains(err.Error(), "topsecret") {
			t.Errorf("ParseClients(%q) = %v, want an error without the secret", in, err)
		}
	}
}
