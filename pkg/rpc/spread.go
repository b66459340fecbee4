package rpc

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

const (
	spreadConns = 4           // connections of a client to each service
	spreadLife  = time.Minute // of a connection, and up to as long again, until new calls take another one
)

// spread spreads the calls of a client over the replicas of the called services. A transport of
// HTTP/2 sends all its calls over one connection, and so to the replica that was chosen when it
// was dialed: by the balancer of a Kubernetes Service, or by the order of a name's addresses,
// which DNS servers change from answer to answer. Calls therefore take one of several transports
// at random. Each is replaced after a while, so that replicas that were added get calls, too.
// Calls in progress finish on the former transport, whose connection closes when it has been
// idle for its IdleConnTimeout.
type spread struct {
	open  func() *http.Transport
	life  time.Duration
	slots [spreadConns]spreadSlot
}

type spreadSlot struct {
	mu        sync.Mutex // guards what follows
	transport *http.Transport
	until     time.Time
}

// RoundTrip implements http.RoundTripper.
func (s *spread) RoundTrip(req *http.Request) (*http.Response, error) {
	return s.slots[rand.IntN(len(s.slots))].take(s).RoundTrip(req)
}

// take returns the slot's transport, or a new one if that is too old.
func (t *spreadSlot) take(s *spread) *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.transport == nil || now.After(t.until) {
		if t.transport != nil {
			t.transport.CloseIdleConnections()
		}
		t.transport, t.until = s.open(), now.Add(s.life+rand.N(s.life))
	}
	return t.transport
}

// CloseIdleConnections is called by that of http.Client.
func (s *spread) CloseIdleConnections() {
	for i := range s.slots {
		t := &s.slots[i]
		t.mu.Lock()
		if t.transport != nil {
			t.transport.CloseIdleConnections()
		}
		t.mu.Unlock()
	}
}
