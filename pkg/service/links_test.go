package service_test

import (
	"strings"
	"testing"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/service"
)

// With TLS_REQUIRED, the error names each connection that is not secure.
func TestCheckLinks(t *testing.T) {
	t.Parallel()
	o := service.Options{
		TLS:      mtls.Config{Required: true},
		Peers:    []mtls.Peer{{Setting: "AGENT_RUNNER_URL", URL: "http://agent-runner:8081"}, {Setting: "TOOL_EXECUTOR_URL", URL: "https://tool-executor:8082"}},
		Bus:      bus.Config{URL: "nats://user:secret@nats:4222"},
		Database: pg.Config{Role: "signalbox_gateway", URL: "postgres://u:secret@db/x?sslmode=require"},
	}
	err := service.CheckLinks(o)
	if err == nil {
		t.Fatal("CheckLinks() = nil")
	}
	for _, want := range []string{"TLS_CERT_FILE", "AGENT_RUNNER_URL", "tls://nats:4222", "DATABASE_URL"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("CheckLinks() = %v, want %q in it", err, want)
		}
	}
	for _, never := range []string{"TOOL_EXECUTOR_URL", "secret"} {
		if strings.Contains(err.Error(), never) {
			t.Errorf("CheckLinks() = %v, want no %q in it", err, never)
		}
	}
	o.TLS.Required = false
	if err := service.CheckLinks(o); err != nil {
		t.Errorf("CheckLinks() without TLS_REQUIRED = %v", err)
	}
	good := service.Options{
		TLS: mtls.Config{Required: true, CertFile: "c", KeyFile: "k", CAFile: "a"}, Peers: o.Peers[1:], Bus: bus.Config{URL: "tls://nats:4222"},
		Database: pg.Config{Role: "signalbox_gateway", URL: "postgres:///x?host=/run/postgresql"},
	}
	if err := service.CheckLinks(good); err != nil {
		t.Errorf("CheckLinks() of secure connections = %v", err)
	}
}
