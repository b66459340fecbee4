// Package presence holds the awareness of a document, as defined by y-protocols: the names and
// cursors of those who have it open. Nothing is stored.
//
// A Table has an entry per client: a clock and a JSON state or none. The client's owner
// increments the clock with each change and at least every 15 seconds. A higher clock wins,
// and an equal one if it removes the state, so that updates may arrive late, repeatedly and
// in any order. A removed client keeps its clock for a while, so that an echo does not
// restore it. Clients without an update for 30 seconds are removed by Expire.
//
// An entry comes from a connection of this instance (an Owner), from another instance, or from
// this instance itself for an agent (Show, kept alive by Renew), and only its source removes
// it. Browsers repeat what they were told about others: that has no higher clock and changes
// nothing, nor does their guess that somebody has gone.
//
// A present client belongs to the member whose connection brought it. That member may continue
// it from any connection, as browsers do after a lost connection; nobody else can change or
// remove it. Instances exchange who claimed which client and when, in a tail that y-protocols
// ignores. If two members claim a client at once, the earlier claim wins: the instance that
// knows it raises the clock, so that everybody takes over its state. Agents take precedence.
// Without a tail, from older instances, the claim is unknown and anybody may change the client.
//
// A Table is not safe for concurrent use. Its zero value is empty.
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

// agents is the claimant of clients that instances show themselves.
var agents = [16]byte{0: 0xff, 15: 0xff}

// Limits of a table.
const (
	MaxClients = 2000     // including removed ones
	MaxOwned   = 100      // per connection: a browser may speak for all of its tabs
	MaxState   = 64 << 10 // bytes of a state
	MaxBytes   = 4 << 20  // bytes of all states

	// Timeout is how long a client stays without an update.
	Timeout     = 30 * time.Second
	renewEvery  = Timeout / 2
	forgetAfter = 2 * Timeout

	maxSafe  = 1<<53 - 1 // the largest integer of JavaScript
	maxClock = 1 << 52   // from a connection, to leave room for increments
	minSize  = 4         // minimum bytes per client in an update
	tailSize = 16 + 8    // bytes per client: the claimant and the time in milliseconds
)

var (
	// ErrMalformed is returned for bytes that are not an awareness update. The table is
	// unchanged.
	ErrMalformed = errors.New("malformed awareness update")
	// ErrTooMuch is returned, wrapped, for updates that exceed a limit. The table is
	// unchanged.
	ErrTooMuch = errors.New("too much awareness")
)

// errFull is returned by admit when the table is full.
var errFull = errors.New("the document's awareness is full")

// Change is the effect of an update on the table.
type Change uint8

// The changes, in ascending order.
const (
	Nothing Change = iota
	Renewed        // unchanged states, still present
	Changed
)

// Owner is a connection of this instance. Its clients belong to Member. A
// Table keeps it until Leave.
type Owner struct {
	Member  [16]byte
	clients []uint64
}

// Table is the awareness of one document.
type Table struct {
	clients map[uint64]*client
	dirty   []uint64 // clients changed since Flush, without duplicates
	all     []byte   // the cached result of Encode
	bytes   int      // size of all states
	present int      // clients with a state
	shown   int      // clients shown by this instance
}

type client struct {
	clock uint64
	state []byte // nil: removed
	owner *Owner // nil: not of a connection here
	claim claim
	seen  time.Time
	until time.Time // end of a shown client; zero for others
	dirty bool
	local bool // changed here: to be sent to other instances
}

func (c *client) shownHere() bool { return !c.until.IsZero() }

// claim is the member that a client belongs to, and since when. Zero means unknown.
type claim struct {
	member [16]byte
	since  uint64 // in milliseconds
}

// entry is a client in an update.
type entry struct {
	client, clock uint64
	state         []byte // part of the update; nil: removed
	claim         claim
}

// conflictsWith reports whether the present client belongs to somebody else.
func (e *entry) conflictsWith(c *client) bool {
	return c != nil && c.state != nil && e.claim.member != c.claim.member && e.claim.member != [16]byte{} && c.claim.member != [16]byte{}
}

// before reports whether a claim takes precedence over another.
func (m claim) before(o claim) bool {
	if m.since != o.since {
		return m.since < o.since
	}
	return bytes.Compare(m.member[:], o.member[:]) < 0
}

// Apply merges an update in the encoding of y-protocols. owner is nil for an update of another
// instance, which has a tail. The bytes are not retained.
func (t *Table) Apply(owner *Owner, update []byte, now time.Time) (Change, error) {
	var few [4]entry // most updates have one
	entries, tail, err := decode(few[:0], update)
	if err != nil {
		return Nothing, err
	}
	if owner == nil {
		readClaims(entries, tail)
	} else {
		for i := range entries {
			entries[i].claim = claim{owner.Member, millisecond(now)}
		}
	}
	switch err := t.admit(owner, entries); {
	case errors.Is(err, errFull):
		return Nothing, nil // latecomers are not shown, but may edit
	case err != nil:
		return Nothing, err
	}
	change := Nothing
	for i := range entries {
		if e := &entries[i]; t.wins(owner, e) {
			change = max(change, t.apply(owner, e, now))
		}
	}
	return change, nil
}

// wins reports whether an entry replaces the current one, by y-protocols and by claims.
func (t *Table) wins(owner *Owner, e *entry) bool {
	c := t.clients[e.client]
	switch {
	case owner != nil && e.clock > maxClock:
		return false
	case c == nil:
		// Unknown clients have clock 0. The removal of one is worth an entry only from another
		// instance, whose earlier updates may still arrive.
		return e.clock > 0 && (e.state != nil || owner == nil)
	case e.conflictsWith(c):
		return owner == nil && e.state != nil && e.claim.before(c.claim)
	case e.clock == c.clock:
		return e.state == nil && c.state != nil && c.owner == owner
	}
	return e.clock > c.clock
}

// admit checks the limits for all entries before any of them is applied.
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

func (t *Table) apply(owner *Owner, e *entry, now time.Time) Change {
	c := t.clients[e.client]
	if c == nil {
		if t.clients == nil {
			t.clients = make(map[uint64]*client)
		}
		c = &client{}
		t.clients[e.client] = c
	}
	was, clock := c.state, e.clock
	if e.conflictsWith(c) { // exceed the other's clock, so that everybody replaces it
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
	if was == nil || c.claim.member != e.claim.member || e.claim.before(c.claim) {
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
	if c.shownHere() != !until.IsZero() {
		if c.shownHere() {
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

// Leave removes the clients of an owner and the owner itself.
func (t *Table) Leave(owner *Owner, now time.Time) Change {
	change := Nothing
	for _, id := range slices.Clone(owner.clients) {
		t.remove(id, t.clients[id], now, true)
		change = Changed
	}
	owner.clients = nil
	return change
}

// Show sets the state, which is valid JSON, of a client shown by this instance until a time. It
// returns ErrTooMuch like Apply. Several instances may show the same client in turn: its
// clock is derived from the time.
func (t *Table) Show(id uint64, state []byte, until, now time.Time) error {
	e := entry{client: id, clock: max(millisecond(now), 1), state: state, claim: claim{member: agents}}
	c := t.clients[id]
	if c != nil {
		e.clock = max(e.clock, c.clock+1)
	}
	if err := t.admit(nil, []entry{e}); err != nil {
		return err
	}
	t.apply(nil, &e, now)
	c = t.clients[id]
	t.setUntil(c, until)
	c.local = true
	return nil
}

// hide removes a shown client.
func (t *Table) hide(id uint64, now time.Time) Change {
	c := t.clients[id]
	if c == nil || !c.shownHere() {
		return Nothing
	}
	c.clock++
	t.remove(id, c, now, true)
	return Changed
}

// Renew increments the clocks of shown clients that are due and hides expired ones. It returns
// when to call it again, zero if nothing is shown.
func (t *Table) Renew(now time.Time) (change Change, next time.Time) {
	if t.shown == 0 {
		return Nothing, time.Time{}
	}
	for id, c := range t.clients {
		if !c.shownHere() {
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

// Expire removes clients without an update for Timeout, and drops those removed a while ago.
func (t *Table) Expire(now time.Time) Change {
	change := Nothing
	for id, c := range t.clients {
		age := now.Sub(c.seen)
		switch {
		case c.state == nil:
			if age >= forgetAfter && !c.dirty {
				delete(t.clients, id)
			}
		case age >= Timeout && !c.shownHere():
			t.remove(id, c, now, c.owner != nil)
			change = Changed
		}
	}
	return change
}

// Flush returns the changes since the last call for the connections here, and those of them
// that other instances do not have, with their tail; nil if there are none.
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

// Encode returns the states of all present clients, nil if there are none. The result is cached
// until the next change and must not be modified.
func (t *Table) Encode() []byte {
	if t.all == nil {
		if ids := t.filter(func(c *client) bool { return c.state != nil }); len(ids) > 0 {
			t.all = t.encode(ids)
		}
	}
	return t.all
}

// Local returns the states of clients connected here or shown by this instance, with the tail
// for other instances, nil if there are none.
func (t *Table) Local() []byte {
	ids := t.filter(func(c *client) bool { return c.state != nil && (c.owner != nil || c.shownHere()) })
	if len(ids) == 0 {
		return nil
	}
	return t.appendClaims(t.encode(ids), ids)
}

func (t *Table) filter(want func(*client) bool) []uint64 {
	ids := make([]uint64, 0, t.present)
	for id, c := range t.clients {
		if want(c) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Dirty reports whether Flush would return anything.
func (t *Table) Dirty() bool { return len(t.dirty) > 0 }

// Shown returns the number of clients shown by this instance.
func (t *Table) Shown() int { return t.shown }

// Empty reports whether Expire has nothing to do.
func (t *Table) Empty() bool { return len(t.clients) == 0 }

var null = []byte("null")

func (t *Table) encode(ids []uint64) []byte {
	size := 5
	for _, id := range ids {
		size += 24 + len(t.clients[id].state)
	}
	b := binary.AppendUvarint(make([]byte, 0, size), uint64(len(ids)))
	for _, id := range ids {
		c := t.clients[id]
		state := c.state
		if state == nil {
			state = null
		}
		b = binary.AppendUvarint(binary.AppendUvarint(b, id), c.clock)
		b = append(binary.AppendUvarint(b, uint64(len(state))), state...)
	}
	return b
}

// appendClaims appends the tail of an update of these clients.
func (t *Table) appendClaims(b []byte, ids []uint64) []byte {
	b = slices.Grow(b, tailSize*len(ids))
	for _, id := range ids {
		m := t.clients[id].claim
		b = binary.BigEndian.AppendUint64(append(b, m.member[:]...), m.since)
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
		tail = tail[copy(m.member[:], tail):]
		m.since, tail = binary.BigEndian.Uint64(tail), tail[8:]
	}
}

func millisecond(t time.Time) uint64 { return uint64(max(t.UnixMilli(), 0)) }

// decode appends the entries of an update, which refer to its bytes, and returns the rest of
// the update.
func decode(entries []entry, update []byte) (all []entry, tail []byte, err error) {
	n, b, ok := uvarint(update)
	if !ok || n > uint64(len(b)/minSize) {
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
		// Receivers pass it to JSON.parse: one invalid state would break them all.
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

// isNull reports whether valid JSON is null.
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

// uvarint reads a number that JavaScript can represent.
func uvarint(b []byte) (n uint64, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	return n, b[max(size, 0):], size > 0 && n <= maxSafe
}
