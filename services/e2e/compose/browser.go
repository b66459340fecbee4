package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"signalbox.dev/pkg/httpserver"

	"signalbox.dev/services/e2e/world"
)

// browser lets an agent read a page of this program's.
func browser(ctx context.Context, r *rig) error {
	address, err := r.inspect(ctx, "bridge", "{{(index .IPAM.Config 0).Gateway}}")
	if err != nil {
		return err
	}
	l, err := httpserver.Listen(ctx, address+":18091")
	if err != nil {
		return err
	}
	page := &http.Server{ReadHeaderTimeout: world.Timeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<title>A page</title><h1>Tide tables</h1><script>document.body.append('written by a script')</script>")
	})}
	go func() { _ = page.Serve(l) }()   // it ends with Close
	defer func() { _ = page.Close() }() // the step is over

	r.profile = "browser"
	r.variables = []string{"TOOL_EXECUTOR_BROWSER=http://browser:8086", "BROWSER_ALLOW_PRIVATE=" + address + "/32"}
	defer func() { r.profile, r.variables = "", nil }()
	if _, err := r.compose(ctx, "build", "browser"); err != nil {
		return err
	}
	if err := r.up(ctx, "--no-build"); err != nil {
		return err
	}
	w, err := r.world(ctx)
	if err != nil {
		return err
	}
	who, err := w.NewMember(ctx, "", "owner")
	if err != nil {
		return err
	}
	c := w.Client(0, who)
	var made struct{ Session struct{ ID string } }
	err = c.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/sessions", Body: map[string]string{"preset": "browser"}}, &made)
	if err != nil {
		return err
	}
	run, err := c.Submit(ctx, made.Session.ID, world.Sending{Content: "read http://" + address + ":18091/tides"})
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for !run.Ended() {
		select {
		case <-limited.Done():
			return errors.New("the run does not end")
		case <-time.After(200 * time.Millisecond):
		}
		if run, err = c.Run(limited, run.ID); err != nil {
			return err
		}
	}
	var said strings.Builder
	for _, t := range run.ToolCalls {
		if t.Result != nil {
			fmt.Fprintf(&said, "%s: %s\n", t.Tool, *t.Result)
		}
	}
	for _, want := range []string{"Tide tables", "written by a script"} {
		if !strings.Contains(said.String(), want) {
			return fmt.Errorf("the browser's tools say nothing of %q:\n%s", want, &said)
		}
	}
	r.say("   %s", strings.ReplaceAll(strings.TrimSpace(said.String()), "\n", "\n           "))
	if err := r.contained(ctx); err != nil {
		return err
	}
	// Without the profile again.
	r.profile, r.variables = "", nil
	return r.up(ctx, "--no-build", "--remove-orphans")
}

// processes prints, for pid 1 and every process of Chromium in a container: its id, its kind, its network
// namespace, and how many seccomp filters it has. A renderer's links can be read with privileges only.
const processes = `for p in /proc/[0-9]*; do
	case $p:$(readlink $p/exe) in /proc/1:* | *:*/chromium/chromium) ;; *) continue ;; esac
	kind=$(tr '\0' ' ' <$p/cmdline | sed -n 's/.* --type=\([a-z-]*\) .*/\1/p')
	echo ${p#/proc/} ${kind:-main} $(readlink $p/ns/net) $(sed -n 's/^Seccomp_filters:[[:space:]]*//p' $p/status)
done`

// contained checks that Chromium's own sandbox is on, and that all of Chromium is in a network namespace
// of its own.
func (r *rig) contained(ctx context.Context) error {
	out, err := r.output(ctx, nil, nil, "docker", "exec", "--user", "root", "--privileged", project+"-browser-1", "sh", "-c", processes)
	if err != nil {
		return err
	}
	type process struct {
		pid, filters  int
		kind, network string
	}
	var service, main, renderer process
	for line := range strings.Lines(string(out)) {
		var p process
		if _, err := fmt.Sscan(line, &p.pid, &p.kind, &p.network, &p.filters); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		switch {
		case p.pid == 1:
			service = p
		case p.kind == "main":
			main = p
		case p.kind == "renderer":
			renderer = p
		}
	}
	switch {
	case main.pid == 0 || renderer.pid == 0:
		err = errors.New("no page is open")
	case service.filters == 0:
		err = errors.New("the container has no seccomp profile")
	case renderer.filters <= service.filters:
		err = errors.New("the sandbox of Chromium is off: a renderer has the container's seccomp filter only")
	case renderer.network == main.network:
		err = errors.New("the sandbox of Chromium is off: a renderer has the namespaces of its main process")
	case main.network == service.network:
		err = errors.New("the network of Chromium is that of the container")
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	r.say("   seccomp filters: %d of the container, %d of a renderer; the networks differ", service.filters, renderer.filters)
	return nil
}
