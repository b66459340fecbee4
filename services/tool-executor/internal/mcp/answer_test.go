package mcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"signalbox.dev/pkg/netguard"
	"signalbox.dev/services/tool-executor/internal/mcp"
)

// FuzzCall calls a tool of a server that answers with any bytes. A result is one line of JSON
// that PostgreSQL takes, and an error has an explanation.
func FuzzCall(f *testing.F) {
	for _, answer := range []string{
		``, `null`, `{}`, `[]`, `{"content":null}`, `{"content":[{"type":"text"}]}`, `{"content":[{"type":"text","text":"a\u0000b\ud800\u2028"}]}`, "{\"content\":[{\"type\":\"text\",\"text\":\"\xff\n\"}]}",
		`{"content":[{"type":"image","data":"!","mimeType":1}]}`, `{"content":[{"type":"resource"}]}`, `{"content":[{"type":"resource_link","uri":"\u0000"}]}`, `{"isError":true}`, `{"isError":true,"content":[{"type":"text","text":"\u001b[31m"}]}`,
		`{"structuredContent":"text"}`, `{"structuredContent":{"a\u0000":"\ud800"}}`, `{"structuredContent":[1e400]}`, `{"content":[],"structuredContent":{"n":123456789012345678901234567890}}`,
		`{"content":[{"type":"text","text":"` + strings.Repeat("x", 1<<20) + `"}]}`, `{"structuredContent":` + strings.Repeat(`{"a":`, 200) + `1` + strings.Repeat(`}`, 200) + `}`,
	} {
		f.Add([]byte(answer), false)
		f.Add([]byte(`{"jsonrpc":"2.0","id":2,"result":`+answer+`}`), true)
	}
	allowed, err := netguard.ParseAllowed("127.0.0.0/8")
	if err != nil {
		f.Fatal(err)
	}
	guard := netguard.New(netguard.Config{Allowed: allowed})
	c := mcp.NewClient(guard.Transport())
	var mu sync.Mutex // guards answer and all
	var answer []byte
	var all bool
	server := httptest.NewServer(hostile{call: func(w http.ResponseWriter, r *http.Request, q rpcRequest) {
		mu.Lock()
		defer mu.Unlock()
		if all {
			raw(plain, string(answer))(w, r, q)
		} else {
			result(w, q, string(answer))
		}
	}})
	f.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		guard.Client(0).CloseIdleConnections()
		c.Wait()
	})
	f.Fuzz(func(t *testing.T, bytes []byte, whole bool) {
		mu.Lock()
		answer, all = bytes, whole
		mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // some answers are never complete
		defer cancel()
		r, err := c.Call(ctx, mcp.Server{Name: "x", URL: server.URL}, "t", map[string]any{})
		if err != nil {
			if mcp.Why(err) == "" {
				t.Errorf("%.300q: %v has no explanation", bytes, err)
			}
			return
		}
		var fields map[string]any
		text := r.JSON()
		if err := json.Unmarshal([]byte(text), &fields); err != nil || fields == nil || !utf8.ValidString(text) || strings.ContainsAny(text, "\n\r\x00") {
			t.Errorf("%.300q becomes %.300q, want one line of JSON: %v", bytes, text, err)
		}
		if b, _ := json.Marshal(fields); strings.Contains(string(b), `\u0000`) && !strings.Contains(string(b), `\\u0000`) {
			t.Errorf("%.300q becomes %.300q, with NUL", bytes, text)
		}
	})
}
