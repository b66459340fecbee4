package natstest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/subject"
)

// Cluster is three servers that replicate every stream, without permissions. It survives the
// loss of one of them.
type Cluster struct {
	t       testing.TB
	servers []*server.Server
	links   []*link
}

// NewCluster returns a cluster with a topology of that many partitions, which is shut down
// with the test.
func NewCluster(t testing.TB, partitions int) *Cluster {
	t.Helper()
	return NewClusterWith(t, subject.Options{Partitions: partitions, Replicas: 3})
}

// NewClusterWith is NewCluster with other options, such as one replica of each stream.
func NewClusterWith(t testing.TB, o subject.Options) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	ports, addrs := make([]int, 3), make([]string, 3)
	for i := range ports {
		addr, err := freeport.Addr()
		if err != nil {
			t.Fatal(err)
		}
		ports[i], addrs[i] = int(netip.MustParseAddrPort(addr).Port()), addr
	}
	for i, port := range ports {
		var routes []*url.URL
		for j, addr := range addrs {
			if i != j {
				routes = append(routes, &url.URL{Scheme: "nats", Host: c.link(i, j, addr)})
			}
		}
		srv, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true,
			// The advertised address is unusable, so that servers reach each other only by their links.
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: port, Advertise: "127.0.0.1:1", NoAdvertise: true}, Routes: routes,
			JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: 8 << 30, DisableJetStreamBanner: true, MaxPayload: subject.MaxMessage,
		})
		if err != nil {
			t.Fatal(err)
		}
		srv.Start()
		t.Cleanup(func() {
			srv.Shutdown()
			srv.WaitForShutdown()
		})
		c.servers = append(c.servers, srv)
	}
	c.Apply(o) // waits for the cluster to elect a leader
	return c
}

// Apply changes the streams to a topology.
func (c *Cluster) Apply(o subject.Options) {
	c.t.Helper()
	top, err := subject.NewTopology(o)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	if err := bus.Apply(ctx, c.Bus("admin"), top); err != nil {
		c.t.Fatal(err)
	}
}

// AwaitReplicas returns when every server has all of a stream.
func (c *Cluster) AwaitReplicas(stream string) {
	c.t.Helper()
	deadline := time.After(time.Minute)
	for _, s := range c.servers {
		for !s.JetStreamIsStreamCurrent("$G", stream) {
			select {
			case <-deadline:
				c.t.Fatalf("a replica of %s is not current", stream)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

// Bus returns a connection to any of the servers, which is closed with the test.
func (c *Cluster) Bus(service string) *bus.Bus { return c.BusWith(service) }

// BusWith is Bus with client options.
func (c *Cluster) BusWith(service string, opts ...nats.Option) *bus.Bus {
	c.t.Helper()
	urls := ""
	for _, s := range c.servers {
		if urls != "" {
			urls += ","
		}
		urls += s.ClientURL()
	}
	return open(c.t, bus.Config{Service: service, URL: urls, Conn: opts, Log: Log(c.t)})
}

// Isolate cuts a server off from the others. Its clients stay connected.
func (c *Cluster) Isolate(url string) {
	c.t.Helper()
	for i, s := range c.servers {
		if s.ClientURL() != url {
			continue
		}
		for _, l := range c.links {
			if l.from == i || l.to == i {
				l.cut()
			}
		}
		return
	}
	c.t.Fatalf("no server has the address %s", url)
}

// link carries the traffic from one server to another, until it is cut.
type link struct {
	from, to int
	listener net.Listener

	mu    sync.Mutex // guards conns
	conns []net.Conn
	down  bool
}

func (c *Cluster) link(from, to int, addr string) string {
	c.t.Helper()
	listener, err := new(net.ListenConfig).Listen(c.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	l := &link{from: from, to: to, listener: listener}
	c.links = append(c.links, l)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := new(net.Dialer).Dial("tcp", addr)
			if err != nil || !l.keep(near, far) {
				_ = near.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				wg.Go(func() {
					_, _ = io.Copy(pair[0], pair[1]) // ends with either connection
					_, _ = pair[0].Close(), pair[1].Close()
				})
			}
		}
	})
	c.t.Cleanup(func() {
		l.cut()
		wg.Wait()
	})
	return listener.Addr().String()
}

func (l *link) keep(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, conns...)
	if l.down {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	return !l.down
}

func (l *link) cut() {
	_ = l.listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// StopLeader shuts down the server that leads a stream.
func (c *Cluster) StopLeader(stream string) {
	c.t.Helper()
	for _, s := range c.servers {
		if s.JetStreamIsStreamLeader("$G", stream) {
			s.Shutdown()
			s.WaitForShutdown()
			return
		}
	}
	c.t.Fatalf("no server leads %s", stream)
}
