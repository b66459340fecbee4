package bus_test

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/mtls/mtlstest"
	"signalbox.dev/pkg/subject"
)

// A server that does not prove its name, or refuses TLS, does not get the password.
func TestImpostor(t *testing.T) {
	t.Parallel()
	ca, other := mtlstest.NewAuthority(t), mtlstest.NewAuthority(t)
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	own, err := mtls.Open(ca.Files(t, t.TempDir(), mtlstest.Certificate{Names: []string{subject.Gateway}}), subject.Gateway, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ca   *mtlstest.Authority // nil: no TLS
		cert mtlstest.Certificate
		want string
	}{
		{"of another authority", other, mtlstest.Certificate{IPs: loopback}, "certificate signed by unknown authority"},
		{"with another name", ca, mtlstest.Certificate{Names: []string{subject.Gateway}}, "cannot validate certificate for 127.0.0.1"},
		{"with an expired certificate", ca, mtlstest.Certificate{IPs: loopback, Expired: true}, "certificate has expired"},
		{"without TLS", nil, mtlstest.Certificate{}, "secure connection not available"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var cert, key []byte
			offer := "false"
			if tt.ca != nil {
				cert, key = tt.ca.Sign(t, tt.cert)
				offer = "true"
			}
			far := mtlstest.NewImpostor(t, cert, key, func(c net.Conn) {
				_, _ = io.WriteString(c, `INFO {"server_id":"x","version":"2.15.0","proto":1,"headers":true,"max_payload":1048576,"auth_required":true,"tls_required":`+offer+"}\r\n")
			})
			warned := make(lines, 1)
			log := slog.New(slog.NewTextHandler(warned, &slog.HandlerOptions{Level: slog.LevelWarn}))
			b, err := bus.Connect(t.Context(), bus.Config{URL: "tls://" + far.Addr, Service: subject.Gateway, Password: "a-secret", TLS: own, Log: log})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) { //nolint:forbidigo // the client connects by itself
				if err = b.Ready(t.Context()); err == nil || strings.Contains(err.Error(), tt.want) {
					break
				}
				if time.Now().After(end) {
					break
				}
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Ready() = %v, want %q", err, tt.want)
			}
			if !warned.have(tt.want) {
				t.Errorf("the log does not say %q", tt.want)
			}
			if got := far.Got(); len(got) > 0 {
				t.Errorf("the impostor got %q, want nothing", got)
			}
		})
	}
}

// lines receives what is logged; lines that nobody waits for are dropped.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default:
	}
	return len(b), nil
}

// have waits until a line with a text is logged, and reports whether one was.
func (l lines) have(text string) bool {
	limit := time.After(time.Minute)
	for {
		select {
		case line := <-l:
			if strings.Contains(line, text) {
				return true
			}
		case <-limit:
			return false
		}
	}
}

func TestSecure(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cfg  bus.Config
		want bool
	}{
		{bus.Config{URL: "nats://a:4222"}, false},
		{bus.Config{URL: "tls://a:4222, tls://b:4222"}, true},
		{bus.Config{URL: "tls://a:4222,nats://b:4222"}, false},
		{bus.Config{URL: "nats://a:4222", CAFile: "ca.crt"}, true},
	} {
		if got := tt.cfg.Secure(); got != tt.want {
			t.Errorf("%s: Secure() = %v, want %v", tt.cfg.URL, got, tt.want)
		}
	}
}
