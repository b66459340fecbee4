package canary_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/e2e/world"
)

// code opens the page of a provider, and returns the code that it shows.
func (r *rig) code(link string) string {
	r.t.Helper()
	location, page := r.get(http.DefaultClient, link)
	code := regexp.MustCompile(`<code>(.*)</code>`).FindStringSubmatch(page)
	if code == nil {
		r.t.Fatalf("the provider showed %q, %q", location, page)
	}
	return code[1]
}

// login is the API's view of a sign-in.
type login struct {
	Login struct {
		ID, URL     string
		URLWithCode string `json:"url_with_code"`
	}
	Account *struct{ ID string }
	Wait    float64 `json:"wait_seconds"`
}

// logins signs in over the public API, by pasting and with a device, each with success and with
// failure, and signs out again.
func (r *rig) logins() {
	r.t.Helper()
	c := r.Client(1, r.owner)
	call := func(method, path string, body any) (l login, err error) {
		err = c.Call(r.ctx, world.Request{Method: method, Path: path, Body: body}, &l)
		return l, err
	}
	begin := func(kind string) login {
		r.t.Helper()
		l, err := call(http.MethodPost, "/api/accounts/logins", map[string]any{"provider": "canary", "kind": kind})
		if err != nil {
			r.t.Fatal(err)
		}
		return l
	}
	path := func(l login, step string) string { return "/api/accounts/logins/" + l.Login.ID + "/" + step }
	poll := func(l login) (login, error) {
		for {
			got, err := call(http.MethodPost, path(l, "poll"), nil)
			if err != nil || got.Account != nil {
				return got, err
			}
			select {
			case <-r.ctx.Done():
				r.t.Fatal("the broker still waits for the device")
			case <-time.After(100 * time.Millisecond): // the broker decides when to poll
			}
		}
	}

	pasted := begin("paste")
	code := r.code(pasted.Login.URL)
	if _, err := call(http.MethodPost, path(begin("paste"), "complete"), map[string]any{"code": code}); err == nil {
		r.t.Error("a sign-in was completed with the code of another one")
	}
	vain := begin("paste")
	_, state, _ := strings.Cut(r.code(vain.Login.URL), "#")
	if _, err := call(http.MethodPost, path(vain, "complete"), map[string]any{"code": r.passed.text + "-made-up#" + state}); err == nil {
		r.t.Error("a sign-in was completed with an invalid code")
	}
	byPaste, err := call(http.MethodPost, path(pasted, "complete"), map[string]any{"code": code})
	if err != nil {
		r.t.Fatal(err)
	}

	refused, device := begin("device"), begin("device")
	r.get(http.DefaultClient, strings.Replace(refused.Login.URLWithCode, "approve", "deny", 1))
	if _, err := poll(refused); err == nil {
		r.t.Error("a refused device signed in")
	}
	if got, err := call(http.MethodPost, path(device, "poll"), nil); err != nil || got.Account != nil {
		r.t.Errorf("before its approval the device gets %+v, %v", got, err)
	}
	r.get(http.DefaultClient, device.Login.URLWithCode)
	byDevice, err := poll(device)
	if err != nil {
		r.t.Fatal(err)
	}
	calls := r.provider.auth.Calls()
	if calls.Device != 2 || calls.Poll < 2 || calls.Exchange < 3 {
		r.t.Errorf("the authorization server was called %+v", calls)
	}
	if states, verifiers := r.provider.noted("state"), r.provider.noted("verifier"); states < 4 || verifiers < 4 {
		r.t.Errorf("%d states and %d verifiers of sign-ins are searched for", states, verifiers)
	}

	if _, err := call(http.MethodPost, "/api/accounts/"+byPaste.Account.ID+"/refresh", nil); err != nil {
		r.t.Error(err)
	}
	for _, l := range []login{byPaste, byDevice} {
		if _, err := call(http.MethodPost, "/api/accounts/"+l.Account.ID+"/logout", nil); err != nil {
			r.t.Error(err)
		}
		if _, err := call(http.MethodDelete, "/api/accounts/"+l.Account.ID, nil); err != nil {
			r.t.Error(err)
		}
	}
}

// members sends members' credentials, also to services that do not accept them.
func (r *rig) members() {
	r.t.Helper()
	var made struct {
		Secret string
		Key    struct{ ID string }
	}
	c := r.Client(0, r.owner)
	if err := c.Call(r.ctx, world.Request{Method: http.MethodPost, Path: "/api/keys", Body: map[string]any{"name": "canary", "role": "editor"}}, &made); err != nil || made.Secret == "" {
		r.t.Fatalf("POST /api/keys = %+v, %v", made, err)
	}
	r.marks.add(r.passed, made.Secret)
	for _, key := range []struct {
		text string
		good bool
	}{{made.Secret, true}, {made.Secret + "x", false}, {r.passed.text, false}} {
		who := r.owner
		who.Token = key.text
		err := r.Client(1, who).Call(r.ctx, world.Request{Method: http.MethodGet, Path: "/api/sessions"}, nil)
		if (err == nil) != key.good {
			r.t.Errorf("with an API key (valid: %t) the response is %v", key.good, err)
		}
	}
	r.get(r.HTTP, r.Gateways[0]+"/api/sessions?access_token="+made.Secret)
	r.get(r.HTTP, r.Gateways[0]+"/api/documents/x/sync?token="+url.QueryEscape(made.Secret))
	if err := c.Call(r.ctx, world.Request{Method: http.MethodDelete, Path: "/api/keys/" + made.Key.ID}, nil); err != nil {
		r.t.Error(err)
	}
}

// strange passes secrets to the broker where it does not accept them, as people do by mistake.
func (r *rig) strange() {
	r.t.Helper()
	key := r.secret.text
	for what, req := range map[string]*credentialv1.AddAccountRequest{
		"a key of two lines":        {Provider: "anthropic", Secret: key + "\nx"},
		"the private key of an app": {Provider: "github", Secret: "-----BEGIN RSA PRIVATE KEY-----\n" + key + "\n-----END RSA PRIVATE KEY-----\n"},
		"a URL with a password":     {Provider: "house", Profile: "keyed", Secret: "x", BaseUrl: "https://u:" + key + "@house.example"},
		"a URL with a key":          {Provider: "house", Profile: "keyed", Secret: "x", BaseUrl: "https://house.example/?key=" + key},
		"a URL that is none":        {Provider: "house", Profile: "keyed", Secret: "x", BaseUrl: "https://u:" + key + " %zz@house.example"},
	} {
		_, err := r.accounts(1).AddAccount(r.as(), req)
		r.refused(what, err)
	}
	// An SDK that still uses the provider's own key.
	address := "http://" + r.Replica("credential-broker", 1).Addr + "/egress/anthropic/v1/messages"
	for _, headers := range []http.Header{{"X-Api-Key": {key}}, {"Authorization": {"Bearer " + key}}, {"Authorization": {"Basic " + key}}, {"Cookie": {"session=" + key}}} {
		r.knock(address, headers)
		r.knock(address+"?key="+key, headers)
	}
}

// knock sends a request that is refused.
func (r *rig) knock(address string, headers http.Header) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.ctx, http.MethodPost, address, bytes.NewReader([]byte(`{"model":"m","messages":[]}`)))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header = headers
	res, err := r.HTTP.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	var body bytes.Buffer
	if _, err := body.ReadFrom(res.Body); err != nil || res.StatusCode != http.StatusUnauthorized {
		r.t.Errorf("the response to a stranger is %s %.200q, %v", res.Status, body.Bytes(), err)
	}
	_ = res.Body.Close()
}

// databasePasswords adds the services' passwords for the database to the search.
func (r *rig) databasePasswords() {
	r.t.Helper()
	for _, p := range r.Procs() {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID()))
		if err != nil {
			return // there is no /proc
		}
		for v := range strings.SplitSeq(string(environ), "\x00") {
			text, ok := strings.CutPrefix(v, "DATABASE_URL=")
			if !ok {
				continue
			}
			u, err := url.Parse(text)
			if err != nil {
				r.t.Fatal(err)
			}
			password, _ := u.User.Password()
			r.marks.add(r.own[p.Service], password)
		}
	}
}
