package canary_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"signalbox.dev/services/simulator/authserver"
)

// provider is the external provider: models, with responses of the simulated provider, and an
// authorization server. Its tokens and device codes contain the secret mark; codes that people see
// contain the passed one. It removes the credentials before it calls the simulator.
type provider struct {
	*httptest.Server
	marks     *marks
	secret    *mark
	mark      string // the secret's
	passed    *mark
	signs     *strings.Replacer // adds marks to responses of the authorization server
	plain     *strings.Replacer // removes them again
	auth      *authserver.Server
	simulator atomic.Pointer[httputil.ReverseProxy]
	refuse    atomic.Bool // refuses every credential
	quote     atomic.Pointer[string]
	wreck     atomic.Pointer[string] // replaces responses if set

	mu   sync.Mutex // guards seen
	seen map[string]int
}

// clientSecret is the product's OAuth client secret.
func clientSecret(secret *mark) string { return secret.text + "-client" }

func newProvider(t *testing.T, all *marks, secret, passed *mark) *provider {
	t.Helper()
	p := &provider{marks: all, secret: secret, mark: secret.text, passed: passed, seen: map[string]int{}, auth: authserver.New(authserver.Settings{
		ClientID: "us", ClientSecret: clientSecret(secret), Rotate: true, EndsAccess: true, Interval: 1,
	})}
	var signs, plain []string
	for _, v := range []struct{ before, begins, mark string }{
		{"", "access-", secret.text},
		{"", "refresh-", secret.text},
		{"", "device-", secret.text},
		{"", "code-", passed.text},
		{`"user_code":"`, "", passed.text},
		{"user_code=", "", passed.text},
	} {
		signs = append(signs, v.before+v.begins, v.before+v.mark+"-"+v.begins)
		plain = append(plain, v.before+v.mark+"-"+v.begins, v.before+v.begins)
	}
	p.signs, p.plain = strings.NewReplacer(signs...), strings.NewReplacer(plain...)
	mux := http.NewServeMux()
	mux.Handle("/oauth/", http.StripPrefix("/oauth", http.HandlerFunc(p.authorise)))
	mux.HandleFunc("/oauth/whoami", p.whoami)
	mux.HandleFunc("/", p.answer)
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// behind sets the address of the simulated provider.
func (p *provider) behind(t *testing.T, simulator string) {
	t.Helper()
	u, err := url.Parse(simulator)
	if err != nil {
		t.Fatal(err)
	}
	p.simulator.Store(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(u)
		r.Out.Header.Set("X-Api-Key", "none")
		r.Out.Header.Set("Authorization", "Bearer none")
	}})
}

// authorise adds the mark to tokens in responses and removes it from requests.
func (p *provider) authorise(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return // the broker left
	}
	// From here on the broker's generated secrets are searched for, before they can be anywhere.
	if state := r.URL.Query().Get("state"); state != "" {
		p.marks.add(p.passed, state)
		p.note("state")
	}
	if form, err := url.ParseQuery(string(body)); err == nil && form.Get("code_verifier") != "" {
		p.marks.add(p.secret, form.Get("code_verifier"))
		p.note("verifier")
	}
	if wreck := p.wreck.Load(); wreck != nil {
		if form, err := url.ParseQuery(string(body)); err == nil && form.Has("refresh_token") {
			p.note("refresh in a wreck")
			tear(w, *wreck, form.Get("refresh_token"))
			return
		}
	}
	body = []byte(p.plain.Replace(string(body)))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.URL.RawQuery = p.plain.Replace(r.URL.RawQuery)
	said := httptest.NewRecorder()
	p.auth.ServeHTTP(said, r)
	answer := p.signs.Replace(said.Body.String())
	maps.Copy(w.Header(), said.Header())
	if to := said.Header().Get("Location"); to != "" {
		w.Header().Set("Location", p.signs.Replace(to))
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.WriteHeader(said.Code)
	_, _ = io.WriteString(w, answer) // the broker left
}

// whoami returns the caller, and quotes its token, which must not reach anybody.
func (p *provider) whoami(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !p.auth.Good(strings.TrimPrefix(token, p.mark+"-")) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	fmt.Fprintf(w, `{"name":"the one with %s","login":"ada"}`, token)
}

// answer records the credential and calls the simulator.
func (p *provider) answer(w http.ResponseWriter, r *http.Request) {
	credential := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + r.Header.Get("X-Api-Key") + r.Header.Get("X-House-Key")
	kind := "none"
	if text, ok := strings.CutPrefix(credential, p.mark+"-"); ok {
		kind, _, _ = strings.Cut(text, "-")
	}
	good := kind != "none" && !p.refuse.Load() && (kind != "access" || p.auth.Good(strings.TrimPrefix(credential, p.mark+"-")))
	p.note(fmt.Sprintf("%s %t", kind, good))
	if !good {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		// Real providers quote keys that they refuse.
		fmt.Fprintf(w, `{"type":"error","error":{"type":"authentication_error","message":"the key %s is not good"}}`, inJSON(credential))
		return
	}
	if wreck := p.wreck.Load(); wreck != nil {
		p.note(kind + " in a wreck")
		tear(w, *wreck, credential)
		return
	}
	if place := p.quote.Load(); place != nil {
		p.note(kind + " in " + *place)
		tell(w, strings.HasSuffix(r.URL.Path, "/messages"), *place, inJSON(credential))
		return
	}
	p.simulator.Load().ServeHTTP(w, r)
}

// tear writes a raw response that contains a key, and closes the connection.
func tear(w http.ResponseWriter, wreck, key string) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // it has ended
	}
	_, _ = io.WriteString(conn, strings.NewReplacer("KEY", key, "JSON", inJSON(key)).Replace(wreck)) // the broker left
	_ = conn.Close()
}

// inJSON returns the JSON form of a text, without the quotes.
func inJSON(text string) string {
	b, _ := json.Marshal(text) // a string always encodes
	return string(b[1 : len(b)-1])
}

// quoting has the places of responses in which a provider may quote a key, apart from a refusal. None
// of them is the account's fault, so that it stays in use.
var quoting = []string{"the first event", "an event after text", "text", "JSON", "a large error"}

// tell quotes a key in Anthropic's or OpenAI's format.
func tell(w http.ResponseWriter, anthropic bool, place, key string) {
	const failed = `{"type":"error","error":{"type":"invalid_request_error","code":"400","message":"%s may not do this"}}`
	begin, text, failure, end := "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
		"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"}}]}\n\n", "data: "+failed+"\n\n",
		"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	if anthropic {
		begin = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n" +
			"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
		text = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"%s\"}}\n\n"
		failure = "event: error\n" + failure
		end = "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":1}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	}
	kind, status, body := "text/event-stream", http.StatusOK, ""
	switch place {
	case "the first event":
		body = failure
	case "an event after text":
		body = begin + strings.Replace(text, "%s", "some text", 1) + failure
	case "text":
		body = begin + ": %s\n\n" + text + end
	case "JSON":
		kind, body = "application/json", failed
	case "a large error":
		kind, status, body = "application/json", http.StatusBadRequest, strings.Replace(failed, "%s", strings.Repeat("x", 70<<10)+"%s", 1)
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, strings.ReplaceAll(body, "%s", key)) // the broker left
}

func (p *provider) note(what string) {
	p.mu.Lock()
	p.seen[what]++
	p.mu.Unlock()
}

// noted returns how often something was recorded: a kind of credential and whether it was accepted,
// or where it was quoted, or a part of a sign-in.
func (p *provider) noted(what string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[what]
}
