package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"signalbox.dev/pkg/httpserver"
)

// dial prints which of the addresses accept a connection. It runs in a pod's network.
func dial(ctx context.Context, addresses []string, out io.Writer) error {
	open := make([]bool, len(addresses))
	var wg sync.WaitGroup
	for i, a := range addresses {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", a)
			if err == nil {
				open[i] = conn.Close() == nil
			}
		})
	}
	wg.Wait()
	for i, a := range addresses {
		if open[i] {
			fmt.Fprintln(out, a)
		}
	}
	return nil
}

// arrows are the ways that the design has, by the component that calls. Everything else has to be
// refused.
//
// The pods of NATS stand for a stranger, whom no policy of the chart holds back: only the gateway
// is open to everybody.
var arrows = map[string][]string{
	"gateway":           {"agent-runner", "tool-executor", "document-sync", "credential-broker", "postgres", "nats"},
	"agent-runner":      {"tool-executor", "credential-broker", "postgres", "nats"},
	"tool-executor":     {"document-sync", "credential-broker", "postgres", "nats", "far end"},
	"document-sync":     {"postgres", "nats"},
	"credential-broker": {"simulator", "postgres", "nats"},
	"simulator":         {},
	"nats":              {"gateway", "postgres", "nats", "nats monitor", "nats cluster", "far end", "API server"},
}

// target is an address to probe.
type target struct{ name, address string }

// policies dials every port from every pod, and compares what opens with the design.
func policies(ctx context.Context, s *suite, r *result) error {
	far, err := httpserver.Listen(ctx, farEnd)
	if err != nil {
		return err
	}
	defer func() { _ = far.Close() }() // connections are only opened
	targets, err := s.targets(ctx)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	networks, err := s.networks(ctx)
	if err != nil {
		return err
	}
	out, err := s.kubectl(ctx, "get", "pods", "--field-selector=status.phase=Running", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.podIP}{"\n"}{end}`)
	if err != nil {
		return err
	}
	probes, refused := 0, 0
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 2 || arrows[component(f[0])] == nil {
			continue
		}
		network, from := networks[f[1]], component(f[0])
		if network == "" {
			return fmt.Errorf("the network of pod %s (%s) is not known", f[0], f[1])
		}
		args := []string{"enter", "nsenter", "--net=" + network, self, "dial"}
		for _, t := range targets {
			args = append(args, t.address)
		}
		opened, err := s.node(ctx, args...)
		if err != nil {
			return err
		}
		for _, t := range targets {
			if strings.HasPrefix(t.address, f[1]+":") {
				continue // the pod itself
			}
			want, got := slices.Contains(arrows[from], t.name), slices.Contains(strings.Fields(opened), t.address)
			probes++
			switch {
			case got && !want:
				r.Broken = append(r.Broken, fmt.Sprintf("%s reaches %s (%s)", f[0], t.name, t.address))
			case want && !got:
				r.Broken = append(r.Broken, fmt.Sprintf("%s does not reach %s (%s)", f[0], t.name, t.address))
			case !got:
				refused++
			}
		}
	}
	r.Figures = append(r.Figures, figure{"ways probed", float64(probes), "ways"}, figure{"of these refused, as they should be", float64(refused), "ways"})
	return nil
}

// targets returns the ports of everything in the cluster.
func (s *suite) targets(ctx context.Context) ([]target, error) {
	out := []target{{"API server", "10.96.0.1:443"}, {"far end", farEnd}}
	for _, t := range []struct{ name, selector, port string }{
		{"gateway", "app.kubernetes.io/component=gateway", "8080"},
		{"gateway metrics", "app.kubernetes.io/component=gateway", "9080"},
		{"agent-runner", "app.kubernetes.io/component=agent-runner", "8081"},
		{"tool-executor", "app.kubernetes.io/component=tool-executor", "8082"},
		{"document-sync", "app.kubernetes.io/component=document-sync", "8083"},
		{"credential-broker", "app.kubernetes.io/component=credential-broker", "8084"},
		{"simulator", "app.kubernetes.io/component=simulator", "8089"},
		{"postgres", "database=signalbox", "5432"},
		{"nats", "app=nats", "4222"},
		{"nats monitor", "app=nats", "8222"},
		{"nats cluster", "app=nats", "6222"},
	} {
		ips, err := s.kubectl(ctx, "get", "pods", "-l", t.selector, "--field-selector=status.phase=Running", "-o", "jsonpath={.items[*].status.podIP}")
		if err != nil {
			return nil, err
		}
		if ips == "" {
			return nil, fmt.Errorf("there is no pod with %s", t.selector)
		}
		for ip := range strings.FieldsSeq(ips) {
			out = append(out, target{t.name, net.JoinHostPort(ip, t.port)})
		}
	}
	return out, nil
}

// networks returns the pods' network namespaces by address.
func (s *suite) networks(ctx context.Context) (map[string]string, error) {
	out, err := s.node(ctx, "enter", "sh", "-c", `for n in /run/netns/*; do echo "$n $(nsenter --net="$n" ip -4 -o addr show dev eth0 | awk '{print $4}')"; done`)
	if err != nil {
		return nil, err
	}
	networks := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 2 {
			ip, _, _ := strings.Cut(f[1], "/")
			networks[ip] = f[0]
		}
	}
	return networks, nil
}
