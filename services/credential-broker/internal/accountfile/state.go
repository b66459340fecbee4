package accountfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/audit"
)

// version is the one that is written. A new field is one more, for an older program would
// lose it.
const version = 1

// State is all that the file holds. What View returns is not to be changed.
type State struct {
	Version  int       `json:"version"`
	Keys     []DataKey `json:"data_keys,omitempty"`
	Accounts []Account `json:"accounts"` // in the order in which they were added
	Logins   []Login   `json:"logins,omitempty"`
	Pools    []Pool    `json:"pools,omitempty"`
	Limits   []Limit   `json:"limits,omitempty"`
	Health   []Health  `json:"health,omitempty"`
	Stats    []Stat    `json:"stats,omitempty"`
	// Writers are instances whose statistics are in Stats.
	Writers []Writer `json:"writers,omitempty"`
	// Audit is where the record ends; nil where nothing was recorded yet.
	Audit *End `json:"audit,omitempty"`

	recorded []audit.Row // what is to be written to the record
}

// DataKey is a wrapped data key.
type DataKey struct {
	Version   int        `json:"version"`
	KEK       string     `json:"kek"`
	Wrapped   []byte     `json:"wrapped"`
	RetiredAt *time.Time `json:"retired_at,omitempty"`
}

// Sealed is a secret and the data key that opens it.
type Sealed struct {
	KeyVersion int    `json:"key_version"`
	Bytes      []byte `json:"sealed"`
}

// Account is one credential: a sealed key, or a grant.
type Account struct {
	ID         id.Account `json:"id"`
	Provider   string     `json:"provider"`
	Profile    string     `json:"profile"`
	Label      string     `json:"label,omitempty"`
	Hint       string     `json:"hint,omitempty"`
	BaseURL    string     `json:"base_url,omitempty"`
	Enabled    bool       `json:"enabled"`
	FlatRate   bool       `json:"flat_rate,omitempty"`
	Key        *Sealed    `json:"key,omitempty"`
	Grant      *Grant     `json:"grant,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
	// Imported is the hash of the credential that it was brought along with.
	Imported []byte `json:"imported,omitempty"`
}

// Grant is a sign-in; package oauth has its states.
type Grant struct {
	Provider  string     `json:"provider"`
	State     string     `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	Version   int64      `json:"version"`
	Access    *Sealed    `json:"access,omitempty"`
	Refresh   *Sealed    `json:"refresh,omitempty"`
	Scope     string     `json:"scope,omitempty"`
	IssuedAt  time.Time  `json:"issued_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RefreshAt *time.Time `json:"refresh_at,omitempty"`
	Attempt   *Attempt   `json:"attempt,omitempty"`
	Doubtful  bool       `json:"doubtful,omitempty"`
	Failures  int        `json:"failures,omitempty"`
	RetryAt   *time.Time `json:"retry_at,omitempty"`
	LastError string     `json:"last_error,omitempty"`
	ChangedAt time.Time  `json:"changed_at"`
}

// Attempt is a request to an authorisation server that has no outcome yet.
type Attempt struct {
	ID         uuid.UUID `json:"id"`
	Kind       string    `json:"kind"`
	Instance   string    `json:"instance"`
	StartedAt  time.Time `json:"started_at"`
	LeaseUntil time.Time `json:"lease_until"`
}

// Login is a sign-in that has begun.
type Login struct {
	ID        uuid.UUID  `json:"id"`
	Member    id.Member  `json:"member"`
	Provider  string     `json:"provider"`
	Kind      string     `json:"kind"`
	Account   id.Account `json:"account"`
	Again     bool       `json:"again,omitempty"`
	Label     string     `json:"label,omitempty"`
	Redirect  string     `json:"redirect,omitempty"`
	StateHash []byte     `json:"state_hash"`
	Secret    Sealed     `json:"secret"`
	IntervalS int        `json:"interval_s,omitempty"`
	PollAt    time.Time  `json:"poll_at"`
	ExpiresAt time.Time  `json:"expires_at"`
}

// Pool is what somebody has set for the accounts of a provider.
type Pool struct {
	Provider  string          `json:"provider"`
	Settings  json.RawMessage `json:"settings,omitempty"`
	Current   *id.Account     `json:"current,omitempty"`
	CurrentAt *time.Time      `json:"current_at,omitempty"`
}

// Reason says how a request went; package pool lists the reasons.
type Reason string

// Limit is a parking of an account, or with a zero Until the end of one.
type Limit struct {
	Provider string     `json:"provider"`
	Account  id.Account `json:"account"`
	Family   string     `json:"family,omitempty"`
	At       time.Time  `json:"at"`
	Until    time.Time  `json:"until,omitzero"`
	Soon     time.Time  `json:"soon,omitzero"`
	Step     int        `json:"step,omitempty"`
	Reason   Reason     `json:"reason,omitempty"`
	Status   int        `json:"status,omitempty"`
	Raw      string     `json:"raw,omitempty"`
}

// Health is an account's health as it was at a time.
type Health struct {
	Provider string     `json:"provider"`
	Account  id.Account `json:"account"`
	Health   float64    `json:"health"`
	At       time.Time  `json:"at"`
	ResetAt  *time.Time `json:"reset_at,omitempty"`
}

// Stat is what an account did that went one way.
type Stat struct {
	Provider   string     `json:"provider"`
	Account    id.Account `json:"account"`
	Reason     Reason     `json:"reason"`
	Requests   int64      `json:"requests"`
	TokensIn   int64      `json:"tokens_in,omitempty"`
	TokensOut  int64      `json:"tokens_out,omitempty"`
	CostMicros int64      `json:"cost_micros,omitempty"`
}

// Writer is an instance and the number of what it has written last.
type Writer struct {
	Instance uuid.UUID `json:"instance"`
	Sequence int64     `json:"sequence"`
	At       time.Time `json:"at"`
}

// Account returns the account of an id; nil where there is none.
func (s *State) Account(account id.Account) *Account {
	for i := range s.Accounts {
		if s.Accounts[i].ID == account {
			return &s.Accounts[i]
		}
	}
	return nil
}

// errNewer is in the chain of an error about a file that this version must not touch.
var errNewer = errors.New("it was written by a newer version")

// decode reads a State. An error other than errNewer means that the file is damaged. It
// holds nothing of the file.
func decode(text []byte) (*State, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, syntax(err)
	}
	switch {
	case head.Version > version:
		return nil, fmt.Errorf("%w (its format is %d, and this one knows %d)", errNewer, head.Version, version)
	case head.Version < 1:
		return nil, errors.New("it has no version")
	}
	s := &State{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, syntax(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&State{}); err != nil { // what is left to be wrong is a field
		return nil, fmt.Errorf("%w: it has a field that this one does not know, and would lose", errNewer)
	}
	return s, s.check()
}

// syntax says where a file goes wrong, and not with what.
func syntax(err error) error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("it is no JSON from byte %d on", e.Offset)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s is of the wrong kind at byte %d", e.Field, e.Offset)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return errors.New("a value in it does not parse")
}

// check finds what parses and makes no sense.
func (s *State) check() error {
	keys := map[int]bool{}
	for _, k := range s.Keys {
		if k.Version < 1 || keys[k.Version] {
			return errors.New("a data key is there twice, or has no version")
		}
		keys[k.Version] = true
	}
	seen := map[id.Account]bool{}
	for i := range s.Accounts {
		a := &s.Accounts[i]
		switch {
		case id.IsZero(a.ID) || seen[a.ID]:
			return errors.New("an account is there twice, or has no id")
		case (a.Key == nil) == (a.Grant == nil):
			return fmt.Errorf("account %s is neither a key nor a sign-in", a.ID)
		}
		seen[a.ID] = true
	}
	return nil
}

// orphans counts what is sealed with a data key that is not there.
func (s *State) orphans() (n int) {
	keys := map[int]bool{}
	for _, k := range s.Keys {
		keys[k.Version] = true
	}
	look := func(sealed *Sealed) {
		if sealed != nil && !keys[sealed.KeyVersion] {
			n++
		}
	}
	for i := range s.Accounts {
		look(s.Accounts[i].Key)
		if g := s.Accounts[i].Grant; g != nil {
			look(g.Access)
			look(g.Refresh)
		}
	}
	for i := range s.Logins {
		look(&s.Logins[i].Secret)
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
