package check_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/dotenv"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	sigsyaml "sigs.k8s.io/yaml"
)

// release has the objects of a shape, decoded strictly.
type release struct {
	pods     map[string]corev1.PodTemplateSpec // by component
	services map[string]*corev1.Service
	policies []*networkingv1.NetworkPolicy
	budgets  []*policyv1.PodDisruptionBudget
	names    map[string]bool // kind/name
}

// custom are kinds of others, whose types we do not have.
var custom = []string{"ServiceMonitor", "PrometheusRule", "HTTPRoute", "ScaledObject"}

func decode(t *testing.T, shape string, upgrade bool) release {
	t.Helper()
	r := release{pods: map[string]corev1.PodTemplateSpec{}, services: map[string]*corev1.Service{}, names: map[string]bool{}}
	for _, text := range objects(t, shape, upgrade) {
		var about metav1.PartialObjectMetadata
		if err := sigsyaml.Unmarshal([]byte(text), &about); err != nil {
			t.Fatalf("%s: %v", shape, err)
		}
		if name := about.Kind + "/" + about.Name; r.names[name] {
			t.Errorf("%s: there are two of %s", shape, name)
		}
		r.names[about.Kind+"/"+about.Name] = true
		into, ok := map[string]any{
			"ServiceAccount": &corev1.ServiceAccount{}, "Service": &corev1.Service{}, "ConfigMap": &corev1.ConfigMap{}, "Deployment": &appsv1.Deployment{}, "StatefulSet": &appsv1.StatefulSet{},
			"Job": &batchv1.Job{}, "CronJob": &batchv1.CronJob{}, "NetworkPolicy": &networkingv1.NetworkPolicy{}, "Ingress": &networkingv1.Ingress{}, "PodDisruptionBudget": &policyv1.PodDisruptionBudget{},
			"HorizontalPodAutoscaler": &autoscalingv2.HorizontalPodAutoscaler{}, "Role": &rbacv1.Role{}, "RoleBinding": &rbacv1.RoleBinding{},
		}[about.Kind]
		if !ok {
			if !slices.Contains(custom, about.Kind) {
				t.Errorf("%s: a %s, which this test does not know", shape, about.Kind)
			}
			continue
		}
		if err := sigsyaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Errorf("%s: %s/%s: %v", shape, about.Kind, about.Name, err)
			continue
		}
		component := about.Labels["app.kubernetes.io/component"]
		switch o := into.(type) {
		case *corev1.Service:
			r.services[component] = o
		case *networkingv1.NetworkPolicy:
			r.policies = append(r.policies, o)
		case *policyv1.PodDisruptionBudget:
			r.budgets = append(r.budgets, o)
		case *appsv1.Deployment:
			r.pods[component] = o.Spec.Template
			if !selects(t, o.Spec.Selector, o.Spec.Template.Labels) {
				t.Errorf("%s: the Deployment of %s does not select its pods", shape, component)
			}
		case *appsv1.StatefulSet:
			r.pods[component] = o.Spec.Template
			if !selects(t, o.Spec.Selector, o.Spec.Template.Labels) {
				t.Errorf("%s: the StatefulSet of %s does not select its pods", shape, component)
			}
		case *batchv1.Job:
			r.pods[component] = o.Spec.Template
		case *batchv1.CronJob:
			r.pods[component] = o.Spec.JobTemplate.Spec.Template
		}
	}
	return r
}

func selects(t *testing.T, s *metav1.LabelSelector, on map[string]string) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(labels.Set(on))
}

// TestChartPods holds every pod to Pod Security "restricted" and to what kube-linter would ask for.
func TestChartPods(t *testing.T) {
	t.Parallel()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for shape := range shapes {
		for _, upgrade := range []bool{false, true} {
			r := decode(t, shape, upgrade)
			for component, pod := range r.pods {
				complain := func(format string, args ...any) {
					t.Helper()
					t.Errorf("%s: the pods of %s: %s", shape, component, fmt.Sprintf(format, args...))
				}
				for _, result := range evaluator.EvaluatePod(api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
					if !result.Allowed {
						complain("%s: %s", result.ForbiddenReason, result.ForbiddenDetail)
					}
				}
				mounted := pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken
				if mounted != (component == "keygen") {
					complain("a token is mounted: %t", mounted)
				}
				if name := pod.Spec.ServiceAccountName; name != "" && !r.names["ServiceAccount/"+name] {
					complain("there is no ServiceAccount %s", name)
				}
				if pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC {
					complain("it shares the node's namespaces")
				}
				volumes := map[string]bool{}
				for _, v := range pod.Spec.Volumes {
					if volumes[v.Name] {
						complain("two volumes are named %s", v.Name)
					}
					volumes[v.Name] = true
				}
				for _, c := range pod.Spec.Containers {
					if s := c.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
						complain("its root can be written")
					}
					if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
						complain("it lacks requests, or a limit of memory")
					}
					if _, tag, ok := strings.Cut(c.Image, ":"); !ok || tag == "latest" {
						complain("the image %s has no version", c.Image)
					}
					seen := map[string]bool{}
					for _, e := range c.Env {
						if seen[e.Name] {
							complain("%s is set twice", e.Name)
						}
						seen[e.Name] = true
						if e.ValueFrom == nil && (strings.HasSuffix(e.Name, "_PASSWORD") || strings.HasSuffix(e.Name, "_SECRET") || e.Name == "SERVICE_KEY") {
							complain("%s is not taken from a Secret", e.Name)
						}
					}
					for _, m := range c.VolumeMounts {
						if !volumes[m.Name] && m.Name != "data" {
							complain("it mounts %s, which is not there", m.Name)
						}
					}
					if programs[component] == "" {
						continue
					}
					for what, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
						want := map[string]string{"startup": "/health", "liveness": "/health", "readiness": "/ready"}[what]
						if component == "simulator" {
							want = "/health"
						}
						if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != want {
							complain("its %s probe does not ask for %s", what, want)
						} else if !slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.ContainerPort == p.HTTPGet.Port.IntVal }) {
							complain("its %s probe asks another port than it has", what)
						}
					}
					if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Sleep == nil || c.Lifecycle.PreStop.Sleep.Seconds < 3 {
						complain("it stops before nodes know")
					}
				}
				if programs[component] == "" {
					continue
				}
				if s := r.services[component]; s == nil || !selects(t, metav1.SetAsLabelSelector(s.Spec.Selector), pod.Labels) {
					complain("no Service leads to them")
				}
				if !slices.ContainsFunc(r.budgets, func(b *policyv1.PodDisruptionBudget) bool { return selects(t, b.Spec.Selector, pod.Labels) }) {
					complain("no PodDisruptionBudget")
				}
			}
		}
	}
}

// TestChartVariables sees that programs know every variable that the chart gives them, and are given
// what they require; and that the grace period is longer than the drain.
func TestChartVariables(t *testing.T) {
	t.Parallel()
	own := map[string]bool{"DB_PASSWORD": true, "UPGRADED": true} // parts of DATABASE_URL and of an argument
	commands := map[string][]string{"migrate": {"migrate"}, "token": {"token"}}
	for shape := range shapes {
		r := decode(t, shape, false)
		for component, pod := range r.pods {
			program := component
			if commands[component] != nil {
				program = "signalbox"
			} else if programs[component] == "" {
				continue
			}
			known, required := help(t, program, commands[component]...)
			given := map[string]bool{}
			for _, e := range pod.Spec.Containers[0].Env {
				given[e.Name] = true
				if !known[e.Name] && !own[e.Name] {
					t.Errorf("%s: %s is given %s, which its --help does not list", shape, component, e.Name)
				}
			}
			for name, needed := range required {
				if needed && !given[name] {
					t.Errorf("%s: %s is not given %s, which it requires", shape, component, name)
				}
			}
		}
	}
}

// TestChartTLS starts the programs with what the chart gives them: with TLS, they find no connection
// that is not encrypted, and the next thing that they ask for is their certificate. Probes use TLS then.
func TestChartTLS(t *testing.T) {
	t.Parallel()
	r := decode(t, "everything", false)
	for component, pod := range r.pods {
		command := []string{component}
		if component == "migrate" {
			command = []string{"signalbox", "migrate"}
		} else if programs[component] == "" || component == "simulator" {
			continue
		}
		c := pod.Spec.Containers[0]
		t.Run(component, func(t *testing.T) {
			t.Parallel()
			// The authority of PostgreSQL is not here.
			placeholders := strings.NewReplacer("$(DB_PASSWORD)", "x", "&sslrootcert=/etc/signalbox/postgres/ca.crt", "")
			env := []string{}
			for _, e := range c.Env {
				value := placeholders.Replace(e.Value)
				if e.ValueFrom != nil {
					value = strings.Repeat("x", 64)
				}
				env = append(env, e.Name+"="+value)
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(root, "bin", command[0]), command[1:]...)
			cmd.Env = append(env, "MIGRATE_WAIT=1ms")
			out, err := cmd.CombinedOutput()
			want := "/etc/signalbox/tls/tls.crt"
			if component == "migrate" { // it asks for PostgreSQL first
				want = "DATABASE_DIRECT_URL: "
			}
			if err == nil || !strings.Contains(string(out), want) || strings.Contains(string(out), "TLS_REQUIRED") {
				t.Errorf("%q: %v, want an error about %s:\n%s", command, err, want, out)
			}
			for what, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
				if p != nil && p.HTTPGet.Scheme != corev1.URISchemeHTTPS {
					t.Errorf("its %s probe does not use TLS", what)
				}
			}
		})
	}
}

// component returns whose pods a peer or policy selects.
func component(s *metav1.LabelSelector) string { return s.MatchLabels["app.kubernetes.io/component"] }

// TestChartArrows sees that policies let the services call each other that trust each other's keys,
// at the ports where they listen, and let only those outside that have to be.
func TestChartArrows(t *testing.T) {
	t.Parallel()
	written, err := dotenv.UnmarshalBytesWithLookup(program(t, "signalbox", "keygen"), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"credential-broker → simulator": true}
	for called, by := range callers(written) {
		for _, caller := range by {
			want[caller+" → "+strings.ToLower(strings.ReplaceAll(called, "_", "-"))] = true
		}
	}
	r := decode(t, "everything", false)
	in, out, outside := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range r.policies {
		name := component(&p.Spec.PodSelector)
		if len(p.Spec.PolicyTypes) != 2 {
			t.Errorf("the policy %s leaves a direction open", p.Name)
		}
		for _, rule := range p.Spec.Ingress {
			if len(rule.From) == 0 && name != "gateway" {
				t.Errorf("everybody reaches %s", name)
			}
			for _, from := range rule.From {
				if from.PodSelector == nil || from.NamespaceSelector != nil {
					continue
				}
				in[component(from.PodSelector)+" → "+name] = true
				if got := rule.Ports[0].Port.IntVal; got != r.services[name].Spec.Ports[0].Port || got != r.pods[name].Spec.Containers[0].Ports[0].ContainerPort {
					t.Errorf("%s is reached at port %d, where it does not listen", name, got)
				}
			}
		}
		for _, rule := range p.Spec.Egress {
			for _, to := range rule.To {
				if to.PodSelector != nil && r.pods[component(to.PodSelector)].Labels != nil {
					out[name+" → "+component(to.PodSelector)] = true
				}
				if to.IPBlock == nil {
					continue
				}
				block, err := netip.ParsePrefix(to.IPBlock.CIDR)
				if err != nil {
					t.Fatal(err)
				}
				if block.Bits() > 0 {
					continue
				}
				outside[name] = true
				for _, private := range []string{"10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "127.0.0.1", "fd00::1", "fe80::1", "::1"} {
					a := netip.MustParseAddr(private)
					if block.Contains(a) && !slices.ContainsFunc(to.IPBlock.Except, func(e string) bool { return netip.MustParsePrefix(e).Contains(a) }) {
						t.Errorf("%s reaches %s", name, private)
					}
				}
			}
		}
	}
	if !maps.Equal(in, want) || !maps.Equal(out, want) {
		t.Errorf("the policies let in %v and out %v, and keys let %v", sorted(in), sorted(out), sorted(want))
	}
	// The gateway asks the identity provider.
	if got := sorted(outside); !slices.Equal(got, []string{"browser", "credential-broker", "gateway", "tool-executor"}) {
		t.Errorf("%q reach the outside", got)
	}
	for shape := range shapes {
		r := decode(t, shape, false)
		for name, pod := range r.pods {
			closed := 0
			for _, p := range r.policies {
				if selects(t, &p.Spec.PodSelector, pod.Labels) {
					closed++
				}
			}
			if closed < 2 {
				t.Errorf("%s: %s has %d policies, want the one that closes everything and its own", shape, name, closed)
			}
		}
	}
}

func sorted(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

// TestChartHooks sees that keys are made and tables migrated before an upgrade, and at the first
// installation when the servers are there.
func TestChartHooks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		shape   string
		upgrade bool
		want    map[string]string // the Job's hook
	}{
		{"production", false, map[string]string{"signalbox-keygen": "pre-install,pre-upgrade", "signalbox-migrate": "pre-install,pre-upgrade"}},
		{"production", true, map[string]string{"signalbox-keygen": "pre-install,pre-upgrade", "signalbox-migrate": "pre-install,pre-upgrade"}},
		{"trial", false, map[string]string{"signalbox-keygen": "pre-install,pre-upgrade", "signalbox-migrate-first": ""}},
		{"trial", true, map[string]string{"signalbox-keygen": "pre-install,pre-upgrade", "signalbox-migrate": "pre-install,pre-upgrade"}},
		{"everything", false, map[string]string{"signalbox-migrate": "pre-install,pre-upgrade"}},
	} {
		got := map[string]string{}
		for _, text := range objects(t, tt.shape, tt.upgrade) {
			var job batchv1.Job
			if err := sigsyaml.Unmarshal([]byte(text), &job); err == nil && job.Kind == "Job" {
				got[job.Name] = job.Annotations["helm.sh/hook"]
			}
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s, upgrade %t: Jobs %v, want %v", tt.shape, tt.upgrade, got, tt.want)
		}
	}
}

// TestChartRollback sees that the one Job that a rollback runs again, with an older program, accepts
// newer tables if the release has been upgraded since it was installed. A new installation, and the
// other Jobs, refuse them.
func TestChartRollback(t *testing.T) {
	t.Parallel()
	for _, shape := range []string{"trial", "production"} {
		for _, upgrade := range []bool{false, true} {
			upgraded := map[string]string{} // by ConfigMap
			var first *corev1.Container
			for _, text := range objects(t, shape, upgrade) {
				var object corev1.ConfigMap
				if err := sigsyaml.Unmarshal([]byte(text), &object); err == nil && object.Kind == "ConfigMap" && object.Data["upgraded"] != "" {
					// Only then does a rollback leave it as the last upgrade made it.
					if hook := object.Annotations["helm.sh/hook"]; hook != "pre-install,pre-upgrade" || object.Annotations["helm.sh/hook-delete-policy"] != "before-hook-creation" {
						t.Errorf("%s, upgrade %t: %s is made by %q", shape, upgrade, object.Name, hook)
					}
					upgraded[object.Name] = object.Data["upgraded"]
				}
				var job batchv1.Job
				if err := sigsyaml.Unmarshal([]byte(text), &job); err != nil || job.Kind != "Job" {
					continue
				}
				c := job.Spec.Template.Spec.Containers[0]
				if job.Annotations["helm.sh/hook"] == "" {
					first = &c
				} else if slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--allow-newer") }) {
					t.Errorf("%s, upgrade %t: the Job %s runs %q", shape, upgrade, job.Name, c.Args)
				}
			}
			if shape != "trial" {
				if first != nil || len(upgraded) != 0 {
					t.Errorf("%s, upgrade %t: a Job is no hook, or there is a ConfigMap for it", shape, upgrade)
				}
				continue
			}
			if want := map[string]string{"signalbox-migrate": strconv.FormatBool(upgrade)}; !maps.Equal(upgraded, want) {
				t.Errorf("upgrade %t: %v, want %v", upgrade, upgraded, want)
			}
			if (first == nil) != upgrade {
				t.Errorf("upgrade %t: the Job of the installation is there: %t", upgrade, first != nil)
			}
			if first == nil {
				continue
			}
			from := first.Env[0].ValueFrom
			if !slices.Contains(first.Args, "--allow-newer=$(UPGRADED)") || first.Env[0].Name != "UPGRADED" || from == nil || from.ConfigMapKeyRef == nil ||
				from.ConfigMapKeyRef.Name != "signalbox-migrate" || from.ConfigMapKeyRef.Key != "upgraded" {
				t.Errorf("the Job of the installation runs %q with %+v", first.Args, first.Env[0])
			}
		}
	}
}

// TestChartCertificates sees that the certificates of the example have the Secrets that pods mount, and
// the names that callers check.
func TestChartCertificates(t *testing.T) {
	t.Parallel()
	names := map[string]string{} // by Secret
	for _, text := range separator.Split(read(t, "deploy/helm/signalbox/examples/cert-manager.yaml"), -1) {
		var c struct {
			Spec struct {
				SecretName string   `json:"secretName"`
				DNSNames   []string `json:"dnsNames"`
				Usages     []string `json:"usages"`
			} `json:"spec"`
		}
		if err := sigsyaml.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if len(c.Spec.DNSNames) == 0 {
			continue
		}
		names[c.Spec.SecretName] = c.Spec.DNSNames[0]
		if !slices.Contains(c.Spec.Usages, "server auth") || !slices.Contains(c.Spec.Usages, "client auth") {
			t.Errorf("the certificate in %s is not for servers and clients: %q", c.Spec.SecretName, c.Spec.Usages)
		}
	}
	mounted := 0
	for component, pod := range decode(t, "tls", false).pods {
		for _, v := range pod.Spec.Volumes {
			if v.Name != "tls" {
				continue
			}
			mounted++
			if got := names[v.Secret.SecretName]; got != component {
				t.Errorf("%s mounts the Secret %s, whose certificate is for %q", component, v.Secret.SecretName, got)
			}
		}
	}
	if mounted != 6 {
		t.Errorf("%d pods mount certificates, want 5 services and migrate", mounted)
	}
}

// TestChartExamples sees that the passwords that the NATS example names exist.
func TestChartExamples(t *testing.T) {
	t.Parallel()
	text, err := sigsyaml.YAMLToJSON([]byte(read(t, "deploy/helm/signalbox/examples/nats.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	var loose struct {
		Container struct {
			Env map[string]struct {
				ValueFrom corev1.EnvVarSource `json:"valueFrom"`
			} `json:"env"`
		} `json:"container"`
	}
	if err := json.Unmarshal(text, &loose); err != nil {
		t.Fatal(err)
	}
	accounts := read(t, "deploy/nats/accounts.conf")
	if len(loose.Container.Env) != strings.Count(accounts, "password: $") {
		t.Errorf("examples/nats.yaml has %d passwords, accounts.conf %d", len(loose.Container.Env), strings.Count(accounts, "password: $"))
	}
	for name, e := range loose.Container.Env {
		if !strings.Contains(accounts, "password: $"+name+"\n") || e.ValueFrom.SecretKeyRef == nil || e.ValueFrom.SecretKeyRef.Key != name || e.ValueFrom.SecretKeyRef.Name != "signalbox-secrets" {
			t.Errorf("examples/nats.yaml sets %s to %v", name, e.ValueFrom.SecretKeyRef)
		}
	}
}
