package agentrunner

import (
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/telemetry"
)

// Config has the service's settings.
type Config struct {
	Addr          string      `env:"AGENT_RUNNER_ADDR" envDefault:":8081" doc:"Address of the listener for other services and for /health, /ready and /metrics."`
	DatabaseURL   conf.Secret `env:"DATABASE_URL,required" doc:"Postgres, as postgres://user:password@host:5432/database; the user is signalbox_agent or a member of it."`
	DatabaseConns int32       `env:"DATABASE_CONNS" envDefault:"20" doc:"Maximum number of connections to PostgreSQL."`
	NATSURL       string      `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" doc:"NATS servers, separated by commas."`
	NATSUser      string      `env:"NATS_USER" envDefault:"agent-runner" doc:"User on the bus."`
	NATSPassword  conf.Secret `env:"NATS_PASSWORD" doc:"Password on the bus; empty where the servers check none."`
	ServiceKey    conf.Secret `env:"SERVICE_KEY,required" doc:"Private key that proves to other services who calls; make one with signalbox keygen."`
	TrustedKeys   string      `env:"TRUSTED_KEYS,required" doc:"Public keys of the services that may call (gateway), as name=key pairs separated by commas."`

	ToolExecutorURL     string `env:"TOOL_EXECUTOR_URL" envDefault:"http://127.0.0.1:8082" doc:"Base URL of tool-executor."`
	CredentialBrokerURL string `env:"CREDENTIAL_BROKER_URL" envDefault:"http://127.0.0.1:8084" doc:"Base URL of credential-broker, whose egress leads to the model providers."`

	Partitions      int    `env:"EVENT_PARTITIONS" envDefault:"4" doc:"Partitions of the run log; the same everywhere, and as migrated."`
	Replicas        int    `env:"EVENT_REPLICAS" envDefault:"1" doc:"Replicas of the streams that are made again when the NATS servers have lost them; as migrated."`
	DefaultModel    string `env:"DEFAULT_MODEL" envDefault:"claude-sonnet-4-5-20250929" doc:"Model of sessions that name none; it belongs to DEFAULT_PROVIDER. A workspace that cannot call it gets a model that one of its accounts serves, or the simulator if it has no account. An account with its own base URL whose model list lacks this model gives the most similar model on the list."`
	DefaultProvider string `env:"DEFAULT_PROVIDER" envDefault:"anthropic" doc:"Provider of sessions that name none, in workspaces that have an account for it."`

	ModelCatalogue string `env:"MODEL_CATALOGUE" doc:"File with models (context, limits) that override the built-in ones; empty for none. Their prices are in MODEL_PRICES."`
	ModelPrices    string `env:"MODEL_PRICES" doc:"File with model prices (JSON, as pkg/price/prices.json) that override the built-in ones; empty for none. Give credential-broker the same file."`

	Slots            int `env:"AGENT_RUNNER_SLOTS" envDefault:"256" doc:"Runs that this process works on at a time."`
	WorkspaceRuns    int `env:"AGENT_RUNNER_WORKSPACE_RUNS" envDefault:"192" doc:"Runs of one workspace that all replicas together work on at a time; the others wait. Set it below AGENT_RUNNER_SLOTS, so that one workspace leaves slots to the others."`
	WorkspaceWaiting int `env:"AGENT_RUNNER_WORKSPACE_WAITING" envDefault:"1000" doc:"Runs of one workspace that may wait; further messages are refused with 429."`

	MaxQueued int           `env:"AGENT_RUNNER_MAX_QUEUED" envDefault:"32" doc:"Messages that may wait behind the active run of a session."`
	Drain     time.Duration `env:"AGENT_RUNNER_DRAIN" envDefault:"25s" doc:"How long runs may take after SIGTERM to reach a step border, where another runner takes them over."`

	Lease         time.Duration `env:"AGENT_RUNNER_LEASE" envDefault:"6s" doc:"How long a claim of a run is valid without a renewal."`
	Beat          time.Duration `env:"AGENT_RUNNER_BEAT" envDefault:"1s" doc:"How often claims are renewed; a runner that misses one renewal is checked for being dead."`
	RunTime       time.Duration `env:"AGENT_RUNNER_RUN_TIME" envDefault:"30m" doc:"How long a run may take in all."`
	StepTime      time.Duration `env:"AGENT_RUNNER_STEP_TIME" envDefault:"10m" doc:"How long one model call may take."`
	ToolTime      time.Duration `env:"AGENT_RUNNER_TOOL_TIME" envDefault:"30s" doc:"Time limit of tools that set none."`
	ToolQueueing  time.Duration `env:"AGENT_RUNNER_TOOL_QUEUEING" envDefault:"60s" doc:"How long a tool call may wait for an executor."`
	ModelTries    int           `env:"AGENT_RUNNER_MODEL_TRIES" envDefault:"3" doc:"How often a model call is made before the run fails."`
	ModelBackoff  time.Duration `env:"AGENT_RUNNER_MODEL_BACKOFF" envDefault:"500ms" doc:"Wait after the first failed model call; it doubles with each."`
	MaxRetryAfter time.Duration `env:"AGENT_RUNNER_MAX_RETRY_AFTER" envDefault:"30s" doc:"Longest wait that a provider may ask for; the run fails if it asks for more."`
	FirstByte     time.Duration `env:"AGENT_RUNNER_FIRST_BYTE" envDefault:"5m" doc:"How long a model may take to begin its answer."`
	Patience      time.Duration `env:"AGENT_RUNNER_PATIENCE" envDefault:"20s" doc:"How long a run waits for the database, the broker or the run log to come back before it is left to another runner."`
	Idle          time.Duration `env:"AGENT_RUNNER_IDLE" envDefault:"2m" doc:"How long a model may send nothing in the middle of an answer."`

	RunLogDelay time.Duration `env:"AGENT_RUNNER_RUN_LOG_DELAY" envDefault:"250ms" doc:"How long events are collected before they are copied from the bus to Postgres; a longer delay makes fewer and larger rows."`
	RunLogKeep  time.Duration `env:"AGENT_RUNNER_RUN_LOG_KEEP" envDefault:"24h" doc:"How long the copied events are kept; viewers that were away for longer get the session's messages instead."`

	Telemetry telemetry.Config
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
		"AGENT_RUNNER_RUN_LOG_DELAY": c.RunLogDelay, "AGENT_RUNNER_RUN_LOG_KEEP": c.RunLogKeep,
	} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("%s is %s: it must be positive", name, d))
		}
	}
	if c.Lease < 2*c.Beat || c.Beat <= 0 {
		errs = append(errs, fmt.Errorf("AGENT_RUNNER_LEASE is %s and AGENT_RUNNER_BEAT %s: a claim must survive one missed renewal, so make the lease at least twice the beat", c.Lease, c.Beat))
	}
	return errors.Join(errs...)
}
