package presence_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/document-sync/internal/presence"
)

// say returns an awareness update of one client.
func say(client, clock uint64, state string) []byte { return saying([]uint64{client}, clock, state) }

func saying(clients []uint64, clock uint64, state string) []byte {
	b := uvarint(nil, uint64(len(clients)))
	for _, c := range clients {
		b = uvarint(uvarint(b, c), clock)
		b = append(uvarint(b, uint64(len(state))), state...)
	}
	return b
}

func uvarint(b []byte, n uint64) []byte {
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// show formats a result of Encode or Flush.
func show(t *testing.T, update []byte) string {
	t.Helper()
	if update == nil {
		return ""
	}
	read := func() (n uint64) {
		for i := 0; ; i++ {
			c := update[0]
			update = update[1:]
			if n |= uint64(c&0x7f) << (7 * i); c < 0x80 {
				return n
			}
		}
	}
	var out []string
	n := read()
	for range n {
		client, clock, size := read(), read(), read()
		out = append(out, fmt.Sprintf("%d@%d %s", client, clock, update[:size]))
		update = update[size:]
	}
	if tail := len(update); tail != 0 && tail != 24*int(n) { // for other instances
		t.Errorf("a tail of %d bytes", tail)
	}
	return strings.Join(out, ", ")
}

func owner(name byte) *presence.Owner { return &presence.Owner{Member: [16]byte{name}} }

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func apply(t *testing.T, table *presence.Table, o *presence.Owner, update []byte, want presence.Change) {
	t.Helper()
	got, err := table.Apply(o, update, start)
	if err != nil || got != want {
		t.Errorf("Apply(%s) = %v, %v, want %v", show(t, update), got, err, want)
	}
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s = %q, want %q", what, got, want)
	}
}

// TestHistories compares clocks and bytes with histories of y-protocols.
func TestHistories(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("testdata/histories.json")
	if err != nil {
		t.Fatal(err)
	}
	var histories []struct {
		Updates []string
		All     string
	}
	if err := json.Unmarshal(b, &histories); err != nil || len(histories) < 40 {
		t.Fatalf("%d histories, %v", len(histories), err)
	}
	for i, h := range histories {
		var table presence.Table
		for _, u := range h.Updates {
			update, err := hex.DecodeString(u)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := table.Apply(nil, update, start); err != nil {
				t.Fatalf("history %d: Apply(%s) = %v", i, u, err)
			}
		}
		equal(t, fmt.Sprint("history ", i), hex.EncodeToString(table.Encode()), h.All)
	}
}

func TestOwners(t *testing.T) {
	t.Parallel()
	var table presence.Table
	ada, tab, bob := owner('a'), owner('a'), owner('b')
	apply(t, &table, ada, say(1, 1, `{"n":1}`), presence.Changed)
	apply(t, &table, ada, say(1, 2, `{"n":1}`), presence.Renewed)
	apply(t, &table, bob, say(1, 2, `{"n":1}`), presence.Nothing) // an echo
	apply(t, &table, bob, say(1, 2, `null`), presence.Nothing)    // believes that client 1 has gone
	apply(t, &table, bob, say(1, 9, `{"n":"not me"}`), presence.Nothing)
	apply(t, &table, tab, say(1, 3, `{"n":2}`), presence.Changed) // another tab of the same person
	if change := table.Leave(ada, start); change != presence.Nothing {
		t.Errorf("Leave() of an owner without clients = %v", change)
	}
	apply(t, &table, bob, say(2, 1, `{}`), presence.Changed)
	apply(t, &table, nil, say(3, 1, `{}`), presence.Changed) // on another instance
	apply(t, &table, bob, say(3, 1, `null`), presence.Nothing)
	equal(t, "Encode()", show(t, table.Encode()), `1@3 {"n":2}, 2@1 {}, 3@1 {}`)
	equal(t, "Local()", show(t, table.Local()), `1@3 {"n":2}, 2@1 {}`)
	all, local := table.Flush()
	equal(t, "Flush()", show(t, all), `1@3 {"n":2}, 2@1 {}, 3@1 {}`)
	equal(t, "Flush(), local", show(t, local), `1@3 {"n":2}, 2@1 {}`)
	if all, local = table.Flush(); all != nil || local != nil || table.Dirty() {
		t.Error("a second Flush() returned something")
	}
	apply(t, &table, nil, say(2, 1, `null`), presence.Nothing) // its earlier connection to another instance ended
	apply(t, &table, nil, say(2, 2, `{"moved":1}`), presence.Changed)
	if change := table.Leave(bob, start); change != presence.Nothing { // the client is there now
		t.Errorf("Leave() after the client moved to another instance = %v", change)
	}
	if change := table.Leave(tab, start); change != presence.Changed {
		t.Errorf("Leave() = %v", change)
	}
	all, local = table.Flush()
	equal(t, "Flush()", show(t, all), `2@2 {"moved":1}, 1@3 null`)
	equal(t, "Flush(), local", show(t, local), `1@3 null`)
	apply(t, &table, bob, say(1, 3, `{"n":2}`), presence.Nothing) // a late echo
	apply(t, &table, nil, say(2, 2, ` null `), presence.Changed)
	equal(t, "Encode()", show(t, table.Encode()), `3@1 {}`)
}

// exchange passes updates between tables until there are none.
func exchange(t *testing.T, tables ...*presence.Table) {
	t.Helper()
	for said := true; said; {
		said = false
		for i, from := range tables {
			_, local := from.Flush()
			for j, to := range tables {
				if i == j || local == nil {
					continue
				}
				said = true
				if _, err := to.Apply(nil, local, start); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestClaims checks that only its member can continue a client on another instance.
func TestClaims(t *testing.T) {
	t.Parallel()
	var one, two presence.Table
	ada, mallory := owner('a'), owner('m')
	apply(t, &one, ada, say(5, 10, `{"n":"ada"}`), presence.Changed)
	exchange(t, &one, &two)
	const here = `5@10 {"n":"ada"}`
	for _, lie := range [][]byte{say(5, 11, `{"n":"not ada"}`), say(5, 11, `null`), say(5, 10, `null`), say(5, 1<<50, `{}`)} {
		apply(t, &two, mallory, lie, presence.Nothing)
	}
	equal(t, "one", show(t, one.Encode()), here)
	equal(t, "two", show(t, two.Encode()), here)

	// Her connection breaks, which table one does not know yet.
	again := owner('a')
	apply(t, &two, again, say(5, 10, `{"n":"ada"}`), presence.Nothing)
	apply(t, &two, again, say(5, 11, `{"n":"ada","again":1}`), presence.Changed)
	exchange(t, &one, &two)
	if change := one.Leave(ada, start); change != presence.Nothing {
		t.Errorf("Leave() of a member who is elsewhere = %v", change)
	}
	apply(t, &one, mallory, say(5, 12, `{}`), presence.Nothing)
	equal(t, "one", show(t, one.Encode()), `5@11 {"n":"ada","again":1}`)

	// After she has left, anybody may use the client id.
	two.Leave(again, start)
	exchange(t, &one, &two)
	apply(t, &one, mallory, say(5, 12, `{"n":"m"}`), presence.Changed)
	exchange(t, &one, &two)
	apply(t, &two, again, say(5, 13, `{}`), presence.Nothing)
	equal(t, "two", show(t, two.Encode()), `5@12 {"n":"m"}`)
}

// TestClaimsAtOnce claims a client on two instances at once. The earlier claim wins, with a
// clock that replaces the other one everywhere.
func TestClaimsAtOnce(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][2]int{"the first is heard first": {0, 1}, "the second is heard first": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tables [3]presence.Table
			apply(t, &tables[0], owner('z'), say(5, 10, `{"n":"first"}`), presence.Changed)
			if _, err := tables[1].Apply(owner('a'), say(5, 90, `{"n":"second"}`), start.Add(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			exchange(t, &tables[order[0]], &tables[order[1]], &tables[2])
			for i := range tables {
				equal(t, fmt.Sprint("table ", i), show(t, tables[i].Encode()), `5@91 {"n":"first"}`)
			}
		})
	}
}

// TestNoClaims receives updates of older instances, which do not send claims.
func TestNoClaims(t *testing.T) {
	t.Parallel()
	var table presence.Table
	apply(t, &table, nil, say(5, 10, `{}`), presence.Changed)
	apply(t, &table, owner('a'), say(5, 11, `{}`), presence.Renewed)
	apply(t, &table, nil, say(5, 12, `{"elsewhere":1}`), presence.Changed)
	equal(t, "Encode()", show(t, table.Encode()), `5@12 {"elsewhere":1}`)
}

// TestClaimsOfAgents checks that agents cannot be impersonated on another instance either, and
// take precedence over a member who claimed their client.
func TestClaimsOfAgents(t *testing.T) {
	t.Parallel()
	var one, two presence.Table
	if err := one.Show(7, []byte(`{"agent":1}`), start.Add(time.Minute), start); err != nil {
		t.Fatal(err)
	}
	exchange(t, &one, &two)
	apply(t, &two, owner('m'), say(7, 1<<51, `{}`), presence.Nothing)
	apply(t, &two, owner('m'), say(8, 1<<51, `{}`), presence.Changed)
	if err := one.Show(8, []byte(`{"agent":2}`), start.Add(time.Minute), start); err != nil {
		t.Fatal(err)
	}
	exchange(t, &one, &two)
	equal(t, "one", show(t, one.Encode()), show(t, two.Encode()))
	if all := show(t, two.Encode()); !strings.Contains(all, `{"agent":2}`) {
		t.Errorf("two = %s, want the agent", all)
	}
}

func TestTime(t *testing.T) {
	t.Parallel()
	var table presence.Table
	ada := owner('a')
	apply(t, &table, ada, say(1, 1, `{}`), presence.Changed)
	apply(t, &table, nil, say(2, 1, `{}`), presence.Changed)
	if _, err := table.Apply(ada, say(1, 2, `{}`), start.Add(15*time.Second)); err != nil {
		t.Fatal(err)
	}
	table.Flush()
	if change := table.Expire(start.Add(29 * time.Second)); change != presence.Nothing {
		t.Errorf("Expire() = %v before the timeout", change)
	}
	table.Expire(start.Add(30 * time.Second))
	all, local := table.Flush()
	equal(t, "Flush()", show(t, all), `2@1 null`)
	equal(t, "Flush(), local", show(t, local), ``)
	table.Expire(start.Add(45 * time.Second))
	all, local = table.Flush()
	equal(t, "Flush()", show(t, all), `1@2 null`)
	equal(t, "Flush(), local", show(t, local), `1@2 null`)
	for range 2 {
		table.Expire(start.Add(10 * time.Minute))
	}
	if !table.Empty() {
		t.Error("the removed client was not forgotten")
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	var table presence.Table
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	clock := func(s int) string { return fmt.Sprint(at(s).UnixMilli()) }
	if err := table.Show(7, []byte(`{"agent":1}`), at(40), at(0)); err != nil {
		t.Fatal(err)
	}
	all, local := table.Flush()
	equal(t, "Flush()", show(t, all), "7@"+clock(0)+` {"agent":1}`)
	equal(t, "Flush(), local", show(t, local), show(t, all))
	apply(t, &table, owner('a'), say(7, 1<<52, `{}`), presence.Nothing)
	change, next := table.Renew(at(14))
	if change != presence.Nothing || !next.Equal(at(15)) {
		t.Errorf("Renew() = %v, %v", change, next)
	}
	if change, next = table.Renew(at(15)); change != presence.Renewed || !next.Equal(at(30)) {
		t.Errorf("Renew() = %v, %v", change, next)
	}
	if _, next = table.Renew(at(30)); !next.Equal(at(40)) {
		t.Errorf("Renew() = %v", next)
	}
	if change := table.Expire(at(39)); change != presence.Nothing {
		t.Errorf("Expire() = %v", change)
	}
	if change, next = table.Renew(at(40)); change != presence.Changed || !next.IsZero() || table.Shown() != 0 {
		t.Errorf("Renew() = %v, %v", change, next)
	}
	if all := table.Encode(); all != nil {
		t.Errorf("Encode() = %s", show(t, all))
	}
	// The same agent is shown by another instance, so there is nothing to renew here.
	if err := table.Show(7, []byte(`{}`), at(100), at(50)); err != nil {
		t.Fatal(err)
	}
	apply(t, &table, nil, say(7, uint64(at(60).UnixMilli()), `{"there":1}`), presence.Changed)
	if _, next := table.Renew(at(70)); !next.IsZero() || table.Shown() != 0 {
		t.Error("a client shown by another instance is still ours")
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	many := func(n int, from uint64) []uint64 {
		ids := make([]uint64, n)
		for i := range ids {
			ids[i] = from + uint64(i)
		}
		return ids
	}
	big := `"` + strings.Repeat("x", presence.MaxState-2) + `"`
	for _, tt := range []struct {
		name   string
		update []byte
		want   error
	}{
		{"nothing", nil, presence.ErrMalformed},
		{"nobody", []byte{0}, nil},
		{"truncated", say(1, 1, `{}`)[:4], presence.ErrMalformed},
		{"more than there is", []byte{200, 1, 1, 2, '{', '}'}, presence.ErrMalformed},
		{"no JSON", say(1, 1, `{`), presence.ErrMalformed},
		{"no state", say(1, 1, ``), presence.ErrMalformed},
		{"no UTF-8", say(1, 1, "\"\xff\""), presence.ErrMalformed},
		{"an id that JavaScript cannot read", say(1<<53, 1, `{}`), presence.ErrMalformed},
		{"an endless number", []byte{1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1}, presence.ErrMalformed},
		{"a large state", say(1, 1, big), nil},
		{"a larger state", say(1, 1, `"x`+big[1:]), presence.ErrTooMuch},
		{"many clients", saying(many(presence.MaxOwned, 1), 1, `{}`), nil},
		{"more clients", saying(many(presence.MaxOwned+1, 1), 1, `{}`), presence.ErrTooMuch},
		{"all the bytes", saying(many(presence.MaxBytes/presence.MaxState, 1), 1, big), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var table presence.Table
			if _, err := table.Apply(owner('a'), tt.update, start); !errors.Is(err, tt.want) {
				t.Errorf("Apply() = %v, want %v", err, tt.want)
			}
			if tt.want != nil && !table.Empty() {
				t.Error("the table was changed")
			}
		})
	}
	t.Run("clients of a document", func(t *testing.T) {
		t.Parallel()
		var table presence.Table
		for i := range uint64(presence.MaxClients / 100) {
			apply(t, &table, owner('a'), saying(many(100, i*100), 1, `{}`), presence.Changed)
		}
		apply(t, &table, owner('a'), say(5, 2, `{"x":1}`), presence.Changed) // a present client stays
		apply(t, &table, owner('a'), say(1<<40, 1, `{}`), presence.Nothing)  // a new one is not shown
	})
	t.Run("bytes of a document", func(t *testing.T) {
		t.Parallel()
		var table presence.Table
		apply(t, &table, owner('a'), saying(many(presence.MaxBytes/presence.MaxState+1, 1), 1, big), presence.Nothing)
		if !table.Empty() {
			t.Error("the table was changed")
		}
	})
	t.Run("removals of unknown clients", func(t *testing.T) {
		t.Parallel()
		var table presence.Table
		apply(t, &table, owner('a'), saying(many(presence.MaxClients, 1), 9, `null`), presence.Nothing)
		apply(t, &table, owner('b'), say(1<<40, 1, `{}`), presence.Changed) // there is room
	})
}

// FuzzApply looks for updates that break the table, and checks that two tables that exchange
// changes become equal.
func FuzzApply(f *testing.F) {
	f.Add(say(1, 1, `{}`), say(1, 1, `null`), say(2, 5, `{"a":[1]}`), byte(3))
	f.Add(saying([]uint64{1, 2, 1}, 3, `{}`), []byte{0}, []byte{}, byte(0))
	f.Fuzz(func(t *testing.T, one, two, three []byte, who byte) {
		var a, b presence.Table
		owners := []*presence.Owner{nil, owner(1), owner(2)}
		for i, update := range [][]byte{one, two, three} {
			_, err := a.Apply(owners[int(who>>(2*i))%3], update, start)
			if err != nil && !errors.Is(err, presence.ErrMalformed) && !errors.Is(err, presence.ErrTooMuch) {
				t.Fatalf("Apply() = %v", err)
			}
			all, _ := a.Flush()
			if all == nil {
				continue
			}
			if _, err := b.Apply(nil, all, start); err != nil {
				t.Fatalf("applying the result of Flush() = %v", err)
			}
			if got, want := string(b.Encode()), string(a.Encode()); got != want {
				t.Fatalf("the other table has %q, want %q", got, want)
			}
		}
		a.Leave(owners[1], start)
		a.Leave(owners[2], start)
		if a.Local() != nil {
			t.Fatal("a client of this instance is left")
		}
		a.Flush()
		for range 2 {
			a.Expire(start.Add(time.Hour))
			a.Flush()
		}
		if a.Expire(start.Add(3 * time.Hour)); !a.Empty() || a.Encode() != nil {
			t.Fatal("a client is left")
		}
	})
}
