package authserver_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"signalbox.dev/services/simulator/authserver"
)

type rig struct {
	t      *testing.T
	server *authserver.Server
	url    string
}

func newRig(t *testing.T, s authserver.Settings) *rig {
	t.Helper()
	server := authserver.New(s)
	front := httptest.NewServer(server)
	t.Cleanup(front.Close)
	return &rig{t, server, front.URL}
}

// post returns the status and the answer's members.
func (r *rig) post(path string, form url.Values) (int, map[string]any) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, nil
	}
	var object map[string]any
	if len(text) > 0 && json.Unmarshal(text, &object) != nil {
		r.t.Fatalf("%s answers %s", path, text)
	}
	return res.StatusCode, object
}

func (r *rig) refresh(token string) (int, map[string]any) {
	r.t.Helper()
	return r.post("/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {token}, "client_id": {"us"}})
}

func TestRotation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		settings authserver.Settings
		reuse    int  // status
		next     int  // status of the newest token after the reuse
		access   bool // is good after the reuse
		want     authserver.Calls
	}{
		{"none", authserver.Settings{}, 200, 200, true, authserver.Calls{Refresh: 3, Refreshed: 3}},
		{"with grace", authserver.Settings{Rotate: true, GraceSeconds: 600, ReuseEnds: true}, 200, 200, true, authserver.Calls{Refresh: 3, Refreshed: 3, Graced: 1}},
		{"without", authserver.Settings{Rotate: true}, 400, 200, true, authserver.Calls{Refresh: 3, Refreshed: 2, Reused: 1}},
		{"that ends families", authserver.Settings{Rotate: true, ReuseEnds: true}, 400, 400, false, authserver.Calls{Refresh: 3, Refreshed: 1, Reused: 1, Ended: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tt.settings)
			_, first := r.server.Grant()
			status, got := r.refresh(first)
			access, _ := got["access_token"].(string)
			if status != 200 || !r.server.Good(access) {
				t.Fatalf("the first refresh = %d %v", status, got)
			}
			next, ok := got["refresh_token"].(string)
			if ok != tt.settings.Rotate {
				t.Errorf("a refresh token came: %v, want %v", ok, tt.settings.Rotate)
			}
			if !ok {
				next = first
			}
			if status, _ := r.refresh(first); status != tt.reuse {
				t.Errorf("the reuse = %d, want %d", status, tt.reuse)
			}
			if got := r.server.Good(access); got != tt.access {
				t.Errorf("the access token is good: %v, want %v", got, tt.access)
			}
			if status, _ := r.refresh(next); status != tt.next {
				t.Errorf("the newest = %d, want %d", status, tt.next)
			}
			if got := r.server.Calls(); got != tt.want {
				t.Errorf("calls = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, authserver.Settings{Rotate: true, EndsAccess: true})
	access, token := r.server.Grant()
	r.server.Fail(authserver.Fault{Status: 503, Code: "temporarily_unavailable"}, authserver.Fault{Drop: true}, authserver.Fault{Drop: true, After: true})
	if status, got := r.refresh(token); status != 503 || got["error"] != "temporarily_unavailable" {
		t.Errorf("the first = %d %v", status, got)
	}
	if status, _ := r.refresh(token); status != 0 || !r.server.Good(access) {
		t.Errorf("the second = %d, want a cut connection and nothing done", status)
	}
	if status, _ := r.refresh(token); status != 0 || r.server.Good(access) {
		t.Errorf("the third = %d, want a cut connection after the rotation", status)
	}
	if status, _ := r.refresh(token); status != 400 {
		t.Errorf("the fourth = %d, want 400", status)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t, authserver.Settings{})
	put := func(body string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, r.url+"/settings", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	if got := put(`{"client_id": "them"}`); got != 204 {
		t.Errorf("PUT settings = %d, want 204", got)
	}
	_, token := r.server.Grant()
	if status, got := r.refresh(token); status != 401 || got["error"] != "invalid_client" {
		t.Errorf("a refresh by another client = %d %v", status, got)
	}
	if got := put(`{"colour": 1}`); got != 400 {
		t.Errorf("PUT of unknown settings = %d, want 400", got)
	}
}

// TestDeviceBehindAPrefix is the device flow as the simulator mounts it.
func TestDeviceBehindAPrefix(t *testing.T) {
	t.Parallel()
	front := httptest.NewServer(http.StripPrefix("/oauth", authserver.New(authserver.Settings{})))
	t.Cleanup(front.Close)
	r := &rig{t, nil, front.URL + "/oauth"}
	_, started := r.post("/device", url.Values{"client_id": {"us"}})
	poll := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {started["device_code"].(string)}}
	if status, got := r.post("/token", poll); status != 400 || got["error"] != "authorization_pending" {
		t.Errorf("a poll = %d %v, want authorization_pending", status, got)
	}
	if status, got := r.post("/token", poll); status != 400 || got["error"] != "slow_down" {
		t.Errorf("a poll at once = %d %v, want slow_down", status, got)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, started["verification_uri_complete"].(string), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("the page for people = %s", res.Status)
	}
}
