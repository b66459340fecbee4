package check_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"
)

// composeFiles are docker-compose.yml and what may be added to it.
var composeFiles = []string{"docker-compose.yml", "deploy/compose/replicas.yml", "deploy/compose/monitoring.yml"}

func composed(t *testing.T, files ...string) *types.Project {
	t.Helper()
	p, err := loadFiles(settings(t), files)
	if err != nil {
		t.Fatalf("%q: %v", files, err)
	}
	return p
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	p := composed(t, composeFiles[0], composeFiles[1])
	for _, name := range services {
		if s := p.Services[name]; s.Deploy == nil || s.Deploy.Replicas == nil || *s.Deploy.Replicas != 2 {
			t.Errorf("%s does not have two replicas", name)
		}
	}
	if n := len(p.Services["gateway"].Ports); n != 0 {
		t.Errorf("the gateways publish %d ports, which only one of them could have", n)
	}
	if ports := p.Services["balancer"].Ports; len(ports) != 1 || ports[0].HostIP != "127.0.0.1" || ports[0].Published != "8080" {
		t.Errorf("the balancer is published at %v, want 127.0.0.1:8080", ports)
	}
	// docs/operate.md, "Connections".
	if command := p.Services["postgres"].Command; !slices.Contains(command, "max_connections=300") {
		t.Errorf("eight gateways and two of each other service may open 274 connections; postgres is started with %q", command)
	}
	if conf := read(t, "deploy/compose/haproxy.cfg"); !strings.Contains(conf, "gateway:8080") || !strings.Contains(conf, "GET /ready") {
		t.Error("the balancer does not ask the gateways whether they are ready")
	}
}

// TestAddedServicesAreHardened sees that what is added is no weaker than the services.
func TestAddedServicesAreHardened(t *testing.T) {
	t.Parallel()
	added := composed(t, composeFiles...)
	for name := range composed(t, composeFiles[0]).Services {
		delete(added.Services, name)
	}
	if len(added.Services) == 0 {
		t.Fatal("nothing is added")
	}
	for name, s := range added.Services {
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s can write to its image, has capabilities or may gain privileges", name)
		}
		if s.HealthCheck == nil || len(s.HealthCheck.Test) < 2 {
			t.Errorf("%s has no health check", name)
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s is published at %q by default, want this machine only", name, port.HostIP)
			}
		}
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); v.Type == types.VolumeTypeBind && (err != nil || !v.ReadOnly) {
				t.Errorf("%s mounts %s, which is not there, or may be written", name, v.Source)
			}
		}
	}
}

// TestPrometheusScrapes compares Prometheus' targets with the addresses of the services.
func TestPrometheusScrapes(t *testing.T) {
	t.Parallel()
	var conf struct {
		RuleFiles []string `yaml:"rule_files"`
		Jobs      []struct {
			Name string `yaml:"job_name"`
			DNS  []struct {
				Names []string
				Port  int
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/compose/prometheus.yml")), &conf); err != nil {
		t.Fatal(err)
	}
	p := composed(t, composeFiles...)
	var jobs []string
	for _, job := range conf.Jobs {
		jobs = append(jobs, job.Name)
		if len(job.DNS) != 1 || !slices.Equal(job.DNS[0].Names, []string{job.Name}) {
			t.Errorf("the job %s does not ask the service of its name", job.Name)
			continue
		}
		environment := p.Services[job.Name].Environment
		port := environment["GATEWAY_OPS_ADDR"]
		if port == nil {
			address := fmt.Sprint(listens(t, job.Name))
			port = &address
		}
		if *port != fmt.Sprintf(":%d", job.DNS[0].Port) {
			t.Errorf("%s has its metrics at %s, and is scraped at %d", job.Name, *port, job.DNS[0].Port)
		}
	}
	if !slices.Equal(jobs, services) {
		t.Errorf("the jobs are %q, want %q", jobs, services)
	}
	for _, file := range conf.RuleFiles {
		if !slices.ContainsFunc(p.Services["prometheus"].Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == file }) {
			t.Errorf("prometheus does not have %s", file)
		}
	}
}

// listens returns a service's default address, from its --help.
func listens(t *testing.T, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^\s+` + prefix(name) + `ADDR\s.*default "?(:\d+)`).FindSubmatch(program(t, name, "--help"))
	if m == nil {
		t.Fatalf("%s --help says no address", name)
	}
	return string(m[1])
}

// TestGrafana sees that what Grafana is given to read parses, and fits together.
func TestGrafana(t *testing.T) {
	t.Parallel()
	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	var boards struct {
		Providers []struct {
			Type    string
			Options struct{ Path string }
		}
	}
	for file, into := range map[string]any{"datasources/prometheus.yaml": &sources, "dashboards/signalbox.yaml": &boards} {
		if err := yaml.Unmarshal([]byte(read(t, filepath.Join("deploy/grafana/provisioning", file))), into); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if s := sources.Datasources; len(s) != 1 || s[0].Type != "prometheus" || s[0].URL != "http://prometheus:9090" {
		t.Errorf("the data sources are %+v", s)
	}
	if b := boards.Providers; len(b) != 1 || b[0].Type != "file" {
		t.Fatalf("the providers are %+v", b)
	}
	grafana := composed(t, composeFiles...).Services["grafana"]
	for _, v := range grafana.Volumes {
		if filepath.Dir(v.Target) == boards.Providers[0].Options.Path {
			var dashboard map[string]any
			if err := json.Unmarshal([]byte(read(t, v.Source)), &dashboard); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Errorf("grafana has no dashboard in %s", boards.Providers[0].Options.Path)
}

// TestBases sees that deploy/e2e/compose makes each image that is pulled, but for Grafana's.
func TestBases(t *testing.T) {
	t.Parallel()
	made := read(t, "deploy/e2e/compose/bases.sh")
	var pulled []string
	for _, s := range composed(t, composeFiles...).Services {
		if s.Build == nil && !strings.HasPrefix(s.Image, "grafana/") {
			pulled = append(pulled, s.Image)
		}
	}
	arguments := map[string]string{}
	for line := range strings.Lines(read(t, "deploy/Dockerfile")) {
		if name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "ARG "), "="); ok && strings.HasPrefix(line, "ARG ") {
			arguments[name] = value
		}
	}
	for _, s := range dockerfile(t) {
		pulled = append(pulled, os.Expand(s.BaseName, func(name string) string { return arguments[name] }))
	}
	for _, image := range pulled {
		if !regexp.MustCompile(`(?m)\s` + regexp.QuoteMeta(image) + `$`).MatchString(made) {
			t.Errorf("deploy/e2e/compose/bases.sh does not make %s", image)
		}
	}
}
