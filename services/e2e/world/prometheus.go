package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/subject"
)

const prometheus = "prometheus"

// ErrNoPrometheus says that there is no program of that name.
var ErrNoPrometheus = errors.New("there is no prometheus in PATH: install Debian's package prometheus, or unpack a release of it (https://prometheus.io/download)")

// StartPrometheus runs a Prometheus that scrapes each service every second, with the service's name
// as the job, and evaluates rules as often. Its files are in dir, and Ops is the URL of its API. It
// is no part of the world: the caller stops it. The error may be ErrNoPrometheus.
func (w *World) StartPrometheus(ctx context.Context, dir string, rules []byte) (*Proc, error) {
	program, err := exec.LookPath(prometheus)
	if err != nil {
		return nil, ErrNoPrometheus
	}
	addr, err := freeport.Addr()
	if err != nil {
		return nil, err
	}
	config, authority := filepath.Join(dir, "prometheus.yaml"), ""
	if w.opts.TLS != "" {
		authority = filepath.Join(w.opts.TLS, subject.Gateway, "ca.crt")
	}
	text := fmt.Sprintf(`global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: signalbox
    file_sd_configs: [{files: [targets.json]}]
    tls_config: {ca_file: %q}
`, authority)
	err = errors.Join(os.WriteFile(config, []byte(text), 0o600), os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o600), w.WriteTargets(dir))
	if err != nil {
		return nil, err
	}
	at := "http://" + addr
	p, err := run(spec{
		name: prometheus, path: program, dir: w.Dir, addr: addr, ops: at, health: at + "/-/ready",
		args: []string{
			"--config.file=" + config, "--web.listen-address=" + addr, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			"--storage.tsdb.retention.time=1h",
		},
	})
	if err != nil {
		return nil, err
	}
	if err := p.Ready(ctx); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// WriteTargets lists what the Prometheus in dir scrapes: all replicas of all services but those of
// without, which disappear like a service in Kubernetes whose last pod is gone.
func (w *World) WriteTargets(dir string, without ...string) error {
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var all []group
	for _, p := range w.Procs() {
		if slices.Contains(without, p.Service) || !slices.Contains(append(Services(), Standalone), p.Service) {
			continue
		}
		u, err := url.Parse(p.Ops)
		if err != nil {
			return fmt.Errorf("metrics of %s: %w", p.Name(), err)
		}
		all = append(all, group{[]string{u.Host}, map[string]string{"job": p.Service, "__scheme__": u.Scheme}})
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	// Prometheus must not see half a file.
	file := filepath.Join(dir, "targets.json")
	part := fmt.Sprint(file, ".", time.Now().UnixNano())
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return err
	}
	return os.Rename(part, file)
}
