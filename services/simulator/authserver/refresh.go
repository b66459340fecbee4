package authserver

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// renew handles a refresh and plays the next fault, if there is one.
func (s *Server) renew(w http.ResponseWriter, r *http.Request, p url.Values, known bool) {
	f, stage := s.arrived()
	stage("arrived")
	defer stage("answered")
	if !f.After {
		pause(r.Context(), f)
		switch {
		case f.Drop:
			panic(http.ErrAbortHandler)
		case f.Status != 0:
			if f.RetryAfter != "" {
				w.Header().Set("Retry-After", f.RetryAfter)
			}
			refuse(w, f.Status, f.Code, p)
			return
		}
	}
	if !known {
		refuse(w, http.StatusUnauthorized, "invalid_client", p)
		return
	}
	t, ok := s.rotate(p.Get("refresh_token"))
	stage("rotated")
	if f.After {
		pause(r.Context(), f)
	}
	switch {
	case f.After && f.Drop:
		panic(http.ErrAbortHandler)
	case f.Garbage:
		_, _ = w.Write([]byte("<html>it works"))
	case f.Status != 0:
		refuse(w, f.Status, f.Code, p)
	case !ok:
		refuse(w, http.StatusBadRequest, "invalid_grant", p)
	default:
		answer(w, http.StatusOK, t)
	}
}

// arrived counts a refresh and returns its fault and the watcher of its stages.
func (s *Server) arrived() (f Fault, stage func(string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.Refresh++
	if len(s.faults) > 0 {
		f, s.faults = s.faults[0], s.faults[1:]
	}
	if stage = s.watch; stage == nil {
		stage = func(string) {}
	}
	return f, stage
}

// pause waits as the fault says, but no longer than the client.
func pause(ctx context.Context, f Fault) {
	if f.Wait == nil {
		return
	}
	select {
	case <-f.Wait:
	case <-ctx.Done():
	}
}

// rotate uses a refresh token.
func (s *Server) rotate(token string) (issued, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.refresh[token]
	if !ok || t.family.ended {
		return issued{}, false
	}
	now := s.now()
	if s.settings.Rotate && !t.used.IsZero() {
		if now.Sub(t.used) > time.Duration(s.settings.GraceSeconds*float64(time.Second)) {
			s.calls.Reused++
			if s.settings.ReuseEnds {
				s.calls.Ended++
				t.family.ended = true
			}
			return issued{}, false
		}
		s.calls.Graced++
	} else {
		t.used = now
	}
	s.calls.Refreshed++
	a, next := s.issue(t.family)
	if !s.settings.Rotate {
		delete(s.refresh, next)
		next = ""
	}
	return issued{Access: a, Refresh: next, Type: "bearer", Life: s.life().Seconds()}, true
}
