package agentrunner

import (
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/agent-runner/internal/loop"
)

// Config has the service's settings.
type Config struct {
	Addr           string      `env:"AGENT_RUNNER_ADDR" envDefault:":8081" doc:"Address of the listener for other services and for /health, /ready and /metrics."`
	DatabaseURL    conf.Secret `env:"DATABASE_URL,required" doc:"PostgreSQL URL: postgres://user:password@host:5432/database. The user is the role signalbox_agent or a member of it."`
	DatabaseDirect conf.Secret `env:"DATABASE_DIRECT_URL" doc:"URL of the PostgreSQL server itself, with the same user, if DATABASE_URL goes through a connection pooler: one connection needs a session of its own."`
	DatabaseConns  int32       `env:"DATABASE_CONNS" envDefault:"20" doc:"Maximum number of connections to PostgreSQL."`
	NATSURL        string      `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" doc:"NATS servers, separated by commas."`
	NATSUser       string      `env:"NATS_USER" envDefault:"agent-runner" doc:"NATS user, if the servers check permissions."`
	NATSPassword   conf.Secret `env:"NATS_PASSWORD" doc:"NATS password; empty: no login."`
	NATSCA         string      `env:"NATS_CA_FILE" doc:"PEM file with the authorities that sign the NATS servers' certificates. With it, or with tls:// in NATS_URL, the connection is encrypted; empty: those of TLS_CA_FILE, or the system's without that."`
	ServiceKey     conf.Secret `env:"SERVICE_KEY,required" doc:"agent-runner's private key; the other services trust its public key. Create one with signalbox keygen."`
	TrustedKeys    string      `env:"TRUSTED_KEYS,required" doc:"Public keys of the services that may call agent-runner (gateway): name=key pairs, separated by commas."`

	ToolExecutorURL     string `env:"TOOL_EXECUTOR_URL" envDefault:"http://127.0.0.1:8082" doc:"URL of tool-executor."`
	CredentialBrokerURL string `env:"CREDENTIAL_BROKER_URL" envDefault:"http://127.0.0.1:8084" doc:"URL of credential-broker, which forwards requests to the model providers."`

	Partitions      int    `env:"EVENT_PARTITIONS" envDefault:"4" doc:"Partitions of the run log; must be the same for all services, and as at the migration."`
	Replicas        int    `env:"EVENT_REPLICAS" envDefault:"1" doc:"Replicas of JetStream streams that are created again after the NATS servers lost them; must be as at the migration."`
	DefaultModel    string `env:"DEFAULT_MODEL" envDefault:"claude-sonnet-4-5-20250929" doc:"Model of sessions that name none; a model of DEFAULT_PROVIDER. A workspace that cannot call it gets a model of one of its accounts or, without any account, the simulator. If an account has its own base URL and the server there does not list this model, the most similar model on the list is used."`
	DefaultProvider string `env:"DEFAULT_PROVIDER" envDefault:"anthropic" doc:"Provider of sessions that name none, in workspaces that have an account for it."`

	ModelCatalogue string `env:"MODEL_CATALOGUE" doc:"File with models (context, limits) that override the built-in ones; empty: none. MODEL_PRICES has their prices."`
	ModelPrices    string `env:"MODEL_PRICES" doc:"File with model prices (JSON, in the form of pkg/price/prices.json) that override the built-in ones; empty: none. Give credential-broker the same file."`

	Slots            int `env:"AGENT_RUNNER_SLOTS" envDefault:"256" doc:"Runs that this process works on at the same time."`
	WorkspaceRuns    int `env:"AGENT_RUNNER_WORKSPACE_RUNS" envDefault:"192" doc:"Runs of one workspace that all replicas together work on at the same time; further runs wait. Set it below AGENT_RUNNER_SLOTS, so that no workspace can occupy all slots."`
	WorkspaceWaiting int `env:"AGENT_RUNNER_WORKSPACE_WAITING" envDefault:"1000" doc:"Runs of one workspace that may wait for a slot; further messages are refused with 429."`

	MaxQueued int           `env:"AGENT_RUNNER_MAX_QUEUED" envDefault:"32" doc:"Messages that may wait behind the active run of a session."`
	Drain     time.Duration `env:"AGENT_RUNNER_DRAIN" envDefault:"25s" doc:"Time after SIGTERM for runs to reach the end of a step, where another runner takes over."`

	Lease         time.Duration `env:"AGENT_RUNNER_LEASE" envDefault:"6s" doc:"How long a claim on a run is valid without a renewal."`
	Beat          time.Duration `env:"AGENT_RUNNER_BEAT" envDefault:"1s" doc:"How often claims are renewed. After a missed renewal, other runners check whether the runner is dead."`
	RunTime       time.Duration `env:"AGENT_RUNNER_RUN_TIME" envDefault:"30m" doc:"Time limit of a run."`
	StepTime      time.Duration `env:"AGENT_RUNNER_STEP_TIME" envDefault:"10m" doc:"Time limit of one model call."`
	ToolTime      time.Duration `env:"AGENT_RUNNER_TOOL_TIME" envDefault:"30s" doc:"Time limit of a call of a tool that sets none."`
	ToolQueueing  time.Duration `env:"AGENT_RUNNER_TOOL_QUEUEING" envDefault:"60s" doc:"How long a tool call may wait until an executor starts it, and how long runs wait for calls while no executor can be reached."`
	ApprovalTime  time.Duration `env:"AGENT_RUNNER_APPROVAL_TIME" envDefault:"24h" doc:"How long a tool call waits for a person's approval, or for the result of a client; no answer is a refusal, or an error."`
	ModelTries    int           `env:"AGENT_RUNNER_MODEL_TRIES" envDefault:"3" doc:"Attempts at a model call before the run fails."`
	ModelBackoff  time.Duration `env:"AGENT_RUNNER_MODEL_BACKOFF" envDefault:"500ms" doc:"Wait after the first failed attempt; it doubles with each further one."`
	MaxRetryAfter time.Duration `env:"AGENT_RUNNER_MAX_RETRY_AFTER" envDefault:"30s" doc:"Longest wait that a provider may ask for; if it asks for more, the run fails."`
	FirstByte     time.Duration `env:"AGENT_RUNNER_FIRST_BYTE" envDefault:"5m" doc:"Time limit for the first byte of a model's answer."`
	Patience      time.Duration `env:"AGENT_RUNNER_PATIENCE" envDefault:"20s" doc:"How long a runner retries while the database, the broker or the run log is unavailable, before it leaves the run to another runner."`
	Idle          time.Duration `env:"AGENT_RUNNER_IDLE" envDefault:"2m" doc:"Longest pause within a model's answer."`

	CompactAt   float64 `env:"AGENT_RUNNER_COMPACT_AT" envDefault:"0.8" doc:"Share of a model's context window from which the older messages of a conversation are replaced by a summary that the model writes. The messages stay readable."`
	CompactKeep float64 `env:"AGENT_RUNNER_COMPACT_KEEP" envDefault:"0.25" doc:"Share of a model's context window whose newest messages a summary leaves as they are."`

	TitleModel string `env:"AGENT_RUNNER_TITLE_MODEL" envDefault:"same" doc:"Model that names a session after its first message: same (the session's), off (the title is the beginning of the message), or a list of provider/model pairs, separated by commas, for the providers that shall use another model."`

	RunLogDelay time.Duration `env:"AGENT_RUNNER_RUN_LOG_DELAY" envDefault:"250ms" doc:"How long events are collected before they are copied from the bus to PostgreSQL; a longer delay makes fewer and larger rows."`
	RunLogKeep  time.Duration `env:"AGENT_RUNNER_RUN_LOG_KEEP" envDefault:"24h" doc:"How long the copied events are kept; viewers that resume later get the session's messages instead."`

	TLS       mtls.Config
	Telemetry telemetry.Config
}

// Peers are the services that agent-runner calls.
func (c *Config) Peers() []mtls.Peer {
	return []mtls.Peer{
		{Setting: "TOOL_EXECUTOR_URL", Service: subject.ToolExecutor, URL: c.ToolExecutorURL},
		{Setting: "CREDENTIAL_BROKER_URL", Service: subject.CredentialBroker, URL: c.CredentialBrokerURL},
	}
}

// Validate returns every problem with the settings.
func (c *Config) Validate() error {
	var errs []error
	for name, n := range map[string]int{
		"AGENT_RUNNER_SLOTS": c.Slots, "AGENT_RUNNER_MODEL_TRIES": c.ModelTries, "EVENT_PARTITIONS": c.Partitions,
		"AGENT_RUNNER_WORKSPACE_RUNS": c.WorkspaceRuns, "AGENT_RUNNER_WORKSPACE_WAITING": c.WorkspaceWaiting,
	} {
		if n < 1 {
			errs = append(errs, fmt.Errorf("%s is %d: it must be at least 1", name, n))
		}
	}
	if c.MaxQueued < 0 {
		errs = append(errs, fmt.Errorf("AGENT_RUNNER_MAX_QUEUED is %d: it must not be negative", c.MaxQueued))
	}
	for name, d := range map[string]time.Duration{
		"AGENT_RUNNER_RUN_LOG_DELAY": c.RunLogDelay, "AGENT_RUNNER_RUN_LOG_KEEP": c.RunLogKeep, "AGENT_RUNNER_APPROVAL_TIME": c.ApprovalTime,
	} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("%s is %s: it must be positive", name, d))
		}
	}
	if _, err := loop.ParseTitles(c.TitleModel); err != nil {
		errs = append(errs, fmt.Errorf("AGENT_RUNNER_TITLE_MODEL: %w", err))
	}
	if c.CompactAt < 0.1 || c.CompactAt > 1 || c.CompactKeep < 0 || c.CompactKeep > c.CompactAt/2 {
		errs = append(errs, fmt.Errorf("AGENT_RUNNER_COMPACT_AT is %g and AGENT_RUNNER_COMPACT_KEEP %g: the first must be from 0.1 to 1, and the second from 0 to half of the first", c.CompactAt, c.CompactKeep))
	}
	if c.Lease < 2*c.Beat || c.Beat <= 0 {
		errs = append(errs, fmt.Errorf("AGENT_RUNNER_LEASE is %s and AGENT_RUNNER_BEAT %s: a claim must survive one missed renewal, so make the lease at least twice the beat", c.Lease, c.Beat))
	}
	return errors.Join(errs...)
}
