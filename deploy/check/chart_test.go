package check_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	sigsyaml "sigs.k8s.io/yaml"
)

const chartFolder = root + "/deploy/helm/signalbox"

var update = flag.Bool("update", false, "write the golden files, the chart's schema of settings, and the table of values in docs/operate.md")

// programs are the programs that the chart runs, and where their values are.
var programs = map[string]string{
	"gateway": "gateway", "agent-runner": "agentRunner", "tool-executor": "toolExecutor", "document-sync": "documentSync",
	"credential-broker": "credentialBroker", "browser": "browser", "simulator": "simulator",
}

var loadChart = sync.OnceValues(func() (*chart.Chart, error) { return loader.LoadDir(chartFolder) })

// shapes are the installations whose objects are compared with golden files.
var shapes = map[string]string{
	"trial":      chartFolder + "/values-local.yaml",
	"small":      chartFolder + "/examples/small.yaml",
	"production": chartFolder + "/examples/production.yaml",
	"everything": "testdata/chart/everything.yaml",
}

type values = map[string]any

func parse(t *testing.T, text string) values {
	t.Helper()
	v, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var kubeVersion = chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}

// render returns the files of a release with some values, by their names.
func render(v values, upgrade bool) (map[string]string, error) {
	c, err := loadChart()
	if err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(c, v, chartutil.ReleaseOptions{Name: "signalbox", Namespace: "default", Revision: 1, IsInstall: !upgrade, IsUpgrade: upgrade},
		&chartutil.Capabilities{KubeVersion: kubeVersion, APIVersions: chartutil.DefaultVersionSet})
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, text := range files {
		if strings.TrimSpace(text) != "" {
			out[strings.TrimPrefix(name, "signalbox/templates/")] = text
		}
	}
	return out, nil
}

// valuesOf returns the values of a shape, or of "tls": production with examples/tls.yaml.
func valuesOf(t *testing.T, shape string) values {
	t.Helper()
	if shape == "tls" {
		return chartutil.MergeTables(parse(t, read(t, "deploy/helm/signalbox/examples/tls.yaml")), valuesOf(t, "production"))
	}
	return parse(t, read(t, absolute(t, shapes[shape])))
}

var separator = regexp.MustCompile(`(?m)^---\n`)

// objects returns the objects of a shape, as YAML, in a fixed order.
func objects(t *testing.T, shape string, upgrade bool) []string {
	t.Helper()
	files, err := render(valuesOf(t, shape), upgrade)
	if err != nil {
		t.Fatalf("%s: %v", shape, err)
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, text := range separator.Split(files[name], -1) {
			if strings.TrimSpace(text) != "" {
				all = append(all, text)
			}
		}
	}
	return all
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestChartLint does what helm lint does. A chart needs no icon.
func TestChartLint(t *testing.T) {
	t.Parallel()
	for shape := range shapes {
		for _, m := range lint.AllWithKubeVersion(chartFolder, valuesOf(t, shape), "default", &kubeVersion).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s", shape, m)
			}
		}
	}
}

// TestChartShapes compares what is rendered with golden files, without comments and with fixed order.
func TestChartShapes(t *testing.T) {
	t.Parallel()
	for shape := range shapes {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			for _, text := range objects(t, shape, false) {
				var o values
				if err := sigsyaml.UnmarshalStrict([]byte(text), &o); err != nil {
					t.Fatalf("%v in\n%s", err, text)
				}
				if o["kind"] == "ConfigMap" {
					continue // the NATS configuration, which is compared with its source
				}
				text, err := sigsyaml.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&got, "---\n%s", text)
			}
			golden := absolute(t, "testdata/chart/"+shape+".golden.yaml")
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := read(t, golden); got.String() != want {
				t.Errorf("%s differs from what the chart renders, first at %q: look at the difference of\n\tGOWORK=off go test -C deploy/check -run TestChartShapes . -update", golden, firstDifference(got.String(), want))
			}
		})
	}
}

func firstDifference(a, b string) string {
	these, those := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i, line := range these {
		if i >= len(those) || line != those[i] {
			return line
		}
	}
	return "the end"
}

func TestChartFiles(t *testing.T) {
	t.Parallel()
	for original, name := range map[string]string{
		"nats/nats.conf": "nats/nats.conf", "nats/accounts.conf": "nats/accounts.conf",
		"prometheus/alerts.yaml": "alerts.yaml", "grafana/signalbox.json": "dashboard.json",
	} {
		if read(t, "deploy/"+original) != read(t, "deploy/helm/signalbox/files/"+name) {
			t.Errorf("deploy/helm/signalbox/files/%s is not deploy/%s: copy it", name, original)
		}
	}
}

// TestChartRefuses has wrong values, and what Helm says about them.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	base := read(t, "deploy/helm/signalbox/examples/production.yaml")
	for _, tt := range []struct{ wrong, want string }{
		{"gatway: {}", "additional properties 'gatway' not allowed"},
		{"gateway: {replica: 3}", "at '/gateway': additional properties 'replica' not allowed"},
		{"gateway: {replicas: two}", "at '/gateway/replicas': got string, want integer"},
		{"gateway: {replicas: 0}", "at '/gateway/replicas': minimum: got 0, want 1"},
		{"gateway: {settings: {GATEWAY_SOKETS: 5}}", "additional properties 'GATEWAY_SOKETS' not allowed"},
		{"gateway: {settings: {DATABASE_URL: x}}", "additional properties 'DATABASE_URL' not allowed"},
		{"gateway: {settingsFrom: {GATEWAY_JWT_SECRET: {name: x, key: y}}}", "missing property 'secret'"},
		{"gateway: {resources: {request: {}}}", "additional properties 'request' not allowed"},
		{"gateway: {topologySpread: Always}", "at '/gateway/topologySpread': value must be one of '', 'ScheduleAnyway', 'DoNotSchedule'"},
		{"gateway: {drainSeconds: 3}", "at '/gateway/drainSeconds': minimum: got 3, want 6"},
		{"gateway: {files: [{name: a, mountPath: /a}]}", "missing property 'configMap'"},
		{"gateway: {files: [{name: a, mountPath: a, secret: b}]}", "at '/gateway/files/0/mountPath'"},
		{"gateway: {settings: {GATEWAY_OIDC_ISSUER: \"\"}}", "nobody could sign in"},
		{"gateway: {settings: {GATEWAY_OIDC_CLIENT_SECRET: x}}", "GATEWAY_OIDC_CLIENT_SECRET is in both gateway.settings and gateway.settingsFrom"},
		{"logLevel: verbose", "at '/logLevel': value must be one of 'debug', 'info', 'warn', 'error'"},
		{"image: {prefix: registry.example.com}", "at '/image/prefix'"},
		{"image: {pullPolicy: Sometimes}", "at '/image/pullPolicy'"},
		{"database: {hosts: \"\"}", "database.hosts is not set"},
		{"database: {hosts: postgres://db}", "at '/database/hosts'"},
		{"database: {caSecret: \"\"}", "set database.caSecret"},
		{"database: {admin: {secret: \"\"}}", "database.admin.secret is not set"},
		{"database: {maxConnections: 401}", "may open 402 connections to PostgreSQL during an update"},
		{"database: {hosts: 'pooler:6432', directHosts: 'db:5432', poolerConnections: 500}", "the services and the pooler may open 522 connections to PostgreSQL during an update"},
		{"nats: {url: \"\"}", "nats.url is not set"},
		{"nats: {url: \"http://nats\"}", "at '/nats/url'"},
		{"events: {replicas: 2}", "at '/events/replicas': value must be one of 1, 3, 5"},
		{"events: {partitions: 17}", "at '/events/partitions': maximum: got 17, want 16"},
		{"local: {enabled: true}", "leave database.hosts, database.directHosts and nats.url empty"},
		{"ingress: {host: \"\"}", "at '/ingress/host'"},
		{"httpRoute: {enabled: true, host: a.example.com}", "at '/httpRoute/parentRefs'"},
		{"httpRoute: {enabled: true, host: a.example.com, parentRefs: [{name: a}]}", "use one of them"},
		{"{prometheusRule: {enabled: true}, serviceMonitor: {enabled: false}}", "prometheusRule.enabled needs serviceMonitor.enabled"},
		{"networkPolicy: {monitoring: []}", "serviceMonitor.enabled needs networkPolicy.monitoring"},
		{"networkPolicy: {clients: [{podselector: {}}]}", "additional properties 'podselector' not allowed"},
		{"agentRunner: {keda: {enabled: true}}", "agentRunner.keda needs nats.monitoring"},
		{"agentRunner: {keda: {enabled: true}, autoscaling: {enabled: true}}", "both enabled"},
		{"gateway: {autoscaling: {enabled: true, maxReplicas: 2}}", "gateway.autoscaling.maxReplicas (2) is less than gateway.replicas (3)"},
		{"gateway: {autoscaling: {enabled: true, targetCPU: 0}}", "neither targetCPU nor metrics"},
		{"scaleDownSeconds: 5m", "at '/scaleDownSeconds': got string, want integer"},
		{"documentSync: {keda: {enabled: true}}", "at '/documentSync': additional properties 'keda' not allowed"},
		{"credentialBroker: {sealKey: false}", "stored credentials could not be sealed"},
		{"tls: {enabled: true}", "tls.required is true, and nats.url is not encrypted"},
		{"{tls: {enabled: true}, nats: {url: 'tls://a:4222,nats://b:4222'}}", "tls.required is true, and nats.url is not encrypted"},
		{"{tls: {enabled: true}, nats: {url: 'tls://nats:4222'}, database: {parameters: sslmode=require}}", "want sslmode=verify-full"},
		{"{tls: {enabled: true}, local: {enabled: true}, database: {hosts: '', caSecret: '', parameters: sslmode=disable}, nats: {url: ''}, events: {replicas: 1}}", "tls.required cannot be true with local.enabled"},
		{"tls: {enabled: yes please}", "at '/tls/enabled': got string, want boolean"},
		{"tls: {secrets: {agent-runner: a}}", "at '/tls/secrets': additional properties 'agent-runner' not allowed"},
		{"tls: {secrets: {gateway: A_B}}", "at '/tls/secrets/gateway'"},
		{"agentRunner: {settings: {TLS_CERT_FILE: /a}}", "additional properties 'TLS_CERT_FILE' not allowed"},
		{"browser: {seccompProfile: /var/lib/kubelet/seccomp/a.json}", "at '/browser/seccompProfile'"},
	} {
		_, err := render(chartutil.MergeTables(parse(t, tt.wrong), parse(t, base)), false)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", tt.wrong, err, tt.want)
		}
	}
}

// TestChartConnections sees that a pooler's connections count instead of the services' pools.
func TestChartConnections(t *testing.T) {
	t.Parallel()
	base := read(t, "deploy/helm/signalbox/examples/production.yaml")
	fits := "database: {hosts: 'pooler:6432', directHosts: 'db:5432', poolerConnections: 80, maxConnections: 102}" // and 10 + 2 * (3 runners + 3 executors)
	if _, err := render(chartutil.MergeTables(parse(t, fits), parse(t, base)), false); err != nil {
		t.Error(err)
	}
}

// servers are the objects of a cluster, as kind/name.
type servers []string

func (s servers) GetClientFor(_, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	resource := schema.GroupVersionResource{Version: "v1", Resource: strings.ToLower(kind) + "s"}
	var all []runtime.Object
	for _, one := range s {
		k, name, _ := strings.Cut(one, "/")
		all = append(all, &unstructured.Unstructured{Object: values{
			"apiVersion": "v1", "kind": k, "metadata": values{"name": name, "namespace": "default"},
		}})
	}
	return fake.NewSimpleDynamicClient(runtime.NewScheme(), all...).Resource(resource), true, nil
}

// TestChartTurnsLocal sees that an upgrade does not turn on local servers, which do not run yet when
// the migration before the upgrade needs them.
func TestChartTurnsLocal(t *testing.T) {
	t.Parallel()
	c, err := loadChart()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		there   servers
		upgrade bool
		refused bool
	}{
		{"installation", nil, false, false},
		{"upgrade of a trial", servers{"Service/signalbox-gateway", "Service/signalbox-postgres"}, true, false},
		{"upgrade of a release with other servers", servers{"Service/signalbox-gateway"}, true, true},
		{"without a cluster", nil, true, false},
	} {
		all, err := chartutil.ToRenderValues(c, valuesOf(t, "trial"), chartutil.ReleaseOptions{
			Name: "signalbox", Namespace: "default", Revision: 2, IsInstall: !tt.upgrade, IsUpgrade: tt.upgrade,
		}, &chartutil.Capabilities{KubeVersion: kubeVersion, APIVersions: chartutil.DefaultVersionSet})
		if err != nil {
			t.Fatal(err)
		}
		_, err = engine.RenderWithClientProvider(c, all, tt.there)
		if refused := err != nil && strings.Contains(err.Error(), "local.enabled cannot be turned on by an upgrade"); refused != tt.refused || !refused && err != nil {
			t.Errorf("%s: %v, want it refused: %t", tt.name, err, tt.refused)
		}
	}
}

// TestChartPorts sees that policies open the ports at which PostgreSQL and NATS are.
func TestChartPorts(t *testing.T) {
	t.Parallel()
	base := read(t, "deploy/helm/signalbox/examples/production.yaml")
	for _, tt := range []struct {
		values    string
		sql, nats []int32
	}{
		{"{}", []int32{5432}, []int32{4222}},
		{"database: {hosts: 'a:25060,b:25060'}", []int32{25060}, []int32{4222}},
		{"database: {hosts: 'pooler:6543', directHosts: 'db:5432'}", []int32{6543, 5432}, []int32{4222}},
		{"nats: {url: 'nats://a:4222,nats://b,nats://c:4224/'}", []int32{5432}, []int32{4222, 4224}},
		{"networkPolicy: {database: {ports: [7]}, nats: {ports: [8, 9]}}", []int32{7}, []int32{8, 9}},
	} {
		files, err := render(chartutil.MergeTables(parse(t, tt.values), parse(t, base)), false)
		if err != nil {
			t.Fatalf("%s: %v", tt.values, err)
		}
		policies := 0
		for _, text := range separator.Split(files["networkpolicies.yaml"], -1) {
			var p networkingv1.NetworkPolicy
			if err := sigsyaml.Unmarshal([]byte(text), &p); err != nil {
				t.Fatal(err)
			}
			if p.Name != "signalbox-agent-runner" && p.Name != "signalbox-migrate" {
				continue
			}
			policies++
			var sql, nats []int32
			for _, rule := range p.Spec.Egress {
				to := rule.To[0].PodSelector
				for _, port := range rule.Ports {
					switch {
					case to == nil:
					case to.MatchLabels["cnpg.io/cluster"] != "":
						sql = append(sql, port.Port.IntVal)
					case to.MatchLabels["app.kubernetes.io/name"] == "nats":
						nats = append(nats, port.Port.IntVal)
					}
				}
			}
			if !slices.Equal(sql, tt.sql) || !slices.Equal(nats, tt.nats) {
				t.Errorf("%s: %s reaches PostgreSQL at %d and NATS at %d, want %d and %d", tt.values, p.Name, sql, nats, tt.sql, tt.nats)
			}
		}
		if policies != 2 {
			t.Errorf("%s: %d policies of agent-runner and migrate, want 2", tt.values, policies)
		}
	}
}

// TestChartAlerts sees that the chart's alerts are those of deploy/prometheus, for the metrics of the
// release alone, and that its ServiceMonitor gives these the labels by which the alerts select them.
func TestChartAlerts(t *testing.T) {
	t.Parallel()
	type rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	var plain rules
	var chart struct {
		Kind string
		Spec rules
	}
	var monitor struct {
		Spec struct{ TargetLabels []string }
	}
	if err := sigsyaml.Unmarshal([]byte(read(t, "deploy/prometheus/alerts.yaml")), &plain); err != nil {
		t.Fatal(err)
	}
	files, err := render(valuesOf(t, "everything"), false)
	if err != nil {
		t.Fatal(err)
	}
	objects := separator.Split(files["monitoring.yaml"], -1)
	if err := errors.Join(sigsyaml.Unmarshal([]byte(objects[0]), &monitor), sigsyaml.Unmarshal([]byte(objects[1]), &chart)); err != nil {
		t.Fatal(err)
	}
	if chart.Kind != "PrometheusRule" || !slices.Equal(monitor.Spec.TargetLabels, []string{"app.kubernetes.io/instance"}) {
		t.Errorf("the chart has a %s, and a ServiceMonitor that takes the labels %q", chart.Kind, monitor.Spec.TargetLabels)
	}
	metric := regexp.MustCompile(`\b(up\b|(?:signalbox|gateway)_\w+)(\{[^}]*\})?`)
	for i, group := range plain.Groups {
		for j, rule := range group.Rules {
			got := chart.Spec.Groups[i].Rules[j]
			rule.Labels["namespace"], rule.Labels["release"] = "default", "signalbox"
			rule.Expr = metric.ReplaceAllStringFunc(rule.Expr, func(s string) string {
				name, labels, _ := strings.Cut(strings.TrimSuffix(s, "}"), "{")
				return name + "{" + strings.TrimSuffix(`namespace="default", app_kubernetes_io_instance="signalbox", `+labels, ", ") + "}"
			})
			if !reflect.DeepEqual(got, rule) {
				t.Errorf("the chart has the rule\n%+v, want\n%+v", got, rule)
			}
		}
	}
}

// TestDashboardSelects sees that every query of the dashboard is for the chosen namespaces and
// releases, and that both can be chosen.
func TestDashboardSelects(t *testing.T) {
	t.Parallel()
	var dashboard struct {
		Templating struct{ List []struct{ Name string } }
		Panels     []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "deploy/grafana/signalbox.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range dashboard.Templating.List {
		names = append(names, v.Name)
	}
	if want := []string{"datasource", "namespace", "release"}; !slices.Equal(names, want) {
		t.Errorf("the dashboard has the variables %q, want %q", names, want)
	}
	metric, queries := regexp.MustCompile(`\b(?:signalbox|gateway)_\w+(\{[^}]*\})?`), 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			for _, m := range metric.FindAllStringSubmatch(target.Expr, -1) {
				queries++
				if !strings.Contains(m[1], `namespace=~"$namespace"`) || !strings.Contains(m[1], `app_kubernetes_io_instance=~"$release"`) {
					t.Errorf("panel %q: %s does not select namespace and release", p.Title, m[0])
				}
			}
		}
	}
	if queries == 0 {
		t.Error("the dashboard has no queries")
	}
}

// TestChartLeavesOut checks that what is turned off is not in a file that has it otherwise.
func TestChartLeavesOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ shape, path, file, text string }{
		{"everything", "browser.enabled", "monitoring.yaml", "signalbox-browser-tls"}, // Prometheus skips all if this Secret is missing
		{"everything", "gateway.topologySpread", "gateway.yaml", "topologySpreadConstraints"},
	} {
		t.Run(tt.path, func(t *testing.T) {
			t.Parallel()
			v := valuesOf(t, tt.shape)
			before, err := render(v, false)
			if err != nil || !strings.Contains(before[tt.file], tt.text) {
				t.Fatalf("%s has no %s (%v)", tt.file, tt.text, err)
			}
			name, key, _ := strings.Cut(tt.path, ".")
			of, _ := v[name].(values)
			if of == nil {
				of = values{}
				v[name] = of
			}
			of[key] = map[string]any{"enabled": false, "topologySpread": ""}[key]
			if after, err := render(v, false); err != nil || strings.Contains(after[tt.file], tt.text) {
				t.Errorf("%s has %s (%v)", tt.file, tt.text, err)
			}
		})
	}
}

// settingsOf returns the settings of a program that docs/settings.md lists.
func settingsOf(t *testing.T, program string) (names []string) {
	t.Helper()
	_, after, found := strings.Cut(read(t, "docs/settings.md"), "\n## "+program+"\n")
	if !found {
		t.Fatalf("docs/settings.md does not list %s", program)
	}
	section, _, _ := strings.Cut(after, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z0-9_]+)`").FindAllStringSubmatch(section, -1) {
		names = append(names, m[1])
	}
	return names
}

// chartSets has the settings that values cannot set, since the chart sets them or its Services and
// policies depend on them.
var chartSets = map[string]bool{
	"DATABASE_URL": true, "DATABASE_DIRECT_URL": true, "NATS_URL": true, "NATS_USER": true, "NATS_PASSWORD": true, "SERVICE_KEY": true, "TRUSTED_KEYS": true,
	"EVENT_PARTITIONS": true, "EVENT_REPLICAS": true, "LOG_LEVEL": true, "OTEL_EXPORTER_OTLP_ENDPOINT": true,
	"AGENT_RUNNER_URL": true, "TOOL_EXECUTOR_URL": true, "DOCUMENT_SYNC_URL": true, "CREDENTIAL_BROKER_URL": true,
	"GATEWAY_HTTP_ADDR": true, "GATEWAY_OPS_ADDR": true, "AGENT_RUNNER_ADDR": true, "TOOL_EXECUTOR_ADDR": true, "DOCUMENT_SYNC_ADDR": true,
	"CREDENTIAL_BROKER_ADDR": true, "BROWSER_ADDR": true, "SIMULATOR_ADDR": true,
	"GATEWAY_DRAIN_LIMIT": true, "AGENT_RUNNER_DRAIN": true, "TOOL_EXECUTOR_DRAIN": true, "DOCUMENT_SYNC_DRAIN": true,
	"CREDENTIAL_BROKER_DRAIN": true, "BROWSER_DRAIN": true,
	"TLS_CERT_FILE": true, "TLS_KEY_FILE": true, "TLS_CA_FILE": true, "TLS_REQUIRED": true, "NATS_CA_FILE": true,
	"GATEWAY_DEV_SECRET": true, "CREDENTIAL_BROKER_KEY_FILE": true, "CREDENTIAL_BROKER_ACCOUNTS_FILE": true,
	"SIMULATOR_URL": true, "SIMULATED_SERVICES": true, "SIMULATOR_SERVICES": true,
	"TOOL_EXECUTOR_BROWSER": true, "BROWSER_ALLOW_PRIVATE": true, "BROWSER_NO_SANDBOX": true,
}

// keyServices are variables of the libraries for key services.
var keyServices = []string{"VAULT_SERVER_URL", "VAULT_SERVER_TOKEN", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS"}

// TestChartSettings sees that the schema knows exactly the settings that values can set.
func TestChartSettings(t *testing.T) {
	t.Parallel()
	file := absolute(t, chartFolder+"/values.schema.json")
	var schema map[string]any
	if err := json.Unmarshal([]byte(read(t, file)), &schema); err != nil {
		t.Fatal(err)
	}
	defs, ok := schema["$defs"].(map[string]any)
	if !ok {
		t.Fatal("the schema has no $defs")
	}
	plain, secret := map[string]any{}, map[string]any{}
	for program, key := range programs {
		names := settingsOf(t, program)
		if program == "credential-broker" {
			names = append(names, keyServices...)
		}
		these, those := map[string]any{}, map[string]any{}
		for _, name := range names {
			if !chartSets[name] {
				these[name] = map[string]any{"type": []any{"string", "number", "boolean"}}
				those[name] = map[string]any{"$ref": "#/$defs/fromSecret"}
			}
		}
		plain[key] = map[string]any{"type": "object", "additionalProperties": false, "properties": these}
		secret[key] = map[string]any{"type": "object", "additionalProperties": false, "properties": those}
	}
	defs["settings"], defs["settingsFrom"] = plain, secret
	want, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, append(want, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if read(t, file) != string(want)+"\n" {
		t.Errorf("values.schema.json does not have the settings of docs/settings.md: run\n\tGOWORK=off go test -C deploy/check -run TestChartSettings . -update")
	}
}

// leaf is a value of values.yaml.
type leaf struct {
	path    string
	comment string
	node    *yaml.Node
}

// leaves returns the values of values.yaml in their order. A group, which has a comment too, comes
// before its values, with a nil node.
func leaves(t *testing.T) (all []leaf) {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(read(t, "deploy/helm/signalbox/values.yaml")), &doc); err != nil {
		t.Fatal(err)
	}
	// Maps whose keys are the user's.
	open := regexp.MustCompile(`\.(resources|settings|settingsFrom|podLabels|podAnnotations|nodeSelector|affinity|serviceAccountAnnotations|annotations|labels)$`)
	var walk func(at string, n *yaml.Node)
	walk = func(at string, n *yaml.Node) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, v := n.Content[i], n.Content[i+1]
			path := strings.TrimPrefix(at+"."+key.Value, ".")
			l := leaf{path: path, comment: comment(key), node: v}
			if v.Kind == yaml.MappingNode && len(v.Content) > 0 && !open.MatchString(path) {
				l.node = nil
				all = append(all, l)
				walk(path, v)
				continue
			}
			all = append(all, l)
		}
	}
	walk("", doc.Content[0])
	return all
}

// comment returns the comment above a key, on one line.
func comment(key *yaml.Node) string {
	text := key.HeadComment
	if _, last, ok := cutLast(text, "\n\n"); ok {
		text = last
	}
	var words []string
	for line := range strings.Lines(text) {
		words = append(words, strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))...)
	}
	return strings.Join(words, " ")
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// explained returns whether a value has the meaning of the gateway's, or of agentRunner's keda.
func explained(path string, known map[string]string) bool {
	_, rest, _ := strings.Cut(path, ".")
	return known["gateway."+rest] != "" || known["agentRunner."+rest] != ""
}

// TestChartValues sees that each value has a comment, and that docs/operate.md has the table of them.
func TestChartValues(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString("| value | default | meaning |\n| --- | --- | --- |\n")
	known := map[string]string{}
	for _, l := range leaves(t) {
		known[l.path] = l.comment
		if l.comment == "" {
			if !explained(l.path, known) {
				t.Errorf("%s has no comment in values.yaml", l.path)
			}
			continue
		}
		value := ""
		if l.node != nil {
			value = "`" + inline(l.node) + "`"
			if value == "`\"\"`" {
				value = ""
			}
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", l.path, value, strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(l.comment))
	}
	const begin, end = "<!-- The values of the chart, from the comments of values.yaml: do not edit. -->\n\n", "\n<!-- The end of the values. -->"
	file := absolute(t, root+"/docs/operate.md")
	page := read(t, file)
	before, rest, ok := strings.Cut(page, begin)
	_, after, ends := strings.Cut(rest, end)
	if !ok || !ends {
		t.Fatal("docs/operate.md has no place for the table of the chart's values")
	}
	want := before + begin + table.String() + end + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if page != want {
		t.Errorf("the table of values in docs/operate.md differs from values.yaml: run\n\tGOWORK=off go test -C deploy/check -run TestChartValues . -update")
	}
}

// inline returns a value on one line.
func inline(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		var all []string
		for i := 0; i+1 < len(n.Content); i += 2 {
			all = append(all, n.Content[i].Value+": "+inline(n.Content[i+1]))
		}
		return "{" + strings.Join(all, ", ") + "}"
	case yaml.SequenceNode:
		var all []string
		for _, v := range n.Content {
			all = append(all, inline(v))
		}
		return "[" + strings.Join(all, ", ") + "]"
	case yaml.ScalarNode, yaml.DocumentNode, yaml.AliasNode:
	}
	if n.Value == "" {
		return `""`
	}
	return n.Value
}

// TestChartValuesMatter changes each value by itself: what is rendered must change, or be refused.
func TestChartValuesMatter(t *testing.T) {
	t.Parallel()
	everything := read(t, absolute(t, shapes["everything"]))
	trial := read(t, absolute(t, shapes["trial"]))
	type world struct {
		text string
		was  map[string]string
	}
	worlds := map[string]*world{}
	for name, text := range map[string]string{
		"everything": everything, "trial": trial,
		// What the others leave off.
		"ingress": strings.NewReplacer("httpRoute: { enabled: true", "httpRoute: { enabled: false", "secrets: { existing: mine }", "secrets: {}", `directHosts: "direct:5432", `, "").Replace(everything) + "\ningress: { enabled: true, className: a, host: a.example.com, tlsSecret: b }\n",
		"scaling": strings.NewReplacer("autoscaling: { enabled: true }", "autoscaling: { enabled: false }", "keda: { enabled: true }", "autoscaling: { enabled: true, metrics: [] }").Replace(everything),
	} {
		was, err := render(parse(t, text), false)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		worlds[name] = &world{text, was}
	}
	for _, l := range leaves(t) {
		if l.node == nil {
			continue
		}
		t.Run(l.path, func(t *testing.T) {
			t.Parallel()
			var refused error
			for _, name := range []string{"everything", "trial", "ingress", "scaling"} {
				w := worlds[name]
				v := parse(t, w.text)
				change(v, strings.Split(l.path, "."), l.node)
				got, err := render(v, false)
				if err != nil && strings.Contains(err.Error(), "schema") {
					refused = err
					continue
				}
				if err != nil || !maps.Equal(got, w.was) {
					return
				}
			}
			t.Errorf("it does nothing (or the schema refuses what this test makes of it: %v)", refused)
		})
	}
}

// change sets the value at a path to another of its kind.
func change(v values, path []string, node *yaml.Node) {
	for _, part := range path[:len(path)-1] {
		next, ok := v[part].(values)
		if !ok {
			next = values{}
			v[part] = next
		}
		v = next
	}
	last := path[len(path)-1]
	others := map[string]any{
		"pullPolicy": "Never", "logLevel": "debug", "topologySpread": "", "resources": values{"limits": values{"memory": "7Gi"}},
		"endpoint": "http://other:4318", "hosts": "other:5432", "directHosts": "other:5432", "maxConnections": 77, "poolerConnections": 6000, "url": "nats://other:4222", "monitoring": "other:8222", "prefix": "other/", "interval": "7s",
		"settingsFrom": values{"LOG_FORMAT": values{"secret": "other", "key": "other"}}, "partitions": 7,
		"replicas": 3, "drainSeconds": 7, "parentRefs": []any{values{"name": "other"}}, "allowPrivate": []any{"10.9.9.9:80"},
		"pullSecrets": []any{"other"}, "parameters": "sslmode=verify-ca", "files": []any{values{"name": "other", "secret": "other", "mountPath": "/other"}},
		"egress": []any{values{"ports": []any{values{"port": 7}}}}, "tolerations": []any{values{"key": "other"}}, "metrics": []any{values{"type": "Pods"}},
		"to": []any{values{"podSelector": values{"matchLabels": values{"app": "other"}}}}, "clients": []any{values{"podSelector": values{}}},
		"secrets": values{"gateway": "other"}, "ports": []any{7}, "apiServerPorts": []any{7}, "dns": []any{values{"podSelector": values{}}}, "affinity": values{"podAffinity": values{}},
	}
	if strings.Join(path, ".") == "networkPolicy.monitoring" {
		v[last] = []any{values{"podSelector": values{}}}
		return
	}
	if last == "settings" {
		settings := values{"LOG_FORMAT": "text"}
		for i := 0; i < len(node.Content); i += 2 {
			settings[node.Content[i].Value] = 3
		}
		v[last] = settings
		return
	}
	if path[0] == "events" && last == "replicas" {
		v[last] = 5
		return
	}
	other, ok := others[last]
	switch {
	case ok:
		v[last] = other
	case node.Tag == "!!bool":
		now, set := v[last].(bool)
		if !set {
			now = node.Value == "true"
		}
		v[last] = !now
	case node.Tag == "!!int":
		v[last] = 77
	case node.Kind == yaml.MappingNode:
		v[last] = values{"other": "value"}
	default:
		v[last] = "other"
	}
}
