package console

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
)

// built is a console in small.
func built(t *testing.T, files fstest.MapFS) http.Handler {
	t.Helper()
	loaded, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	return handler(loaded)
}

func TestPagesAndFiles(t *testing.T) {
	t.Parallel()
	script := strings.Repeat("console.log('a line of a script');\n", 100)
	h := built(t, fstest.MapFS{
		"dist/index.html":         {Data: []byte("<!doctype html><title>page</title>")},
		"dist/mark.svg":           {Data: []byte("<svg/>")},
		"dist/.gitkeep":           {Data: nil},
		"dist/assets/index-h1.js": {Data: []byte(script)},
		"dist/assets/font.woff2":  {Data: []byte("font")},
	})
	for _, tc := range []struct {
		method, path string
		status       int
		body, kind   string
		cache        string
	}{
		{"GET", "/", 200, "<!doctype html><title>page</title>", "text/html; charset=utf-8", "no-cache"},
		{"GET", "/w/team-1a2b3c4d/s/0198", 200, "<!doctype html><title>page</title>", "text/html; charset=utf-8", "no-cache"},
		{"GET", "/index.html", 200, "<!doctype html><title>page</title>", "text/html; charset=utf-8", "no-cache"},
		{"GET", "/mark.svg", 200, "<svg/>", "image/svg+xml", "public, max-age=3600"},
		{"GET", "/assets/index-h1.js", 200, script, "text/javascript; charset=utf-8", "public, max-age=31536000, immutable"},
		{"GET", "/assets/font.woff2", 200, "font", "font/woff2", "public, max-age=31536000, immutable"},
		{"HEAD", "/assets/index-h1.js", 200, "", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable"},
		{"GET", "/assets/index-h0.js", 404, "404 page not found\n", "text/plain; charset=utf-8", ""},
		{"GET", "/.well-known/oauth-protected-resource/mcp", 404, "404 page not found\n", "text/plain; charset=utf-8", ""},
		{"POST", "/", 405, "The console's pages are read with GET.\n", "text/plain; charset=utf-8", ""},
		{"GET", "/.gitkeep", 200, "<!doctype html><title>page</title>", "text/html; charset=utf-8", "no-cache"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(tc.method, tc.path, nil))
		if w.Code != tc.status || w.Body.String() != tc.body || w.Header().Get("Content-Type") != tc.kind || w.Header().Get("Cache-Control") != tc.cache {
			t.Errorf("%s %s: %d %q, %q, %q", tc.method, tc.path, w.Code, w.Body, w.Header().Get("Content-Type"), w.Header().Get("Cache-Control"))
		}
	}
}

func TestPagesAreGuarded(t *testing.T) {
	t.Parallel()
	h := built(t, fstest.MapFS{"dist/index.html": {Data: []byte("page")}})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/inbox", nil))
	for _, want := range []string{"script-src 'self';", "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types ProseMirrorClipboard"} {
		if got := w.Header().Get("Content-Security-Policy"); !strings.Contains(got, want) {
			t.Errorf("the policy %q lacks %q", got, want)
		}
	}
	if got := w.Header().Get("Content-Security-Policy"); strings.Contains(got, "unsafe") {
		t.Errorf("the policy %q allows something unsafe", got)
	}
}

func TestFilesAreCompressed(t *testing.T) {
	t.Parallel()
	script := strings.Repeat("a line\n", 1000)
	h := built(t, fstest.MapFS{"dist/assets/a.js": {Data: []byte(script)}})
	r := httptest.NewRequest(http.MethodGet, "/assets/a.js", nil)
	r.Header.Set("Accept-Encoding", "br, gzip")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Header().Get("Content-Encoding") != "gzip" || w.Body.Len() > 200 {
		t.Fatalf("%d bytes, encoded as %q", w.Body.Len(), w.Header().Get("Content-Encoding"))
	}
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(z); err != nil || string(got) != script {
		t.Errorf("unpacked to %d bytes, %v", len(got), err)
	}
}

func TestNotBuilt(t *testing.T) {
	t.Parallel()
	h := built(t, fstest.MapFS{"dist/.gitkeep": {}})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "Install Node") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// The real files, whatever was built.
func TestHandler(t *testing.T) {
	t.Parallel()
	if _, err := Handler(); err != nil {
		t.Error(err)
	}
}
