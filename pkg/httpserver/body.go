package httpserver

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// bodyTimeout is the default of Config.Body.
const bodyTimeout = 30 * time.Second

// BoundBodies limits the time for reading each request body, even one that no handler reads,
// because net/http itself reads some of it before it responds. At the end of the body the
// deadline is removed: left on the connection, it would end the request's context.
func BoundBodies(next http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			rc := http.NewResponseController(w)
			if rc.SetReadDeadline(time.Now().Add(limit)) == nil {
				body := &timedBody{r.Body, rc}
				r = r.WithContext(r.Context()) // a copy: net/http needs its own body at the end
				r.Body = body
			}
		}
		next.ServeHTTP(w, r)
	})
}

type timedBody struct {
	io.ReadCloser
	rc *http.ResponseController
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.rc.SetReadDeadline(time.Time{}) // setting it worked, so clearing it will
	}
	return n, err
}
