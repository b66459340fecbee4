package kill

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"

	"signalbox.dev/pkg/httpserver"

	"signalbox.dev/services/e2e/world"
)

// balancer gives each service one address, as Kubernetes does: a connection goes to the next
// replica that accepts it.
type balancer struct {
	mu       sync.Mutex // guards the rest
	services map[string]*balanced
}

type balanced struct {
	listener net.Listener
	replicas []string
	next     int
}

// via is for world.Options: links to the services go through the balancer.
func (b *balancer) via(ctx context.Context, l world.Link) (string, error) {
	service := kindOf(l.To)
	if !slices.Contains(world.Services(), service) {
		return l.Address, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.services[service]
	if s == nil {
		listener, err := httpserver.Listen(ctx, "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		s = &balanced{listener: listener}
		b.services[service] = s
		go b.serve(ctx, s)
	}
	if !slices.Contains(s.replicas, l.Address) {
		s.replicas = append(s.replicas, l.Address)
	}
	return s.listener.Addr().String(), nil
}

// serve passes connections on until the listener is closed.
func (b *balancer) serve(ctx context.Context, s *balanced) {
	for {
		client, err := s.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			replica := b.dial(ctx, s)
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
func (b *balancer) dial(ctx context.Context, s *balanced) net.Conn {
	b.mu.Lock()
	s.next++
	replicas, first := slices.Clone(s.replicas), s.next
	b.mu.Unlock()
	for i := range replicas {
		if c, err := (&net.Dialer{}).DialContext(ctx, "tcp", replicas[(first+i)%len(replicas)]); err == nil {
			return c
		}
	}
	return nil
}

func (b *balancer) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.services {
		_ = s.listener.Close() // its connections end with the services
	}
	return nil
}
