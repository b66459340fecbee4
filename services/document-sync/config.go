package documentsync

import (
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/telemetry"
)

// Config holds the operator's settings. New fills in the default of each limit that is zero;
// addresses and keys are for cmd/document-sync, which opens Deps.
type Config struct {
	Addr          string      `env:"DOCUMENT_SYNC_ADDR" envDefault:":8083" doc:"Address of the listener for other services and for /health, /ready and /metrics."`
	DatabaseURL   conf.Secret `env:"DATABASE_URL,required" doc:"Postgres, as postgres://user:password@host:5432/database; the user is signalbox_documents or a member of it."`
	DatabaseConns int32       `env:"DATABASE_CONNS" envDefault:"10" doc:"Maximum number of connections to PostgreSQL."`
	NATSURL       string      `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" doc:"NATS servers, separated by commas."`
	NATSUser      string      `env:"NATS_USER" envDefault:"document-sync" doc:"User on the bus."`
	NATSPassword  conf.Secret `env:"NATS_PASSWORD" doc:"Password on the bus; empty if the servers require none."`
	NATSCA        string      `env:"NATS_CA_FILE" doc:"PEM file with the authorities that sign the NATS servers' certificates. With it, or with tls:// in NATS_URL, the connection is encrypted; empty: those of TLS_CA_FILE, or the system's without that."`
	TrustedKeys   string      `env:"TRUSTED_KEYS,required" doc:"Public keys of the services that may call, gateway and tool-executor, as name=key pairs separated by commas."`

	Drain     time.Duration `env:"DOCUMENT_SYNC_DRAIN" envDefault:"20s" doc:"How long calls in flight may take after SIGTERM."`
	Resync    time.Duration `env:"DOCUMENT_SYNC_RESYNC" envDefault:"10s" doc:"How often subscribers are sent changes whose announcement was lost on the bus."`
	Streams   int           `env:"DOCUMENT_SYNC_STREAMS" envDefault:"10000" doc:"Maximum concurrent subscribers."`
	Queue     int           `env:"DOCUMENT_SYNC_STREAM_QUEUE" envDefault:"256" doc:"Unread changes after which a subscriber's stream is ended."`
	Versions  int           `env:"DOCUMENT_SYNC_VERSIONS" envDefault:"1000" doc:"Versions of a document beyond which the older half of its history is thinned."`
	HistoryMB int           `env:"DOCUMENT_SYNC_HISTORY_MB" envDefault:"64" doc:"Megabytes of a document's history beyond which its older half is thinned."`
	KeepKeys  time.Duration `env:"DOCUMENT_SYNC_KEEP_KEYS" envDefault:"168h" doc:"How long operation keys and deleted documents are remembered."`
	WriteWait time.Duration `env:"DOCUMENT_SYNC_WRITE_WAIT" envDefault:"30s" doc:"How long one write to a subscriber may take before its stream is closed."`

	Rooms       int `env:"DOCUMENT_SYNC_ROOMS" envDefault:"10000" doc:"Maximum open documents; further opens return Unavailable."`
	MemoryMB    int `env:"DOCUMENT_SYNC_MEMORY_MB" envDefault:"1024" doc:"Megabytes for open documents. Beyond that, unused documents are unloaded and further opens return Unavailable. The last quarter is reserved for workspaces that use less than a quarter, so a single workspace gets at most three quarters. Uncommitted updates may use another eighth."`
	DocumentMB  int `env:"DOCUMENT_SYNC_DOCUMENT_MB" envDefault:"64" doc:"Megabytes of memory for one document; beyond that, only deletions are accepted."`
	Connections int `env:"DOCUMENT_SYNC_CONNECTIONS" envDefault:"10000" doc:"Maximum concurrent WebSocket connections."`

	TLS       mtls.Config
	Telemetry telemetry.Config
}
