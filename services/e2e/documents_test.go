package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// TestLargeDocuments writes a document of the maximum size over REST, reads it and writes it
// back. A refused change changes nothing, not even the name. It does not run in standalone,
// whose differences do not depend on the size.
func TestLargeDocuments(t *testing.T) {
	t.Parallel()
	p := cluster.up(t).person(t)
	var b strings.Builder
	for i := 0; b.Len() < 10<<20-3000; i++ {
		fmt.Fprintf(&b, "Paragraph %d is \"*long*\".%s\n\n", i, strings.Repeat(" It goes on.", 200))
	}
	text := strings.TrimSuffix(b.String(), "\n")
	var made, read struct {
		Document struct{ ID, Name, Content string }
	}
	p.call(http.MethodPost, "/api/documents", map[string]string{"name": "Long", "content": text}, &made)
	path := "/api/documents/" + made.Document.ID
	p.call(http.MethodGet, path, nil, &read)
	if read.Document.Content != text {
		t.Fatalf("a document of %d bytes was read as %d different ones", len(text), len(read.Document.Content))
	}
	text = strings.Replace(text, "Paragraph 2000 is", "Paragraph 2000 was", 1)
	p.call(http.MethodPatch, path, map[string]string{"name": "Longer", "content": text}, nil)

	for content, says := range map[string]string{
		text + text[:4000]:                 "10 MiB",
		strings.Repeat("x", 2<<20):         "split it into several blocks",
		strings.Repeat("x\n\n", 1_000_000): "split it",
	} {
		status, body := p.try(http.MethodPatch, path, map[string]string{"name": "Refused", "content": content})
		if status != http.StatusRequestEntityTooLarge || !strings.Contains(body, says) {
			t.Errorf("PATCH with %d bytes = %d %.200s, want 413 %q", len(content), status, body, says)
		}
	}
	if status, body := p.try(http.MethodPatch, path, map[string]string{"name": "two\nlines", "content": "gone"}); status != http.StatusBadRequest {
		t.Errorf("PATCH with a name of two lines = %d %.200s, want 400", status, body)
	}
	p.call(http.MethodGet, path, nil, &read)
	if d := read.Document; d.Name != "Longer" || d.Content != text {
		t.Errorf("after refused changes the document is %q with %d bytes", d.Name, len(d.Content))
	}
}

// try is call for requests that may be refused.
func (p *person) try(method, path string, in any) (status int, body string) {
	p.t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		p.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, bytes.NewReader(b))
	if err != nil {
		p.t.Fatal(err)
	}
	maps.Copy(req.Header, p.header())
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return res.StatusCode, string(out)
}
