package natsd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

// The topology with three replicas works as with one, also while a leader is lost.
func TestCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three servers")
	}
	servers, urls := cluster(t, 3)
	b, err := bus.Connect(t.Context(), bus.Config{Service: "anybody", URL: urls, Log: natstest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	top, err := subject.NewTopology(subject.Options{Partitions: 1, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := bus.Apply(ctx, b, top); err != nil { // waits for the cluster to have a leader
		t.Fatal(err)
	}
	first, err := b.PublishFenced(ctx, "ev.00.w.s", "1", 0, wrapperspb.String("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.PublishFenced(ctx, "ev.00.w.s", "2", 0, wrapperspb.String("2")); !errors.Is(err, bus.ErrFenced) {
		t.Errorf("PublishFenced behind another = %v, want %v", err, bus.ErrFenced)
	}
	leaders := 0
	for _, s := range servers {
		if s.JetStreamIsStreamLeader("$G", subject.EventStream(0)) {
			s.Shutdown()
			s.WaitForShutdown()
			leaders++
			break
		}
	}
	if leaders != 1 {
		t.Fatalf("%d leaders were stopped, want 1", leaders)
	}
	begin := time.Now()
	seq, err := b.Publish(ctx, "ev.00.w.s", "3", wrapperspb.String("3"))
	for ; errors.Is(err, bus.ErrNoStream) && ctx.Err() == nil; seq, err = b.Publish(ctx, "ev.00.w.s", "3", wrapperspb.String("3")) {
		<-time.After(50 * time.Millisecond)
	}
	if err != nil || seq != first+1 {
		t.Fatalf("Publish after the leader was lost = %d, %v, want %d", seq, err, first+1)
	}
	t.Logf("a new leader took a message after %v", time.Since(begin))
	if last, err := b.Last(ctx, subject.EventStream(0), "ev.00.w.s"); err != nil || last.ID != "3" {
		t.Errorf("Last = %+v, %v, want id 3", last, err)
	}
}

func cluster(t *testing.T, n int) (servers []*server.Server, urls string) {
	t.Helper()
	var routes []*url.URL
	ports := make([]int, n)
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = l.Addr().(*net.TCPAddr).Port
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		srv, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true,
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]}, Routes: routes,
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
		if servers = append(servers, srv); urls != "" {
			urls += ","
		}
		urls += srv.ClientURL()
	}
	return servers, urls
}
