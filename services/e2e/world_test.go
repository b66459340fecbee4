package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/subject"
)

// patient bounds every wait; reaching it is a failure.
const patient = 60 * time.Second

// devSecret signs the cluster's tokens.
const devSecret = "end-to-end-development-secret-0123456789"

// bin is where the programs are, made by TestMain.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "signalbox-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		bin = dir
		if err := build(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		for _, w := range []*world{standalone, cluster} {
			w.stop()
		}
		return code
	}())
}

// built names a folder with the programs of this very checkout, which `make` has
// just built; without it they are built here.
const built = "SIGNALBOX_E2E_BIN"

// build makes the programs of this checkout, and the NATS server that pkg/natsd
// embeds as a program of its own.
func build(dir string) error {
	mains, err := filepath.Glob("../*/cmd/*")
	if err != nil {
		return err
	}
	args := []string{"build", "-o", dir + "/", "github.com/nats-io/nats-server/v2"}
	for _, m := range mains {
		if from := os.Getenv(built); from != "" {
			if err := os.Symlink(filepath.Join(from, filepath.Base(m)), filepath.Join(dir, filepath.Base(m))); err != nil {
				return err
			}
			continue
		}
		args = append(args, "./"+m)
	}
	out, err := exec.Command("go", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// world is a running Signalbox. It is started for the first story that needs it
// and stopped by TestMain.
type world struct {
	name  string
	start func(*world) error

	once     sync.Once
	err      error
	dir      string
	gateways []string // base URLs
	token    []string // environment of `signalbox token`
	database string   // of an administrator
	traces   *collector
	procs    []*proc
	closers  []func() error
}

var (
	standalone = &world{name: "standalone", start: startStandalone}
	cluster    = &world{name: "cluster", start: startCluster}
)

// up returns when the world is ready.
func (w *world) up(t *testing.T) *world {
	t.Helper()
	w.once.Do(func() {
		// Not the test's folder: the world outlives the test that needed it first.
		w.dir = filepath.Join(bin, w.name)
		if w.err = os.Mkdir(w.dir, 0o755); w.err == nil {
			w.err = w.start(w)
		}
	})
	if w.err != nil {
		t.Fatalf("start %s: %v", w.name, w.err)
	}
	return w
}

func (w *world) stop() {
	for _, p := range w.procs {
		if err := p.stop(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", p.name, err)
		}
	}
	for _, v := range slices.Backward(w.closers) {
		if err := v(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", w.name, err)
		}
	}
}

// proc is a program that runs.
type proc struct {
	name  string
	cmd   *exec.Cmd
	log   string
	ended chan error
}

// run starts a program with nothing in its environment but env and what finds
// programs; its output goes to a file.
func (w *world) run(name, program string, env []string, args ...string) (*proc, error) {
	log, err := os.Create(filepath.Join(w.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(bin, program), args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &proc{name: name, cmd: cmd, log: log.Name(), ended: make(chan error, 1)}
	go func() { p.ended <- cmd.Wait() }()
	// The last to start is the first to stop.
	w.procs = append([]*proc{p}, w.procs...)
	return p, nil
}

// stop asks the program to drain and waits for it.
func (p *proc) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return nil // it has ended, and whoever waited for it said so
	}
	select {
	case err := <-p.ended:
		if err != nil {
			return fmt.Errorf("did not end well: %w\n%s", err, p.tail())
		}
		return nil
	case <-time.After(patient):
		_ = p.cmd.Process.Kill() // nothing else helps
		return errors.New("did not end after SIGTERM")
	}
}

func (p *proc) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

// ready waits until a URL answers 200, or the program has ended.
func (p *proc) ready(url string) error {
	deadline := time.Now().Add(patient)
	for {
		res, err := http.Get(url)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(res.Status)
		}
		select {
		case ended := <-p.ended:
			p.ended <- ended
			return fmt.Errorf("%s ended: %w\n%s", p.name, orWell(ended), p.tail())
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready: %w\n%s", p.name, err, p.tail())
		}
	}
}

// orWell is how a program ended, also when that was well and yet too early.
func orWell(ended error) error {
	if ended == nil {
		return errors.New("exit status 0")
	}
	return ended
}

func startStandalone(w *world) error {
	data := filepath.Join(w.dir, "data")
	p, err := w.run("signalbox", "signalbox", []string{"LOG_LEVEL=debug"}, "up", "--http", "127.0.0.1:0", "--data", data)
	if err != nil {
		return err
	}
	var running struct {
		URL         string
		DatabaseURL string `json:"database_url"`
	}
	deadline := time.Now().Add(patient)
	for running.URL == "" {
		if b, err := os.ReadFile(filepath.Join(data, "running.json")); err == nil {
			if err := json.Unmarshal(b, &running); err != nil {
				return err
			}
		}
		select {
		case ended := <-p.ended:
			p.ended <- ended
			return fmt.Errorf("signalbox ended: %w\n%s", orWell(ended), p.tail())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("signalbox does not come up:\n%s", p.tail())
		}
	}
	w.gateways = []string{running.URL, running.URL}
	w.database = running.DatabaseURL
	w.token = []string{"SIGNALBOX_DATA=" + data}
	return p.ready(running.URL + "/ready")
}

// service describes a service of the cluster.
type service struct {
	name, database string
	peers          map[string]string // variable → service
	env            []string
}

func services(simulator string) []service {
	return []service{
		{name: subject.CredentialBroker, database: "signalbox_credentials", env: []string{"SIMULATOR_URL=" + simulator}},
		{name: subject.DocumentSync, database: "signalbox_documents"},
		{name: subject.ToolExecutor, database: "signalbox_tools", peers: map[string]string{"DOCUMENT_SYNC_URL": subject.DocumentSync}},
		{name: subject.AgentRunner, database: "signalbox_agent", peers: map[string]string{
			"TOOL_EXECUTOR_URL": subject.ToolExecutor, "CREDENTIAL_BROKER_URL": subject.CredentialBroker,
		}},
		{name: subject.Gateway, database: "signalbox_gateway", env: []string{"GATEWAY_DEV_SECRET=" + devSecret}, peers: map[string]string{
			"AGENT_RUNNER_URL": subject.AgentRunner, "TOOL_EXECUTOR_URL": subject.ToolExecutor, "DOCUMENT_SYNC_URL": subject.DocumentSync,
		}},
	}
}

const partitions = "16" // what deploy/nats is written for

// cluster is a world in the making.
type clusterMaker struct {
	*world
	server   *pgd.Server
	natsURL  string
	nats     map[string]string // user → password
	database map[string]string // role → password
	keys     map[string]identity.Key
	addrs    map[string][2]string // service → address of each replica
}

func startCluster(w *world) error {
	m := &clusterMaker{world: w, nats: map[string]string{}, database: map[string]string{}, keys: map[string]identity.Key{}, addrs: map[string][2]string{}}
	w.traces = newCollector()
	w.closers = append(w.closers, w.traces.close)
	if err := m.startPostgres(); err != nil {
		return err
	}
	if err := m.startNATS(); err != nil {
		return err
	}
	if err := m.migrate(); err != nil {
		return err
	}
	simulator, err := freeAddr()
	if err != nil {
		return err
	}
	if _, err := w.run("simulator", "simulator", []string{"SIMULATOR_ADDR=" + simulator}); err != nil {
		return err
	}
	if err := m.startServices(services("http://" + simulator)); err != nil {
		return err
	}
	w.token = []string{"DATABASE_URL=" + w.database, "GATEWAY_DEV_SECRET=" + devSecret}
	return nil
}

func (m *clusterMaker) startPostgres() error {
	server, err := pgd.Start(context.Background(), pgd.Config{Fast: true})
	if err != nil {
		return err
	}
	m.server = server
	m.closers = append(m.closers, func() error { return server.Stop(context.Background()) })
	if err := server.EnsureDatabase(context.Background(), "signalbox"); err != nil {
		return err
	}
	m.world.database = server.URL("signalbox")
	return nil
}

// startNATS runs the server as a program with deploy's accounts.
func (m *clusterMaker) startNATS() error {
	accounts, err := os.ReadFile("../../deploy/nats/accounts.conf")
	if err != nil {
		return err
	}
	dir := filepath.Join(m.dir, "nats")
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	monitor, err := freeAddr()
	if err != nil {
		return err
	}
	config := fmt.Sprintf("listen: %s\nhttp: %s\nmax_payload: %d\njetstream { store_dir: %q, max_file_store: 8G }\ninclude ./accounts.conf\n",
		addr, monitor, subject.MaxMessage, dir)
	err = errors.Join(
		os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "accounts.conf"), accounts, 0o600),
		os.WriteFile(filepath.Join(dir, "nats.conf"), []byte(config), 0o600),
	)
	if err != nil {
		return err
	}
	var env []string
	for _, user := range []string{
		subject.Admin, subject.Gateway, subject.AgentRunner, subject.ToolExecutor, subject.DocumentSync, subject.CredentialBroker,
	} {
		m.nats[user] = "p" + strings.ReplaceAll(id.New[id.Run]().String(), "-", "")
		env = append(env, subject.PasswordVariable(user)+"="+m.nats[user])
	}
	p, err := m.run("nats", "nats-server", env, "-c", filepath.Join(dir, "nats.conf"))
	if err != nil {
		return err
	}
	m.natsURL = "nats://" + addr
	return p.ready("http://" + monitor + "/healthz")
}

func (m *clusterMaker) migrate() error {
	env := []string{
		"DATABASE_URL=" + m.world.database, "NATS_URL=" + m.natsURL, "NATS_PASSWORD=" + m.nats[subject.Admin], "EVENT_PARTITIONS=" + partitions,
	}
	for _, s := range services("") {
		m.database[s.database] = "p-" + id.New[id.Run]().String()
		env = append(env, strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))+"_DB_PASSWORD="+m.database[s.database])
	}
	p, err := m.run("migrate", "signalbox", env, "migrate")
	if err != nil {
		return err
	}
	if err := <-p.ended; err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, p.tail())
	}
	p.ended <- nil
	return nil
}

func (m *clusterMaker) startServices(all []service) error {
	trusted := map[string]string{}
	for _, s := range all {
		key, err := identity.NewKey()
		if err != nil {
			return err
		}
		m.keys[s.name] = key
		trusted[s.name] = key.Public()
		var addrs [2]string
		for i := range addrs {
			if addrs[i], err = freeAddr(); err != nil {
				return err
			}
		}
		m.addrs[s.name] = addrs
	}
	for _, s := range all {
		for replica := range 2 {
			if err := m.startService(s, replica, identity.FormatTrusted(trusted)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *clusterMaker) startService(s service, replica int, trusted string) error {
	addr := m.addrs[s.name][replica]
	addrVar := strings.ToUpper(strings.ReplaceAll(s.name, "-", "_")) + "_ADDR"
	if s.name == subject.Gateway {
		addrVar = "GATEWAY_HTTP_ADDR"
	}
	database := strings.Replace(m.world.database, "//postgres@", "//"+s.database+":"+m.database[s.database]+"@", 1)
	env := append([]string{
		addrVar + "=" + addr, "DATABASE_URL=" + database, "NATS_URL=" + m.natsURL, "NATS_PASSWORD=" + m.nats[s.name],
		"SERVICE_KEY=" + m.keys[s.name].Encode(), "TRUSTED_KEYS=" + trusted, "EVENT_PARTITIONS=" + partitions, "LOG_LEVEL=debug",
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + m.traces.url, "OTEL_BSP_SCHEDULE_DELAY=200",
		"CREDENTIAL_BROKER_KEY_FILE=" + filepath.Join(m.dir, "broker.key"), "GATEWAY_OPS_ADDR=127.0.0.1:0",
	}, s.env...)
	for variable, peer := range s.peers {
		// The first replica calls second replicas, and the other way round.
		env = append(env, variable+"=http://"+m.addrs[peer][1-replica])
	}
	name := fmt.Sprintf("%s-%d", s.name, replica+1)
	p, err := m.run(name, s.name, env)
	if err != nil {
		return err
	}
	if s.name == subject.Gateway {
		m.gateways = append(m.gateways, "http://"+addr)
	}
	return p.ready("http://" + addr + "/ready")
}

// freeAddr returns an address that nobody listens on at the moment.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// member is somebody with a token.
type member struct {
	Token     string `json:"token"`
	Workspace string `json:"workspace_id"`
	Member    string `json:"member_id"`
}

// newMember makes a member with `signalbox token`, in a workspace of their own if
// none is given.
func (w *world) newMember(workspace, role string) (member, error) {
	var m member
	if workspace == "" {
		workspace = id.New[id.Workspace]().String()
	}
	args := []string{"token", "--json", "--workspace", workspace, "--member", id.New[id.Member]().String(), "--role", role}
	env := w.token
	if data, ok := strings.CutPrefix(w.token[0], "SIGNALBOX_DATA="); ok {
		args, env = append(args, "--data", data), nil
	}
	cmd := exec.Command(filepath.Join(bin, "signalbox"), args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return m, fmt.Errorf("signalbox token: %w\n%s", err, &stderr)
	}
	return m, json.Unmarshal(out, &m)
}
