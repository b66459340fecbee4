// Package store keeps accounts, sign-ins, what is known of pools, wrapped data keys and the
// audit: in Postgres, or for a single user in a file (package accountfile). It knows no
// plaintext: of a credential it has what package vault has sealed.
//
// The rows are the same in both and are defined next to the file's format, in accountfile.
// What may be done with them is written once: on accounts here, on grants and logins in
// package oauth, on data keys in package rotation. All of it runs on a Tx, of which postgres
// and file are the two implementations; what must be one statement in a database, such as a
// list, or what instances write behind, is a method of both. A test does the same things to
// both and compares what they say.
//
// Every method is one transaction. What belongs to a workspace runs under that workspace's
// claim; the operator's shared accounts belong to the zero workspace and are reached as the
// system. A file has the shared accounts alone: workspaces have none of their own and cannot
// add any (ErrNeedsDatabase).
//
// Locks are taken in this order: the lock of a name (Tx.Lock), accounts, grants, logins, the
// end of the audit's chain.
package store

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/audit"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Rows, which are defined next to the file's format.

// Account is a credential: a sealed key, or a grant.
type Account = accountfile.Account

// Grant is a sign-in; package oauth has its states.
type Grant = accountfile.Grant

// GrantState is the state of a Grant.
type GrantState = accountfile.GrantState

// Server is an MCP server that somebody signs in to.
type Server = accountfile.Server

// Attempt is a request to an authorisation server that has no outcome yet.
type Attempt = accountfile.Attempt

// Login is a sign-in that has begun, or ended.
type Login = accountfile.Login

// LoginKind is a way to sign in.
type LoginKind = accountfile.LoginKind

// Settings are what is set for the accounts of a provider.
type Settings = accountfile.Pool

// Reason says how a request went; package pool lists the reasons.
type Reason = accountfile.Reason

// Limit says until when an account, or a model family of it, gets no requests.
type Limit = accountfile.Limit

// Health is an account's health as it was at a time.
type Health = accountfile.Health

// Stat counts the requests of an account that ended in the same way.
type Stat = accountfile.Stat

// The fields that tokens are sealed to.
const (
	AccessField  = accountfile.AccessField
	RefreshField = accountfile.RefreshField
	ClientField  = accountfile.ClientField
)

// LoginField is the field that a login's secret is sealed to.
func LoginField(login uuid.UUID) string { return accountfile.LoginField(login) }

// Event is a row of the audit. Its workspace is that of the transaction.
type Event struct {
	Action  string // created, changed, refreshed, removed, used
	Account id.Account
	// Provider and Origin say what was acted on, after the account is gone.
	Provider, Origin string
	// Member is zero for the operator's command line.
	Member id.Member
	// Key is set if an API key acted for the member; the row's detail says so.
	Key     id.APIKey
	Service string
	Address string
	// Session is where the account was used; zero for a use outside of sessions.
	Session id.Session
	// Detail says what was changed.
	Detail string
}

// detail returns what the row says of the event.
func (e *Event) detail() string {
	if id.IsZero(e.Key) {
		return e.Detail
	}
	return strings.TrimPrefix(e.Detail+", by API key "+e.Key.String(), ", ")
}

// Tx is a transaction on the rows of one workspace. A row that it returns is locked until
// the transaction ends, unless the method says otherwise, and is the caller's own: changes
// are made by putting it back. Its errors end the transaction.
type Tx interface {
	// Lock waits for other transactions with the lock of that name.
	Lock(ctx context.Context, name string) error
	// Now returns the time on the store's clock, which all instances share.
	Now(ctx context.Context) (time.Time, error)
	// Record writes an event to the audit. From then on the transaction holds the end of the
	// workspace's chain: it commits soon, and takes no other lock.
	Record(ctx context.Context, ev Event) error

	// Account returns an account. One that the workspace does not have is a NotFound fault.
	Account(ctx context.Context, account id.Account) (*Account, error)
	// Room refuses one account more than the workspace can have for a provider, or in all.
	// Other transactions that call it wait until this one ends, and would count one too few
	// otherwise. It is called before the transaction takes any other lock.
	Room(ctx context.Context, provider string) error
	// HasAccount reports whether the workspace has an account for a provider. After Room that
	// stays so until the transaction ends.
	HasAccount(ctx context.Context, provider string) (bool, error)
	// InsertAccount adds an account, and its grant if it has one, and sets CreatedAt. If its
	// id is in use, by any workspace, the error is a Conflict fault; if another account was
	// imported with the same credential it is ErrImported.
	InsertAccount(ctx context.Context, a *Account) error
	// UpdateAccount stores whether the account is enabled and flat-rate.
	UpdateAccount(ctx context.Context, a *Account) error
	// DeleteAccount deletes an account with its grant, limits, health and statistics.
	DeleteAccount(ctx context.Context, account id.Account) error
	// InsertLimit adds a limit to an account that has none.
	InsertLimit(ctx context.Context, l Limit) error
	// ResetHealth forgets an account's limits and makes it healthy, for every instance once.
	ResetHealth(ctx context.Context, provider string, account id.Account) error
	// DeleteStats deletes the statistics of an account, of all accounts if it is zero.
	DeleteStats(ctx context.Context, account id.Account) error
	// Pool returns what is set for a provider's accounts.
	Pool(ctx context.Context, provider string) (*Settings, error)
	UpdatePool(ctx context.Context, s *Settings) error

	// Grant returns an account's grant. An account without one is a NotFound fault.
	Grant(ctx context.Context, account id.Account) (*Grant, error)
	UpdateGrant(ctx context.Context, account id.Account, g *Grant) error
	// InsertAttempt adds an attempt at the version of a grant.
	InsertAttempt(ctx context.Context, account id.Account, version int64, a *Attempt) error
	// EndAttempt writes what became of an attempt: the outcome, and the status and error code
	// of the answer.
	EndAttempt(ctx context.Context, account id.Account, attempt uuid.UUID, outcome string, status int, code string) error

	// Logins returns a member's logins, which it does not lock.
	Logins(ctx context.Context, member id.Member) ([]Login, error)
	// Login returns a login, nil if there is none of that ID.
	Login(ctx context.Context, login uuid.UUID) (*Login, error)
	// InsertLogin adds a login and reports whether its ID was free.
	InsertLogin(ctx context.Context, l *Login) (bool, error)
	// UpdateLogin stores when the login is polled next, and whether and how it has ended.
	UpdateLogin(ctx context.Context, l *Login) error
	DeleteLogin(ctx context.Context, login uuid.UUID) error
	// DeleteOtherLogins deletes an account's logins except for one.
	DeleteOtherLogins(ctx context.Context, account id.Account, except uuid.UUID) error

	// Connect stores who connected an account. If another account is connected to the
	// provider it changes nothing and returns false, and who connected that one.
	Connect(ctx context.Context, c Connection) (by id.Member, ok bool, err error)
	// Disconnect forgets who connected an account, which is then an account like others.
	Disconnect(ctx context.Context, account id.Account) error
}

// backend is Postgres or a file.
type backend interface {
	// Update runs fn in a transaction on a workspace's rows, the operator's for the zero one.
	// What fn did is durable when Update returns nil; if fn fails nothing was done, and Update
	// returns its error.
	Update(ctx context.Context, ws id.Workspace, fn func(context.Context, Tx) error) error

	// Get returns an account of a workspace. One that it does not have is a NotFound fault.
	Get(ctx context.Context, ws id.Workspace, account id.Account) (Account, error)
	// List returns a workspace's accounts and after them the shared ones, in the order in
	// which they were added.
	List(ctx context.Context, ws id.Workspace) ([]Account, error)
	// ListAll returns the accounts of all workspaces, for the operator's command line.
	ListAll(ctx context.Context) ([]Account, error)
	// WorkspaceOf returns the workspace of an account, for the operator's command line, which
	// knows accounts by their ids alone.
	WorkspaceOf(ctx context.Context, account id.Account) (id.Workspace, error)
	// FindImported returns the imported accounts of all workspaces by the hash that they were
	// imported with (Import), for the operator's command line.
	FindImported(ctx context.Context) (map[string]Imported, error)

	// Settings returns the settings of a workspace's pools that have some; for the zero
	// workspace the operator's.
	Settings(ctx context.Context, ws id.Workspace) ([]Settings, error)
	// Known returns the limits and health of a workspace's own accounts.
	Known(ctx context.Context, ws id.Workspace) (Known, error)
	// Pool returns a workspace's own pool for a provider; for the zero workspace the
	// operator's, which may hold what is known of an account from the environment.
	Pool(ctx context.Context, ws id.Workspace, provider string) (Pool, error)
	// Marks returns the marks of pools of which something is stored: a pool that has the mark
	// that it was read with has not changed.
	Marks(ctx context.Context, keys []PoolKey) (map[PoolKey]Mark, error)
	// Stats returns the statistics of a workspace's accounts.
	Stats(ctx context.Context, ws id.Workspace) ([]Stat, error)
	// Learn writes what an instance learned. Writing it again changes nothing.
	Learn(ctx context.Context, l Learned) error
	// Used records uses, once for each account and session, and sets when accounts were last
	// used; all or nothing. Writing them again changes nothing.
	Used(ctx context.Context, all []Use) error

	// Connections returns what the members of a workspace connected, by provider.
	Connections(ctx context.Context, ws id.Workspace) (map[string]Connection, error)
	// NameConnection stores the subject of a connection, if it is still of that account and
	// that member.
	NameConnection(ctx context.Context, ws id.Workspace, c Connection) error

	// DataKeys returns the wrapped data keys of a workspace, oldest first.
	DataKeys(ctx context.Context, ws id.Workspace) ([]vault.WrappedKey, error)
	// AddDataKey stores a data key unless its version is taken, and retires those before it.
	AddDataKey(ctx context.Context, ws id.Workspace, k vault.WrappedKey) error
	// Rewrap replaces a data key's wrapping, unless somebody else has. It reports whether it
	// did.
	Rewrap(ctx context.Context, ws id.Workspace, old, k vault.WrappedKey) (done bool, err error)
	// Keyed returns workspaces that have data keys, in order: up to n, after one of them, or
	// from the beginning. With retired, only those that have a retired key.
	Keyed(ctx context.Context, retired bool, after *id.Workspace, n int) ([]id.Workspace, error)
	// SealedBefore returns up to n rows whose field is sealed with an older data key than a
	// version, by their keys, after one of them.
	SealedBefore(ctx context.Context, ws id.Workspace, f SealedField, version int, after uuid.UUID, n int) ([]SealedRow, error)
	// Reseal stores fields that were sealed anew, if they still are as they were read, and
	// returns how many were.
	Reseal(ctx context.Context, ws id.Workspace, f SealedField, rows []Resealed) (written int, err error)
	// RemoveDataKeys deletes data keys that were retired long enough ago and seal no row.
	RemoveDataKeys(ctx context.Context, ws id.Workspace, grace time.Duration) (removed int, err error)

	// Grant returns an account's grant without a lock. An account without one is a NotFound
	// fault.
	Grant(ctx context.Context, ws id.Workspace, account id.Account) (Grant, error)
	// Grants returns the grants of a workspace's own accounts.
	Grants(ctx context.Context, ws id.Workspace) (map[id.Account]Grant, error)
	// PendingGrants returns grants of all workspaces that nobody has a lease on: those that are
	// due for a renewal, the oldest of each provider first, or those whose sign-out has begun.
	PendingGrants(ctx context.Context, q GrantQuery) ([]GrantKey, error)
	// ChangedGrants returns grants of all workspaces that have changed since some time ago. A
	// file returns all grants, and true.
	ChangedGrants(ctx context.Context, since time.Duration) (grants []GrantKey, all bool, err error)
	// SweepLogins removes logins that expired, and attempts that began, some time ago.
	SweepLogins(ctx context.Context, logins, attempts time.Duration) error
	// CanRecord returns a fault if what is about to be asked of a provider could not be
	// recorded afterwards, as far as that is known without a transaction.
	CanRecord() error

	// Audit returns a workspace's rows, newest first; for the zero workspace the operator's. A
	// search reads the rows until it has as many as the limit, and needs the database.
	Audit(ctx context.Context, ws id.Workspace, q audit.Query) ([]audit.Row, error)
	// AuditOf returns an account's rows in all chains, newest first, up to limit: the use of a
	// shared account is in the chains of the workspaces that used it. The account may have
	// been removed.
	AuditOf(ctx context.Context, account id.Account, limit int) ([]audit.Row, error)

	hashchain.Audit
}

// Store is what is stored.
type Store struct{ backend }

// New returns a Store in the service's database.
func New(db *pg.DB) *Store { return &Store{postgres{db, audit.Table(db)}} }

// InFile returns a Store in the file of a single user. What its audit has is logged too.
func InFile(f *accountfile.File, log *slog.Logger) *Store { return &Store{file{f, log}} }

// ErrNeedsDatabase refuses what a file does not have: accounts of workspaces.
var ErrNeedsDatabase = fault.Coded(fault.Conflict, "NEEDS_DATABASE", "this credential broker stores the accounts of a single user in a file: for accounts of workspaces, use a database (DATABASE_URL)")

// ErrImported says that an account was imported with the same credential.
var ErrImported = fault.Coded(fault.Conflict, "ACCOUNT_IMPORTED", "it is already stored")

// errIDTaken is the fault of an account whose id is in use. It does not tell by whom.
func errIDTaken(account id.Account) error {
	return fault.Coded(fault.Conflict, "ACCOUNT_ID_TAKEN", "the id %s is in use: use another one for a new account", account)
}

func errNoAccount(account id.Account) error {
	return fault.New(fault.NotFound, "there is no account %s", account)
}

func errNoGrant(account id.Account) error {
	return fault.Coded(fault.NotFound, "ACCOUNT_NO_GRANT", "account %s has no sign-in", account)
}

// errUnchanged rolls a transaction back that has nothing to change.
var errUnchanged = errors.New("there is nothing to change")

// Add stores an account and its audit row and returns it as stored. If its id is in use, by
// any workspace, the error is a Conflict fault.
func (s *Store) Add(ctx context.Context, a Account, ev Event) (Account, error) {
	return s.add(ctx, a, ev, Import{})
}

// Import is what is known of an account that is imported. It is stored in the transaction
// that adds the account.
type Import struct {
	// Hash is the hash of the credential that it comes with. There is one account for each.
	// That of a refresh token is the same in all workspaces: two that renew it would end each
	// other's sign-in. That of a key has the workspace in it, as several may have the key.
	Hash     []byte
	Disabled bool
	// Limit is a limit that is known already; nil for none.
	Limit *Limit
	// Current makes it the account in use.
	Current bool
	// Used is when it was last used; zero if unknown.
	Used time.Time
}

// Detail says for the audit what is imported.
func (i *Import) Detail() string {
	words := []string{"imported"}
	if i.Disabled {
		words = append(words, "disabled")
	}
	if i.Current {
		words = append(words, "made the current one")
	}
	return strings.Join(words, ", ")
}

// Insert adds an account in a transaction, if there is room for it. The zero Import is for an
// account that is not imported.
func (i *Import) Insert(ctx context.Context, tx Tx, a *Account) error {
	if err := tx.Room(ctx, a.Provider); err != nil {
		return err
	}
	a.Imported, a.Enabled = i.Hash, !i.Disabled
	if now := time.Now().UTC(); i.Used.After(now) {
		a.LastUsedAt = &now
	} else if !i.Used.IsZero() {
		a.LastUsedAt = new(i.Used.UTC())
	}
	if err := tx.InsertAccount(ctx, a); err != nil {
		return err
	}
	if i.Limit != nil {
		l := *i.Limit
		l.Provider, l.Account = a.Provider, a.ID
		if err := tx.InsertLimit(ctx, l); err != nil {
			return err
		}
	}
	if i.Current {
		return makeCurrent(ctx, tx, a)
	}
	return nil
}

// Import is Add of an account that is imported. If another account was imported with the
// same credential the error is ErrImported. It sets ev's Detail.
func (s *Store) Import(ctx context.Context, a Account, ev Event, i Import) (Account, error) {
	ev.Detail = i.Detail()
	return s.add(ctx, a, ev, i)
}

func (s *Store) add(ctx context.Context, a Account, ev Event, i Import) (Account, error) {
	err := s.Update(ctx, a.WorkspaceID, func(ctx context.Context, tx Tx) error {
		if err := i.Insert(ctx, tx, &a); err != nil {
			return err
		}
		return tx.Record(ctx, ev)
	})
	return a, err
}

// makeCurrent makes an account the current one of its pool, for every instance once.
func makeCurrent(ctx context.Context, tx Tx, a *Account) error {
	p, err := tx.Pool(ctx, a.Provider)
	if err != nil {
		return err
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	p.Current, p.CurrentAt = &a.ID, &now
	return tx.UpdatePool(ctx, p)
}

// Remove deletes an account and records it. An account that the workspace does not have is
// a NotFound fault. Of ev, Account, Provider and Action are set.
func (s *Store) Remove(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	return s.Update(ctx, ws, func(ctx context.Context, tx Tx) error {
		a, err := tx.Account(ctx, account)
		if err != nil {
			return err
		}
		if err := tx.DeleteAccount(ctx, account); err != nil {
			return err
		}
		ev.Action, ev.Account, ev.Provider = "removed", account, a.Provider
		return tx.Record(ctx, ev)
	})
}

// change runs fn on an account, and records the change that fn describes; nothing if the
// description is empty. Of ev, Action, Account, Provider and Detail are set.
func (s *Store) change(ctx context.Context, ws id.Workspace, account id.Account, ev Event, fn func(context.Context, Tx, *Account) (string, error)) error {
	return s.Update(ctx, ws, func(ctx context.Context, tx Tx) error {
		a, err := tx.Account(ctx, account)
		if err != nil {
			return err
		}
		if ev.Detail, err = fn(ctx, tx, a); err != nil || ev.Detail == "" {
			return err
		}
		ev.Action, ev.Account, ev.Provider = "changed", account, a.Provider
		return tx.Record(ctx, ev)
	})
}

// SetEnabled allows an account to be chosen, or not. If it is so already, nothing is recorded.
func (s *Store) SetEnabled(ctx context.Context, ws id.Workspace, account id.Account, enabled bool, ev Event) error {
	return s.change(ctx, ws, account, ev, func(ctx context.Context, tx Tx, a *Account) (string, error) {
		if a.Enabled == enabled {
			return "", nil
		}
		a.Enabled = enabled
		if enabled {
			return "enabled", tx.UpdateAccount(ctx, a)
		}
		return "disabled", tx.UpdateAccount(ctx, a)
	})
}

// SetFlatRate sets whether an account is paid by the month. If it is so already, nothing is
// recorded.
func (s *Store) SetFlatRate(ctx context.Context, ws id.Workspace, account id.Account, flat bool, ev Event) error {
	return s.change(ctx, ws, account, ev, func(ctx context.Context, tx Tx, a *Account) (string, error) {
		if a.FlatRate == flat {
			return "", nil
		}
		a.FlatRate = flat
		if flat {
			return "flat rate", tx.UpdateAccount(ctx, a)
		}
		return "paid by the token", tx.UpdateAccount(ctx, a)
	})
}

// Reset forgets an account's limits and makes it healthy. Instances that have limits of it
// in memory find out when they read the pool.
func (s *Store) Reset(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	return s.change(ctx, ws, account, ev, func(ctx context.Context, tx Tx, a *Account) (string, error) {
		return "limits and health reset", tx.ResetHealth(ctx, a.Provider, account)
	})
}

// Switch makes an account the current one of its pool, for every instance once.
func (s *Store) Switch(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	return s.change(ctx, ws, account, ev, func(ctx context.Context, tx Tx, a *Account) (string, error) {
		if !a.Enabled {
			return "", fault.New(fault.Conflict, "account %s is disabled: enable it first", account)
		}
		return "made the current one", makeCurrent(ctx, tx, a)
	})
}

// ResetStats deletes the statistics of a workspace's accounts, or of one of them. Of ev,
// Action, Account, Provider and Detail are set.
func (s *Store) ResetStats(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	return s.Update(ctx, ws, func(ctx context.Context, tx Tx) error {
		if !id.IsZero(account) {
			a, err := tx.Account(ctx, account)
			if err != nil {
				return err
			}
			ev.Provider = a.Provider
		}
		if err := tx.DeleteStats(ctx, account); err != nil {
			return err
		}
		ev.Action, ev.Account, ev.Detail = "changed", account, "statistics reset"
		return tx.Record(ctx, ev)
	})
}

// ChangeSettings stores what change makes of a pool's settings, under a lock: of two changes
// at once neither is lost. It records the change that it describes, and does nothing if the
// description is empty. Of ev, Action, Provider and Detail are set.
func (s *Store) ChangeSettings(ctx context.Context, ws id.Workspace, provider string, ev Event, change func(now []byte) (next []byte, detail string, err error)) error {
	err := s.Update(ctx, ws, func(ctx context.Context, tx Tx) error {
		p, err := tx.Pool(ctx, provider)
		if err != nil {
			return err
		}
		if p.Settings, ev.Detail, err = change(p.Settings); err != nil {
			return err
		}
		if ev.Detail == "" {
			return errUnchanged // the row that Pool may have made is not to stay
		}
		if err := tx.UpdatePool(ctx, p); err != nil {
			return err
		}
		ev.Action, ev.Provider = "changed", provider
		return tx.Record(ctx, ev)
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

// Record writes an event to the operator's audit that is about more than one account.
func (s *Store) Record(ctx context.Context, ev Event) error {
	return s.Update(ctx, id.Workspace{}, func(ctx context.Context, tx Tx) error { return tx.Record(ctx, ev) })
}

// Imported is an account that was imported.
type Imported struct {
	Workspace id.Workspace // zero for the operator's
	Account   id.Account
}

// Connection says who connected an account for the tools of a workspace.
type Connection struct {
	Provider string // of the sign-in providers
	Account  id.Account
	Member   id.Member
	// Subject is the name of the account at the provider; empty if it does not say.
	Subject     string
	ConnectedAt time.Time
}

// GrantKey names a grant, and says what it is like.
type GrantKey struct {
	Workspace id.Workspace
	Account   id.Account
	Provider  string
	Version   int64
	State     GrantState
	// Discovered says that it has a Server.
	Discovered bool
}

// GrantQuery selects grants of all workspaces: those of some providers, and all with a Server.
type GrantQuery struct {
	Revoking  bool // rather than due
	Providers []string
	Except    []id.Account
	Most      int // of each provider, and of those with a Server
	// A lease or a pause after a failure that ends later than these from now was written by a
	// clock that was ahead, and does not count.
	LongestLease, LongestPause time.Duration
}

// SealedField is a kind of sealed field.
type SealedField struct {
	table, key      string // key is the primary key's column, beside the workspace
	account         string
	sealed, version string // columns
	place           func(row uuid.UUID) string
}

// SealedRow is a field of a row as it was read.
type SealedRow struct {
	Key   uuid.UUID
	Place vault.Place
	vault.Sealed
}

// Resealed is a row and what it is to hold.
type Resealed struct {
	SealedRow
	Next vault.Sealed
}

// SealedFields are all kinds of sealed fields; a test compares them with the catalogue.
var SealedFields = []SealedField{
	{"accounts", "id", "id", "sealed", "key_version", always(accountfile.SecretField)},
	{"grants", "account_id", "account_id", "access_sealed", "access_key_version", always(accountfile.AccessField)},
	{"grants", "account_id", "account_id", "refresh_sealed", "refresh_key_version", always(accountfile.RefreshField)},
	{"grants", "account_id", "account_id", "client_sealed", "client_key_version", always(accountfile.ClientField)},
	{"logins", "id", "account_id", "sealed", "key_version", accountfile.LoginField},
}

func always(field string) func(uuid.UUID) string { return func(uuid.UUID) string { return field } }

// Columns are the sealed columns and those of their versions.
func (f *SealedField) Columns() []string {
	return []string{f.table + "." + f.sealed, f.table + "." + f.version}
}
