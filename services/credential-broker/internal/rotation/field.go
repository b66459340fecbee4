package rotation

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// field is a sealed column of a table.
type field struct {
	table, key      string // key is the primary key's, beside the workspace
	account         string
	sealed, version string
	name            func(row uuid.UUID) string // of the vault.Place
}

// fields are all there are: a test reads the catalogue. The names are those that
// packages store and oauth seal to.
var fields = []field{
	{"accounts", "id", "id", "sealed", "key_version", always("secret")},
	{"grants", "account_id", "account_id", "access_sealed", "access_key_version", always("access_token")},
	{"grants", "account_id", "account_id", "refresh_sealed", "refresh_key_version", always("refresh_token")},
	{"logins", "id", "account_id", "sealed", "key_version", func(row uuid.UUID) string { return "login " + row.String() }},
}

func always(name string) func(uuid.UUID) string { return func(uuid.UUID) string { return name } }

// row is a field of a row as it was read.
type row struct {
	Key     uuid.UUID
	Account id.Account
	Sealed  []byte
	Version int
}

func (f *field) place(ws id.Workspace, r *row) vault.Place {
	return vault.Place{Workspace: ws, Account: r.Account, Field: f.name(r.Key)}
}

// behind reads rows of older versions than one, in order, behind a key.
func (f *field) behind() string {
	return fmt.Sprintf(`
		SELECT %[2]s AS key, %[3]s AS account, %[4]s AS sealed, %[5]s AS version FROM %[1]s
		WHERE workspace_id = @workspace AND %[5]s < @version AND %[2]s > @after
		ORDER BY %[2]s LIMIT @n`, f.table, f.key, f.account, f.sealed, f.version)
}

// swap writes rows that are as they were read.
func (f *field) swap() string {
	return fmt.Sprintf(`
		UPDATE %[1]s AS t SET %[3]s = n.new, %[4]s = @version
		FROM unnest(@keys::uuid[], @olds::bytea[], @versions::integer[], @news::bytea[]) AS n(key, old, version, new)
		WHERE t.workspace_id = @workspace AND t.%[2]s = n.key AND t.%[4]s = n.version AND t.%[3]s = n.old`,
		f.table, f.key, f.sealed, f.version)
}

// unused is true of data keys, as k, that no row names.
func unused() string {
	var all []string
	for _, f := range fields {
		all = append(all, fmt.Sprintf(`NOT EXISTS (SELECT FROM %[1]s AS t WHERE t.workspace_id = k.workspace_id AND t.%[2]s = k.version)`, f.table, f.version))
	}
	return strings.Join(all, " AND ")
}
