package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
)

// serveBare is the program "bare <base URL of the provider>".
func serveBare(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("bare needs the provider's base URL")
	}
	return serve(ctx, in, out, bareHandler(args[0]))
}

// bareHandler is the least that a proxy over net/http does: pass the request on,
// then read, write, flush. It adds no credential, knows no event, and takes half
// an answer for a whole one.
func bareHandler(base string) http.Handler {
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Whole, before anything is sent: net/http cuts answers short while the
		// request's body is unread (golang/go#40747).
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, base+r.URL.Path, bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		req.Header = r.Header
		res, err := transport.RoundTrip(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		maps.Copy(w.Header(), res.Header)
		w.WriteHeader(res.StatusCode)
		rc := http.NewResponseController(w)
		b := make([]byte, 32<<10)
		for {
			n, err := res.Body.Read(b)
			if n > 0 && !send(w, rc, b[:n]) {
				return
			}
			if err == io.EOF {
				return
			}
			if err != nil {
				panic(http.ErrAbortHandler)
			}
		}
	})
}
