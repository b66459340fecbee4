package toolexecutor

import (
	"errors"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/tool-executor/internal/browser"
	"signalbox.dev/services/tool-executor/internal/tools"
)

// Config has the service's settings. New replaces zero limits with their defaults. Only
// cmd/tool-executor uses the addresses and keys, to open the dependencies in Deps.
type Config struct {
	Addr            string      `env:"TOOL_EXECUTOR_ADDR" envDefault:":8082" doc:"Address of the listener for other services and for /health, /ready and /metrics."`
	DatabaseURL     conf.Secret `env:"DATABASE_URL,required" doc:"PostgreSQL URL: postgres://user:password@host:5432/database. The user is the role signalbox_tools or a member of it."`
	DatabaseDirect  conf.Secret `env:"DATABASE_DIRECT_URL" doc:"URL of the PostgreSQL server itself, with the same user, if DATABASE_URL goes through a connection pooler: one connection needs a session of its own."`
	DatabaseConns   int32       `env:"DATABASE_CONNS" envDefault:"10" doc:"Maximum number of connections to PostgreSQL."`
	NATSURL         string      `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" doc:"NATS servers, separated by commas."`
	NATSUser        string      `env:"NATS_USER" envDefault:"tool-executor" doc:"NATS user, if the servers check permissions."`
	NATSPassword    conf.Secret `env:"NATS_PASSWORD" doc:"NATS password; empty: no login."`
	NATSCA          string      `env:"NATS_CA_FILE" doc:"PEM file with the authorities that sign the NATS servers' certificates. With it, or with tls:// in NATS_URL, the connection is encrypted; empty: those of TLS_CA_FILE, or the system's without that."`
	Replicas        int         `env:"EVENT_REPLICAS" envDefault:"1" doc:"Replicas of the JetStream stream that is created again after the NATS servers lost it; must be as at the migration."`
	DocumentSyncURL string      `env:"DOCUMENT_SYNC_URL" envDefault:"http://127.0.0.1:8083" doc:"URL of document-sync."`
	BrokerURL       string      `env:"CREDENTIAL_BROKER_URL" envDefault:"http://127.0.0.1:8084" doc:"URL of credential-broker, through which tools reach the services that workspaces have connected."`
	ServiceKey      conf.Secret `env:"SERVICE_KEY,required" doc:"tool-executor's private key; document-sync and credential-broker trust its public key. Create one with signalbox keygen."`
	TrustedKeys     string      `env:"TRUSTED_KEYS,required" doc:"Public keys of the services that may call tool-executor (gateway, agent-runner): name=key pairs, separated by commas."`

	Slots        int           `env:"TOOL_EXECUTOR_SLOTS" envDefault:"32" doc:"Tool calls that this process runs at the same time."`
	PerWorkspace int           `env:"TOOL_EXECUTOR_WORKSPACE_SLOTS" envDefault:"24" doc:"Slots that one workspace may use, so that it cannot occupy all of them; its further calls wait."`
	Lease        time.Duration `env:"TOOL_EXECUTOR_LEASE" envDefault:"6s" doc:"How long an executor's calls stay its own without a renewal, while its process may still be alive. Calls of a dead process are taken over after a second."`
	KeepOutcomes time.Duration `env:"TOOL_EXECUTOR_KEEP_OUTCOMES" envDefault:"168h" doc:"How long outcomes are kept, for calls that are delivered again."`
	Drain        time.Duration `env:"TOOL_EXECUTOR_DRAIN" envDefault:"20s" doc:"Time after SIGTERM for active calls to finish, before they are handed to another executor."`

	Tools tools.Settings

	Browser      string `env:"TOOL_EXECUTOR_BROWSER" doc:"URLs of the browser services behind the browser_* tools, separated by commas; each session uses one of them. local: Chromium is started by this process, which must be the only executor then. Empty: no browser."`
	LocalBrowser browser.Settings

	AllowPrivate string `env:"TOOL_EXECUTOR_ALLOW_PRIVATE" doc:"Private addresses at which MCP servers may be, separated by commas: ranges (10.1.0.0/16) and hosts with a port (10.1.2.3:8080, tools.internal:80). The owners of all workspaces can reach them. Empty: public addresses only."`

	MCPServers   string `env:"TOOL_EXECUTOR_MCP_SERVERS" doc:"Path of a JSON file with MCP servers that tool-executor starts itself, in a sandbox, and offers to workspaces; see operate.md. Empty: none."`
	MCPProcesses int    `env:"TOOL_EXECUTOR_MCP_PROCESSES" envDefault:"32" doc:"Processes of such MCP servers that may run at the same time, one for each server and workspace. Idle ones give way to new ones."`

	TLS       mtls.Config
	Telemetry telemetry.Config
}

// Peers are the services that tool-executor calls.
func (c *Config) Peers() []mtls.Peer {
	all := []mtls.Peer{
		{Setting: "DOCUMENT_SYNC_URL", Service: subject.DocumentSync, URL: c.DocumentSyncURL},
		{Setting: "CREDENTIAL_BROKER_URL", Service: subject.CredentialBroker, URL: c.BrokerURL},
	}
	if c.Browser != "" && c.Browser != localBrowser {
		urls, _ := browserURLs(c.Browser) // Validate has checked them
		for _, u := range urls {
			all = append(all, mtls.Peer{Setting: "TOOL_EXECUTOR_BROWSER", Service: BrowserName, URL: u})
		}
	}
	return all
}

// Validate says what is wrong, and what would be right.
func (c *Config) Validate() error { return errors.Join(c.Tools.Validate(), c.validateBrowser()) }
