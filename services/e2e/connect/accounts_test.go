package connect_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

const apiKey = "sk-a-key-that-nobody-else-sees"

// accountList is the part of the response of GET /api/accounts that the tests use.
type accountList struct {
	Accounts []struct {
		ID, Provider, Label, Hint, Status, Origin string
		Enabled                                   bool
		FlatRate                                  bool `json:"flat_rate"`
		Health                                    float64
		Grant                                     *struct{ State string }
	}
	NextCursor *string `json:"next_cursor"`
}

func (b *browser) accounts(query string) accountList {
	b.r.t.Helper()
	var list accountList
	got := b.want(http.StatusOK, http.MethodGet, "/api/accounts"+query, "")
	if err := json.Unmarshal([]byte(got.body), &list); err != nil {
		b.r.t.Fatal(err)
	}
	return list
}

// administer tests the life cycle of an account through its owner's requests.
func administer(r *rig) {
	b := r.browser(r.owner)
	if list := b.accounts(""); len(list.Accounts) != 0 || list.NextCursor != nil {
		r.t.Errorf("at first the accounts are %+v", list)
	}
	kinds := b.want(http.StatusOK, http.MethodGet, "/api/accounts/kinds", "").body
	for _, want := range []string{`"anthropic"`, `"generic"`, `"name":"google","provider":"google","kinds":["browser","device"],"reason":null`, `CREDENTIAL_BROKER_OAUTH_CLIENTS`} {
		if !strings.Contains(kinds, want) {
			r.t.Errorf("the kinds are %s, without %s", kinds, want)
		}
	}
	body := fmt.Sprintf(`{"provider":"github","label":"ours","secret":%q}`, apiKey)
	made := b.want(http.StatusCreated, http.MethodPost, "/api/accounts", body, "Idempotency-Key", "once")
	again := b.want(http.StatusCreated, http.MethodPost, "/api/accounts", body, "Idempotency-Key", "once")
	account, _ := made.object()["account"].(map[string]any)
	if made.object()["account"].(map[string]any)["id"] != again.object()["account"].(map[string]any)["id"] {
		r.t.Errorf("adding the same key again created another account: %s, then %s", made, again)
	}
	b.want(http.StatusCreated, http.MethodPost, "/api/accounts", body)
	path := fmt.Sprintf("/api/accounts/%s", account["id"])
	first := b.accounts("?limit=1")
	if len(first.Accounts) != 1 || first.NextCursor == nil || first.Accounts[0].ID != account["id"] {
		r.t.Fatalf("page 1 is %+v", first)
	}
	second := b.accounts("?limit=1&cursor=" + *first.NextCursor)
	if len(second.Accounts) != 1 || second.NextCursor != nil || second.Accounts[0].ID == first.Accounts[0].ID {
		r.t.Errorf("page 2 is %+v", second)
	}
	if a := first.Accounts[0]; a.Hint != apiKey[len(apiKey)-4:] || a.Status != "ready" || a.Health != 100 || a.Origin != "workspace" || a.Label != "ours" {
		r.t.Errorf("the account is %+v", a)
	}

	b.want(http.StatusOK, http.MethodPatch, path, `{"enabled":false,"flat_rate":true}`)
	if a := b.accounts("").Accounts[0]; a.Enabled || a.Status != "disabled" || !a.FlatRate {
		r.t.Errorf("after disabling, the account is %+v", a)
	}
	b.want(http.StatusOK, http.MethodPatch, path, `{"enabled":true,"flat_rate":false}`)
	b.want(http.StatusOK, http.MethodPost, path+"/reset", "")
	b.want(http.StatusOK, http.MethodPost, path+"/switch", "")
	if got := b.want(http.StatusConflict, http.MethodPost, path+"/refresh", "").body; !strings.Contains(got, "is an API key") {
		r.t.Errorf("the refresh of a key: %s", got)
	}
	b.want(http.StatusConflict, http.MethodPost, path+"/logout", "")

	pool := b.want(http.StatusOK, http.MethodPatch, "/api/accounts/pools/github", `{"settings":{"strategy":"hybrid","max_tokens":60}}`).body
	if !strings.Contains(pool, `"strategy":"hybrid","max_tokens":60,`) || !strings.Contains(pool, `"changed":true`) {
		r.t.Errorf("the pool is %s", pool)
	}
	if got := b.want(http.StatusBadRequest, http.MethodPatch, "/api/accounts/pools/github", `{"settings":{"strategy":"best"}}`).body; !strings.Contains(got, "strategy") {
		r.t.Errorf("an unknown strategy: %s", got)
	}
	if got := b.want(http.StatusOK, http.MethodGet, "/api/accounts/pools", "").body; !strings.Contains(got, `"provider":"github","accounts":2`) {
		r.t.Errorf("the pools are %s", got)
	}

	r.wantEgress("with keys that the provider does not take", "github", http.StatusServiceUnavailable, "the provider refused them")
	err := r.until(func() error {
		if got := b.want(http.StatusOK, http.MethodGet, "/api/accounts/stats", "").body; !strings.Contains(got, `"reason":"AUTH_FAILED","requests":`) {
			return fmt.Errorf("the stats are %s", got)
		}
		return nil
	})
	if err != nil {
		r.t.Error(err)
	}
	b.want(http.StatusOK, http.MethodDelete, "/api/accounts/stats", "")

	page := b.want(http.StatusOK, http.MethodGet, "/api/accounts/audit?limit=2", "").object()
	if rows, _ := page["rows"].([]any); len(rows) != 2 || page["next_cursor"] == nil {
		r.t.Errorf("the audit is %v", page)
	}
	b.want(http.StatusOK, http.MethodGet, fmt.Sprintf("/api/accounts/audit?limit=2&cursor=%s", page["next_cursor"]), "")
	b.want(http.StatusBadRequest, http.MethodGet, "/api/accounts/audit?cursor=x", "")

	b.want(http.StatusOK, http.MethodDelete, path, "")
	b.want(http.StatusNotFound, http.MethodDelete, path, "")
	for body, want := range map[string]string{
		`{"secret":"x"}`:                                                        "provider is required",
		`{"provider":"anthropic"}`:                                              "secret or sealed_secret is required",
		`{"provider":"anthropic","secret":"two words"}`:                         "secret: it contains a space",
		`{"provider":"anthropic","secret":"x","base_url":"http://u:p@x"}`:       "base_url:",
		`{"provider":"anthropic","secret":"` + strings.Repeat("x", 9000) + `"}`: "secret: it is longer than",
		`{"provider":1}`:                                                        "provider: want a string, got number",
	} {
		if got := b.call(http.MethodPost, "/api/accounts", body); got.status != http.StatusBadRequest || !strings.Contains(got.body, want) {
			r.t.Errorf("POST /api/accounts %.60s = %s, want 400 %q", body, got, want)
		}
	}
	if strings.Contains(string(r.answers.bytes()), apiKey) {
		r.t.Error("a response contains the key")
	}
}

// signIns tests signing in to accounts: with a device, by pasting, and with a browser.
func signIns(r *rig) {
	b := r.browser(r.owner)
	login := func(body string) map[string]any {
		r.t.Helper()
		v, _ := b.want(http.StatusCreated, http.MethodPost, "/api/accounts/logins", body).object()["login"].(map[string]any)
		return v
	}
	device := login(`{"provider":"google","kind":"device","label":"by device"}`)
	poll := fmt.Sprintf("/api/accounts/logins/%s/poll", device["id"])
	if got := b.open(fmt.Sprint(device["url_with_code"])); got.status != http.StatusOK {
		r.t.Fatalf("the device page = %s", got)
	}
	err := r.until(func() error {
		if got := b.want(http.StatusOK, http.MethodPost, poll, ""); got.object()["account"] == nil {
			return fmt.Errorf("the poll returns %s", got)
		}
		return nil
	})
	if err != nil {
		r.t.Error(err)
	}

	pasted := login(`{"provider":"notion","kind":"paste","label":"by pasting"}`)
	code := regexp.MustCompile(`<code>(.*)</code>`).FindStringSubmatch(b.follow(fmt.Sprint(pasted["url"])).body)
	if code == nil {
		r.t.Fatal("the provider showed no code")
	}
	complete := fmt.Sprintf("/api/accounts/logins/%s/complete", pasted["id"])
	for range 2 { // the second time as if the first response was lost
		b.want(http.StatusOK, http.MethodPost, complete, fmt.Sprintf(`{"code":%q}`, code[1]))
	}
	b.want(http.StatusOK, http.MethodPost, poll, "")

	done := b.open(b.consent(fmt.Sprint(login(`{"provider":"github","kind":"browser","label":"in a browser"}`)["url"])))
	if got := done.header.Get("Location"); done.status != http.StatusSeeOther || got != returnPath+"?signed_in=github" {
		r.t.Errorf("the callback = %s %q", done, got)
	}
	list := b.accounts("")
	labels := map[string]string{}
	for _, a := range list.Accounts {
		if a.Grant == nil || a.Grant.State != "active" || a.Status != "ready" {
			r.t.Errorf("the account is %+v", a)
		}
		labels[a.Label] = a.ID
	}
	if len(labels) != 3 || labels["by device"] == "" || labels["by pasting"] == "" || labels["in a browser"] == "" {
		r.t.Errorf("the accounts are %v", labels)
	}
	refreshed := b.want(http.StatusOK, http.MethodPost, "/api/accounts/"+labels["by pasting"]+"/refresh", "")
	if !strings.Contains(refreshed.body, `"state":"active"`) {
		r.t.Errorf("the refresh = %s", refreshed)
	}
	out := b.want(http.StatusOK, http.MethodPost, "/api/accounts/"+labels["by pasting"]+"/logout", "").object()
	if out["at_provider"] != true || out["account"].(map[string]any)["status"] != "signed_out" {
		r.t.Errorf("the sign-out = %v", out)
	}
	anew := login(fmt.Sprintf(`{"account_id":%q,"kind":"browser"}`, labels["by pasting"]))
	if got := b.open(b.consent(fmt.Sprint(anew["url"]))); got.status != http.StatusSeeOther || got.header.Get("Location") != returnPath+"?signed_in=notion" {
		r.t.Errorf("signing in again = %s %q", got, got.header.Get("Location"))
	}
	if got := r.browser(r.viewer).connection("notion"); got.State != "connected" || got.Origin != "account" {
		r.t.Errorf("for other members it is %+v", got)
	}
	for _, body := range []string{`{"kind":"browser"}`, `{"provider":"google"}`, `{"provider":"google","kind":"letter"}`, `{"provider":"google","kind":"paste"}`, `{"account_id":"x","kind":"device"}`} {
		b.want(http.StatusBadRequest, http.MethodPost, "/api/accounts/logins", body)
	}
}

// follow opens a link and follows its redirects.
func (b *browser) follow(link string) answer {
	b.r.t.Helper()
	got := b.open(link)
	for got.status == http.StatusFound {
		got = b.open(got.header.Get("Location"))
	}
	return got
}
