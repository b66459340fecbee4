package canary_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"signalbox.dev/services/e2e/world"
)

// connectTool connects a tool over the public API like a browser, reads the owner's view of accounts,
// and removes the connection: none of the responses has a token.
func (r *rig) connectTool() {
	r.t.Helper()
	c := r.Client(0, r.owner)
	res, err := c.Do(r.ctx, world.Request{Method: http.MethodPost, Path: "/api/connections", Body: map[string]any{"provider": "canary"}})
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	var began struct{ URL string }
	if err := json.NewDecoder(res.Body).Decode(&began); err != nil {
		r.t.Fatal(err)
	}
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	location, _ := r.get(browser, began.URL)
	back, err := url.Parse(location)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range res.Cookies() {
		r.marks.add(r.passed, c.Value)
	}
	for range 2 { // again, as if the first response was lost
		if _, page := r.get(r.HTTP, r.Gateways[1]+back.RequestURI(), res.Cookies()...); !strings.Contains(page, "is connected as ada") {
			r.t.Fatalf("the page for the browser is %s", page)
		}
	}
	for _, path := range []string{"/api/connections", "/api/accounts", "/api/accounts/kinds", "/api/accounts/pools", "/api/accounts/stats", "/api/accounts/audit"} {
		if err := c.Call(r.ctx, world.Request{Method: http.MethodGet, Path: path}, nil); err != nil {
			r.t.Error(err)
		}
	}
	if err := c.Call(r.ctx, world.Request{Method: http.MethodDelete, Path: "/api/connections/canary"}, nil); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) get(c *http.Client, link string, cookies ...*http.Cookie) (location, page string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, link, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range cookies {
		req.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value})
	}
	res, err := c.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Header.Get("Location"), string(body)
}
