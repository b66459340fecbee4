package audit_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/audit"
)

func row() audit.Row {
	r := audit.Row{
		Sequence: 1, ID: uuid.New(), At: time.UnixMicro(1_700_000_000_000_000), Action: "changed", Account: id.New[id.Account](),
		Provider: "openai", Origin: "workspace", Service: "gateway", Detail: "enabled", Prev: make([]byte, 32),
	}
	r.Hash = r.Sum()
	return r
}

// TestLine has a line of a file, as every version has written it.
func TestLine(t *testing.T) {
	t.Parallel()
	const line = `{"sequence":1,"id":"0198c0de-0000-7000-8000-000000000001","at":"2023-11-14T22:13:20.123456Z","action":"changed","account_id":"0198c0de-0000-7000-8000-000000000002","provider":"openai","origin":"shared","member_id":"0198c0de-0000-7000-8000-000000000003","service":"command line","address":"ann@host","session_id":"00000000-0000-0000-0000-000000000000","detail":"enabled","prev":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","hash":"z+hLUtx7Jh2nepZnoTreW4xZ/22AGFb5pQdFKb/SCgw="}`
	var r audit.Row
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		t.Fatal(err)
	}
	r.Hash = r.Sum()
	if got, err := json.Marshal(&r); string(got) != line {
		t.Errorf("the line with a computed hash: %v\n%s", err, cmp.Diff(line, string(got)))
	}
}

func TestSumCoversFields(t *testing.T) {
	t.Parallel()
	whole := row()
	member := id.New[id.Member]()
	for name, do := range map[string]func(r *audit.Row){
		"workspace": func(r *audit.Row) { r.Workspace = id.New[id.Workspace]() },
		"sequence":  func(r *audit.Row) { r.Sequence++ },
		"id":        func(r *audit.Row) { r.ID = uuid.New() },
		"at":        func(r *audit.Row) { r.At = r.At.Add(time.Microsecond) },
		"action":    func(r *audit.Row) { r.Action = "used" },
		"account":   func(r *audit.Row) { r.Account = id.New[id.Account]() },
		"provider":  func(r *audit.Row) { r.Provider = "x" },
		"origin":    func(r *audit.Row) { r.Origin = "x" },
		"member":    func(r *audit.Row) { r.Member = &member },
		"service":   func(r *audit.Row) { r.Service = "x" },
		"address":   func(r *audit.Row) { r.Address = "x" },
		"session":   func(r *audit.Row) { r.Session = id.New[id.Session]() },
		"detail":    func(r *audit.Row) { r.Detail = "x" },
		"prev":      func(r *audit.Row) { r.Prev = []byte{1} },
		// The same bytes, with another border between the fields.
		"border": func(r *audit.Row) { r.Service, r.Address = r.Service[:4], r.Service[4:] },
	} {
		r := whole
		do(&r)
		if cmp.Equal(r.Sum(), whole.Hash) {
			t.Errorf("%s: another one has the same hash", name)
		}
	}
}
