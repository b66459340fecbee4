package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"signalbox.dev/services/e2e/world"
)

const (
	namespace = "signalbox"
	// farEnd is the address of the service that tools call: deploy/e2e/kube has it, too.
	farEnd = "10.89.0.1:9099"
	// patience is how long anything in the cluster may take to become ready.
	patience = 5 * time.Minute
)

// cluster is the node of deploy/e2e/kube.
type cluster struct {
	root  string // of the checkout
	cache string // of build.sh
	state string // of node.sh
	log   io.Writer
}

func newCluster(log io.Writer) (*cluster, error) {
	root, err := world.Checkout()
	if err != nil {
		return nil, err
	}
	cache := os.Getenv("KUBE_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		cache = filepath.Join(dir, "signalbox", "kube")
	}
	c := &cluster{root: root, cache: cache, state: os.Getenv("KUBE_STATE"), log: log}
	if c.state == "" {
		c.state = filepath.Join(cache, "state")
	}
	if _, err := os.Stat(c.kubeconfig()); err != nil {
		return nil, fmt.Errorf("the node is not running: start it with deploy/e2e/kube/node.sh up (%w)", err)
	}
	return c, nil
}

func (c *cluster) kubeconfig() string { return filepath.Join(c.state, "admin.kubeconfig") }

// do runs a program with the cluster's settings, and returns what it prints. Its error has what
// it says.
func (c *cluster) do(ctx context.Context, in, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = c.root
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig(), "PATH="+filepath.Join(c.cache, "bin")+":"+os.Getenv("PATH"), "HELM_CACHE_HOME="+c.state, "HELM_CONFIG_HOME="+c.state, "HELM_DATA_HOME="+c.state)
	if in != "" {
		cmd.Stdin = strings.NewReader(in)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// kubectl runs kubectl in the namespace of the release.
func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	return c.do(ctx, "", "kubectl", append([]string{"-n", namespace}, args...)...)
}

// apply applies objects that another command prints or a file has.
func (c *cluster) apply(ctx context.Context, yaml string) error {
	_, err := c.do(ctx, yaml, "kubectl", "-n", namespace, "apply", "-f", "-")
	return err
}

func (c *cluster) helm(ctx context.Context, args ...string) error {
	_, err := c.do(ctx, "", "helm", append([]string{"-n", namespace}, args...)...)
	return err
}

// node runs deploy/e2e/kube/node.sh.
func (c *cluster) node(ctx context.Context, args ...string) (string, error) {
	return c.do(ctx, "", filepath.Join(c.root, "deploy/e2e/kube/node.sh"), args...)
}

// loadImages gives the node all images that build.sh wrote with these patterns.
func (c *cluster) loadImages(ctx context.Context, patterns ...string) error {
	args := []string{"load"}
	for _, p := range patterns {
		found, err := filepath.Glob(filepath.Join(c.cache, "images", p))
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("there is no image %s in %s: see deploy/e2e/kube/build.sh", p, c.cache)
		}
		args = append(args, found...)
	}
	_, err := c.node(ctx, args...)
	return err
}

// address returns the address of a Service.
func (c *cluster) address(ctx context.Context, service string) (string, error) {
	return c.kubectl(ctx, "get", "service", service, "-o", "jsonpath={.spec.clusterIP}")
}

// secret returns a value of a Secret.
func (c *cluster) secret(ctx context.Context, name, key string) (string, error) {
	encoded, err := c.kubectl(ctx, "get", "secret", name, "-o", "jsonpath={.data."+key+"}")
	if err != nil {
		return "", err
	}
	value, err := base64.StdEncoding.DecodeString(encoded)
	return string(value), err
}

// pods returns the names of the pods that a selector finds.
func (c *cluster) pods(ctx context.Context, selector string) ([]string, error) {
	out, err := c.kubectl(ctx, "get", "pods", "-l", selector, "--field-selector=status.phase=Running", "-o", "jsonpath={.items[*].metadata.name}")
	return strings.Fields(out), err
}

// killPod ends a pod like the loss of its machine: without warning and without a drain. The kubelet
// alone would give its processes a second, also of a pod that is deleted without a grace period.
func (c *cluster) killPod(ctx context.Context, pod string) error {
	ids, err := c.kubectl(ctx, "get", "pod", pod, "--ignore-not-found", "-o", "jsonpath={.status.containerStatuses[*].containerID}")
	if err != nil {
		return err
	}
	for id := range strings.FieldsSeq(ids) {
		// One that is not running needs no kill.
		if _, err := c.node(ctx, "ctr", "tasks", "kill", "-s", "SIGKILL", strings.TrimPrefix(id, "containerd://")); err != nil && !strings.Contains(err.Error(), "not found") {
			return err
		}
	}
	_, err = c.kubectl(ctx, "delete", "pod", pod, "--grace-period=0", "--force", "--wait=false", "--ignore-not-found")
	return err
}

// ready waits until all pods of Deployments and StatefulSets are ready.
func (c *cluster) ready(ctx context.Context) error {
	names, err := c.kubectl(ctx, "get", "deployments,statefulsets", "-o", "name")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(names) {
		if _, err := c.kubectl(ctx, "rollout", "status", name, "--timeout="+patience.String()); err != nil {
			return err
		}
	}
	return nil
}

// explain prints what the cluster knows about a failure.
func (c *cluster) explain(ctx context.Context) {
	for _, args := range [][]string{
		{"get", "pods,jobs", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"describe", "hpa"},
		{"logs", "-l", "app.kubernetes.io/component=migrate", "--tail=20"},
	} {
		out, err := c.kubectl(ctx, args...)
		if err != nil {
			out += err.Error()
		}
		fmt.Fprintf(c.log, "kubectl %s\n%.6000s\n", strings.Join(args, " "), out)
	}
}

// sleep waits, and returns early with the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
