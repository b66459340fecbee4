package world

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync"

	"signalbox.dev/pkg/httpserver"
)

// Balancer gives each service one address, as Kubernetes does: a connection goes to the next
// replica that accepts it.
type Balancer struct {
	mu       sync.Mutex // guards services
	services map[string]*balanced
}

type balanced struct {
	listener net.Listener

	mu       sync.Mutex // guards what follows
	replicas []string
	next     int
}

// Via is for [Options]: links to the services go through the balancer.
func (b *Balancer) Via(l Link) (string, error) {
	service := KindOf(l.To)
	if !slices.Contains(Services(), service) {
		return l.Address, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.services[service]
	if s == nil {
		listener, err := httpserver.Listen(context.Background(), "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		s = &balanced{listener: listener}
		if b.services == nil {
			b.services = map[string]*balanced{}
		}
		b.services[service] = s
		go s.serve()
	}
	s.add(l.Address)
	return s.listener.Addr().String(), nil
}

// Close closes the listeners. Connections end with the services.
func (b *Balancer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.services {
		_ = s.listener.Close() // nothing is lost
	}
	return nil
}

func (s *balanced) add(replica string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.replicas, replica) {
		s.replicas = append(s.replicas, replica)
	}
}

// serve passes connections on until the listener is closed.
func (s *balanced) serve() {
	for {
		client, err := s.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			replica := s.dial()
			if replica == nil {
				return
			}
			defer replica.Close()
			go func() {
				defer replica.Close()
				_, _ = io.Copy(replica, client)
			}()
			_, _ = io.Copy(client, replica)
		}()
	}
}

// dial connects to the next replica that accepts, or returns nil.
func (s *balanced) dial() net.Conn {
	s.mu.Lock()
	s.next++
	replicas, first := slices.Clone(s.replicas), s.next
	s.mu.Unlock()
	for i := range replicas {
		if c, err := net.DialTimeout("tcp", replicas[(first+i)%len(replicas)], Timeout); err == nil {
			return c
		}
	}
	return nil
}

// KindOf returns a part's name without the replica's number.
func KindOf(part string) string {
	return strings.TrimRight(strings.TrimRight(part, "0123456789"), "-")
}
