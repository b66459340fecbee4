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

	"signalbox.dev/services/e2e/world"
)

// TestConsoleFailover kills the gateway under a person who watches an answer and writes in a document.
// Behind the same address there is another one: nothing is lost, and nothing comes twice. Before, a
// second person answers at that one what the first one's conversation asks.
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
	killed := false
	for lines := bufio.NewScanner(out); err == nil && lines.Scan(); {
		if lines.Text() != "kill" {
			t.Log(lines.Text())
			continue
		}
		if err = w.Replica("gateway", 1).Kill(); err == nil {
			_, err = io.WriteString(in, "killed\n")
			killed = true
		}
	}
	if err := errors.Join(err, cmd.Wait()); err != nil || !killed {
		t.Fatalf("the person in the browser: %v (a gateway was killed: %t)\n%s", err, killed, &stderr)
	}
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
