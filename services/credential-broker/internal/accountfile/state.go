package accountfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/audit"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// version is the one that is written. A new field needs a new version, because an older program
// would lose it.
const version = 1

// State is the content of the file. What View returns is not to be changed.
type State struct {
	Version  int       `json:"version"`
	Keys     []DataKey `json:"data_keys,omitempty"`
	Accounts []Account `json:"accounts"` // in the order in which they were added
	Logins   []Login   `json:"logins,omitempty"`
	Pools    []Pool    `json:"pools,omitempty"`
	Limits   []Limit   `json:"limits,omitempty"`
	Health   []Health  `json:"health,omitempty"`
	Stats    []Stat    `json:"stats,omitempty"`
	// Writers are the instances whose statistics are in Stats.
	Writers []Writer `json:"writers,omitempty"`
	// Audit is where the audit ends; nil if nothing was recorded yet.
	Audit *End `json:"audit,omitempty"`

	recorded []audit.Row // to be written to the audit
}

// The rows below are also those of a database: a field without a JSON name is only there, or
// is filled in when the row is read.

// DataKey is a wrapped data key.
type DataKey struct {
	vault.WrappedKey
	RetiredAt *time.Time `json:"retired_at,omitempty"`
}

// Account is a credential: a sealed key, or a grant.
type Account struct {
	WorkspaceID id.Workspace `json:"-"` // zero for the operator's
	ID          id.Account   `json:"id"`
	Provider    string       `json:"provider"`
	Profile     string       `json:"profile"`
	Label       string       `json:"label,omitempty"`
	Hint        string       `json:"hint,omitempty"`
	BaseURL     string       `json:"base_url,omitempty"`
	Enabled     bool         `json:"enabled"`
	FlatRate    bool         `json:"flat_rate,omitempty"` // its use costs nothing
	// Sealed is the key. Its Bytes are empty if the account has a grant.
	vault.Sealed `json:"key,omitzero"`
	// Grant is set when the account is read from a file, or inserted; a database has grants
	// in a table of their own.
	Grant      *Grant     `json:"grant,omitempty" db:"-"`
	CreatedAt  time.Time  `json:"created_at"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
	// Imported is the hash of the credential that the account was imported with.
	Imported []byte `json:"imported,omitempty"`
}

// The fields that secrets are sealed to.
const (
	SecretField  = "secret" // of an account without a grant
	AccessField  = "access_token"
	RefreshField = "refresh_token"
	ClientField  = "client_secret" // of a Server
)

// LoginField is the field that a login's secret is sealed to.
func LoginField(login uuid.UUID) string { return "login " + login.String() }

// Shared reports whether the account is the operator's.
func (a *Account) Shared() bool { return id.IsZero(a.WorkspaceID) }

// Place is where the account's secret is sealed to.
func (a *Account) Place() vault.Place {
	return vault.Place{Workspace: a.WorkspaceID, Account: a.ID, Field: SecretField}
}

// GrantState is the state of a grant. Package oauth has the states.
type GrantState string

// Grant is a sign-in.
type Grant struct {
	Provider  string        `json:"provider"`
	State     GrantState    `json:"state"`
	Reason    string        `json:"reason,omitempty"`
	Version   int64         `json:"version"`
	Access    *vault.Sealed `json:"access,omitempty"`
	Refresh   *vault.Sealed `json:"refresh,omitempty"`
	Scope     string        `json:"scope,omitempty"`
	IssuedAt  time.Time     `json:"issued_at"`
	ExpiresAt *time.Time    `json:"expires_at,omitempty"` // nil for never
	RefreshAt *time.Time    `json:"refresh_at,omitempty"` // nil for never
	Attempt   *Attempt      `json:"attempt,omitempty"`
	Doubtful  bool          `json:"doubtful,omitempty"`
	Failures  int           `json:"failures,omitempty"`
	RetryAt   *time.Time    `json:"retry_at,omitempty"`
	LastError string        `json:"last_error,omitempty"`
	ChangedAt time.Time     `json:"changed_at"`
	// Server is set if the grant is for an MCP server, and Client is the secret of its client,
	// if it has one. They are only in a database.
	Server *Server       `json:"-"`
	Client *vault.Sealed `json:"-"`

	// AccountProvider is the account's provider, and Now what the store's clock said when
	// the grant was read.
	AccountProvider string    `json:"-"`
	Now             time.Time `json:"-"`
}

// Attempt is a request to an authorisation server that has no outcome yet. Read from a
// database it has only an ID and a lease.
type Attempt struct {
	ID         uuid.UUID `json:"id"`
	Kind       string    `json:"kind"`
	Instance   string    `json:"instance"`
	StartedAt  time.Time `json:"started_at"`
	LeaseUntil time.Time `json:"lease_until"`
}

// Server is an MCP server that somebody signs in to, with its authorization server.
type Server struct {
	URL       string   `json:"url"`      // the MCP server's
	Resource  string   `json:"resource"` // what the tokens are for (RFC 8707)
	Issuer    string   `json:"issuer"`
	Authorize string   `json:"authorize"`
	Token     string   `json:"token"`
	Revoke    string   `json:"revoke,omitempty"`
	ClientID  string   `json:"client_id"`
	Auth      string   `json:"auth"` // how the client authenticates
	Scopes    []string `json:"scopes,omitempty"`
	// NamesItself says that each answer in the browser names the issuer (RFC 9207).
	NamesItself bool `json:"names_itself,omitempty"`
	// Document says that the client is the broker's client id metadata document.
	Document bool `json:"document,omitempty"`
}

// LoginKind is a way to sign in. Package oauth has the kinds.
type LoginKind string

// Login is a sign-in that has begun. One that has ended is only in a database.
type Login struct {
	ID       uuid.UUID  `json:"id"`
	Member   id.Member  `json:"member"`
	Provider string     `json:"provider"`
	Kind     LoginKind  `json:"kind"`
	Purpose  string     `json:"-"` // always an account's in a file; empty if the version before migration 00008 wrote it
	Account  id.Account `json:"account"`
	Again    bool       `json:"again,omitempty"` // the account is there, and is authorised again
	Label    string     `json:"label,omitempty"`
	Redirect string     `json:"redirect,omitempty"`
	Server   *Server    `json:"-"` // as in Grant
	// StateHash is the hash of the state, or of a random text for a device. It tells one
	// beginning of a login from another with the same ID.
	StateHash []byte `json:"state_hash"`
	// Sealed is the PKCE verifier or the device code; empty once the login has ended.
	vault.Sealed `json:"secret"`
	IntervalS    int        `json:"interval_s,omitempty"`
	PollAt       time.Time  `json:"poll_at"`
	ExpiresAt    time.Time  `json:"expires_at"`
	EndedAt      *time.Time `json:"-"`
	// Code and Reason say why the login failed; empty if it was completed.
	Code   string `json:"-"`
	Reason string `json:"-"`

	// Now is what the store's clock said when the login was read.
	Now time.Time `json:"-"`
}

// Pool is what is set for the accounts of a provider.
type Pool struct {
	Workspace id.Workspace    `json:"-"`
	Provider  string          `json:"provider"`
	Settings  json.RawMessage `json:"settings,omitempty"`
	// Current is the account that was last made the current one, if any was.
	Current   *id.Account `json:"current,omitempty"`
	CurrentAt *time.Time  `json:"current_at,omitempty"`
}

// Reason says how a request went; package pool lists the reasons.
type Reason string

// Limit says until when an account, or a model family of it, gets no requests.
type Limit struct {
	Workspace id.Workspace `json:"-"`
	Provider  string       `json:"provider"`
	Account   id.Account   `json:"account"`
	Family    string       `json:"family,omitempty"` // empty for the whole account
	At        time.Time    `json:"at"`               // when it began, or was cleared
	Until     time.Time    `json:"until,omitzero"`   // when it ends; zero once it is cleared
	Soon      time.Time    `json:"soon,omitzero"`    // when it ends for the last usable account of a pool
	Step      int          `json:"step,omitempty"`   // consecutive failures
	Reason    Reason       `json:"reason,omitempty"`
	// Status and Raw are the provider's answer, for operators.
	Status int    `json:"status,omitempty"`
	Raw    string `json:"raw,omitempty"`
}

// Health is an account's health as it was at a time.
type Health struct {
	Workspace id.Workspace `json:"-"`
	Provider  string       `json:"provider"`
	Account   id.Account   `json:"account"`
	Health    float64      `json:"health"`
	At        time.Time    `json:"at"`
	ResetAt   *time.Time   `json:"reset_at,omitempty"` // when it was last reset; nil for never
}

// Stat counts the requests of an account that ended in the same way.
type Stat struct {
	Workspace  id.Workspace `json:"-"`
	Provider   string       `json:"provider"`
	Account    id.Account   `json:"account"`
	Reason     Reason       `json:"reason"`
	Requests   int64        `json:"requests"`
	TokensIn   int64        `json:"tokens_in,omitempty"`
	TokensOut  int64        `json:"tokens_out,omitempty"`
	CostMicros int64        `json:"cost_micros,omitempty"`
}

// Writer is an instance and the sequence number of the last statistics that it wrote.
type Writer struct {
	Instance uuid.UUID `json:"instance"`
	Sequence int64     `json:"sequence"`
	At       time.Time `json:"at"`
}

// Account returns the account with an id; nil if there is none.
func (s *State) Account(account id.Account) *Account {
	for i := range s.Accounts {
		if s.Accounts[i].ID == account {
			return &s.Accounts[i]
		}
	}
	return nil
}

// SealedFields yields every sealed field and where it is sealed to. A field may be replaced.
func (s *State) SealedFields() iter.Seq2[vault.Place, *vault.Sealed] {
	return func(yield func(vault.Place, *vault.Sealed) bool) {
		for i := range s.Accounts {
			a := &s.Accounts[i]
			if a.Grant == nil {
				if !yield(a.Place(), &a.Sealed) {
					return
				}
				continue
			}
			if a.Grant.Access != nil && !yield(vault.Place{Account: a.ID, Field: AccessField}, a.Grant.Access) {
				return
			}
			if a.Grant.Refresh != nil && !yield(vault.Place{Account: a.ID, Field: RefreshField}, a.Grant.Refresh) {
				return
			}
		}
		for i := range s.Logins {
			l := &s.Logins[i]
			if !yield(vault.Place{Account: l.Account, Field: LoginField(l.ID)}, &l.Sealed) {
				return
			}
		}
	}
}

// errNewer is in the chain of an error about a file that this version must not change.
var errNewer = errors.New("it was written by a newer version")

// decode reads a State. An error other than errNewer means that the file is damaged. The error
// quotes nothing of the file.
func decode(text []byte) (*State, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, syntax(err)
	}
	switch {
	case head.Version > version:
		return nil, fmt.Errorf("%w (its format is %d; this version knows %d)", errNewer, head.Version, version)
	case head.Version < 1:
		return nil, errors.New("it has no version")
	}
	s := &State{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, syntax(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&State{}); err != nil { // only an unknown field can be wrong here
		return nil, fmt.Errorf("%w: it has a field that this version does not know and would lose", errNewer)
	}
	return s, s.check()
}

// syntax says where a file is wrong, without quoting it.
func syntax(err error) error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("it is not valid JSON at byte %d", e.Offset)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s has the wrong type at byte %d", e.Field, e.Offset)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return errors.New("a value in it cannot be parsed")
}

// check finds what parses but makes no sense.
func (s *State) check() error {
	keys := map[int]bool{}
	for _, k := range s.Keys {
		if k.Version < 1 || keys[k.Version] {
			return errors.New("a data key is listed twice, or has no version")
		}
		keys[k.Version] = true
	}
	seen := map[id.Account]bool{}
	for i := range s.Accounts {
		a := &s.Accounts[i]
		switch {
		case id.IsZero(a.ID) || seen[a.ID]:
			return errors.New("an account is listed twice, or has no id")
		case (a.KeyVersion == 0) == (a.Grant == nil):
			return fmt.Errorf("account %s is neither a key nor a sign-in", a.ID)
		}
		seen[a.ID] = true
	}
	return nil
}

// orphans counts the fields that are sealed with a missing data key.
func (s *State) orphans() (n int) {
	keys := map[int]bool{}
	for _, k := range s.Keys {
		keys[k.Version] = true
	}
	for _, sealed := range s.SealedFields() {
		if !keys[sealed.KeyVersion] {
			n++
		}
	}
	return n
}

// encode returns the text of a State.
func (s *State) encode() ([]byte, error) {
	s.Version = version
	if s.Accounts == nil {
		s.Accounts = []Account{}
	}
	text, err := json.MarshalIndent(s, "", "  ")
	return append(text, '\n'), err
}
