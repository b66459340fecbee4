package main

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
)

// secretsAPI is the part of a Kubernetes API server that stores Secrets.
type secretsAPI struct {
	mu     sync.Mutex
	stored map[string]secret
	// interfere is called before each write, as another process that is faster.
	interfere func(stored map[string]secret)
}

func (a *secretsAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	refuse := func(code int, message string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "message": message, "code": code})
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/here/secrets")
	if !ok || r.Header.Get("Authorization") != "Bearer the-token" {
		refuse(http.StatusForbidden, "forbidden")
		return
	}
	name = strings.TrimPrefix(name, "/")
	if r.Method != http.MethodGet && a.interfere != nil {
		a.interfere(a.stored)
		a.interfere = nil
	}
	var sent secret
	if r.Method != http.MethodGet {
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			refuse(http.StatusBadRequest, err.Error())
			return
		}
	}
	have, exists := a.stored[cmpOr(name, sent.Metadata.Name)]
	switch {
	case r.Method == http.MethodGet && !exists:
		refuse(http.StatusNotFound, "secrets not found")
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(have)
	case r.Method == http.MethodPost && name == "" && exists:
		refuse(http.StatusConflict, "it exists")
	case r.Method == http.MethodPost && name == "":
		sent.Metadata.ResourceVersion = "1"
		a.stored[sent.Metadata.Name] = sent
	case r.Method == http.MethodPatch && exists && r.Header.Get("Content-Type") == "application/merge-patch+json":
		if sent.Metadata.ResourceVersion != have.Metadata.ResourceVersion {
			refuse(http.StatusConflict, "the object has been modified")
			return
		}
		maps.Copy(have.Data, sent.Data)
		have.Metadata.ResourceVersion += "1"
		a.stored[name] = have
	default:
		refuse(http.StatusMethodNotAllowed, "no")
	}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// pod returns the API as a pod of the namespace "here" finds it.
func pod(t *testing.T, api http.Handler) *kubernetes {
	t.Helper()
	s := httptest.NewTLSServer(api)
	t.Cleanup(s.Close)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"token": "the-token\n", "namespace": "here",
		"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	k, err := inCluster(dir, []string{"KUBERNETES_SERVICE_HOST=" + u.Hostname(), "KUBERNETES_SERVICE_PORT=" + u.Port()})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKubernetesSecret(t *testing.T) {
	t.Parallel()
	api := &secretsAPI{stored: map[string]secret{}}
	k := pod(t, api)
	if n, err := k.fillSecret(t.Context(), "all", fillInstallation); n == 0 || err != nil {
		t.Fatalf("without a Secret: %d added, %v", n, err)
	}
	made := maps.Clone(api.stored["all"].Data)
	for _, name := range append(keyNames(), "POSTGRES_PASSWORD", "AGENT_RUNNER_DB_PASSWORD", "CREDENTIAL_BROKER_NATS_PASSWORD", "ADMIN_NATS_PASSWORD", "seal.key") {
		if len(made[name]) == 0 {
			t.Errorf("the Secret does not have %s", name)
		}
	}
	if k, err := identity.ParseKey(string(made["TOOL_EXECUTOR_SERVICE_KEY"])); err != nil || string(made["BROWSER_TRUSTED_KEYS"]) != subject.ToolExecutor+"="+k.Public() {
		t.Errorf("the browser trusts %s, not the key of tool-executor (%v)", made["BROWSER_TRUSTED_KEYS"], err)
	}
	if n, err := k.fillSecret(t.Context(), "all", fillInstallation); n != 0 || err != nil {
		t.Errorf("with everything there: %d added, %v", n, err)
	}

	// During a rotation, two keys are trusted.
	another, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	trusted := made["BROWSER_TRUSTED_KEYS"]
	for text, ok := range map[string]bool{"," + string(trusted): true, "": false} {
		api.stored["all"].Data["BROWSER_TRUSTED_KEYS"] = []byte(subject.ToolExecutor + "=" + another.Public() + text)
		if n, err := k.fillSecret(t.Context(), "all", fillInstallation); n != 0 || (err == nil) != ok {
			t.Errorf("with another trusted key and %q: %d added, %v", text, n, err)
		}
	}
	api.stored["all"].Data["BROWSER_TRUSTED_KEYS"] = trusted

	// A later version needs more.
	delete(api.stored["all"].Data, "BROWSER_TRUSTED_KEYS")
	delete(api.stored["all"].Data, "GATEWAY_NATS_PASSWORD")
	if n, err := k.fillSecret(t.Context(), "all", fillInstallation); n != 2 || err != nil {
		t.Errorf("with two values missing: %d added, %v", n, err)
	}
	now := api.stored["all"].Data
	if len(now["GATEWAY_NATS_PASSWORD"]) == 0 {
		t.Error("a missing password was not added")
	}
	delete(made, "GATEWAY_NATS_PASSWORD")
	for name, v := range made {
		if diff := cmp.Diff(string(v), string(now[name])); diff != "" {
			t.Errorf("%s was changed", name)
		}
	}
}

func TestKubernetesSecretOfTwo(t *testing.T) {
	t.Parallel()
	// Another Job creates the Secret between this one's look and its write.
	api := &secretsAPI{stored: map[string]secret{}, interfere: func(stored map[string]secret) {
		stored["all"] = secret{Metadata: secretMetadata{Name: "all", ResourceVersion: "7"}, Data: map[string][]byte{"POSTGRES_PASSWORD": []byte("theirs")}}
	}}
	if _, err := pod(t, api).fillSecret(t.Context(), "all", fillInstallation); err != nil {
		t.Fatal(err)
	}
	if got := string(api.stored["all"].Data["POSTGRES_PASSWORD"]); got != "theirs" {
		t.Errorf("the password of another Job became %q", got)
	}
	// And one that changes it.
	delete(api.stored["all"].Data, "GATEWAY_DB_PASSWORD")
	api.interfere = func(stored map[string]secret) {
		s := stored["all"]
		s.Metadata.ResourceVersion, s.Data["GATEWAY_DB_PASSWORD"] = "8", []byte("theirs")
		stored["all"] = s
	}
	if _, err := pod(t, api).fillSecret(t.Context(), "all", fillInstallation); err != nil {
		t.Fatal(err)
	}
	if got := string(api.stored["all"].Data["GATEWAY_DB_PASSWORD"]); got != "theirs" {
		t.Errorf("the password of another Job became %q", got)
	}
}

func TestKubernetesSecretErrors(t *testing.T) {
	t.Parallel()
	values := map[string]string{}
	if err := fillInstallation(values); err != nil {
		t.Fatal(err)
	}
	delete(values, "GATEWAY_SERVICE_KEY") // its callees trust the old one
	if err := fillInstallation(values); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("with lists that lack the gateway's new key: %v", err)
	}
	values = map[string]string{"GATEWAY_SERVICE_KEY": "nonsense"}
	if err := fillInstallation(values); err == nil || !strings.Contains(err.Error(), "GATEWAY_SERVICE_KEY") || strings.Contains(err.Error(), "nonsense") {
		t.Errorf("with a broken key: %v", err)
	}
	k := pod(t, &secretsAPI{stored: map[string]secret{}})
	k.token = "another"
	if _, err := k.fillSecret(t.Context(), "all", fillInstallation); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("without permission: %v", err)
	}
	cmd := root(io.Discard, io.Discard)
	cmd.SetArgs([]string{"keygen", "--kubernetes-secret", "all"})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "in a pod") {
		t.Errorf("outside of a cluster: %v", err)
	}
	if names := keyNames(); !slices.Contains(names, "GATEWAY_SERVICE_KEY") || slices.Contains(names, "BROWSER_SERVICE_KEY") {
		t.Errorf("keys: %q", names)
	}
}
