// Package console serves the web console: the files that `npm run build` writes into dist, which
// are embedded in the binary.
package console

import (
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

// dist is empty but for a placeholder until the console is built.
//
//go:embed all:dist
var dist embed.FS

// policy lets the page load its own files and call its own server only. No script may be made from
// text; only the editor reads HTML, what somebody pastes, in a document that runs nothing. Styles are
// the page's own files; pictures may also be made by the page, or come with a message.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; " +
	"manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types ProseMirrorClipboard"

const notBuilt = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Signalbox</title>
<h1>The console is not built</h1>
<p>This program was built without Node. Install Node 20.19 or newer and run <code>make run</code> again, or use the container image.</p>
<p>The API works: <a href="/docs">see its reference</a>.</p>
</html>
`

// file is a file of the console with what its answer needs.
type file struct {
	kind         string // its media type
	plain, small []byte // small is compressed with gzip; nil if that is no gain
}

// Handler returns the handler of the console's pages and files. It answers GET and HEAD: a file of
// the console, or its page for every other path but those below /assets/ and /.well-known/, which
// are 404: MCP clients take any other answer to /.well-known/ for OAuth metadata. Without a built
// console every page is a 503 that says how to get one.
func Handler() (http.Handler, error) {
	files, err := load(dist)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return handler(files), nil
}

func handler(files map[string]file) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		f, found := files[strings.TrimPrefix(r.URL.Path, "/")]
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "The console's pages are read with GET.", http.StatusMethodNotAllowed)
			return
		case found && strings.HasPrefix(r.URL.Path, "/assets/"):
			h.Set("Cache-Control", "public, max-age=31536000, immutable") // the name has a hash
		case found && r.URL.Path != "/index.html":
			h.Set("Cache-Control", "public, max-age=3600")
		case strings.HasPrefix(r.URL.Path, "/assets/"), strings.HasPrefix(r.URL.Path, "/.well-known/"):
			http.NotFound(w, r)
			return
		default:
			if f, found = files["index.html"]; !found {
				h.Set("Content-Type", "text/html; charset=utf-8")
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write([]byte(notBuilt)) // fails if the client has left
				return
			}
			h.Set("Cache-Control", "no-cache")
			h.Set("Content-Security-Policy", policy)
			h.Set("Cross-Origin-Opener-Policy", "same-origin")
			h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
		}
		h.Set("Content-Type", f.kind)
		h.Set("Vary", "Accept-Encoding")
		body := f.plain
		if f.small != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			body = f.small
		}
		if r.Method == http.MethodGet {
			_, _ = w.Write(body) // fails if the client has left
		}
	})
}

// load reads and compresses the files of a build.
func load(built fs.FS) (map[string]file, error) {
	files := map[string]file{}
	err := fs.WalkDir(built, "dist", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == ".gitkeep" {
			return err
		}
		data, err := fs.ReadFile(built, name)
		if err != nil {
			return err
		}
		kind := mime.TypeByExtension(path.Ext(name))
		if path.Ext(name) == ".woff2" {
			kind = "font/woff2" // which not every system knows
		}
		if kind == "" {
			return fmt.Errorf("%s: no media type is known", name)
		}
		f := file{kind: kind, plain: data}
		if small, err := compressed(data); err != nil {
			return err
		} else if len(small) < len(data)*9/10 {
			f.small = small
		}
		files[strings.TrimPrefix(name, "dist/")] = f
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return files, err
}

func compressed(data []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
