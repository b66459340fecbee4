package natsd_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/mtls/mtlstest"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

var loopback = []net.IP{net.IPv4(127, 0, 0, 1)}

// run starts a server, which is shut down with the test.
func run(t *testing.T, opts *server.Options) *server.Server {
	t.Helper()
	opts.NoSigs, opts.NoLog = true, true
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server did not become ready")
	}
	return srv
}

// secureBus returns a bus with a service's certificate.
func secureBus(t *testing.T, url, service string, password conf.Secret, files mtls.Config) *bus.Bus {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	own, err := mtls.Open(files, "", nil, log)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bus.Connect(t.Context(), bus.Config{URL: url, Service: service, Password: password, TLS: own, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// The three servers of deploy/nats/cluster.conf find each other over TLS, and keep streams three
// times for a client with a certificate.
func TestClusterDeployed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three servers")
	}
	const password = "secret"
	ca := mtlstest.NewAuthority(t)
	top := t.TempDir()
	addrs := make([]string, 3)
	for i := range addrs {
		var err error
		if addrs[i], err = freeport.Addr(); err != nil {
			t.Fatal(err)
		}
	}
	var urls []string
	for i, addr := range addrs {
		name := fmt.Sprint("nats-", i+1)
		dir := filepath.Join(top, name)
		// What the environment and the machine have elsewhere.
		here := []string{"$SERVER_NAME", name, "/etc/nats/tls", dir}
		for _, u := range subject.Users(natstest.Topology(t)) {
			here = append(here, "$"+subject.PasswordVariable(u.Name), password)
		}
		copyFiles(t, dir, strings.NewReplacer(here...), "nats.conf", "accounts.conf", "cluster.conf")
		ca.Files(t, dir, mtlstest.Certificate{Names: []string{name}, IPs: loopback})
		opts, err := server.ProcessConfigFile(filepath.Join(dir, "cluster.conf"))
		if err != nil {
			t.Fatal(err)
		}
		if len(opts.Routes) != 3 || opts.MaxPayload != subject.MaxMessage || opts.ServerName != name {
			t.Fatalf("cluster.conf has %d routes, max_payload %d and the name %q, want 3, %d and %q", len(opts.Routes), opts.MaxPayload, opts.ServerName, subject.MaxMessage, name)
		}
		for who, c := range map[string]*tls.Config{"clients": opts.TLSConfig, "servers": opts.Cluster.TLSConfig} {
			if c == nil || c.ClientAuth != tls.RequireAndVerifyClientCert {
				t.Fatalf("cluster.conf does not check the certificates of %s", who)
			}
		}
		for n, to := range addrs {
			opts.Routes[n] = &url.URL{Scheme: opts.Routes[n].Scheme, Host: to}
		}
		opts.Host, opts.Port, opts.HTTPPort, opts.StoreDir = "127.0.0.1", -1, 0, filepath.Join(dir, "data")
		opts.Cluster.Host, opts.Cluster.Port = "127.0.0.1", int(netip.MustParseAddrPort(addr).Port())
		urls = append(urls, "tls://"+run(t, opts).Addr().String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin := secureBus(t, strings.Join(urls, ","), subject.Admin, password, ca.Files(t, t.TempDir(), mtlstest.Certificate{}))
	topology, err := subject.NewTopology(subject.Options{Partitions: 1, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Apply(ctx, admin, topology); err != nil {
		t.Fatal(err)
	}
}

// copyFiles copies files of deploy/nats to a new folder.
func copyFiles(t *testing.T, dir string, change *strings.Replacer, names ...string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "nats", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(change.Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// When all certificates and their authority are replaced, a client that loses its connection comes
// back with the new ones, and only with them.
func TestNewAuthorityAcrossReconnect(t *testing.T) {
	t.Parallel()
	before, after := mtlstest.NewAuthority(t), mtlstest.NewAuthority(t)
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	serverFiles, clientFiles, store := t.TempDir(), t.TempDir(), t.TempDir()
	listen := func(ca *mtlstest.Authority) *server.Server {
		t.Helper()
		files := ca.Files(t, serverFiles, mtlstest.Certificate{IPs: loopback})
		opts := &server.Options{}
		if err := opts.ProcessConfigString(fmt.Sprintf("listen: %s\njetstream { store_dir: %q }\ntls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }",
			addr, store, files.CertFile, files.KeyFile, files.CAFile)); err != nil {
			t.Fatal(err)
		}
		return run(t, opts)
	}
	first := listen(before)
	b := secureBus(t, "tls://"+addr, subject.Gateway, "", before.Files(t, clientFiles, mtlstest.Certificate{}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	await := func(want string) {
		t.Helper()
		for {
			err := b.Ready(ctx)
			if err == nil && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want) {
				return
			}
			select {
			case <-ctx.Done():
				t.Fatalf("Ready() = %v, want %q", err, want)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	await("")
	first.Shutdown()
	first.WaitForShutdown()
	listen(after)
	await("certificate signed by unknown authority")
	after.Files(t, clientFiles, mtlstest.Certificate{})
	await("")
}
