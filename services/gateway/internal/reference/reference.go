// Package reference serves the API reference: Swagger UI for the gateway's OpenAPI document.
// Its files are embedded in the binary.
package reference

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"path"
	"sync"

	"github.com/swaggest/swgui/v5/static"
)

//go:embed page.html
var page []byte

//go:embed start.js
var start []byte

// policy lets the page load and call this server only. Swagger UI uses style attributes, and
// data URLs for its icons.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Mount adds the reference at /docs.
func Mount(mux *http.ServeMux) {
	files := map[string]func() []byte{"start.js": func() []byte { return start }}
	for _, name := range []string{"swagger-ui-bundle.js", "swagger-ui.css"} {
		files[name] = sync.OnceValue(func() []byte { return unzipped(name + ".gz") })
	}
	for name, data := range files {
		mux.HandleFunc("GET /docs/"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "public, max-age=3600")
			write(w, name, data())
		})
	}
	mux.HandleFunc("GET /docs", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		write(w, "page.html", page)
	})
	mux.Handle("GET /docs/{$}", http.RedirectHandler("/docs", http.StatusFound))
}

var types = map[string]string{
	".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".html": "text/html; charset=utf-8",
}

func write(w http.ResponseWriter, name string, data []byte) {
	w.Header().Set("Content-Type", types[path.Ext(name)])
	_, _ = w.Write(data) // fails if the client has left
}

// unzipped returns an embedded file. It panics if the build lacks the file.
func unzipped(name string) []byte {
	data, err := static.FS.ReadFile(name)
	if err == nil {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(data)); err == nil {
			data, err = io.ReadAll(z)
		}
	}
	if err != nil {
		panic(fmt.Errorf("read %s of the API reference: %w", name, err))
	}
	return data
}
