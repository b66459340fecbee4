package browser_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/services/e2e/world"
)

// twoSteps has time to stop the runners in its first step, for which they wait 25 s.
const twoSteps = `
rules:
  - when: {user: '^deploy$', result: {}}
    then: [{say: 'Two minutes to three.'}]
  - when: {user: '^deploy$'}
    then: [{say: 'Let me see.'}, {wait: 15s}, {call: {tool: get_current_datetime, args: {}}}]
`

// TestConsoleFailover kills the gateway under a person who watches an answer and writes in a document.
// Behind the same address there is another one: nothing is lost, and nothing comes twice. Before, a
// second person answers at that one what the first one's conversation asks. After that all runners
// shut down and start again: meanwhile the person sees that the run is paused.
func TestConsoleFailover(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w, err := world.Start(ctx, world.Options{Dir: t.TempDir(), Programs: programs, Partitions: 1})
	if w != nil {
		t.Cleanup(func() { _ = w.Close() })
	}
	if err != nil {
		t.Fatal(err)
	}
	owner, err := w.NewMember(ctx, "", "owner")
	if err != nil {
		t.Fatal(err)
	}
	editor, err := w.NewMember(ctx, owner.Workspace, "editor")
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(inFrontOf(w.Gateways))
	defer front.Close()

	cmd := exec.CommandContext(ctx, "node", "../../console/test/failover.mjs", front.URL, w.Gateways[1])
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(in, "%s\n%s\n", owner.Token, editor.Token)
	did := map[string]bool{}
	for lines := bufio.NewScanner(out); err == nil && lines.Scan(); {
		did[lines.Text()] = true
		switch lines.Text() {
		case "kill":
			if err = w.Replica("gateway", 1).Kill(); err == nil {
				_, err = io.WriteString(in, "killed\n")
			}
		case "deploy":
			var session string
			if session, err = newSession(ctx, w, owner); err == nil {
				_, err = io.WriteString(in, session+"\n")
			}
		case "stop":
			err = forRunners(w, (*world.Proc).Stop)
		case "start":
			err = forRunners(w, (*world.Proc).Restart)
		default:
			t.Log(lines.Text())
		}
	}
	if err := errors.Join(err, cmd.Wait()); err != nil || !did["kill"] || !did["start"] {
		t.Fatalf("the person in the browser: %v (said %v)\n%s", err, did, &stderr)
	}
}

// newSession returns a session whose model is twoSteps, at the gateway that is left.
func newSession(ctx context.Context, w *world.World, who world.Member) (string, error) {
	if err := w.PutScript(ctx, "two-steps", twoSteps); err != nil {
		return "", err
	}
	return w.Client(1, who).NewSession(ctx, "sim/two-steps")
}

func forRunners(w *world.World, f func(*world.Proc) error) error {
	var group errgroup.Group
	for n := range 2 {
		group.Go(func() error { return f(w.Replica("agent-runner", n+1)) })
	}
	return group.Wait()
}

// inFrontOf returns a proxy that connects to the first gateway that accepts connections.
func inFrontOf(gateways []string) *httputil.ReverseProxy {
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: "gateway"})
		r.Out.Host = r.In.Host
	}}
	proxy.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (conn net.Conn, err error) {
		for _, g := range gateways {
			if conn, err = new(net.Dialer).DialContext(ctx, network, strings.TrimPrefix(g, "http://")); err == nil {
				return conn, nil
			}
		}
		return nil, err
	}}
	return proxy
}
