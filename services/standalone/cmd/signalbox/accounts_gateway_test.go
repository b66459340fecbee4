package main

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"signalbox.dev/pkg/seal"
)

// With --gateway a key is sealed before it leaves the command.
func TestAddThroughGateway(t *testing.T) {
	t.Parallel()
	const key, workspace = "sk-planted-secret-0001", "0198a000-0000-7000-8000-000000000001"
	private, err := hpke.DHKEM(ecdh.X25519()).GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	var sent []byte
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer token" || r.Header.Get("X-Workspace-Id") != workspace {
			t.Errorf("%s comes from %v", r.URL.Path, r.Header)
		}
		switch r.Method + r.URL.Path {
		case "GET/api/accounts/sealing-key":
			_ = json.NewEncoder(w).Encode(map[string]any{"sealing_key": map[string]any{"id": "1-x", "public_key": private.PublicKey().Bytes()}})
		case "POST/api/accounts":
			sent, _ = io.ReadAll(r.Body)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"account":{"id":"an-id"}}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(gateway.Close)
	cmd := exec.CommandContext(t.Context(), "signalbox", "accounts", "add", "openai", "--label", "mine", "--gateway")
	cmd.Env = append(os.Environ(), "SIGNALBOX_URL="+gateway.URL, "SIGNALBOX_TOKEN=token", "SIGNALBOX_WORKSPACE="+workspace)
	cmd.Stdin = strings.NewReader(key + "\n")
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "added an-id for openai\n" {
		t.Fatalf("accounts add --gateway: %v\n%s", err, out)
	}
	var body struct {
		Provider, Label string
		Sealed          struct {
			KeyID  string `json:"key_id"`
			Sealed []byte `json:"sealed"`
		} `json:"sealed_secret"`
	}
	if err := json.Unmarshal(sent, &body); err != nil || bytes.Contains(sent, []byte(key)) || body.Provider != "openai" || body.Label != "mine" || body.Sealed.KeyID != "1-x" {
		t.Errorf("the gateway got %s, %v", sent, err)
	}
	text, err := hpke.Open(private, hpke.HKDFSHA256(), hpke.AES256GCM(), seal.Secret(workspace, "openai", ""), body.Sealed.Sealed)
	if err != nil || string(text) != key {
		t.Errorf("what is sealed opens as %q, %v", text, err)
	}
}
