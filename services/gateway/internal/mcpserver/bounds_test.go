package mcpserver_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/api"
	"signalbox.dev/services/gateway/internal/auth"
	"signalbox.dev/services/gateway/internal/limit"
	"signalbox.dev/services/gateway/internal/mcpserver"
	"signalbox.dev/services/gateway/internal/store"
)

// fake has one API key.
type fake struct{ holder store.Holder }

// Role implements auth.Members.
func (fake) Role(context.Context, id.Workspace, id.Member) (identity.Role, error) {
	return identity.NoRole, fault.New(fault.NotFound, "no members")
}

// Holder implements auth.Members.
func (f fake) Holder(context.Context, conf.Secret) (store.Holder, bool, error) {
	return f.holder, true, nil
}

// Session implements auth.Members.
func (fake) Session(context.Context, conf.Secret) (store.BrowserSession, bool, error) {
	return store.BrowserSession{}, false, nil
}

// UseLink implements auth.Members.
func (fake) UseLink(context.Context, conf.Secret) (id.Member, error) {
	return id.Member{}, fault.New(fault.Unauthenticated, "no links")
}

// newServer returns the address of a server without services: a call of them panics.
func newServer(t *testing.T) string {
	t.Helper()
	holder := store.Holder{Key: id.New[store.KeyID](), Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor}
	often := limit.Rate{PerMinute: 1000, Burst: 1000}
	server := httptest.NewServer(mcpserver.New(mcpserver.Config{
		Authenticator: auth.New(auth.Config{Members: fake{holder}, Log: slog.New(slog.DiscardHandler), PerMember: often, PerWorkspace: often}),
		WriteError:    api.WriteError, Log: slog.New(slog.DiscardHandler), Version: "1",
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// post posts a message and returns the status and body of the answer.
func post(t *testing.T, url, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+store.KeyPrefix+"x")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// A request has one message, so that the rate limits count each.
func TestBatch(t *testing.T) {
	t.Parallel()
	url := newServer(t)
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	if status, answer := post(t, url, ping); status != http.StatusOK || !strings.Contains(answer, `"result"`) {
		t.Errorf("one message: %d %s, want a result", status, answer)
	}
	for _, batch := range []string{"[" + ping + "]", " \r\n\t[" + ping + "," + strings.Replace(ping, "1", "2", 1) + "]", "[]", "["} {
		if status, answer := post(t, url, batch); status != http.StatusBadRequest || !strings.Contains(answer, "batches") {
			t.Errorf("%s: %d %s, want it refused", batch, status, answer)
		}
	}
	if status, answer := post(t, url, strings.Repeat(" ", 1<<20)+ping); status != http.StatusRequestEntityTooLarge {
		t.Errorf("1 MiB and more: %d %s, want it refused", status, answer)
	}
}

// A handler that panics ends its request only, and says nothing of the cause.
func TestPanic(t *testing.T) {
	t.Parallel()
	url := newServer(t)
	status, answer := post(t, url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_documents","arguments":{}}}`)
	if status != http.StatusOK || !strings.Contains(answer, "failed inside of Signalbox") || strings.Contains(answer, "nil pointer") {
		t.Errorf("list_documents: %d %s, want an error", status, answer)
	}
}

// A resource that there is not is an error, whatever its URI is.
func TestMissingResource(t *testing.T) {
	t.Parallel()
	url := newServer(t)
	for _, uri := range []string{`x`, ``, `a\u0000`, `signalbox://documents/\u0000`, `\u007f\u0007`, `\udb40\udc01`, `\ud800`, `\"`} {
		status, answer := post(t, url, `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"`+uri+`"}}`)
		if status != http.StatusOK || !strings.Contains(answer, "Resource not found") {
			t.Errorf("%s: %d %q, want an error", uri, status, answer)
		}
	}
	for _, params := range []string{`,"params":null`, `,"params":{}`, `,"params":[]`} {
		if status, answer := post(t, url, `{"jsonrpc":"2.0","id":1,"method":"resources/read"`+params+`}`); !strings.Contains(answer, `"error"`) && status != http.StatusBadRequest {
			t.Errorf("resources/read%s: %d %q, want an error", params, status, answer)
		}
	}
}
