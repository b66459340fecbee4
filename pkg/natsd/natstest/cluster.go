package natstest

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/subject"
)

// Cluster is three servers that replicate every stream, without permissions. It
// goes on when one of them is lost.
type Cluster struct {
	t       testing.TB
	servers []*server.Server
}

// NewCluster returns a cluster with a topology of that many partitions. It is shut
// down with the test.
func NewCluster(t testing.TB, partitions int) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	ports := make([]int, 3)
	var routes []*url.URL
	for i := range ports {
		addr, err := freeport.Addr()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = int(netip.MustParseAddrPort(addr).Port())
		routes = append(routes, &url.URL{Scheme: "nats", Host: addr})
	}
	for i, port := range ports {
		srv, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true,
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: port}, Routes: routes,
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
	top, err := subject.NewTopology(subject.Options{Partitions: partitions, Replicas: len(ports)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := bus.Apply(ctx, c.Bus("admin"), top); err != nil { // waits for the cluster to have a leader
		t.Fatal(err)
	}
	return c
}

// Bus returns a connection that any of the servers may serve. It is closed with
// the test.
func (c *Cluster) Bus(service string) *bus.Bus {
	c.t.Helper()
	urls := ""
	for _, s := range c.servers {
		if urls != "" {
			urls += ","
		}
		urls += s.ClientURL()
	}
	return open(c.t, bus.Config{Service: service, URL: urls, Log: Log(c.t)})
}

// StopLeader ends the server that leads a stream, as if its machine were gone.
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
