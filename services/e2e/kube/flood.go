package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"signalbox.dev/services/e2e/kill"
)

const (
	// floodTimes is how many times as many runs the flood offers as the time around it.
	floodTimes = 10
	floodTime  = time.Minute
	// leaving bounds the time until autoscalers have taken the last pod away, one a minute.
	leaving = 12 * time.Minute
	// sampled is the interval at which the numbers of pods are read.
	sampled = 2 * time.Second
)

// scaled are the Deployments that the length of a queue scales, with two pods at least.
var scaled = []string{"agent-runner", "tool-executor"}

// flood installs KEDA and metrics-server, turns autoscaling on, and offers ten times as many runs
// for a minute. Runners and executors have to become more, and then two again, one pod at a time.
func flood(ctx context.Context, s *suite, r *result) error {
	if err := s.autoscalers(ctx); err != nil {
		return err
	}
	if err := s.chart(ctx, "upgrade", "", "-f", "deploy/e2e/kube/scaling.yaml", "--wait"); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "wait", "scaledobjects", "--all", "--for=condition=Ready", "--timeout="+patience.String()); err != nil {
		return err
	}
	// Without a number of replicas a Deployment has one pod until its autoscaler has seen it.
	if err := s.until(ctx, patience, func(pods map[string]int) bool { return twoEach(pods) && pods["gateway"] >= 2 }); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	calm := kill.Load{Rate: s.rate / floodTimes}
	loads := make(chan kill.Load)
	offer := func(l kill.Load) error {
		select {
		case loads <- l:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w := newWatch()
	err := s.load(ctx, r, kill.Config{Rate: calm.Rate, Loads: loads, Disturb: s.settled(func(ctx context.Context, died kill.Died) error {
		if err := offer(kill.Load{Rate: s.rate, Wait: 0.7}); err != nil {
			return err
		}
		w.begun = time.Now()
		if err := s.until(ctx, 2*floodTime, w.see(func() bool { return time.Since(w.begun) > floodTime })); err != nil {
			return err
		}
		if err := offer(calm); err != nil {
			return err
		}
		w.ended, w.left = time.Now(), false
		// Pauses count from when pods leave: before, runs wait for slots.
		if err := s.until(ctx, leaving, w.see(func() bool { return w.left || twoEach(w.now) })); err != nil {
			return err
		}
		died("scale-in")
		return s.until(ctx, leaving, w.see(func() bool { return twoEach(w.now) }))
	})})
	if err != nil {
		return err
	}
	w.report(r)
	for end, n := range r.Load.Ends {
		if strings.HasPrefix(end, "failed") {
			r.Broken = append(r.Broken, fmt.Sprintf("%d runs ended with %q", n, end))
		}
	}
	return nil
}

// autoscalers installs metrics-server and KEDA.
func (s *suite) autoscalers(ctx context.Context) error {
	if err := s.loadImages(ctx, "metrics-server.tar", "keda-operator.tar", "keda-adapter.tar"); err != nil {
		return err
	}
	pki := filepath.Join(s.state, "pki")
	ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return err
	}
	// CRDs are too large for the annotation that a client-side apply makes.
	if _, err := s.do(ctx, "", "kubectl", "apply", "--server-side", "-f", filepath.Join(s.cache, "keda-crds.yaml")); err != nil {
		return err
	}
	if _, err := s.do(ctx, "", "kubectl", "apply", "-f", "deploy/e2e/kube/manifests/scaling.yaml"); err != nil {
		return err
	}
	for _, namespace := range []string{"kube-system", "keda"} {
		if _, err := s.do(ctx, "", "kubectl", "-n", namespace, "create", "secret", "generic", "added-apis", "--from-file=ca.crt="+filepath.Join(pki, "ca.crt"),
			"--from-file=tls.crt="+filepath.Join(pki, "added-apis.crt"), "--from-file=tls.key="+filepath.Join(pki, "added-apis.key")); err != nil {
			return err
		}
	}
	for _, api := range []string{"v1beta1.metrics.k8s.io", "v1beta1.external.metrics.k8s.io"} {
		patch := fmt.Sprintf(`{"spec": {"caBundle": %q}}`, base64.StdEncoding.EncodeToString(ca))
		if _, err := s.do(ctx, "", "kubectl", "patch", "apiservice", api, "--type=merge", "-p", patch); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"-n", "kube-system", "rollout", "status", "deployment/metrics-server"},
		{"-n", "keda", "rollout", "status", "deployment/keda-operator"},
		{"-n", "keda", "rollout", "status", "deployment/keda-metrics-apiserver"},
		{"wait", "apiservice", "v1beta1.metrics.k8s.io", "v1beta1.external.metrics.k8s.io", "--for=condition=Available"},
	} {
		if _, err := s.do(ctx, "", "kubectl", append(args, "--timeout="+patience.String())...); err != nil {
			return err
		}
	}
	return nil
}

// until reads how many pods the Deployments shall have, until done is true of these numbers.
func (s *suite) until(ctx context.Context, limit time.Duration, done func(map[string]int) bool) error {
	for begun := time.Now(); ; {
		out, err := s.kubectl(ctx, "get", "deployments", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.replicas}{"\n"}{end}`)
		if err != nil {
			return err
		}
		pods := map[string]int{}
		for line := range strings.Lines(out) {
			var name string
			var n int
			if _, err := fmt.Sscan(line, &name, &n); err != nil {
				return fmt.Errorf("read %q: %w", line, err)
			}
			pods[component(name)] = n
		}
		if done(pods) {
			return nil
		}
		if time.Since(begun) > limit {
			return fmt.Errorf("after %s the Deployments still have other numbers of pods than expected: %v", limit, pods)
		}
		if err := sleep(ctx, sampled); err != nil {
			return err
		}
	}
}

// twoEach reports whether the scaled Deployments have as few pods as they may.
func twoEach(pods map[string]int) bool {
	return !slices.ContainsFunc(scaled, func(name string) bool { return pods[name] != 2 })
}

// watch follows the numbers of pods during and after a flood.
type watch struct {
	begun, ended time.Time
	now          map[string]int
	most         map[string]int
	out          map[string]time.Duration // from the beginning of the flood to more pods
	in           map[string]time.Duration // from its end to two pods
	left         bool                     // a pod was taken away since the flood's end
	together     []string                 // pods that were taken away at once
}

func newWatch() *watch {
	return &watch{now: map[string]int{}, most: map[string]int{}, out: map[string]time.Duration{}, in: map[string]time.Duration{}}
}

// see returns a function that records numbers of pods, and then asks whether that is all.
func (w *watch) see(done func() bool) func(map[string]int) bool {
	return func(pods map[string]int) bool {
		for _, name := range append([]string{"gateway"}, scaled...) {
			n, before := pods[name], w.now[name]
			switch {
			case n > 2 && w.out[name] == 0:
				w.out[name] = time.Since(w.begun)
			case n == 2 && before > 2 && !w.ended.IsZero():
				w.in[name] = time.Since(w.ended)
			}
			w.left = w.left || n < before
			if n < before-1 {
				w.together = append(w.together, fmt.Sprintf("%d pods of %s left at once", before-n, name))
			}
			w.most[name] = max(w.most[name], n)
		}
		w.now = pods
		return done()
	}
}

// report adds what was seen, and what should not have been, to the result.
func (w *watch) report(r *result) {
	for _, name := range slices.Sorted(maps.Keys(w.most)) {
		r.Figures = append(r.Figures, figure{"most pods of " + name, float64(w.most[name]), "pods"})
		if d := w.out[name]; d > 0 {
			r.Figures = append(r.Figures, figure{"begin of the flood to more pods of " + name, d.Seconds(), "s"})
		} else if slices.Contains(scaled, name) {
			r.Broken = append(r.Broken, name+" did not scale out")
		}
		if d := w.in[name]; d > 0 {
			r.Figures = append(r.Figures, figure{"end of the flood to two pods of " + name, d.Seconds(), "s"})
		}
	}
	r.Broken = append(r.Broken, w.together...)
}
