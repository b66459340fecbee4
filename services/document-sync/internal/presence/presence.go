// Package presence is what the people who have a document open show of themselves,
// their names and cursors, as y-protocols' awareness keeps it. Nothing of it is stored.
//
// A Table has one entry for each client of a document: a clock, and a state in JSON or
// none. Whoever the client belongs to counts the clock up with each change, and again
// at least every 15 seconds; a higher clock wins, and an equal one that takes the state
// away. So entries may come late, twice and in any order. What was removed stays for a
// while as a clock without a state, so that an echo does not bring it back.
//
// An entry comes from one of three sides, and only that side takes it away:
//
//   - a connection of this instance (an Owner). The last one that counted the clock up
//     has it; Leave removes what it has. Browsers repeat to the server what it told them
//     about others: that has no higher clock and changes nothing, nor does their guess
//     that somebody is gone.
//   - another instance, which tells when it goes;
//   - this instance itself, for an agent at work (Show), which is counted up by Renew
//     until its time is over.
//
// # Whose an entry is
//
// A client that is there belongs to the member whose connection brought it, on whatever
// instance. That member may go on with it from any other connection, as a browser does
// that was cut off and is not missed yet; nobody else can change or remove it. Instances
// tell each other whose the clients are, and since when, in a tail of what Local and Flush
// encode, which y-protocols does not read. When two members claim a client at once, on
// two instances, it is that of who had it first: the instance that knows better counts
// the clock up beyond the other's, so that everybody takes it, the client too. Agents
// come before everybody. Who has a client that an instance without tails tells of is not
// known, and it is anybody's.
//
// What nobody counts up for 30 seconds is removed by Expire, as an instance that died
// leaves it. Removing keeps the clock, as y-protocols does: the same client, if it has
// meanwhile come back through another door and moved on, is not removed by who saw it go.
//
// What changed is gathered until Flush encodes it, once for all. A Table is not safe
// for concurrent use: the room that has it guards it. Its zero value is empty.
package presence

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"
)

// agents are whose the clients are that instances show themselves.
var agents = [16]byte{0: 0xff, 15: 0xff}

// Bounds of what a document's table holds.
const (
	MaxClients = 2000     // in a document, the removed ones included
	MaxOwned   = 100      // of one connection: a browser may speak for all of its tabs
	MaxState   = 64 << 10 // bytes of one state
	MaxBytes   = 4 << 20  // of all states

	// Timeout is how long somebody who is not heard of stays.
	Timeout     = 30 * time.Second
	renewEvery  = Timeout / 2
	forgetAfter = 2 * Timeout

	maxSafe   = 1<<53 - 1 // the largest integer of JavaScript
	maxClock  = 1 << 52   // of a connection, which leaves room to count up
	leastSize = 4         // of a client in an update
	tailSize  = 16 + 8    // of a client: whose it is, and the millisecond since when
)

var (
	// ErrMalformed is returned for bytes that are no awareness update. The table is as
	// it was before.
	ErrMalformed = errors.New("malformed awareness update")
	// ErrTooMuch is returned, wrapped, for updates that go over a bound. The table is
	// as it was before.
	ErrTooMuch = errors.New("too much awareness")
)

// errFull is what admit returns when the table has no more room, whoever filled it.
var errFull = errors.New("the document's awareness is full")

// Change says how much of the table an update touched.
type Change uint8

// The changes, each more than the one before.
const (
	Nothing Change = iota
	Renewed        // the states are what they were: somebody is still there
	Changed
)

// Owner is a connection of this instance. Who tells whose it is, so that the entries of
// one person can be told from another's. A Table keeps it until Leave.
type Owner struct {
	Who     [16]byte
	clients []uint64
}

// Table is the awareness of one document.
type Table struct {
	clients map[uint64]*client
	dirty   []uint64 // clients that changed since Flush, each once
	all     []byte   // what Encode returned, until something changes
	bytes   int      // of all states
	present int      // clients that have a state
	shown   int      // of those, our own
}

type client struct {
	clock uint64
	state []byte // nil: gone
	owner *Owner // nil: of another instance, or of nobody any more
	claim claim
	seen  time.Time
	until time.Time // of those that we show; else zero
	dirty bool
	local bool // its last change came from here: other instances must hear of it
}

func (c *client) ours() bool { return !c.until.IsZero() }

// claim says whose a client is, and since when; its zero value that it is not known.
type claim struct {
	who   [16]byte
	since uint64 // in milliseconds
}

// entry is one client of an update.
type entry struct {
	client, clock uint64
	state         []byte // of the update; nil: gone
	claim         claim
}

// against says whether somebody else has the client, who is there.
func (e *entry) against(c *client) bool {
	return c != nil && c.state != nil && e.claim.who != c.claim.who && e.claim.who != [16]byte{} && c.claim.who != [16]byte{}
}

// before says whether a claim is the better one of two.
func (m claim) before(o claim) bool {
	if m.since != o.since {
		return m.since < o.since
	}
	return bytes.Compare(m.who[:], o.who[:]) < 0
}

// Apply merges an update as y-protocols encodes it; owner is nil for what another
// instance says, with its tail. The bytes are not kept.
func (t *Table) Apply(owner *Owner, update []byte, now time.Time) (Change, error) {
	var few [4]entry // most updates name one
	entries, tail, err := decode(few[:0], update)
	if err != nil {
		return Nothing, err
	}
	if owner == nil {
		readClaims(entries, tail)
	} else {
		for i := range entries {
			entries[i].claim = claim{owner.Who, millisecond(now)}
		}
	}
	switch err := t.admit(owner, entries); {
	case errors.Is(err, errFull):
		return Nothing, nil // who comes late is not seen, and may write all the same
	case err != nil:
		return Nothing, err
	}
	change := Nothing
	for i := range entries {
		if e := &entries[i]; t.wins(owner, e) {
			change = max(change, t.put(owner, e, now))
		}
	}
	return change, nil
}

// wins is y-protocols' rule, and ours about whose entry it is.
func (t *Table) wins(owner *Owner, e *entry) bool {
	c := t.clients[e.client]
	switch {
	case owner != nil && e.clock > maxClock:
		return false
	case c == nil:
		// A clock that nobody has seen is 0. That somebody left who was never here is worth
		// a place only if another instance says so, from which the news may come late.
		return e.clock > 0 && (e.state != nil || owner == nil)
	case e.against(c):
		return owner == nil && e.state != nil && e.claim.before(c.claim)
	case e.clock == c.clock:
		return e.state == nil && c.state != nil && c.owner == owner
	}
	return e.clock > c.clock
}

// admit refuses entries that would go over a bound, before any of them is put.
func (t *Table) admit(owner *Owner, entries []entry) error {
	clients, bytes, owned := len(t.clients), t.bytes, 0
	if owner != nil {
		owned = len(owner.clients)
	}
	for i := range entries {
		e := &entries[i]
		if !t.wins(owner, e) {
			continue
		}
		if len(e.state) > MaxState {
			return fmt.Errorf("%w: a state of %d bytes, at most %d", ErrTooMuch, len(e.state), MaxState)
		}
		bytes += len(e.state)
		c := t.clients[e.client]
		if c == nil {
			clients++
		} else {
			bytes -= len(c.state)
		}
		if owner != nil && e.state != nil && (c == nil || c.owner != owner) {
			owned++
		}
	}
	switch {
	case clients > MaxClients && clients > len(t.clients), bytes > MaxBytes && bytes > t.bytes:
		return errFull
	case owner != nil && owned > MaxOwned && owned > len(owner.clients):
		return fmt.Errorf("%w: %d clients of one connection, at most %d", ErrTooMuch, owned, MaxOwned)
	}
	return nil
}

func (t *Table) put(owner *Owner, e *entry, now time.Time) Change {
	c := t.clients[e.client]
	if c == nil {
		if t.clients == nil {
			t.clients = make(map[uint64]*client)
		}
		c = &client{}
		t.clients[e.client] = c
	}
	was, clock := c.state, e.clock
	if e.against(c) { // whoever took the other for the client's is to take this one
		clock = max(clock, min(c.clock+1, maxSafe))
	}
	change := Renewed
	if string(e.state) != string(c.state) || (e.state == nil) != (c.state == nil) {
		change = Changed
		t.setState(c, slices.Clone(e.state))
	}
	next := owner
	if c.state == nil {
		next = nil
	}
	t.own(c, e.client, next)
	t.setUntil(c, time.Time{})
	c.clock, c.seen = clock, now
	if was == nil || c.claim.who != e.claim.who || e.claim.before(c.claim) {
		c.claim = e.claim
	}
	t.touch(e.client, c, owner != nil || clock != e.clock)
	return change
}

func (t *Table) setState(c *client, state []byte) {
	if (c.state == nil) != (state == nil) {
		if state != nil {
			t.present++
		} else {
			t.present--
		}
	}
	t.bytes += len(state) - len(c.state)
	c.state = state
}

func (t *Table) setUntil(c *client, until time.Time) {
	if c.ours() != !until.IsZero() {
		if c.ours() {
			t.shown--
		} else {
			t.shown++
		}
	}
	c.until = until
}

func (t *Table) own(c *client, id uint64, owner *Owner) {
	if c.owner == owner {
		return
	}
	if c.owner != nil {
		c.owner.clients = slices.DeleteFunc(c.owner.clients, func(x uint64) bool { return x == id })
	}
	if c.owner = owner; owner != nil {
		owner.clients = append(owner.clients, id)
	}
}

func (t *Table) touch(id uint64, c *client, local bool) {
	t.all = nil
	if !c.dirty {
		c.dirty = true
		t.dirty = append(t.dirty, id)
		c.local = false
	}
	c.local = c.local || local
}

func (t *Table) remove(id uint64, c *client, now time.Time, local bool) {
	t.setState(c, nil)
	t.own(c, id, nil)
	t.setUntil(c, time.Time{})
	c.seen = now
	t.touch(id, c, local)
}

// Leave removes what an owner has and forgets the owner.
func (t *Table) Leave(owner *Owner, now time.Time) Change {
	change := Nothing
	for _, id := range slices.Clone(owner.clients) {
		t.remove(id, t.clients[id], now, true)
		change = Changed
	}
	owner.clients = nil
	return change
}

// Show sets the state, which is valid JSON, of a client of our own until a time, and
// reports ErrTooMuch as Apply does. The client may be shown by several instances one
// after the other: its clock is taken from the time.
func (t *Table) Show(id uint64, state []byte, until, now time.Time) error {
	e := entry{client: id, clock: max(millisecond(now), 1), state: state, claim: claim{who: agents}}
	c := t.clients[id]
	if c != nil {
		e.clock = max(e.clock, c.clock+1)
	}
	if err := t.admit(nil, []entry{e}); err != nil {
		return err
	}
	t.put(nil, &e, now)
	c = t.clients[id]
	t.setUntil(c, until)
	c.local = true
	return nil
}

// hide removes a client of our own.
func (t *Table) hide(id uint64, now time.Time) Change {
	c := t.clients[id]
	if c == nil || !c.ours() {
		return Nothing
	}
	c.clock++
	t.remove(id, c, now, true)
	return Changed
}

// Renew counts up the clients of our own that are due and hides those whose time is
// over. It returns when it wants to be called again; zero when we show nothing.
func (t *Table) Renew(now time.Time) (change Change, next time.Time) {
	if t.shown == 0 {
		return Nothing, time.Time{}
	}
	for id, c := range t.clients {
		if !c.ours() {
			continue
		}
		if !now.Before(c.until) {
			change = max(change, t.hide(id, now))
			continue
		}
		if now.Sub(c.seen) >= renewEvery {
			c.clock++
			c.seen = now
			t.touch(id, c, true)
			change = max(change, Renewed)
		}
		due := c.seen.Add(renewEvery)
		if c.until.Before(due) {
			due = c.until
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	return change, next
}

// Expire removes who has not been heard of for Timeout, and forgets who went a while
// ago.
func (t *Table) Expire(now time.Time) Change {
	change := Nothing
	for id, c := range t.clients {
		age := now.Sub(c.seen)
		switch {
		case c.state == nil:
			if age >= forgetAfter && !c.dirty {
				delete(t.clients, id)
			}
		case age >= Timeout && !c.ours():
			t.remove(id, c, now, c.owner != nil)
			change = Changed
		}
	}
	return change
}

// Flush returns what changed since it was called last, for those who are connected
// here, and the part of it that other instances have not heard, with its tail; nil for
// nothing.
func (t *Table) Flush() (all, local []byte) {
	if len(t.dirty) == 0 {
		return nil, nil
	}
	all = t.encode(t.dirty)
	here := t.dirty[:0:0]
	for _, id := range t.dirty {
		if t.clients[id].local {
			here = append(here, id)
		}
		t.clients[id].dirty = false
	}
	if len(here) > 0 {
		local = t.appendClaims(t.encode(here), here)
	}
	if t.dirty = t.dirty[:0]; cap(t.dirty) > 64 {
		t.dirty = nil
	}
	return all, local
}

// Encode returns the states of all who are there; nil when nobody is. Until something
// changes it returns the same bytes, which are not to be written to.
func (t *Table) Encode() []byte {
	if t.all == nil {
		if ids := t.those(func(c *client) bool { return c.state != nil }); len(ids) > 0 {
			t.all = t.encode(ids)
		}
	}
	return t.all
}

// Local returns the states of those who are connected here, or shown by us, with the tail
// for other instances; nil when nobody is.
func (t *Table) Local() []byte {
	ids := t.those(func(c *client) bool { return c.state != nil && (c.owner != nil || c.ours()) })
	if len(ids) == 0 {
		return nil
	}
	return t.appendClaims(t.encode(ids), ids)
}

func (t *Table) those(want func(*client) bool) []uint64 {
	ids := make([]uint64, 0, t.present)
	for id, c := range t.clients {
		if want(c) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Dirty says whether Flush has something.
func (t *Table) Dirty() bool { return len(t.dirty) > 0 }

// Shown returns how many clients of our own there are.
func (t *Table) Shown() int { return t.shown }

// Empty says whether there is nothing that Expire could do.
func (t *Table) Empty() bool { return len(t.clients) == 0 }

var null = []byte("null")

func (t *Table) encode(ids []uint64) []byte {
	size := 5
	for _, id := range ids {
		size += 24 + len(t.clients[id].state)
	}
	b := appendUvarint(make([]byte, 0, size), uint64(len(ids)))
	for _, id := range ids {
		c := t.clients[id]
		state := c.state
		if state == nil {
			state = null
		}
		b = appendUvarint(appendUvarint(b, id), c.clock)
		b = append(appendUvarint(b, uint64(len(state))), state...)
	}
	return b
}

// appendClaims appends the tail of an update about some clients.
func (t *Table) appendClaims(b []byte, ids []uint64) []byte {
	b = slices.Grow(b, tailSize*len(ids))
	for _, id := range ids {
		m := t.clients[id].claim
		b = binary.BigEndian.AppendUint64(append(b, m.who[:]...), m.since)
	}
	return b
}

// readClaims reads the tail of an update, if it has one.
func readClaims(entries []entry, tail []byte) {
	if len(tail) != tailSize*len(entries) {
		return
	}
	for i := range entries {
		m := &entries[i].claim
		tail = tail[copy(m.who[:], tail):]
		m.since, tail = binary.BigEndian.Uint64(tail), tail[8:]
	}
}

func millisecond(t time.Time) uint64 { return uint64(max(t.UnixMilli(), 0)) }

// decode appends the entries of an update to entries, and returns what is behind them.
// Their states are part of the update.
func decode(entries []entry, update []byte) (all []entry, tail []byte, err error) {
	n, b, ok := uvarint(update)
	if !ok {
		return nil, nil, ErrMalformed
	}
	if n > uint64(len(b)/leastSize) {
		return nil, nil, ErrMalformed
	}
	if n > 2*MaxClients {
		return nil, nil, fmt.Errorf("%w: an update of %d clients", ErrTooMuch, n)
	}
	for range n {
		var e entry
		var size uint64
		var ok1, ok2, ok3 bool
		e.client, b, ok1 = uvarint(b)
		e.clock, b, ok2 = uvarint(b)
		size, b, ok3 = uvarint(b)
		if !ok1 || !ok2 || !ok3 || size > uint64(len(b)) {
			return nil, nil, ErrMalformed
		}
		e.state, b = b[:size], b[size:]
		// Whoever gets it hands it to JSON.parse: one bad state would lose them all.
		if !utf8.Valid(e.state) || !json.Valid(e.state) {
			return nil, nil, ErrMalformed
		}
		if isNull(e.state) {
			e.state = nil
		}
		entries = append(entries, e)
	}
	return entries, b, nil
}

// isNull says whether valid JSON is null.
func isNull(state []byte) bool {
	for _, c := range state {
		switch c {
		case ' ', '\t', '\r', '\n':
		default:
			return c == 'n'
		}
	}
	return false
}

func appendUvarint(b []byte, n uint64) []byte {
	for n >= 0x80 {
		b = append(b, byte(n)|0x80)
		n >>= 7
	}
	return append(b, byte(n))
}

// uvarint reads a number that JavaScript can.
func uvarint(b []byte) (n uint64, rest []byte, ok bool) {
	for i, c := range b {
		if i == 8 {
			break
		}
		n |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return n, b[i+1:], n <= maxSafe
		}
	}
	return 0, nil, false
}
