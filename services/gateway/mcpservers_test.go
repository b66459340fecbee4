package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

func TestMcpAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	got := call[object](t, in, w.owner, "GET", "/api/mcp-servers/audit?cursor=x", "", http.StatusOK)
	want := object{"next_cursor": "x20", "audit": []any{object{
		"id": noone, "at": "1970-01-01T00:00:00.000000Z", "member_id": noone, "action": "tools-approved", "server_id": noone, "server_name": "linear", "detail": "echo",
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the audit of MCP servers differs (-want +got):\n%s", diff)
	}
	// The services search for the text, and for the members whom it names.
	me := w.owner.member.String()
	err := w.db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO people (member_id, email, name) VALUES (@me, '', 'Ines Halden')`, pg.Args{"me": me})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api/mcp-servers/audit", "/api/accounts/audit"} {
		res := fmt.Sprint(call[object](t, in, w.owner, "GET", path+"?q=halden", "", http.StatusOK))
		if want := "halden" + me; !strings.Contains(res, want) {
			t.Errorf("GET %s?q=halden = %s, want that the service gets %s", path, res, want)
		}
		call[object](t, in, w.owner, "GET", path+"?q="+strings.Repeat("x", 201), "", http.StatusBadRequest)
	}
}

func TestMcpServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	editor, viewer := w.join(t, w.workspace, identity.Editor), w.join(t, w.workspace, identity.Viewer)
	const path = "/api/mcp-servers"
	body := `{"name":"linear","url":"https://mcp.example.org/mcp"}`
	call[object](t, in, editor, "POST", path, body, http.StatusForbidden)
	made := call[struct {
		Server object `json:"mcp_server"`
	}](t, in, w.owner, "POST", path, body, http.StatusCreated).Server
	one := path + "/" + made["id"].(string)
	want := object{
		"id": made["id"], "name": "linear", "url": "https://mcp.example.org/mcp", "credential": false, "created_by": made["created_by"], "created_at": made["created_at"], "checked_at": nil, "down_since": nil, "failure": nil, "operator": false, "needs_sign_in": false, "sign_in_url": nil,
		"tools": []any{object{"name": "mcp__x__t", "original_name": "t", "description": "", "changed": true, "hash": "h", "unavailable_reason": "it has changed"}},
	}
	got := call[object](t, in, viewer, "GET", one, "", http.StatusOK)
	if diff := cmp.Diff(object{"mcp_server": want}, got); diff != "" {
		t.Errorf("the server differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(object{"mcp_servers": []any{want}, "next_cursor": nil}, call[object](t, in, viewer, "GET", path, "", http.StatusOK)); diff != "" {
		t.Errorf("the list differs (-want +got):\n%s", diff)
	}
	call[object](t, in, viewer, "POST", one+"/test", "", http.StatusForbidden)
	call[object](t, in, editor, "POST", one+"/test", "", http.StatusOK)
	call[object](t, in, viewer, "POST", one+"/approve", `{"hashes":["h"]}`, http.StatusForbidden)
	approved := call[struct {
		Server struct{ Tools []object } `json:"mcp_server"`
	}](t, in, editor, "POST", one+"/approve", `{"hashes":["h"]}`, http.StatusOK)
	if tool := approved.Server.Tools[0]; tool["changed"] != false {
		t.Errorf("an approved tool = %v", tool)
	}
	call[object](t, in, editor, "DELETE", one, "", http.StatusForbidden)
	call[object](t, in, w.owner, "DELETE", one, "", http.StatusOK)
	call[object](t, in, viewer, "GET", one, "", http.StatusNotFound)
}

// TestMcpSignIn signs in to a server whose URL says that it uses OAuth.
func TestMcpSignIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.broker.redirect = "http://localhost/api/connections/callback"
	in := w.gateway(t)
	type body struct {
		Server object `json:"mcp_server"`
	}
	made := call[body](t, in, w.owner, "POST", "/api/mcp-servers", `{"name":"locked","url":"https://mcp.example.org/oauth"}`, http.StatusCreated).Server
	one := "/api/mcp-servers/" + made["id"].(string)
	if made["needs_sign_in"] != true || made["sign_in_url"] != one+"/sign-in" {
		t.Errorf("a server that uses OAuth = %v, want its sign-in", made)
	}
	editor := w.join(t, w.workspace, identity.Editor)
	call[object](t, in, editor, "POST", one+"/sign-in", `{}`, http.StatusForbidden)
	call[object](t, in, w.owner, "POST", "/api/mcp-servers/"+noone+"/sign-in", `{}`, http.StatusNotFound)

	got := in.send(t, in.request(t, w.owner, "POST", one+"/sign-in", `{"client_id":"mine"}`, nil))
	cookies := (&http.Response{Header: got.header}).Cookies()
	if got.status != http.StatusCreated || len(cookies) != 1 {
		t.Fatalf("sign-in = %d %s, want a URL and a cookie", got.status, got.body)
	}
	asked := w.broker.asked
	if asked.GetProvider() != "mcp-locked" || asked.GetMcpServer().GetUrl() != "https://mcp.example.org/oauth" || asked.GetMcpServer().GetScope() != "read" || asked.GetMcpServer().GetClientId() != "mine" {
		t.Errorf("the broker was asked for %v", asked)
	}
	req := in.request(t, person{}, "GET", "/api/connections/callback?code=c&iss=https://as.example&state=state-0", "", nil)
	req.AddCookie(&http.Cookie{Name: cookies[0].Name, Value: cookies[0].Value})
	if got := in.send(t, req); got.status != http.StatusOK || w.broker.issuer != "https://as.example" {
		t.Errorf("the callback = %d %s, with the issuer %q", got.status, got.body, w.broker.issuer)
	}
	if after := call[body](t, in, w.owner, "GET", one, "", http.StatusOK).Server; after["needs_sign_in"] != false || after["sign_in_url"] != nil {
		t.Errorf("after the sign-in the server is %v", after)
	}
	doc := call[object](t, in, person{}, "GET", "/api/connections/client.json", "", http.StatusOK)
	if id, _ := doc["client_id"].(string); !strings.HasPrefix(id, "https://") || !strings.HasSuffix(id, "/api/connections/client.json") || doc["token_endpoint_auth_method"] != "none" {
		t.Errorf("the client document = %v", doc)
	}
}
