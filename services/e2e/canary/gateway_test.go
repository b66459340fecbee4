package canary_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"signalbox.dev/pkg/seal"
	"signalbox.dev/pkg/subject"
)

// gateways sends keys for accounts to the gateways, in clear and sealed, in requests that succeed and
// in requests that are refused at every stage, and then searches their memory and the brokers' at
// once, before the buffers are overwritten.
func (r *rig) gateways() {
	r.t.Helper()
	account := func(what, more string) string {
		return fmt.Sprintf(`{"provider":"spare","profile":"keyed","label":%q,"base_url":%q%s}`, what, r.provider.URL+"/spare", more)
	}
	inClear := func(what string) string { return fmt.Sprintf(`,"secret":"%s-%s-of-a-client"`, r.handed.text, what) }
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	for n := range 2 {
		for what, tt := range map[string]struct {
			body   io.Reader
			token  string
			status int
		}{
			"plain":        {strings.NewReader(account("plain", inClear("plain"))), r.owner.Token, http.StatusCreated},
			"in chunks":    {io.MultiReader(strings.NewReader(account("chunks", inClear("chunks")))), r.owner.Token, http.StatusCreated},
			"sealed":       {strings.NewReader(account("sealed", r.sealed(n))), r.owner.Token, http.StatusCreated},
			"not parsed":   {strings.NewReader(inClear("torn")), r.owner.Token, http.StatusBadRequest},
			"another type": {strings.NewReader(`{"provider":"spare","label":7` + inClear("type") + `}`), r.owner.Token, http.StatusBadRequest},
			"too large":    {strings.NewReader(account(strings.Repeat("x", 70<<10), inClear("large"))), r.owner.Token, http.StatusRequestEntityTooLarge},
			"no token":     {strings.NewReader(account("nobody", inClear("nobody"))), "", http.StatusUnauthorized},
		} {
			status, text := r.post(n, "/api/accounts", tt.token, tt.body)
			if status != tt.status {
				r.t.Errorf("an account through gateway %d, %s: %d %s, want %d", n, what, status, text, tt.status)
			}
		}
		for _, path := range []string{"/api/accounts/", "//api/accounts", "/api/accounts/mine"} {
			if status, text := r.post(n, path, r.owner.Token, strings.NewReader(account("elsewhere", inClear("elsewhere")))); status < 300 {
				r.t.Errorf("POST %s through gateway %d: %d %s, want it refused", path, n, status, text)
			}
		}
		client := &http.Client{Transport: &http.Transport{Protocols: h2c}}
		if res, err := client.Post(r.address(n)+"/api/accounts", "application/json", strings.NewReader(account("two", inClear("two")))); err == nil {
			res.Body.Close()
			r.t.Errorf("an account through gateway %d over HTTP/2: %d, want no HTTP/2", n, res.StatusCode)
		}
	}
	for _, p := range r.Procs() {
		if p.Service == subject.Gateway || p.Service == subject.CredentialBroker {
			memoryOf(r.t, r.marks, p, map[string]bool{})
		}
	}
}

// sealed returns a key sealed by a client, as a field of a body.
func (r *rig) sealed(gateway int) string {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, r.address(gateway)+"/api/accounts/sealing-key", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	_, text := r.do(req, r.owner.Token)
	var got struct {
		Key struct {
			ID     string `json:"id"`
			Public []byte `json:"public_key"`
		} `json:"sealing_key"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		r.t.Fatalf("the sealing key is %s: %v", text, err)
	}
	sealed, err := seal.Seal(got.Key.Public, seal.Secret(r.owner.Workspace, "spare", r.provider.URL+"/spare"), []byte(r.secret.text+"-sealed-by-a-client"))
	if err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprintf(`,"sealed_secret":{"key_id":%q,"sealed":%q}`, got.Key.ID, base64.StdEncoding.EncodeToString(sealed))
}

func (r *rig) address(gateway int) string {
	return "http://" + r.Replica(subject.Gateway, gateway+1).Addr
}

func (r *rig) post(gateway int, path, token string, body io.Reader) (int, []byte) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.ctx, http.MethodPost, r.address(gateway)+path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.do(req, token)
}

func (r *rig) do(req *http.Request, token string) (int, []byte) {
	r.t.Helper()
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("X-Workspace-Id", r.owner.Workspace)
	res, err := r.HTTP.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, bytes.TrimSpace(text)
}
