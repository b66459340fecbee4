package canary_test

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/e2e/world"
)

// TestWrongSettings starts programs with invalid settings that contain a secret: their output, until
// they end or for a moment, must not contain it.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	programs := t.TempDir()
	if err := world.Build(t.Context(), programs); err != nil {
		t.Fatal(err)
	}
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	secret, leak := newMark("canary"), newMark("leakage")
	all := newMarks(secret, leak)
	t.Cleanup(func() {
		if len(leak.places("")) == 0 {
			t.Error("the repeated non-secret was not found")
		}
	})
	s := secret.text
	const (
		nowhere = "127.0.0.1:1"
		moment  = 2 * time.Second // for programs that wait for a database
	)
	broker := map[string]string{
		"CREDENTIAL_BROKER_ADDR": "127.0.0.1:0", "CREDENTIAL_BROKER_KEY_FILE": "FOLDER/key", "TRUSTED_KEYS": "gateway=" + key.Public(),
		"CREDENTIAL_BROKER_ACCOUNTS_FILE": "FOLDER/accounts.json",
	}
	shared := map[string]string{"CREDENTIAL_BROKER_ACCOUNTS_FILE": "", "DATABASE_URL": "postgres://u:" + s + "@" + nowhere + "/d"}
	gateway := map[string]string{
		"GATEWAY_HTTP_ADDR": "127.0.0.1:0", "GATEWAY_OPS_ADDR": "127.0.0.1:0", "SERVICE_KEY": key.Encode(), "GATEWAY_JWT_ISSUER": "https://project.example",
		"DATABASE_URL": shared["DATABASE_URL"], "NATS_URL": "nats://u:" + s + "@" + nowhere, "GATEWAY_DEV_SECRET": s + " of the development issuer",
	}
	migrate := map[string]string{"NATS_URL": "nats://u:" + s + "@" + nowhere, "GATEWAY_DB_PASSWORD": s}
	for i, tt := range []struct {
		program string
		env     []map[string]string // later ones override
	}{
		{"credential-broker", []map[string]string{broker, {"DATABASE_URL": "postgres://u:" + s + "@" + nowhere + "/d"}}},
		{"credential-broker", []map[string]string{broker, shared, {"DATABASE_URL": "postgres://u:" + s + " /%zz@" + nowhere + "/d"}}},
		{"credential-broker", []map[string]string{broker, shared, {"DATABASE_URL": "host=" + nowhere + " password=" + s + " what"}}},
		{"credential-broker", []map[string]string{broker, shared, {"NATS_URL": "nats://u:" + s + "%zz@" + nowhere}}},
		{"credential-broker", []map[string]string{broker, shared, {"NATS_URL": "nats://u:" + s + "#@" + nowhere}}},
		{"credential-broker", []map[string]string{broker, shared, {"NATS_URL": "nats://u:" + s + "@" + nowhere, "LOG_LEVEL": "debug"}}},
		{"credential-broker", []map[string]string{broker, {"TRUSTED_KEYS": "gateway:" + s}}},
		{"credential-broker", []map[string]string{broker, {"CREDENTIAL_BROKER_KEY_URL": "base64key://" + s}}},
		{"credential-broker", []map[string]string{broker, {"CREDENTIAL_BROKER_KEY_URL": "base64key:" + s}}},
		{"credential-broker", []map[string]string{broker, {"CREDENTIAL_BROKER_KEY_URL": "awskms://u:" + s + "@alias/x?region=" + s}}},
		{"credential-broker", []map[string]string{broker, {"CREDENTIAL_BROKER_KEY_URL": "hashivault://x", "VAULT_SERVER_URL": "http://u:" + s + " %zz@" + nowhere, "VAULT_SERVER_TOKEN": s}}},
		{"credential-broker", []map[string]string{broker, {"CREDENTIAL_BROKER_KEY_URL": "hashivault://x", "VAULT_SERVER_URL": "http://u:" + s + "@" + nowhere, "VAULT_SERVER_TOKEN": s}}},
		{"credential-broker", []map[string]string{broker, {"CREDENTIAL_BROKER_OTHER_KEYS": "base64key:" + s}}},
		{"credential-broker", []map[string]string{broker, {"CREDENTIAL_BROKER_OAUTH_CLIENTS": "google:us:" + s}}},
		{"credential-broker", []map[string]string{broker, {"CREDENTIAL_BROKER_OAUTH_CLIENTS": "nobody=us:" + s}}},
		{"credential-broker", []map[string]string{broker, {"CREDENTIAL_BROKER_OAUTH_REDIRECT": "http://u:" + s + "@"}}},
		{"credential-broker", []map[string]string{broker, {"ANTHROPIC_API_KEY": s + " " + s}}},
		{"credential-broker", []map[string]string{broker, {"ANTHROPIC_BASE_URL": "https://u:" + s + "@house.example"}}},
		{"credential-broker", []map[string]string{broker, {"OTEL_EXPORTER_OTLP_ENDPOINT": "u:" + s + "@collector:4318"}}},
		{"credential-broker", []map[string]string{broker, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://" + nowhere, "OTEL_EXPORTER_OTLP_HEADERS": "x-key:" + s}}},
		{"credential-broker", []map[string]string{broker, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:" + s + "@" + nowhere, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=" + s}}},
		{"gateway", []map[string]string{gateway}},
		{"gateway", []map[string]string{gateway, {"GATEWAY_CORS_ORIGINS": leak.text}}},
		{"gateway", []map[string]string{gateway, {"SERVICE_KEY": s}}},
		{"gateway", []map[string]string{gateway, {"GATEWAY_DEV_SECRET": s}}},
		{"gateway", []map[string]string{gateway, {"GATEWAY_JWKS_URL": "http://u:" + s + "@" + nowhere}}},
		{"gateway", []map[string]string{gateway, {"GATEWAY_JWKS_URL": "http://" + nowhere + "/?apikey=" + s}}},
		{"gateway", []map[string]string{gateway, {"GATEWAY_JWKS_URL": "http://u:" + s + " %zz@" + nowhere}}},
		{"signalbox migrate", []map[string]string{migrate, {"DATABASE_URL": "postgres://u:" + s + "@" + nowhere + "/d"}}},
		{"signalbox migrate", []map[string]string{migrate, {"DATABASE_URL": "postgres://u:" + s + " %zz@" + nowhere + "/d"}}},
		{"signalbox up --data FOLDER/data", []map[string]string{{"DATABASE_URL": "postgres://u:" + s + " %zz@" + nowhere + "/d"}}},
		{"signalbox token", []map[string]string{{"DATABASE_URL": "postgres://u:" + s + "@" + nowhere + "/d", "GATEWAY_DEV_SECRET": s}}},
		{"signalbox chat hello", []map[string]string{{"SIGNALBOX_URL": "http://u:" + s + "@" + nowhere, "SIGNALBOX_TOKEN": s, "SIGNALBOX_WORKSPACE": s}}},
		{"signalbox accounts list", []map[string]string{shared, {"CREDENTIAL_BROKER_KEY_FILE": "FOLDER/key"}}},
	} {
		t.Run(fmt.Sprintf("%d %s", i, tt.program), func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			env := map[string]string{"HOME": folder}
			for _, more := range tt.env {
				maps.Copy(env, more)
			}
			args := strings.Fields(strings.ReplaceAll(tt.program, "FOLDER", folder))
			ctx, cancel := context.WithTimeout(t.Context(), moment)
			cmd := exec.CommandContext(ctx, filepath.Join(programs, args[0]), args[1:]...)
			for name, value := range env {
				cmd.Env = append(cmd.Env, name+"="+strings.ReplaceAll(value, "FOLDER", folder))
			}
			out, err := cmd.CombinedOutput()
			waits := ctx.Err() != nil
			cancel()
			if err == nil && !waits {
				t.Errorf("it accepted the settings and printed %q", out)
			}
			all.look(t.Name(), out)
			if len(secret.places(t.Name())) > 0 {
				t.Errorf("it printed %s", out)
			}
		})
	}
}
