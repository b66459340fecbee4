package authserver

import (
	"cmp"
	"crypto/rand"
	"net/http"
	"net/url"
	"strings"
	"time"
)

func (s *Server) startDevice(w http.ResponseWriter, r *http.Request) {
	p, ok := parameters(w, r)
	if !ok {
		return
	}
	s.mu.Lock()
	s.calls.Device++
	if len(s.devices) >= maxPending {
		clear(s.devices)
	}
	d := &device{
		user: rand.Text()[:8], expires: s.now().Add(deviceLife),
		interval: time.Duration(cmp.Or(s.settings.Interval, 5)) * time.Second,
	}
	text := "device-" + random()
	s.devices[text] = d
	known := s.client(r, p)
	s.mu.Unlock()
	if !known {
		refuse(w, http.StatusUnauthorized, "invalid_client", p)
		return
	}
	path, _, _ := strings.Cut(r.RequestURI, "?") // the requested path, including the prefix under which the server is mounted
	page := url.URL{Scheme: "http", Host: r.Host, Path: strings.TrimSuffix(path, "device") + "approve"}
	whole := page
	whole.RawQuery = url.Values{"user_code": {d.user}}.Encode()
	answer(w, http.StatusOK, map[string]any{
		"device_code": text, "user_code": d.user, "verification_uri": page.String(), "verification_uri_complete": whole.String(),
		"expires_in": deviceLife.Seconds(), "interval": d.interval.Seconds(),
	})
}

// endDevice handles the person's approval or denial.
func (s *Server) endDevice(yes bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.Decide(r.URL.Query().Get("user_code"), yes) {
			http.Error(w, "nobody waits for this code", http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte("Done. Go back to where you came from.\n"))
	}
}

// Decide approves or denies a device. It returns false if no device waits with that code.
func (s *Server) Decide(user string, yes bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.devices {
		if d.user == user && s.now().Before(d.expires) {
			d.approved, d.dead = yes, !yes
			return true
		}
	}
	return false
}

func (s *Server) poll(w http.ResponseWriter, p url.Values) {
	s.mu.Lock()
	s.calls.Poll++
	t, code := s.polled(p.Get("device_code"))
	s.mu.Unlock()
	if code != "" {
		refuse(w, http.StatusBadRequest, code, p)
		return
	}
	answer(w, http.StatusOK, t)
}

// polled returns the tokens of a device, or the error code. The lock is held.
func (s *Server) polled(text string) (issued, string) {
	d, ok := s.devices[text]
	now := s.now()
	if !ok {
		return issued{}, "invalid_grant"
	}
	early := !d.polled.IsZero() && now.Sub(d.polled) < d.interval
	d.polled = now
	switch {
	case now.After(d.expires):
		return issued{}, "expired_token"
	case early:
		d.interval += 5 * time.Second
		return issued{}, "slow_down"
	case d.dead:
		delete(s.devices, text)
		return issued{}, "access_denied"
	case !d.approved:
		return issued{}, "authorization_pending"
	}
	delete(s.devices, text)
	t, ok := s.grant()
	if !ok {
		return issued{}, "temporarily_unavailable"
	}
	return t, ""
}

// Rest resets the time of all devices' last polls.
func (s *Server) Rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.devices {
		d.polled = time.Time{}
	}
}
