package check_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

const root = "../.."

// services are the five, by the name that they have on the bus and in keys.
var services = []string{"gateway", "agent-runner", "tool-executor", "document-sync", "credential-broker"}

// settings are the variables of .env.example with something in the empty places.
func settings(t *testing.T) map[string]string {
	t.Helper()
	env, err := dotenv.Read(filepath.Join(root, "deploy/.env.example"))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range env {
		if v == "" {
			env[k] = "p" + strings.ToLower(strings.ReplaceAll(k, "_", ""))
		}
	}
	return env
}

// load reads docker-compose.yml as `docker compose --profile …` would.
func load(env map[string]string, profiles ...string) (*types.Project, error) {
	return loadFiles(env, []string{"docker-compose.yml"}, profiles...)
}

// loadFiles is load for COMPOSE_FILE.
func loadFiles(env map[string]string, files []string, profiles ...string) (*types.Project, error) {
	dir, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	var configs []types.ConfigFile
	for _, f := range files {
		configs = append(configs, types.ConfigFile{Filename: filepath.Join(dir, f)})
	}
	return loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: configs,
		Environment: env,
	}, func(o *loader.Options) { o.Profiles = profiles })
}

// project is everything that can be started.
func project(t *testing.T) *types.Project {
	t.Helper()
	p, err := load(settings(t), "*")
	if err != nil {
		t.Fatalf("docker-compose.yml: %v", err)
	}
	return p
}

func TestServices(t *testing.T) {
	t.Parallel()
	p, err := load(settings(t))
	if err != nil {
		t.Fatal(err)
	}
	want := append([]string{"postgres", "nats", "migrate", "simulator"}, services...)
	slices.Sort(want)
	if got := p.ServiceNames(); !slices.Equal(got, want) {
		t.Errorf("services = %q, want %q", got, want)
	}
	for name, s := range project(t).Services {
		if s.Build != nil {
			if s.Build.Dockerfile != "deploy/Dockerfile" {
				t.Errorf("%s is built from %s", name, s.Build.Dockerfile)
			}
			program := s.Build.Args["SERVICE"]
			if program == nil || !strings.HasPrefix(s.Image, "signalbox/"+*program+":") {
				t.Errorf("%s: image %s is not that of its SERVICE", name, s.Image)
				continue
			}
			if found, _ := filepath.Glob(filepath.Join(root, "services/*/cmd", *program, "main.go")); len(found) != 1 {
				t.Errorf("%s: there is no one services/*/cmd/%s", name, *program)
			}
			// The end-to-end tests run the health checks of all other programs.
			if disabled := s.HealthCheck != nil && s.HealthCheck.Disable; disabled != (*program == "signalbox") {
				t.Errorf("%s: health check disabled: %t; signalbox, the command line, is the one program without", name, disabled)
			}
		}
		if s.HealthCheck != nil && !s.HealthCheck.Disable && len(s.HealthCheck.Test) < 2 {
			t.Errorf("%s: its health check asks nothing", name)
		}
		if s.Build == nil && s.HealthCheck == nil {
			t.Errorf("%s has no health check, and its image is not ours", name)
		}
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	p := project(t)
	for _, needs := range []string{"postgres", "nats"} {
		if got := p.Services["migrate"].DependsOn[needs].Condition; got != types.ServiceConditionHealthy {
			t.Errorf("migrate starts when %s is %q", needs, got)
		}
	}
	for _, name := range services {
		if got := p.Services[name].DependsOn["migrate"].Condition; got != types.ServiceConditionCompletedSuccessfully {
			t.Errorf("%s starts when migrate is %q", name, got)
		}
	}
	for _, needs := range services[1:] {
		if got := p.Services["gateway"].DependsOn[needs].Condition; got != types.ServiceConditionHealthy {
			t.Errorf("gateway starts when %s is %q", needs, got)
		}
	}
}

func TestHardening(t *testing.T) {
	t.Parallel()
	for name, s := range project(t).Services {
		if !s.ReadOnly {
			t.Errorf("%s can write to its image's files", name)
		}
		if !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.CapAdd) > 0 {
			t.Errorf("%s has capabilities: cap_drop %q, cap_add %q", name, s.CapDrop, s.CapAdd)
		}
		if !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s may gain privileges", name)
		}
		if s.Privileged || s.NetworkMode != "" || s.Pid != "" {
			t.Errorf("%s shares more than it must with the machine", name)
		}
		if published := len(s.Ports) > 0; published != (name == "gateway") {
			t.Errorf("%s publishes %d ports", name, len(s.Ports))
		}
		for _, v := range s.Volumes {
			if strings.Contains(v.Source, "docker.sock") {
				t.Errorf("%s is given the Docker engine", name)
			}
		}
		if s.Build != nil && s.User != "" && s.User != "nonroot:nonroot" {
			t.Errorf("%s runs as %s, not as its image says", name, s.User)
		}
	}
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	p := project(t)
	if !p.Networks["inside"].Internal {
		t.Error("the network inside leads outside")
	}
	if browsing := p.Networks["browsing"]; !browsing.Internal {
		t.Error("the network browsing leads outside")
	}
	out := map[string]bool{"gateway": true, "tool-executor": true, "credential-broker": true, "accounts": true}
	for name, s := range p.Services {
		_, inside := s.Networks["inside"]
		_, browsing := s.Networks["browsing"]
		if browsing != (name == "browser" || name == "tool-executor") {
			t.Errorf("%s is on %q", name, s.NetworksByPriority())
		}
		if name == "browser" { // a page that breaks out of Chromium finds no other service
			if _, outside := s.Networks["outside"]; inside || !outside {
				t.Errorf("browser is on %q", s.NetworksByPriority())
			}
			continue
		}
		if _, outside := s.Networks["outside"]; !inside || outside != out[name] {
			t.Errorf("%s is on %q", name, s.NetworksByPriority())
		}
	}
	if got := p.Services["gateway"].Ports[0]; got.HostIP != "127.0.0.1" || got.Target != 8080 {
		t.Errorf("by default the gateway is published at %s:%s for %d, want this machine only", got.HostIP, got.Published, got.Target)
	}
}

// TestData sees that what must survive is on named volumes, where the images keep it.
func TestData(t *testing.T) {
	t.Parallel()
	p := project(t)
	for volume, where := range map[string]struct{ service, target string }{
		"postgres": {"postgres", "/var/lib/postgresql"}, "nats": {"nats", "/data"}, "credentials": {"credential-broker", "/data"},
	} {
		if _, ok := p.Volumes[volume]; !ok {
			t.Errorf("there is no volume %s", volume)
		}
		if !slices.ContainsFunc(p.Services[where.service].Volumes, func(v types.ServiceVolumeConfig) bool {
			return v.Type == types.VolumeTypeVolume && v.Source == volume && v.Target == where.target
		}) {
			t.Errorf("%s does not keep %s on the volume %s", where.service, where.target, volume)
		}
	}
	key := p.Services["credential-broker"].Environment["CREDENTIAL_BROKER_KEY_FILE"]
	if key == nil || !strings.HasPrefix(*key, "/data/") {
		t.Error("the key that seals credentials is not on the volume, and lost with the container")
	}
	if theirs := p.Services["accounts"].Environment["CREDENTIAL_BROKER_KEY_FILE"]; theirs == nil || key == nil || *theirs != *key {
		t.Error("the command line seals credentials with another key than the broker")
	}
	conf := read(t, "deploy/nats/nats.conf")
	if !strings.Contains(conf, `store_dir: "/data"`) {
		t.Error("nats.conf keeps JetStream elsewhere than on the volume /data")
	}
	if image := p.Services["postgres"].Image; image != "postgres:18" {
		t.Errorf("postgres is %s: its data folder moves with the major version", image)
	}
}

// TestRequired drops one variable after the other: each must be asked for by name.
func TestRequired(t *testing.T) {
	t.Parallel()
	compose := read(t, "docker-compose.yml")
	for name := range settings(t) {
		if !strings.Contains(compose, "${"+name+":?") {
			continue
		}
		env := settings(t)
		delete(env, name)
		if _, err := load(env); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v, want an error that names it", name, err)
		}
	}
}

var variable = regexp.MustCompile(`\$\{([A-Z_]+)`)

// TestExample sees that .env.example tells of all variables of docker-compose.yml and the files
// beside it, and of no other.
func TestExample(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, file := range composeFiles {
		for _, m := range variable.FindAllStringSubmatch(read(t, file), -1) {
			used[m[1]] = true
		}
	}
	used["COMPOSE_PROFILES"], used["COMPOSE_FILE"] = true, true // by Compose itself
	told := map[string]bool{}
	for line := range strings.Lines(read(t, "deploy/.env.example")) {
		name, _, ok := strings.Cut(strings.TrimPrefix(line, "# "), "=")
		if ok && regexp.MustCompile(`^[A-Z_]+$`).MatchString(name) {
			told[name] = true
		}
	}
	for name := range used {
		if !told[name] {
			t.Errorf("deploy/.env.example does not tell of %s", name)
		}
	}
	for name := range told {
		if !used[name] {
			t.Errorf("no file of Compose uses %s of deploy/.env.example", name)
		}
	}
}

// makeEnv runs the script that a newcomer runs.
func makeEnv(t *testing.T, file string) map[string]string {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("there is no openssl, which deploy/make-env.sh needs")
	}
	out, err := exec.CommandContext(t.Context(), "sh", filepath.Join(root, "deploy/make-env.sh"), file).CombinedOutput()
	if err != nil {
		t.Fatalf("make-env.sh: %v: %s", err, out)
	}
	env, err := dotenv.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestMakeEnv(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), ".env")
	env := makeEnv(t, file)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s has the mode %v, want 0600", file, info.Mode())
	}
	if _, err := load(env); err != nil {
		t.Errorf("docker-compose.yml with the written file: %v", err)
	}
	seen := map[string]string{}
	for name, value := range env {
		if other, ok := seen[value]; ok {
			t.Errorf("%s and %s have the same value", name, other)
		}
		seen[value] = name
		switch {
		case strings.HasSuffix(name, "_PASSWORD"):
			if !regexp.MustCompile(`^[a-z][a-z0-9]{32,}$`).MatchString(value) {
				t.Errorf("%s has characters that NATS or a URL reads otherwise, or too few", name)
			}
		case strings.HasSuffix(name, "_TRUSTED_KEYS"):
			for pair := range strings.SplitSeq(value, ",") {
				caller, key, _ := strings.Cut(pair, "=")
				if want := public(t, env[prefix(caller)+"SERVICE_KEY"]); key != want {
					t.Errorf("%s: the key of %s is %q, want %q, which belongs to its private key", name, caller, key, want)
				}
			}
		}
	}
	before := read(t, file)
	again := exec.CommandContext(t.Context(), "sh", filepath.Join(root, "deploy/make-env.sh"), file)
	if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), "is not changed") {
		t.Errorf("make-env.sh over a file that exists: %v: %s", err, out)
	}
	if read(t, file) != before {
		t.Error("make-env.sh changed a file that existed")
	}
}

// TestSecretsGoWhereTheyAreUsed sees who is given what.
func TestSecretsGoWhereTheyAreUsed(t *testing.T) {
	t.Parallel()
	env := settings(t)
	keys := []string{"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY"}
	// What the command line needs too.
	sealing := []string{"CREDENTIAL_BROKER_KEY_URL", "CREDENTIAL_BROKER_OTHER_KEYS", "VAULT_SERVER_URL", "VAULT_SERVER_TOKEN", "CREDENTIAL_BROKER_OAUTH_CLIENTS"}
	for _, name := range slices.Concat(keys, sealing) {
		env[name] = "canary-" + name
	}
	p, err := load(env, "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sealing {
		for _, service := range []string{"credential-broker", "accounts"} {
			if got := p.Services[service].Environment[name]; got == nil || *got != env[name] {
				t.Errorf("%s is not given %s", service, name)
			}
		}
	}
	for name, s := range p.Services {
		for key, value := range s.Environment {
			if value == nil {
				t.Errorf("%s takes %s from the shell of whoever runs Compose", name, key)
				continue
			}
			if strings.Contains(*value, "canary-") && name != "credential-broker" && (name != "accounts" || !slices.Contains(sealing, key)) {
				t.Errorf("%s is given a secret of the broker's in %s", name, key)
			}
			for secret, text := range env {
				if !strings.HasSuffix(secret, "_PASSWORD") && !strings.HasSuffix(secret, "_SERVICE_KEY") && !strings.HasSuffix(secret, "_SECRET") {
					continue
				}
				// The token command is the administrator and the development issuer.
				allowed := name == "accounts" && secret == "CREDENTIAL_BROKER_DB_PASSWORD" || name == "token" && (secret == "POSTGRES_PASSWORD" || secret == "GATEWAY_DEV_SECRET") || name == "postgres" && secret == "POSTGRES_PASSWORD" ||
					strings.HasPrefix(secret, prefix(name)) || name == "migrate" && !strings.HasSuffix(secret, "_SERVICE_KEY") ||
					name == "nats" && strings.HasSuffix(secret, "_NATS_PASSWORD")
				if strings.Contains(*value, text) && !allowed {
					t.Errorf("%s is given %s in %s", name, secret, key)
				}
			}
		}
	}
}

// TestModels sees that files about models are where the services look for them, and
// that a service looks for none where none is named.
func TestModels(t *testing.T) {
	t.Parallel()
	files := map[string]struct {
		inside   string
		services []string
	}{
		"MODEL_PRICES":    {"/etc/signalbox/prices.json", []string{"agent-runner", "credential-broker"}},
		"MODEL_CATALOGUE": {"/etc/signalbox/models.json", []string{"agent-runner"}},
	}
	for _, named := range []bool{false, true} {
		env := settings(t)
		for name := range files {
			if named {
				env[name] = "/home/me/" + name
			}
		}
		p, err := load(env)
		if err != nil {
			t.Fatal(err)
		}
		for name, file := range files {
			variable, source := "", "/dev/null"
			if named {
				variable, source = file.inside, env[name]
			}
			for _, service := range file.services {
				s := p.Services[service]
				if got := s.Environment[name]; got == nil || *got != variable {
					t.Errorf("%s is given another %s than %q", service, name, variable)
				}
				if !slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool {
					return v.Type == types.VolumeTypeBind && v.Source == source && v.Target == file.inside && v.ReadOnly
				}) {
					t.Errorf("%s does not have %s at %s, read only", service, source, file.inside)
				}
			}
		}
	}
}

// TestBusUsers compares who NATS knows with who connects.
func TestBusUsers(t *testing.T) {
	t.Parallel()
	p := project(t)
	env := settings(t)
	accounts := read(t, "deploy/nats/accounts.conf")
	passwords := map[string]string{} // user to variable
	for _, m := range regexp.MustCompile(`user: "([^"]+)"\s+password: \$([A-Z_]+)`).FindAllStringSubmatch(accounts, -1) {
		passwords[m[1]] = m[2]
	}
	if len(passwords) != len(services)+1 {
		t.Errorf("accounts.conf has %d users, want the services and the administrator", len(passwords))
	}
	for user, name := range passwords {
		if got := p.Services["nats"].Environment[name]; got == nil || *got != env[name] {
			t.Errorf("nats is not given %s, the password of %s", name, user)
		}
		service := user
		if user == "admin" {
			service = "migrate"
		}
		mine := p.Services[service].Environment
		if got := mine["NATS_PASSWORD"]; mine["NATS_URL"] != nil && (got == nil || *got != env[name]) {
			t.Errorf("%s does not connect with %s", service, name)
		}
	}
	for _, v := range p.Services["nats"].Volumes {
		if v.Type == types.VolumeTypeBind && !v.ReadOnly {
			t.Errorf("nats can write %s", v.Source)
		}
	}
	if !slices.ContainsFunc(p.Services["nats"].Volumes, func(v types.ServiceVolumeConfig) bool {
		return v.Target == "/etc/nats" && filepath.Base(v.Source) == "nats" && filepath.Base(filepath.Dir(v.Source)) == "deploy"
	}) {
		t.Error("nats does not read deploy/nats")
	}
}

// prefix is what the variables of a service begin with.
func prefix(service string) string {
	return strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_"
}

// public returns the public key of an encoded private key.
func public(t *testing.T, private string) string {
	t.Helper()
	seed, err := base64.RawURLEncoding.Strict().DecodeString(private)
	if err != nil || len(seed) != ed25519.SeedSize {
		t.Fatalf("%q is no Ed25519 seed in base64url: %v", private, err)
	}
	key, ok := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	if !ok {
		t.Fatal("no Ed25519 key")
	}
	return base64.RawURLEncoding.EncodeToString(key)
}

// callers returns who may call each service by the lines of an environment.
func callers(env map[string]string) map[string][]string {
	all := map[string][]string{}
	for name, value := range env {
		called, ok := strings.CutSuffix(name, "_TRUSTED_KEYS")
		if !ok {
			continue
		}
		for pair := range strings.SplitSeq(value, ",") {
			caller, _, _ := strings.Cut(pair, "=")
			all[called] = append(all[called], caller)
		}
		slices.Sort(all[called])
	}
	return all
}

// TestKeys sees that make-env.sh and `signalbox keygen` agree on who calls whom, and
// that each service gets what it needs for that.
func TestKeys(t *testing.T) {
	t.Parallel()
	written, err := dotenv.UnmarshalBytesWithLookup(program(t, "signalbox", "keygen"), nil)
	if err != nil {
		t.Fatal(err)
	}
	env := makeEnv(t, filepath.Join(t.TempDir(), ".env"))
	if got, want := callers(env), callers(written); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("make-env.sh lets %v call, signalbox keygen %v", got, want)
	}
	p, err := load(env)
	if err != nil {
		t.Fatal(err)
	}
	called := 0
	for _, name := range services {
		mine := p.Services[name].Environment
		trusted := callers(env)[strings.TrimSuffix(prefix(name), "_")]
		if got := mine["TRUSTED_KEYS"]; len(trusted) > 0 && (got == nil || *got != env[prefix(name)+"TRUSTED_KEYS"]) {
			t.Errorf("%s does not know who calls it", name)
		}
		for _, caller := range trusted {
			called++
			if key := p.Services[caller].Environment["SERVICE_KEY"]; key == nil || *key != env[prefix(caller)+"SERVICE_KEY"] {
				t.Errorf("%s calls %s and does not have its key", caller, name)
			}
		}
	}
	if called == 0 {
		t.Error("nobody calls anybody")
	}
}

// TestVariablesExist sees that every variable of a container is one that its program
// knows, and that none is missing that it requires.
func TestVariablesExist(t *testing.T) {
	t.Parallel()
	for name, s := range project(t).Services {
		if s.Build == nil {
			continue
		}
		var command []string
		for _, arg := range slices.Concat(s.Entrypoint, s.Command) {
			if arg != "/service" && !strings.HasPrefix(arg, "-") {
				command = append(command, arg)
			}
		}
		known, required := help(t, *s.Build.Args["SERVICE"], command...)
		for i := 1; i < len(command); i++ { // what a command says is true of those below it
			above, _ := help(t, *s.Build.Args["SERVICE"], command[:i]...)
			maps.Copy(known, above)
		}
		for key := range s.Environment {
			if !known[key] {
				t.Errorf("%s is given %s, which its --help does not list", name, key)
			}
		}
		for key, needed := range required {
			if v := s.Environment[key]; needed && (v == nil || *v == "") {
				t.Errorf("%s is not given %s, which it requires", name, key)
			}
		}
	}
}

// program runs one of bin/ and returns what it prints.
func program(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	bin := filepath.Join(root, "bin", name)
	if _, err := os.Stat(bin); errors.Is(err, os.ErrNotExist) {
		t.Fatalf("there is no bin/%s: run make build first", name)
	}
	out, err := exec.CommandContext(t.Context(), bin, args...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v", name, args, err)
	}
	return out
}

var (
	row  = regexp.MustCompile(`(?m)^\s+([A-Z][A-Z0-9_]*)\s{2,}\S.*$`)
	word = regexp.MustCompile(`\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b`)
)

// help asks a program for its variables: the rows of its table or, without one,
// those that its text names.
func help(t *testing.T, name string, command ...string) (known, required map[string]bool) {
	t.Helper()
	text := string(program(t, name, append(command, "--help")...))
	known, required = map[string]bool{}, map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		known[m[1]] = true
		required[m[1]] = strings.HasSuffix(m[0], "(required)")
	}
	all := len(known) == 0
	for _, w := range word.FindAllString(text, -1) {
		// The libraries for key services read their own.
		known[w] = known[w] || all || strings.HasPrefix(w, "VAULT_")
	}
	return known, required
}

func read(t *testing.T, name string) string {
	t.Helper()
	if !filepath.IsAbs(name) {
		name = filepath.Join(root, name)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
