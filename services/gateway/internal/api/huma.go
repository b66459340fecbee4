package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// newHuma returns huma without some of its defaults: no $schema links in answers, no pages, no
// refusal of unknown fields, and errors in our form.
func newHuma(mux *http.ServeMux, version string) huma.API {
	format := huma.Format{Marshal: encodeJSON, Unmarshal: decodeJSON}
	cfg := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title:       "Signalbox",
				Version:     version,
				Description: "Agents, people and documents on one message bus. Every error is an object with `error` and, sometimes, `code`.",
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
			},
		},
		Formats:       map[string]huma.Format{"application/json": format, "json": format}, // json is for +json types
		DefaultFormat: "application/json",
		Transformers:  []huma.Transformer{transformError},
	}
	cfg.AllowAdditionalPropertiesByDefault = true
	return huma.NewAPI(cfg, adapter{mux})
}

func encodeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// marshal is encodeJSON to bytes, without the line break at the end.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	err := encodeJSON(&b, v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// adapter mounts operations on a ServeMux.
type adapter struct{ mux *http.ServeMux }

// Handle implements huma.Adapter.
func (a adapter) Handle(op *huma.Operation, handler func(huma.Context)) {
	a.mux.HandleFunc(op.Method+" "+op.Path, func(w http.ResponseWriter, r *http.Request) {
		handler(&exchange{humago.NewContext(op, r, w)})
	})
}

// ServeHTTP implements huma.Adapter.
func (a adapter) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

type humaContext huma.Context

// exchange is a huma.Context that changes some of huma's behaviour.
type exchange struct{ humaContext }

// Unwrap gives humago its own context.
func (x *exchange) Unwrap() huma.Context { return x.humaContext }

// Header reports every body as JSON, because curl -d sends another type by default. It joins
// the lines of list headers.
func (x *exchange) Header(name string) string {
	switch {
	case strings.EqualFold(name, "Content-Type"):
		return "application/json"
	case strings.EqualFold(name, "Accept"), strings.EqualFold(name, "Prefer"):
		r, _ := humago.Unwrap(x.humaContext)
		return strings.Join(r.Header.Values(name), ", ") // RFC 9110, 5.3
	}
	return x.humaContext.Header(name)
}

// SetStatus answers 400 instead of huma's 422, 415, and 408 for a slow body.
func (x *exchange) SetStatus(code int) {
	switch code {
	case http.StatusUnprocessableEntity, http.StatusRequestTimeout, http.StatusUnsupportedMediaType:
		code = http.StatusBadRequest
	}
	x.humaContext.SetStatus(code)
}

// SetHeader corrects the content type of errors.
func (x *exchange) SetHeader(name, value string) {
	if value == "application/problem+json" {
		value = "application/json"
	}
	x.humaContext.SetHeader(name, value)
}
