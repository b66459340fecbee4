// Package audit defines the rows of the audit of credentials: who created, changed, refreshed,
// removed or first used which, in a hash chain for each workspace (pkg/hashchain). The accounts of a
// single user have one chain, in a file whose lock takes the place of the database's trigger
// (internal/accountfile).
package audit

import (
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Row is a row of the audit as it is stored, and a line of it in a file.
type Row struct {
	Workspace id.Workspace `json:"-"` // zero for the operator's
	Sequence  int64        `json:"sequence"`
	ID        uuid.UUID    `json:"id"`
	At        time.Time    `json:"at"`
	Action    string       `json:"action"`
	Account   id.Account   `json:"account_id"`
	Provider  string       `json:"provider"`
	Origin    string       `json:"origin"`
	Member    *id.Member   `json:"member_id,omitempty"` // nil for the operator's command line, and the broker itself
	Service   string       `json:"service"`
	Address   string       `json:"address,omitempty"`
	Session   id.Session   `json:"session_id"`
	Detail    string       `json:"detail,omitempty"`
	Prev      []byte       `json:"prev"`
	Hash      []byte       `json:"hash"`
}

// Query selects rows of a workspace's audit.
type Query struct {
	Before int64 // only rows before this sequence; 0: from the end
	Limit  int
	Search hashchain.Search
}

// Link returns the row as a link of its chain.
func (r *Row) Link() hashchain.Row {
	member := ""
	if r.Member != nil {
		member = r.Member.String()
	}
	return hashchain.Row{
		Workspace: r.Workspace, Sequence: r.Sequence, ID: r.ID, At: r.At, Prev: r.Prev, Hash: r.Hash,
		Fields: []string{r.Action, r.Account.String(), r.Provider, r.Origin, member, r.Service, r.Address, r.Session.String(), r.Detail},
	}
}

// Sum returns the hash that the row should have.
func (r *Row) Sum() []byte { return r.Link().Sum() }

// Table returns the audit in the service's database, with the fields of Link.
func Table(db *pg.DB) hashchain.Table {
	return hashchain.Table{DB: db, Name: "audit", Fields: []string{
		"action", "account_id", "provider", "origin", "member_id", "service", "address", "session_id", "detail",
	}}
}
