package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/subject"
)

// way is one way to the provider.
type way struct {
	name    string
	url     string
	headers func(call) (http.Header, error) // made for each request
	client  *http.Client
	pid     int // of the process in between; 0 for none
}

// call is what a request is to whom it is made for.
type call int

const (
	newRun     call = iota // of a session that has asked before
	goesOn                 // of a run that has just asked before
	newSession             // the use of the account goes into the audit
	calls
)

// world is everything that runs.
type world struct {
	all   []*way
	up    int // the provider's process
	stops []func()
}

// stop ends everything, the last that was started first.
func (w *world) stop() {
	for _, v := range w.all {
		v.client.CloseIdleConnections()
	}
	for _, f := range slices.Backward(w.stops) {
		f()
	}
}

func (w *world) add(v *way) {
	// As agent-runner's own: HTTP/1.1, connections kept.
	v.client = &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute, DisableCompression: true,
	}}
	w.all = append(w.all, v)
}

// Names of the ways.
const (
	straight    = "straight"
	egress      = "egress"
	bifrostFull = "bifrost"
	bifrostRaw  = "passthrough"
	bare        = "bare"
)

const messagesPath = "/v1/messages"

const (
	secret   = "sk-bench-0123456789"
	accounts = 8 // that a gateway chooses from
)

func key(call) (http.Header, error) {
	return http.Header{"X-Api-Key": {secret}}, nil
}

// start starts everything. What it returns is to be stopped also when it fails.
func start(ctx context.Context, bin string, p plan, log io.Writer) (*world, error) {
	w := &world{}
	up, addr, err := self("upstream", nil, "upstream")
	if err != nil {
		return w, err
	}
	w.stops = append(w.stops, up.stop)
	w.up = up.cmd.Process.Pid
	base := "http://" + addr
	w.add(&way{name: straight, url: base + messagesPath, headers: key})
	if err := w.startBroker(ctx, bin, base, log); err != nil {
		return w, err
	}
	var env []string
	if p.Procs > 0 {
		env = []string{fmt.Sprint("GOMAXPROCS=", p.Procs)}
	}
	for _, v := range []struct{ name, program, mount string }{{bifrostFull, "bifrost", ""}, {bifrostRaw, "bifrost", "/passthrough"}, {bare, "bare", ""}} {
		c, addr, err := self(v.name, env, v.program, base)
		if err != nil {
			return w, err
		}
		w.stops = append(w.stops, c.stop)
		w.add(&way{name: v.name, url: "http://" + addr + v.mount + messagesPath, headers: key, pid: c.cmd.Process.Pid})
	}
	return w, nil
}

// startBroker starts credential-broker as a deployment does: its own database,
// login, key file and trusted keys, and a pool of stored accounts that lead to base, with
// tokens as somebody who signed in has them. The account is chosen by score.
func (w *world) startBroker(ctx context.Context, bin, base string, log io.Writer) error {
	dir, err := os.MkdirTemp("", "signalbox-peers-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	w.stops = append(w.stops, func() { _ = os.RemoveAll(dir) })
	root, err := checkout()
	if err != nil {
		return err
	}
	if bin == "" {
		bin = dir
		fmt.Fprintln(log, "Building credential-broker.")
		if err := command(ctx, []string{"GOWORK=off", "CGO_ENABLED=0"}, "", "go", "build", "-C", filepath.Join(root, "services"), "-trimpath", "-buildvcs=false",
			"-o", dir+"/", "./credential-broker/cmd/credential-broker", "./standalone/cmd/signalbox"); err != nil {
			return err
		}
	}
	pg, err := pgd.Start(ctx, pgd.Config{Fast: true, Search: []string{root}})
	if err != nil {
		return err
	}
	w.stops = append(w.stops, func() { _ = pg.Stop(context.WithoutCancel(ctx)) })
	if err := pg.EnsureDatabase(ctx, "signalbox"); err != nil {
		return err
	}
	admin := pg.URL("signalbox")
	const password = "p-bench"
	if err := command(ctx, []string{"DATABASE_URL=" + admin, "CREDENTIAL_BROKER_DB_PASSWORD=" + password}, "", filepath.Join(bin, "signalbox"), "migrate"); err != nil {
		return err
	}
	signing, err := identity.NewKey()
	if err != nil {
		return err
	}
	addr, err := freeport.Addr()
	if err != nil {
		return err
	}
	env := []string{
		"DATABASE_URL=" + strings.Replace(admin, "//postgres@", "//signalbox_credentials:"+password+"@", 1),
		"CREDENTIAL_BROKER_KEY_FILE=" + filepath.Join(dir, "broker.key"),
		"CREDENTIAL_BROKER_ALLOW_PRIVATE=true",
		"CREDENTIAL_BROKER_ADDR=" + addr,
		"TRUSTED_KEYS=" + identity.FormatTrusted(map[string]string{subject.AgentRunner: signing.Public()}),
	}
	for i := range accounts {
		if err := command(ctx, env, fmt.Sprintf("%s-%d\n", secret, i), filepath.Join(bin, "signalbox"), "accounts", "add", "anthropic", "--profile", "anthropic-oauth", "--base-url", base); err != nil {
			return err
		}
	}
	if err := command(ctx, env, "", filepath.Join(bin, "signalbox"), "accounts", "strategy", "anthropic", "hybrid"); err != nil {
		return err
	}
	c, _, err := launch("credential-broker", filepath.Join(bin, "credential-broker"), env)
	if err != nil {
		return err
	}
	w.stops = append(w.stops, c.stop)
	if err := c.ready(ctx, "http://"+addr+"/ready"); err != nil {
		return err
	}
	w.add(&way{name: egress, url: "http://" + addr + "/egress/anthropic" + messagesPath, headers: contexts(signing), pid: c.cmd.Process.Pid})
	return nil
}

// contexts signs as agent-runner does, in the name of a run in a session.
func contexts(signing identity.Key) func(call) (http.Header, error) {
	signer := identity.NewSigner(subject.AgentRunner, signing)
	goes := identity.Actor{
		Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor, Run: id.New[id.Run](), Session: id.New[id.Session](),
	}
	return func(k call) (http.Header, error) {
		actor := goes
		if k != goesOn {
			actor.Run = id.New[id.Run]()
		}
		if k == newSession {
			actor.Session = id.New[id.Session]()
		}
		token, err := signer.Sign(actor, subject.CredentialBroker)
		if err != nil {
			return nil, err
		}
		return http.Header{identity.Header: {token}}, nil
	}
}

// checkout returns the repository's root.
func checkout() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	root := filepath.Dir(filepath.Dir(filepath.Dir(strings.TrimSpace(string(out)))))
	if _, err := os.Stat(filepath.Join(root, "services", "go.mod")); err != nil {
		return "", errors.New("run this in bench/peers of a checkout")
	}
	return root, nil
}
