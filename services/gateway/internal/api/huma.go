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

// newHuma returns huma without its defaults that we do not want: no $schema links
// in answers, no pages of its own, no refusal of unknown fields, and errors in our form.
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
		Formats:       map[string]huma.Format{"application/json": format, "json": format}, // the second one for +json
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

// marshal is encodeJSON into bytes: no \u003c, no line break at the end.
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

// exchange is a request and its answer, with our way of some things that huma has
// another way of.
type exchange struct{ humaContext }

// Unwrap gives humago its own context.
func (x *exchange) Unwrap() huma.Context { return x.humaContext }

// Header calls every body JSON: curl -d names another type unless it is told. Of
// headers that are lists it gives all lines.
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

// SetStatus answers 400 where huma has 422, or 408 for a body that is slow to come.
func (x *exchange) SetStatus(code int) {
	switch code {
	case http.StatusUnprocessableEntity, http.StatusRequestTimeout, http.StatusUnsupportedMediaType:
		code = http.StatusBadRequest
	}
	x.humaContext.SetStatus(code)
}

// SetHeader gives errors the type that they have.
func (x *exchange) SetHeader(name, value string) {
	if value == "application/problem+json" {
		value = "application/json"
	}
	x.humaContext.SetHeader(name, value)
}
