package toolexecutor

import (
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/telemetry"
)

// Config has the service's settings. New replaces limits that are zero by their defaults.
// Only cmd/tool-executor uses the addresses and keys, to open what Deps holds.
type Config struct {
	Addr            string      `env:"TOOL_EXECUTOR_ADDR" envDefault:":8082" doc:"Address of the listener for other services and for /health, /ready and /metrics."`
	DatabaseURL     conf.Secret `env:"DATABASE_URL,required" doc:"Postgres, as postgres://user:password@host:5432/database; the user is signalbox_tools or a member of it."`
	DatabaseConns   int32       `env:"DATABASE_CONNS" envDefault:"10" doc:"Maximum number of connections to PostgreSQL."`
	NATSURL         string      `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" doc:"NATS servers, separated by commas."`
	NATSUser        string      `env:"NATS_USER" envDefault:"tool-executor" doc:"User on the bus."`
	NATSPassword    conf.Secret `env:"NATS_PASSWORD" doc:"Password on the bus; empty where the servers check none."`
	Replicas        int         `env:"EVENT_REPLICAS" envDefault:"1" doc:"Replicas of the stream that is made again when the NATS servers have lost it; as migrated."`
	DocumentSyncURL string      `env:"DOCUMENT_SYNC_URL" envDefault:"http://127.0.0.1:8083" doc:"Base URL of document-sync."`
	ServiceKey      conf.Secret `env:"SERVICE_KEY,required" doc:"This service's own private key; document-sync trusts its public half."`
	TrustedKeys     string      `env:"TRUSTED_KEYS,required" doc:"Public keys of the services that may call, gateway and agent-runner, as name=key pairs separated by commas."`

	Slots        int           `env:"TOOL_EXECUTOR_SLOTS" envDefault:"32" doc:"Tool calls that this process runs at a time."`
	PerWorkspace int           `env:"TOOL_EXECUTOR_WORKSPACE_SLOTS" envDefault:"24" doc:"Most slots that one workspace may use, so that slots remain for the others; further calls wait their turn."`
	Lease        time.Duration `env:"TOOL_EXECUTOR_LEASE" envDefault:"6s" doc:"How long an executor keeps its calls without a renewal while its process may still exist; a process that is gone loses them after a second."`
	KeepOutcomes time.Duration `env:"TOOL_EXECUTOR_KEEP_OUTCOMES" envDefault:"168h" doc:"How long outcomes are kept for calls that are delivered again."`
	Drain        time.Duration `env:"TOOL_EXECUTOR_DRAIN" envDefault:"20s" doc:"How long active calls may take after SIGTERM before they are handed to another executor."`

	Telemetry telemetry.Config
}
