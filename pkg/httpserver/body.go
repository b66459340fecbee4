package httpserver

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// bodyTimeout is for handlers that give bodies no time of their own.
const bodyTimeout = 30 * time.Second

// BoundBodies gives every body a time to come in, also those that no handler
// reads: net/http itself reads on a little before it answers. With the body's end
// the deadline goes: left on the connection it would end the request's context.
func BoundBodies(next http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			rc := http.NewResponseController(w)
			if rc.SetReadDeadline(time.Now().Add(limit)) == nil {
				body := &timedBody{r.Body, rc}
				r = r.WithContext(r.Context()) // net/http looks at its own body when it is done
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
		_ = b.rc.SetReadDeadline(time.Time{}) // it could be set, so it can be taken away
	}
	return n, err
}
