// Package admin manages stored credentials: their accounts, sign-ins, pools, keys and
// audit. It works directly on the database, or on the file of a single user that stands in
// for one. The broker's Connect service and the command line both use it; the command line
// needs no running broker, and brokers read the accounts again within a second.
//
// Everything goes through a Scope: the accounts of one workspace, or those that the
// operator shares with all workspaces, together with who acts on them. The caller has
// checked that actor's role. Every change is recorded in the audit in the actor's name.
// Errors are faults whose messages are meant for people.
//
// An operation changes an account and writes its audit row in one transaction, so that a
// process that dies leaves both or neither. Where a provider has to be told (Logout,
// Remove), the account stops being used here first.
package admin

import (
	"context"
	"fmt"
	"log/slog"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/rotation"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Config is what Accounts works on.
type Config struct {
	// DB is the credentials schema, as the service's role; nil if there is a File.
	DB *pg.DB
	// File keeps the accounts of a single user in place of a database; empty for none.
	File string
	// KeyFile is the broker's. It is made if it is missing and Keys has no URL.
	KeyFile string
	// MakeKey makes a missing key file at once, instead of when something is first sealed.
	MakeKey bool
	// Keys are those beside the file.
	Keys Keys
	// Profiles is the folder of the operator's own request profiles; empty for none.
	Profiles string
	// AllowPrivate allows base URLs at loopback and private addresses.
	AllowPrivate bool
	// AllowLoopback allows base URLs at loopback addresses, for shared accounts only.
	AllowLoopback bool
	// OAuth says how to sign in to providers.
	OAuth OAuth
	// SimulatedServices says that the simulator stands in for services that are not connected.
	SimulatedServices bool
	// Operator names the person at the command line for the audit: a user of the operating
	// system, and the machine.
	Operator string
	// Log is for what happens at authorisation servers; nil for none.
	Log *slog.Logger
}

// Accounts manages the credentials of one database or file.
type Accounts struct {
	// The broker builds on these.
	Store    *store.Store
	File     *accountfile.File // nil with a database
	Vault    *vault.Vault
	Keeper   *oauth.Keeper
	Profiles *profile.Set
	Policy   target.Policy

	keys      vault.Ring
	rotation  *rotation.Rotation
	providers *oauth.Providers
	redirect  string // where OAuth providers send browsers back to
	simulated bool   // services that are not connected are simulated
	operator  string
	log       *slog.Logger
}

// Open returns the accounts of a database or of a file. The caller closes it, and
// then the DB.
func Open(cfg Config) (*Accounts, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	profiles, err := profile.Open(process.Version(), cfg.Profiles)
	if err != nil {
		return nil, fmt.Errorf("load request profiles: %w", err)
	}
	providers, err := cfg.OAuth.providers(profiles)
	if err != nil {
		return nil, err
	}
	file, err := openFile(&cfg) // before the keys: it makes the folder, which may be the key file's too
	if err != nil {
		return nil, err
	}
	keys, err := cfg.Keys.open(cfg.KeyFile, !cfg.MakeKey)
	if err != nil {
		file.Close()
		return nil, err
	}
	a := &Accounts{
		File: file, Profiles: profiles, Policy: target.Policy{AllowPrivate: cfg.AllowPrivate, Loopback: cfg.AllowLoopback},
		keys: keys, providers: providers, redirect: cfg.OAuth.Redirect, simulated: cfg.SimulatedServices, operator: cfg.Operator, log: cfg.Log,
	}
	a.openStore(&cfg)
	a.Keeper = newKeeper(cfg, a)
	return a, nil
}

// Close returns when nothing is sent or written any more.
func (a *Accounts) Close() {
	a.Keeper.Close()
	_ = a.keys.Close() // connections to key services: nothing can be done about an error
	a.File.Close()
}

// Operator returns the accounts of a workspace as the operator, whose role is not checked;
// with the zero workspace, the shared ones.
func (a *Accounts) Operator(ws id.Workspace) *Scope {
	return &Scope{accounts: a, by: identity.Actor{Workspace: ws, Service: commandLine, Address: a.operator}}
}

// For returns the accounts of an actor's workspace in a running broker, whose pool is told
// of changes.
func (a *Accounts) For(actor identity.Actor, p *pool.Set) *Scope {
	return &Scope{accounts: a, by: actor, pool: p}
}

// commandLine is the service that the operator acts through, in the audit.
const commandLine = "cli"

// List returns every account, shared ones first, then by workspace.
func (a *Accounts) List(ctx context.Context) ([]Account, error) {
	rows, err := a.Store.ListAll(ctx)
	if err != nil {
		return nil, err
	}
	var out []Account
	look := a.Vault.Look()
	for len(rows) > 0 {
		ws, n := rows[0].WorkspaceID, 1
		for n < len(rows) && rows[n].WorkspaceID == ws {
			n++
		}
		some, err := a.Operator(ws).describe(ctx, rows[:n], nil, look)
		if err != nil {
			return nil, err
		}
		out, rows = append(out, some...), rows[n:]
	}
	return out, nil
}

// Find returns the account of that id, in whatever workspace, or a NotFound fault.
func (a *Accounts) Find(ctx context.Context, account id.Account) (Account, error) {
	ws, err := a.Store.WorkspaceOf(ctx, account)
	if err != nil {
		return Account{}, err
	}
	return a.Operator(ws).Get(ctx, account)
}

// Providers returns the names of the providers that need no profile or base URL.
func (a *Accounts) Providers() []string { return a.Profiles.Providers() }
