package documentsync

import (
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/telemetry"
)

// Config is what a person who operates the service can set. New fills in the
// default of each limit that is zero; addresses and keys are for cmd/document-sync,
// which opens what Deps holds.
type Config struct {
	Addr          string      `env:"DOCUMENT_SYNC_ADDR" envDefault:":8083" doc:"Address of the listener for other services and for /health, /ready and /metrics."`
	DatabaseURL   conf.Secret `env:"DATABASE_URL,required" doc:"Postgres, as postgres://user:password@host:5432/database; the user is signalbox_documents or a member of it."`
	DatabaseConns int32       `env:"DATABASE_CONNS" envDefault:"10" doc:"Most connections to Postgres."`
	NATSURL       string      `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" doc:"NATS servers, separated by commas."`
	NATSUser      string      `env:"NATS_USER" envDefault:"document-sync" doc:"User on the bus."`
	NATSPassword  conf.Secret `env:"NATS_PASSWORD" doc:"Password on the bus; empty where the servers check none."`
	TrustedKeys   string      `env:"TRUSTED_KEYS,required" doc:"Public keys of the services that may call, gateway and tool-executor, as name=key pairs separated by commas."`

	Drain     time.Duration `env:"DOCUMENT_SYNC_DRAIN" envDefault:"20s" doc:"How long calls in hand may take after SIGTERM."`
	Resync    time.Duration `env:"DOCUMENT_SYNC_RESYNC" envDefault:"10s" doc:"How often subscribers are given changes whose announcement was lost on the bus."`
	Streams   int           `env:"DOCUMENT_SYNC_STREAMS" envDefault:"10000" doc:"Most subscribers at a time."`
	Queue     int           `env:"DOCUMENT_SYNC_STREAM_QUEUE" envDefault:"256" doc:"Changes that a subscriber may be behind before its stream is ended."`
	Versions  int           `env:"DOCUMENT_SYNC_VERSIONS" envDefault:"1000" doc:"Versions of a document beyond which the older half of its history is thinned."`
	HistoryMB int           `env:"DOCUMENT_SYNC_HISTORY_MB" envDefault:"64" doc:"Megabytes of a document's history beyond which its older half is thinned."`
	KeepKeys  time.Duration `env:"DOCUMENT_SYNC_KEEP_KEYS" envDefault:"168h" doc:"How long a repeated operation key is recognised, and a deleted document remembered."`
	WriteWait time.Duration `env:"DOCUMENT_SYNC_WRITE_WAIT" envDefault:"30s" doc:"How long one write to a subscriber may take before its stream is cut."`

	Rooms       int `env:"DOCUMENT_SYNC_ROOMS" envDefault:"10000" doc:"Most documents that are open here at a time; who wants one more is told to try again."`
	MemoryMB    int `env:"DOCUMENT_SYNC_MEMORY_MB" envDefault:"1024" doc:"Megabytes that open documents may take; beyond, those that nobody has open leave, and who wants to open another is told to try again. The last quarter is for workspaces that take less than a quarter: one that is alone gets three quarters. What waits to be stored may take an eighth besides."`
	DocumentMB  int `env:"DOCUMENT_SYNC_DOCUMENT_MB" envDefault:"64" doc:"Megabytes that one document may take in memory; beyond, its editors can only delete."`
	Connections int `env:"DOCUMENT_SYNC_CONNECTIONS" envDefault:"10000" doc:"Most WebSocket connections at a time."`

	Telemetry telemetry.Config
}
