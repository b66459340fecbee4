package canary_test

import (
	"bytes"
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

// provider is the world outside: models, which the simulated provider answers for, and
// an authorisation server, all of whose tokens hold the secret mark. It takes the
// credentials off before it asks the simulator.
type provider struct {
	*httptest.Server
	mark      string
	auth      *authserver.Server
	simulator atomic.Pointer[httputil.ReverseProxy]
	refuse    atomic.Bool // refuses every credential

	mu   sync.Mutex // guards seen
	seen map[string]int
}

func newProvider(t *testing.T, mark, clientSecret string) *provider {
	t.Helper()
	p := &provider{mark: mark, seen: map[string]int{}, auth: authserver.New(authserver.Settings{
		ClientID: "us", ClientSecret: clientSecret, Rotate: true, EndsAccess: true,
	})}
	mux := http.NewServeMux()
	mux.Handle("/oauth/", http.StripPrefix("/oauth", http.HandlerFunc(p.authorise)))
	mux.HandleFunc("/", p.answer)
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// behind says where the simulated provider is.
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

// authorise puts the mark on tokens on their way out and takes it off on their way in.
func (p *provider) authorise(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return // the broker left
	}
	body = bytes.ReplaceAll(body, []byte(p.mark+"-refresh-"), []byte("refresh-"))
	body = bytes.ReplaceAll(body, []byte(p.mark+"-access-"), []byte("access-"))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	said := httptest.NewRecorder()
	p.auth.ServeHTTP(said, r)
	answer := said.Body.Bytes()
	for _, kind := range []string{"access-", "refresh-"} {
		answer = bytes.ReplaceAll(answer, []byte(kind), []byte(p.mark+"-"+kind))
	}
	maps.Copy(w.Header(), said.Header())
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.WriteHeader(said.Code)
	_, _ = w.Write(answer) // the broker left
}

// answer notes whose credential comes, and asks the simulator.
func (p *provider) answer(w http.ResponseWriter, r *http.Request) {
	credential := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + r.Header.Get("X-Api-Key")
	kind := "none"
	if text, ok := strings.CutPrefix(credential, p.mark+"-"); ok {
		kind, _, _ = strings.Cut(text, "-")
	}
	good := kind != "none" && !p.refuse.Load() && (kind != "access" || p.auth.Good(strings.TrimPrefix(credential, p.mark+"-")))
	p.mu.Lock()
	p.seen[fmt.Sprintf("%s %t", kind, good)]++
	p.mu.Unlock()
	if !good {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		// Providers do quote keys that they refuse.
		fmt.Fprintf(w, `{"type":"error","error":{"type":"authentication_error","message":"the key %s is not good"}}`, credential)
		return
	}
	p.simulator.Load().ServeHTTP(w, r)
}

// used returns how often a kind of credential came and was good, or was not.
func (p *provider) used(kind string, good bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[fmt.Sprintf("%s %t", kind, good)]
}
