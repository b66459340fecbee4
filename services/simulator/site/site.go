// Package site is a small web site on which newcomers try the browser tools without the internet:
// the catalogue of a library, with links, a search and a form. It keeps nothing.
package site

import (
	"html/template"
	"net/http"
	"strings"
)

// books are the library's, by the path of their page.
var books = []book{
	{"/books/tea", "The Book of Tea", "Kakuzō Okakura", "An essay of 1906 about tea, taste, and how simple things are made with care."},
	{"/books/walden", "Walden", "Henry David Thoreau", "Two years in a cabin by a pond, with notes on beans, visitors and ice."},
	{"/books/lighthouse", "To the Lighthouse", "Virginia Woolf", "A family, a house by the sea, and a journey that is put off for ten years."},
}

type book struct{ Path, Title, Author, About string }

// page is what the template shows.
type page struct {
	Title, Query string
	List         []book
	Book         *book
	Reserved     string // for whom
}

var layout = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Title}}</title>
<style>body{font:18px/1.5 system-ui,sans-serif;max-width:40rem;margin:2rem auto;padding:0 1rem}</style>
<h1>{{.Title}}</h1>
{{with .Book}}<p>{{.About}}</p><p>By {{.Author}}.</p>
{{with $.Reserved}}<p>It is reserved for {{.}}. (This library is an example, and keeps nothing.)</p>
{{else}}<form method="post"><label>Your name <input name="name" maxlength="100" required></label> <button>Reserve it</button></form>{{end}}
<p><a href="/">All books</a></p>
{{else}}<form><label>Search <input name="q" value="{{.Query}}" maxlength="100"></label> <button>Find</button></form>
<ul>{{range .List}}<li><a href="{{.Path}}">{{.Title}}</a> by {{.Author}}</li>{{else}}<li>No book has that in its title.</li>{{end}}</ul>{{end}}
</html>
`))

const (
	maxForm = 4 << 10
	maxName = 100
)

// Handler serves the site.
func Handler() http.Handler { return http.HandlerFunc(serve) }

func serve(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	p, status := page{Title: "The corner library"}, http.StatusOK
	switch i := find(r.URL.Path); {
	case r.URL.Path == "/":
		p.Query = r.URL.Query().Get("q")
		for _, b := range books {
			if strings.Contains(strings.ToLower(b.Title), strings.ToLower(p.Query)) {
				p.List = append(p.List, b)
			}
		}
	case i < 0:
		p.Title, status = "There is no such page", http.StatusNotFound
	default:
		p.Title, p.Book = books[i].Title, &books[i]
		if r.Method == http.MethodPost {
			name := []rune(r.PostFormValue("name"))
			p.Reserved = string(name[:min(len(name), maxName)])
		}
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'")
	w.WriteHeader(status)
	_ = layout.Execute(w, p) // the client may have left
}

// find returns the index of the book with a path, or -1.
func find(path string) int {
	for i, b := range books {
		if b.Path == path {
			return i
		}
	}
	return -1
}
