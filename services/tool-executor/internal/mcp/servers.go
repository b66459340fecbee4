package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/netguard"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/tool-executor/internal/tool"
)

const (
	cacheFor      = 2 * time.Second // how long a workspace's rows are used
	maxWorkspaces = 1024            // that are cached
	maxChecks     = 8               // at a time
	storeTimeout  = 5 * time.Second
)

// Config has the dependencies of Servers. All fields are required.
type Config struct {
	DB  *pg.DB
	Log *slog.Logger
	// Guard connects to servers without a credential.
	Guard *netguard.Guard
	// Broker sends requests for an account of the credential broker; see BrokerURL.
	Broker    http.RoundTripper
	BrokerURL string
	Signer    *identity.Signer
	// Operator has the operator's servers, of which Processes may run at a time.
	Operator  Operator
	Processes int
}

// Servers are the MCP servers of all workspaces. It implements tool.Source. It is safe for
// concurrent use.
type Servers struct {
	cfg    Config
	store  store
	client *client

	background context.Context //nolint:containedctx // the life of the checks in the background
	stop       context.CancelFunc
	checks     sync.WaitGroup
	slots      chan struct{}

	mu    sync.Mutex // guards known
	known map[id.Workspace]catalogue
}

// catalogue has the tools of a workspace.
type catalogue struct {
	entries []tool.Entry
	servers map[ServerID]compiled
	until   time.Time
}

// compiled has the tools of a server's row.
type compiled struct {
	version string
	entries []tool.Entry
}

// New returns Servers. The caller closes them.
func New(cfg Config) *Servers {
	s := &Servers{cfg: cfg, store: store{cfg.DB}, slots: make(chan struct{}, maxChecks), known: map[id.Workspace]catalogue{}}
	s.client = &client{transport: s.transport, changed: s.checkChanged, unauthorized: s.unauthorized, log: cfg.Log, processes: cfg.Processes}
	s.background, s.stop = context.WithCancel(context.Background())
	return s
}

// Close ends the checks in the background and waits for all work.
func (s *Servers) Close() {
	s.stop()
	s.checks.Wait()
	s.client.close()
	s.checks.Wait() // for changes that were announced meanwhile
	s.cfg.Guard.Client(0).CloseIdleConnections()
}

// Tools implements tool.Source.
func (s *Servers) Tools(ctx context.Context, ws id.Workspace) ([]tool.Entry, error) {
	s.mu.Lock()
	c, ok := s.known[ws]
	s.mu.Unlock()
	if ok && time.Now().Before(c.until) {
		return c.entries, nil
	}
	rows, err := s.List(ctx, ws)
	if err != nil {
		return nil, err
	}
	next := catalogue{servers: map[ServerID]compiled{}, until: time.Now().Add(cacheFor)}
	for _, row := range rows {
		if row.shadowed {
			continue
		}
		have := c.servers[row.ID]
		if have.version != row.version {
			have = compiled{row.version, row.entries(s.client, s.cfg.Guard)}
		}
		next.servers[row.ID] = have
		next.entries = append(next.entries, have.entries...)
		if row.due {
			s.checkSoon(row)
		}
	}
	tool.SortEntries(next.entries)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxWorkspaces {
		clear(s.known)
	}
	s.known[ws] = next
	return next.entries, nil
}

// Tool implements tool.Source.
func (s *Servers) Tool(ctx context.Context, ws id.Workspace, name string) (tool.Entry, bool, error) {
	if !strings.HasPrefix(name, "mcp__") {
		return tool.Entry{}, false, nil
	}
	all, err := s.Tools(ctx, ws)
	if err != nil {
		return tool.Entry{}, false, err
	}
	e, ok := tool.Find(all, name)
	return e, ok, nil
}

// forget makes the next call of Tools read the rows.
func (s *Servers) forget(ws id.Workspace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.known[ws]; ok {
		c.until = time.Time{}
		s.known[ws] = c
	}
}

// checkSoon checks a server in the background, unless too many are checked already or another
// replica does it.
func (s *Servers) checkSoon(row Server) {
	select {
	case s.slots <- struct{}{}:
	default:
		return // the next listing tries again
	}
	s.checks.Go(func() {
		defer func() { <-s.slots }()
		err := panics.Try(func() error {
			claimed, err := s.store.claim(s.background, row)
			if err != nil || !claimed {
				return err
			}
			return s.check(s.background, row)
		})
		if err != nil && s.background.Err() == nil {
			s.cfg.Log.WarnContext(s.background, "MCP server not checked", "workspace", row.Workspace, "server", row.ID, "error", err)
		}
	})
}

// checkChanged checks a server that says that its tools have changed: at once, or, if it was
// checked a moment ago, with a listing a moment later.
func (s *Servers) checkChanged(row Server) {
	if s.background.Err() != nil {
		return
	}
	s.checks.Go(func() {
		err := panics.Try(func() error { return s.store.hasten(s.background, row) })
		if err != nil && s.background.Err() == nil {
			s.cfg.Log.WarnContext(s.background, "change of an MCP server not stored", "workspace", row.Workspace, "server", row.ID, "error", err)
		}
		s.forget(row.Workspace)
		s.checkSoon(row)
	})
}

// ask asks a server for its tools. One that wants a sign-in is asked through the broker too:
// somebody may have signed in without this service having been told.
func (s *Servers) ask(ctx context.Context, row Server) ([]Definition, error) {
	tools, err := s.client.list(ctx, row)
	if _, challenged := errors.AsType[*challenge](err); !challenged || row.Credential || row.SignIn != SignInRequired {
		return tools, err
	}
	signed := row
	signed.Credential = true
	tools, other := s.client.list(ctx, signed)
	if other != nil {
		return nil, err
	}
	return tools, s.store.signedIn(ctx, row, false)
}

// check asks a server for its tools and stores the answer or the failure. Its error is not the
// server's; it is Unavailable if the server could not be asked.
func (s *Servers) check(ctx context.Context, row Server) error {
	defer s.forget(row.Workspace)
	tools, err := s.ask(ctx, row)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errBusy):
		return fault.Wrap(err, fault.Unavailable, errBusy.Error())
	}
	// What was found out is stored even if the caller leaves.
	saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err == nil {
		err = s.store.answered(saving, row, tools)
		if fault.KindOf(err) == fault.Unavailable {
			return err
		}
	}
	if err == nil {
		return nil
	}
	if err := s.challenged(ctx, row, err); err != nil {
		return err
	}
	reason := why(err)
	if row.Failure != reason {
		s.cfg.Log.InfoContext(ctx, "MCP server cannot be used", "workspace", row.Workspace, "server", row.ID, "reason", reason, "error", withoutPaths(err))
	}
	return s.store.failed(saving, row, reason)
}

// location is a URL; its first group is the host.
var location = regexp.MustCompile(`\b(https?://)(?:[^\s"/?#]*@)?([^\s"/?#@]+)[^\s"]*`)

// withoutPaths returns the text of an error without what follows the hosts of URLs, which may
// hold secrets.
func withoutPaths(err error) error { return errors.New(location.ReplaceAllString(err.Error(), "$1$2")) }

// List returns a workspace's servers, by name.
func (s *Servers) List(ctx context.Context, ws id.Workspace) ([]Server, error) {
	rows, err := s.store.all(ctx, ws)
	if err != nil {
		return nil, err
	}
	offered := s.cfg.Operator.allowed(ws)
	if all, complete := merge(rows, offered); complete {
		return all, nil
	}
	for _, n := range offered {
		if !slices.ContainsFunc(rows, func(r Server) bool { return r.ID == n.ID && r.URL == n.URL }) {
			if err := s.store.offer(ctx, n); err != nil {
				return nil, err
			}
		}
	}
	if rows, err = s.store.all(ctx, ws); err != nil {
		return nil, err
	}
	all, _ := merge(rows, offered)
	return all, nil
}

// merge adds to the rows of the operator's servers how they are started, and leaves out those
// that are not offered any more. complete is false if some have no row yet, or an old one.
func merge(rows []Server, offered map[ServerID]Server) (all []Server, complete bool) {
	found, names := 0, map[string]bool{}
	for _, n := range offered {
		names[n.Name] = true
	}
	for _, row := range rows {
		n, ok := offered[row.ID]
		switch {
		case row.Operator && !ok:
			continue
		case row.Operator:
			row.command = n.command
			if row.URL == n.URL {
				found++
			}
		case names[row.Name]:
			row.shadowed, row.Failure = true, "the operator has a server of this name: remove this one, and add it under another name"
		}
		all = append(all, row)
	}
	return all, found == len(offered)
}

// get returns a server, or a NotFound fault.
func (s *Servers) get(ctx context.Context, ws id.Workspace, server ServerID) (Server, error) {
	all, err := s.List(ctx, ws)
	if err != nil {
		return Server{}, err
	}
	for _, n := range all {
		if n.ID == server {
			return n, nil
		}
	}
	return Server{}, errNone()
}

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,27}$`)

// checkName checks a server's name. It becomes the source of the server's tools, so it must not
// be that of others' tools, which runs trust in other ways.
func checkName(name string) error {
	switch {
	case !nameForm.MatchString(name):
		return errors.New("use lower-case letters, digits and dashes, beginning with a letter, 28 at most")
	case name == tool.BuiltIn, name == tool.Provider, name == "client":
		return fmt.Errorf("%q is reserved: choose another name", name)
	}
	return nil
}

// Create adds a server, and asks for its tools. A repetition with the same id returns the
// existing server.
func (s *Servers) Create(ctx context.Context, n Server) (Server, error) {
	if err := checkName(n.Name); err != nil {
		return Server{}, fault.New(fault.Invalid, "name: %v", err)
	}
	if s.cfg.Operator.has(n.Workspace, n.Name) {
		return Server{}, fault.Coded(fault.Conflict, "MCP_NAME_TAKEN", "name: the operator has an MCP server called %q: choose another name", n.Name)
	}
	if err := s.checkURL(n); err != nil {
		return Server{}, err
	}
	added, err := s.store.add(ctx, n)
	if err != nil {
		return Server{}, err
	}
	if !added {
		have, err := s.get(ctx, n.Workspace, n.ID)
		if err == nil && (have.Name != n.Name || have.URL != n.URL || n.Credential && !have.Credential) {
			err = fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this idempotency key has added another MCP server, %s: use a new key for a new server", have.Name)
		}
		return have, err
	}
	row, err := s.Test(ctx, n.Workspace, n.ID)
	if errors.Is(err, errBusy) { // a listing asks it soon
		return s.get(ctx, n.Workspace, n.ID)
	}
	return row, err
}

func (s *Servers) checkURL(n Server) error {
	u, err := url.Parse(n.URL)
	if err != nil || u.Host == "" {
		return fault.New(fault.Invalid, "url: it is not a URL: use https://host/path")
	}
	if n.Credential {
		return nil // the broker has checked its account's
	}
	if err := s.cfg.Guard.CheckURL(u); err != nil {
		return fault.New(fault.Invalid, "url: %v (the operator can allow private addresses with TOOL_EXECUTOR_ALLOW_PRIVATE)", err)
	}
	return nil
}

// Remove removes a server, or returns a NotFound fault.
func (s *Servers) Remove(ctx context.Context, ws id.Workspace, server ServerID) error {
	row, err := s.get(ctx, ws, server)
	if err == nil && row.Operator {
		return fault.New(fault.Forbidden, "the operator offers this MCP server: only the operator can remove it")
	}
	// Also if another replica has removed it: this one may still have sessions with it.
	defer s.forget(ws)
	defer s.client.dropWhere(func(k linkKey) bool { return k.workspace == ws && k.server == server })
	if err != nil {
		return err
	}
	return s.store.remove(ctx, ws, server)
}

// Test asks a server for its tools now, and returns the server.
func (s *Servers) Test(ctx context.Context, ws id.Workspace, server ServerID) (Server, error) {
	row, err := s.get(ctx, ws, server)
	if err != nil {
		return Server{}, err
	}
	if err := s.check(ctx, row); err != nil {
		return Server{}, err
	}
	return s.get(ctx, ws, server)
}

// Approve approves the current definitions of a server's tools that have these hashes.
func (s *Servers) Approve(ctx context.Context, ws id.Workspace, server ServerID, hashes []string) (Server, error) {
	if len(hashes) > maxTools {
		return Server{}, fault.New(fault.Invalid, "hashes: at most %d are allowed", maxTools)
	}
	defer s.forget(ws)
	if err := s.store.approve(ctx, ws, server, slices.Compact(slices.Sorted(slices.Values(hashes)))); err != nil {
		return Server{}, err
	}
	return s.get(ctx, ws, server)
}

// Provider returns the name under which the broker keeps a server's account.
func Provider(name string) string { return "mcp-" + name }

// transport returns how a server is reached: directly, or through the broker.
func (s *Servers) transport(n Server) (endpoint string, rt http.RoundTripper) {
	if !n.Credential {
		return n.URL, s.cfg.Guard.Transport()
	}
	path := "/"
	if u, err := url.Parse(n.URL); err == nil {
		path = u.RequestURI()
	}
	return s.cfg.BrokerURL + "/egress/" + Provider(n.Name) + path, &signed{s.cfg, n}
}
