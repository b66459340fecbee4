package standalone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/price"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	agentrunner "signalbox.dev/services/agent-runner"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
	documentsync "signalbox.dev/services/document-sync"
	"signalbox.dev/services/gateway"
	"signalbox.dev/services/simulator"
	"signalbox.dev/services/standalone/internal/datadir"
	toolexecutor "signalbox.dev/services/tool-executor"
)

// State is the outcome of a check.
type State string

// The states of a check. With a Problem, a start fails now or soon.
const (
	OK      State = "ok"
	Warning State = "warning"
	Problem State = "problem"
)

// Check is the state of one thing that a start needs.
type Check struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Found string `json:"found"`
	// Do says what to do about it; empty for nothing.
	Do string `json:"do,omitempty"`
}

// Free space below which there is a warning, or a problem.
const (
	spaceLow  = 1 << 30
	spaceNone = 100 << 20
)

// Doctor checks what Up would need with these options. It changes nothing, except for a
// temporary file in the data folder.
func Doctor(ctx context.Context, opts Options) []Check {
	path, err := filepath.Abs(opts.Data)
	if err != nil {
		return []Check{{"data folder", Problem, err.Error(), "choose another one with --data"}}
	}
	running, alive, damage := datadir.Look(path) // Open would make it
	checks := []Check{
		checkSettings(opts.Environ), checkFolder(path, damage), checkSpace(path), checkDatabase(ctx, opts, path),
		checkNATS(ctx, opts.NATSURL.Reveal()), checkPort(ctx, opts.HTTP, running, alive), checkKeys(opts.Environ), checkClock(path, time.Now()),
	}
	if alive {
		checks = append(checks, Check{"running", OK, fmt.Sprintf("a Signalbox runs in the data folder, at %s (pid %d)", running.URL, running.PID), ""})
	}
	return checks
}

// checkSettings reads every service's settings as Up does.
func checkSettings(environ []string) Check {
	start := &stack{opts: Options{Environ: environ}}
	var wrong []string
	var runner agentrunner.Config
	for _, cfg := range []any{
		new(telemetry.Config), new(simulator.Config), new(credentialbroker.Config), new(documentsync.Config), new(toolexecutor.Config), &runner, new(gateway.Config),
	} {
		if err := start.load(cfg, placeholders()); err != nil {
			wrong = append(wrong, strings.Split(err.Error(), "\n")...) // several services may report the same variable
		}
	}
	if _, err := price.Load(runner.ModelPrices); err != nil {
		wrong = append(wrong, "MODEL_PRICES: "+err.Error())
	}
	slices.Sort(wrong)
	if wrong = slices.Compact(wrong); len(wrong) > 0 {
		return Check{"settings", Problem, strings.Join(wrong, "; "), "change or unset the variables; `gateway --help` and the other services' list them"}
	}
	return Check{"settings", OK, "every variable of the services is valid", ""}
}

// nearest returns the folder, or the nearest existing one above it.
func nearest(path string) (string, fs.FileInfo, error) {
	for {
		info, err := os.Stat(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return path, info, err
		}
		path = filepath.Dir(path)
	}
}

func checkFolder(path string, damage error) Check {
	const name, elsewhere = "data folder", "choose another folder with --data"
	at, info, err := nearest(path)
	switch {
	case err != nil:
		return Check{name, Problem, err.Error(), elsewhere}
	case !info.IsDir():
		return Check{name, Problem, at + " is not a folder", elsewhere}
	}
	if st, ok := info.Sys().(*syscall.Stat_t); at == path && ok && int(st.Uid) != os.Geteuid() {
		return Check{name, Problem, fmt.Sprintf("%s belongs to uid %d, and this is uid %d", path, st.Uid, os.Geteuid()), "start as its owner, or " + elsewhere}
	}
	f, err := os.CreateTemp(at, ".signalbox-doctor-*")
	if err != nil {
		return Check{name, Problem, fmt.Sprintf("cannot write to %s: %v", at, err), "let " + fmt.Sprintf("uid %d", os.Geteuid()) + " write there, or " + elsewhere}
	}
	_ = f.Close()
	_ = os.Remove(f.Name())
	if damage != nil {
		return Check{name, Problem, damage.Error(), elsewhere}
	}
	if at != path {
		return Check{name, OK, path + " does not exist yet and can be created", ""}
	}
	return Check{name, OK, path + " is writable", ""}
}

func checkSpace(path string) Check {
	const name = "disk space"
	at, _, err := nearest(path)
	var fs syscall.Statfs_t
	if err == nil {
		err = syscall.Statfs(at, &fs)
	}
	if err != nil {
		return Check{name, Warning, err.Error(), "check that there is 1 GB for the data folder"}
	}
	free := uint64(fs.Bavail) * uint64(fs.Bsize) //nolint:gosec,unconvert // the types differ between systems; neither is negative
	found := fmt.Sprintf("%.1f GB are free in %s", float64(free)/1e9, at)
	do := "make room, or choose another folder with --data"
	switch {
	case free < spaceNone:
		return Check{name, Problem, found, do}
	case free < spaceLow:
		return Check{name, Warning, found, do}
	}
	return Check{name, OK, found, ""}
}

func checkDatabase(ctx context.Context, opts Options, path string) Check {
	const name = "PostgreSQL"
	if opts.DatabaseURL == "" {
		found, err := pgd.Check(ctx, pgd.Config{Dir: filepath.Join(path, "postgres")})
		if err != nil {
			return Check{name, Problem, err.Error(), "run `make setup`, which installs it, or set DATABASE_URL"}
		}
		return Check{name, OK, found, ""}
	}
	server, err := pg.CheckAdmin(ctx, opts.DatabaseURL.Reveal())
	found, skew := server.Found, server.Skew
	need, sum := connectionsOf(opts)
	switch {
	case err != nil:
		return Check{name, Problem, "DATABASE_URL: " + err.Error(), "set it to a PostgreSQL 15 or newer that answers, with a user that has CREATEROLE and CREATE on the database, or unset it to use a private one"}
	case skew.Abs() > maxSkew:
		return Check{name, Warning, fmt.Sprintf("DATABASE_URL: %s; its clock differs from this machine's by %s", found, skew.Round(time.Second)), "set both clocks (NTP)"}
	case sum != nil:
		return Check{name, Problem, sum.Error(), "name services that exist and the settings that they accept"}
	case need > server.Connections:
		return Check{
			name, Warning, fmt.Sprintf("DATABASE_URL: %s admits %d connections, and the services open up to %d", found, server.Connections, need),
			fmt.Sprintf("raise max_connections by %d, or lower DATABASE_CONNS and GATEWAY_DATABASE_CONNECTIONS", need-server.Connections),
		}
	}
	return Check{name, OK, fmt.Sprintf("DATABASE_URL: %s; it admits %d connections, and the services open up to %d", found, server.Connections, need), ""}
}

// connectionsOf returns how many connections the services open at most: those of Up, or
// Options.Replicas of separate programs.
func connectionsOf(opts Options) (sum int, err error) {
	const presences = 2 // agent-runner and tool-executor have one more each
	if len(opts.Replicas) == 0 {
		return len(Services())*connections + presences, nil
	}
	start := &stack{opts: opts}
	for service, replicas := range opts.Replicas {
		var each int
		var err error
		switch service {
		case subject.Gateway:
			var cfg gateway.Config
			err = start.load(&cfg, placeholders())
			each = int(cfg.DatabaseMax)
		case subject.AgentRunner:
			var cfg agentrunner.Config
			err = start.load(&cfg, placeholders())
			each = int(cfg.DatabaseConns) + 1
		case subject.ToolExecutor:
			var cfg toolexecutor.Config
			err = start.load(&cfg, placeholders())
			each = int(cfg.DatabaseConns) + 1
		case subject.DocumentSync:
			var cfg documentsync.Config
			err = start.load(&cfg, placeholders())
			each = int(cfg.DatabaseConns)
		case subject.CredentialBroker:
			var cfg credentialbroker.Config
			err = start.load(&cfg, placeholders())
			each = int(cfg.DatabaseConns)
		default:
			return 0, fmt.Errorf("there is no service %q with a database: the services are %s", service, strings.Join(Services(), ", "))
		}
		switch {
		case err != nil:
			return 0, err
		case replicas < 0 || replicas > maxReplicas:
			return 0, fmt.Errorf("%d replicas of %s: want 0 to %d", replicas, service, maxReplicas)
		}
		sum += replicas * each
	}
	return sum, nil
}

// maxReplicas bounds the number of replicas in a sum.
const maxReplicas = 10_000

// placeholders stand in for settings that services require and a check does not need.
func placeholders() map[string]string {
	const anywhere = "http://127.0.0.1"
	return map[string]string{
		"SIMULATOR_URL": anywhere, "TOOL_EXECUTOR_URL": anywhere, "DOCUMENT_SYNC_URL": anywhere, "CREDENTIAL_BROKER_URL": anywhere,
		"AGENT_RUNNER_URL": anywhere, "CREDENTIAL_BROKER_KEY_FILE": "decided", "CREDENTIAL_BROKER_ACCOUNTS_FILE": "",
		"GATEWAY_DEV_SECRET": strings.Repeat("x", 52),
	}
}

// maxSkew is the clock difference beyond which tokens are refused.
const maxSkew = 30 * time.Second

func checkNATS(ctx context.Context, servers string) Check {
	const name = "NATS"
	if servers == "" {
		return Check{name, OK, "uses the embedded server", ""}
	}
	do := "set NATS_URL to NATS servers with JetStream that answer, or unset it to use the embedded server"
	nc, err := nats.Connect(servers, nats.Timeout(5*time.Second), nats.NoReconnect())
	if err != nil {
		if _, ok := errors.AsType[*url.Error](err); ok { // it quotes the address, with its password
			err = errors.New("an address is not valid: use one such as nats://127.0.0.1:4222")
		}
		return Check{name, Problem, fmt.Sprintf("NATS_URL: %s: %v", bus.Addresses(servers), err), do}
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.AccountInfo(ctx)
	}
	if err != nil {
		return Check{name, Problem, fmt.Sprintf("NATS_URL: %s: %v", nc.ConnectedUrlRedacted(), err), do}
	}
	return Check{name, OK, "NATS_URL: " + nc.ConnectedUrlRedacted() + " answers, with JetStream", ""}
}

func checkPort(ctx context.Context, address string, running datadir.Running, alive bool) Check {
	const name = "port"
	if u, err := url.Parse(running.URL); alive && err == nil && u.Host == address {
		return Check{name, OK, address + " is taken by the Signalbox that runs in the data folder", ""}
	}
	l, err := httpserver.Listen(ctx, address)
	if err != nil {
		if _, _, e := net.SplitHostPort(address); e != nil {
			err = e
		}
		return Check{name, Problem, err.Error(), "choose another address with --http"}
	}
	_ = l.Close()
	return Check{name, OK, address + " is free", ""}
}

// keysIn returns the provider keys that an environment has.
func keysIn(environ []string) []string {
	var there []string
	for _, kv := range environ {
		if name, value, _ := strings.Cut(kv, "="); value != "" && slices.Contains(admin.KeyVariables(), name) {
			there = append(there, name)
		}
	}
	return there
}

func checkKeys(environ []string) Check {
	const name = "provider keys"
	there := keysIn(environ)
	if len(there) == 0 {
		return Check{name, Warning, "none in the environment: without a stored account only the simulator answers", "store one with `signalbox accounts add anthropic`, or check with `signalbox accounts list` whether there is one"}
	}
	return Check{name, OK, strings.Join(there, ", "), ""}
}

// checkClock reports a clock that was set back: files of the data folder are newer.
func checkClock(path string, now time.Time) Check {
	const name = "clock"
	newest := time.Time{}
	for _, file := range []string{"identity.json", "running.json", "postgres", "postgres/global/pg_control"} {
		if info, err := os.Stat(filepath.Join(path, file)); err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}
	found := now.UTC().Format(time.RFC3339)
	if ahead := newest.Sub(now); ahead > maxSkew {
		return Check{name, Problem, fmt.Sprintf("%s, but the data folder was written at %s", found, newest.UTC().Format(time.RFC3339)), "set the clock (NTP): tokens and leases depend on it"}
	}
	return Check{name, OK, found, ""}
}
