package tools_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/services/tool-executor/internal/browser"
	"signalbox.dev/services/tool-executor/internal/tools"
)

// openBrowser gives the tools a browser, which starts when the first page is opened.
func (w *world) openBrowser(t testing.TB, d *tools.Deps) {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.site.ServeHTTP(rw, r) }))
	t.Cleanup(web.Close)
	w.web, w.site = web.URL, http.NotFoundHandler()
	var settings browser.Settings
	if err := conf.SetDefaults(&settings); err != nil {
		t.Fatal(err)
	}
	settings.Chromium, settings.AllowPrivate = os.Getenv("CHROMIUM"), web.Listener.Addr().String()
	b, err := browser.New(settings, natstest.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	d.Browser, d.BrowserUnavailable, d.BrowserPrivate = b, b.Unavailable, true
}

func TestBrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if e, _ := w.catalogue.Get("browser_open"); !e.Tool.Available(t.Context()).Available {
		t.Skipf("NOT TESTED: %s (apt-get install chromium bubblewrap)", e.Tool.Available(t.Context()).Reason)
	}
	w.site = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			_, _ = fmt.Fprint(rw, "<title>Long</title>")
			for i := range 5000 {
				_, _ = fmt.Fprintf(rw, "<p>line %d", i)
			}
			return
		}
		_, _ = io.WriteString(rw, `<title>Shop</title><form action=/sent><input name=q aria-label=Search><button>Find</button></form>`)
	})
	want := map[string]any{"url": w.web + "/", "title": "Shop", "status": 200.0}
	if diff := cmp.Diff(want, w.must(t, "browser_open", map[string]any{"url": w.web})); diff != "" {
		t.Errorf("browser_open (-want +got):\n%s", diff)
	}
	want["content"] = `[text field "Search" @1] [button "Find" @2]`
	if diff := cmp.Diff(want, w.must(t, "browser_read", map[string]any{})); diff != "" {
		t.Errorf("browser_read (-want +got):\n%s", diff)
	}
	delete(want, "content")
	want["result"] = `Typed into: text field "Search"`
	if diff := cmp.Diff(want, w.must(t, "browser_type", map[string]any{"origin": w.web, "selector": "@1", "text": "tea"})); diff != "" {
		t.Errorf("browser_type (-want +got):\n%s", diff)
	}
	want["result"], want["url"] = `Clicked: button "Find"`, w.web+"/sent?q=tea"
	if diff := cmp.Diff(want, w.must(t, "browser_click", map[string]any{"origin": w.web, "selector": "@2"})); diff != "" {
		t.Errorf("browser_click (-want +got):\n%s", diff)
	}

	shot := w.must(t, "browser_screenshot", map[string]any{})
	file, _ := shot["image"].(map[string]any)
	data, _ := file["data"].(string)
	if b, err := base64.StdEncoding.DecodeString(data); err != nil || file["type"] != "file" || file["mediaType"] != "image/jpeg" || !bytes.HasPrefix(b, []byte("\xff\xd8")) {
		t.Errorf("browser_screenshot has the image %.100v: %v", file, err)
	}

	w.must(t, "browser_open", map[string]any{"url": w.web + "/long"})
	var got strings.Builder
	args := map[string]any{}
	for {
		part := w.must(t, "browser_read", args)
		text, _ := part["content"].(string)
		got.WriteString(text)
		if part["changed"] != nil || part["truncated"] != nil {
			t.Errorf("a part says changed %v, truncated %v", part["changed"], part["truncated"])
		}
		if part["next_page_token"] == nil {
			break
		}
		args["page_token"] = part["next_page_token"]
	}
	if n := strings.Count(got.String(), "line "); n != 5000 || !strings.HasSuffix(got.String(), "line 4999") {
		t.Errorf("the parts have %d lines", n)
	}
	if r, err := w.call(t.Context(), "browser_read", `{"page_token":"next"}`); err != nil || !strings.Contains(r.JSON(), "arguments.page_token") {
		t.Errorf("browser_read with a made-up token = %s, %v", r.JSON(), err)
	}
	_, err := w.call(t.Context(), "browser_open", `{"url":"http://127.0.0.1/"}`)
	if f := fault.From(err); f.Kind != fault.Invalid || !strings.Contains(f.Message, "not a public address") {
		t.Errorf("browser_open of a private address = %v", err)
	}
}
