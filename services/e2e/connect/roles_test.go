package connect_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"signalbox.dev/pkg/id"
)

// route is an operation and the role that it requires.
type route struct {
	method, path, body string
	least              string
	people             bool // no API keys
}

func routes(account string) []route {
	login := id.New[id.Run]().String()
	return []route{
		{"GET", "/api/accounts", "", "owner", false},
		{"POST", "/api/accounts", `{"provider":"github","secret":"x"}`, "owner", false},
		{"GET", "/api/accounts/sealing-key", "", "owner", false},
		{"GET", "/api/accounts/kinds", "", "owner", false},
		{"PATCH", "/api/accounts/" + account, `{"enabled":true}`, "owner", false},
		{"POST", "/api/accounts/" + account + "/reset", "", "owner", false},
		{"POST", "/api/accounts/" + account + "/switch", "", "owner", false},
		{"POST", "/api/accounts/" + account + "/refresh", "", "owner", false},
		{"POST", "/api/accounts/" + account + "/logout", "", "owner", true},
		{"POST", "/api/accounts/logins", `{"provider":"google","kind":"browser"}`, "owner", true},
		{"POST", "/api/accounts/logins/" + login + "/complete", `{"code":"x"}`, "owner", true},
		{"POST", "/api/accounts/logins/" + login + "/poll", "", "owner", true},
		{"GET", "/api/pools", "", "owner", false},
		{"PATCH", "/api/pools/github", `{"settings":{}}`, "owner", false},
		{"GET", "/api/accounts/stats", "", "owner", false},
		{"DELETE", "/api/accounts/stats", "", "owner", false},
		{"GET", "/api/accounts/audit", "", "owner", false},
		{"GET", "/api/connections", "", "viewer", false},
		{"POST", "/api/connections", `{"provider":"google"}`, "editor", true},
		{"POST", "/api/connections/google/complete", `{"state":"x","code":"x"}`, "editor", true},
		{"DELETE", "/api/connections/google", "", "editor", true},
		{"DELETE", "/api/accounts/" + account, "", "owner", false}, // last, since it deletes the account
	}
}

var ranks = map[string]int{"viewer": 1, "editor": 2, "owner": 3}

// roles sends every request with every role.
func roles(r *rig) {
	owner := r.browser(r.owner)
	made := owner.want(http.StatusCreated, http.MethodPost, "/api/accounts", `{"provider":"github","secret":"x"}`).object()["account"].(map[string]any)
	account := fmt.Sprint(made["id"])
	all := routes(account)
	r.wantComplete(all, account)

	elsewhere := r.in(r.t)
	strange := elsewhere.owner // an owner, of another workspace
	strange.Workspace = r.owner.Workspace
	key := r.owner
	key.Token = fmt.Sprint(owner.want(http.StatusCreated, http.MethodPost, "/api/keys", `{"name":"k","role":"owner"}`).object()["secret"])
	nobody := r.owner
	nobody.Token = ""
	for _, rt := range all {
		check := func(name string, b *browser, want int, code string) {
			r.t.Helper()
			got := b.call(rt.method, rt.path, rt.body)
			if got.status != want || code != "" && got.object()["code"] != code || got.object()["error"] == "" {
				r.t.Errorf("%s %s by %s = %s, want %d %s", rt.method, rt.path, name, got, want, code)
			}
		}
		check("nobody", r.browser(nobody), http.StatusUnauthorized, "")
		check("another workspace's owner", r.browser(strange), http.StatusForbidden, "NOT_A_MEMBER")
		if rt.people {
			check("an API key", r.browser(key), http.StatusForbidden, "PERSON_NEEDED")
		}
		for role, who := range map[string]*browser{"viewer": r.browser(r.viewer), "editor": r.browser(r.editor)} {
			got := who.call(rt.method, rt.path, rt.body)
			refused := got.status == http.StatusForbidden && strings.Contains(got.body, "this needs the role "+rt.least+"; yours is "+role)
			if may := ranks[role] >= ranks[rt.least]; refused == may || got.status == http.StatusUnauthorized || got.status >= http.StatusInternalServerError {
				r.t.Errorf("%s %s by a %s = %s, allowed: want %t", rt.method, rt.path, role, got, may)
			}
		}
		// In their own workspace, the other owner does not find this account.
		if got := r.browser(elsewhere.owner).call(rt.method, rt.path, rt.body); strings.Contains(rt.path, account) && got.status != http.StatusNotFound || strings.Contains(got.body, account) && got.status < 300 {
			r.t.Errorf("%s %s in another workspace = %s, want 404", rt.method, rt.path, got)
		}
		if got := owner.call(rt.method, rt.path, rt.body); got.status == http.StatusForbidden || got.status == http.StatusUnauthorized || got.status == http.StatusNotFound && rt.method == "GET" || got.status >= http.StatusInternalServerError {
			r.t.Errorf("%s %s by the owner = %s", rt.method, rt.path, got)
		}
	}
}

// wantComplete compares the routes with the public description.
func (r *rig) wantComplete(all []route, account string) {
	r.t.Helper()
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(r.browser(r.owner).want(http.StatusOK, http.MethodGet, "/openapi.json", "").body), &doc); err != nil {
		r.t.Fatal(err)
	}
	known := map[string]bool{"GET /api/connections/callback": true, "GET /api/connections/callback/document": true}
	for _, rt := range all {
		path := strings.Replace(rt.path, account, "{id}", 1)
		parts := strings.Split(path, "/")
		if len(parts) == 6 { // /api/accounts/logins/<id>/…
			parts[4] = "{id}"
		}
		path = strings.Replace(strings.Join(parts, "/"), "/google", "/{provider}", 1)
		known[rt.method+" "+strings.Replace(path, "/pools/github", "/pools/{provider}", 1)] = true
	}
	for path, methods := range doc.Paths {
		if !strings.HasPrefix(path, "/api/accounts") && !strings.HasPrefix(path, "/api/pools") && !strings.HasPrefix(path, "/api/connections") {
			continue
		}
		for method := range methods {
			if name := strings.ToUpper(method) + " " + path; !known[name] {
				r.t.Errorf("%s was not tested", name)
			}
		}
	}
}
