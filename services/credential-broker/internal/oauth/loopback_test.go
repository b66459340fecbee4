package oauth_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/simulator/authserver"
)

// TestLoopback: the provider sends the browser to the requested address, and the code is good
// once, with the login's own state.
func TestLoopback(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	for _, redirect := range []string{"http://127.0.0.1:49152/callback", "http://[::1]:49152/callback"} {
		login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Browser, Redirect: redirect})
		if err != nil {
			t.Fatal(err)
		}
		back := w.sentBack(login.URL)
		if got, _, _ := strings.Cut(back.String(), "?"); got != redirect {
			t.Errorf("the browser is sent back to %s, want %s", got, redirect)
		}
		answer := oauth.Answer{Login: login.ID, Code: back.Query().Get("code"), State: back.Query().Get("state")}
		strange := answer
		strange.State += "x"
		_, err = k.Complete(t.Context(), w.who, strange)
		wantFault(t, "Complete() with another state", err, fault.Conflict, "LOGIN_UNKNOWN")
		ref, err := k.Complete(t.Context(), w.who, answer)
		if err != nil {
			t.Fatal(err)
		}
		w.token(k, ref)
		w.wantAgain("Complete()", ref, func() (oauth.Ref, error) { return k.Complete(t.Context(), w.who, answer) })
	}
	w.calls(authserver.Calls{Authorize: 2, Exchange: 2})
}

// TestLoopbackRefused: no other address can be requested, nor a loopback one of a provider
// without Loopback.
func TestLoopbackRefused(t *testing.T) {
	t.Parallel()
	w := newWorldIn(t, authserver.Settings{}, "")
	k := w.keeper()
	refused := func(provider, redirect string, kind oauth.Kind) {
		t.Helper()
		_, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: provider, Kind: kind, Redirect: redirect})
		wantFault(t, "Start() to "+provider+" by "+string(kind)+" with the redirect "+redirect, err, fault.Invalid, "")
	}
	for _, redirect := range []string{
		"http://localhost:49152/callback", "http://127.0.0.2:49152/callback", "http://0.0.0.0:49152/callback", "http://192.0.2.1:49152/callback",
		"http://127.0.0.1.example:49152/callback", "http://[::]:49152/callback", "http://[::1%25lo]:49152/callback", "http://[::ffff:127.0.0.1]:49152/callback",
		"https://127.0.0.1:49152/callback", "http://127.0.0.1/callback", "http://127.0.0.1:0/callback", "http://127.0.0.1:080/callback", "http://127.0.0.1:65536/callback",
		"http://127.0.0.1:49152", "http://127.0.0.1:49152/", "http://127.0.0.1:49152/other", "http://127.0.0.1:49152/other/callback",
		"http://127.0.0.1:49152/callback?to=elsewhere", "http://127.0.0.1:49152/callback#", "http://us@127.0.0.1:49152/callback", "127.0.0.1:49152/callback",
	} {
		refused("sim", redirect, oauth.Browser)
	}
	const good = "http://127.0.0.1:49152/callback"
	refused("sim", good, oauth.Paste)
	refused("sim", good, oauth.Device)

	none := strings.Replace(providerYAML(w.url, ""), "loopback: true", "loopback: false", 1)
	var err error
	w.providers, err = oauth.Load(map[string]oauth.Client{"sim": {ID: "us", Secret: vault.NewSecret("hush")}}, fstest.MapFS{"sim.yaml": {Data: []byte(none)}})
	if err != nil {
		t.Fatal(err)
	}
	k = w.keeper()
	refused("sim", good, oauth.Browser)
}
