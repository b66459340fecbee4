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
//     that somebody is gone. Another person's entry cannot be taken over at all.
//   - another instance, which tells when it goes;
//   - this instance itself, for an agent at work (Show), which is counted up by Renew
//     until its time is over.
//
// What nobody counts up for 30 seconds is removed by Expire, as an instance that died
// leaves it. Removing keeps the clock, as y-protocols does: the same client, if it has
// meanwhile come back through another door and moved on, is not removed by who saw it go.
//
// What changed is gathered until Flush encodes it, once for all. A Table is not safe
// for concurrent use: the room that has it guards it. Its zero value is empty.
package presence

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"
)

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
	leastSize = 4         // of a client in an update
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
	bytes   int      // of all states
	present int      // clients that have a state
	shown   int      // of those, our own
}

type client struct {
	clock uint64
	state []byte // nil: gone
	owner *Owner // nil: of another instance, or of nobody any more
	seen  time.Time
	until time.Time // of those that we show; else zero
	dirty bool
	local bool // its last change came from here: other instances must hear of it
}

func (c *client) ours() bool { return !c.until.IsZero() }

// entry is one client of an update.
type entry struct {
	client, clock uint64
	state         []byte // of the update; nil: gone
}

// Apply merges an update as y-protocols encodes it; owner is nil for what another
// instance says. The bytes are not kept.
func (t *Table) Apply(owner *Owner, update []byte, now time.Time) (Change, error) {
	var few [4]entry // most updates name one
	entries, err := decode(few[:0], update)
	if err != nil {
		return Nothing, err
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
	if c == nil {
		// A clock that nobody has seen is 0. That somebody left who was never here is worth
		// a place only if another instance says so, from which the news may come late.
		return e.clock > 0 && (e.state != nil || owner == nil)
	}
	switch {
	case c.state != nil && owner != nil && (c.ours() || c.owner != nil && c.owner.Who != owner.Who):
		return false
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
	c.clock, c.seen = e.clock, now
	t.touch(e.client, c, owner != nil)
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
	e := entry{client: id, clock: uint64(max(now.UnixMilli(), 1)), state: state}
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

// Hide removes a client of our own.
func (t *Table) Hide(id uint64, now time.Time) Change {
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
			change = max(change, t.Hide(id, now))
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
// here, and the part of it that other instances have not heard; nil for nothing.
// The two may be the same bytes.
func (t *Table) Flush() (all, local []byte) {
	if len(t.dirty) == 0 {
		return nil, nil
	}
	here := 0
	for _, id := range t.dirty {
		if t.clients[id].local {
			here++
		}
	}
	all = t.encode(len(t.dirty), t.dirty, func(*client) bool { return true })
	switch here {
	case 0:
	case len(t.dirty):
		local = all
	default:
		local = t.encode(here, t.dirty, func(c *client) bool { return c.local })
	}
	for _, id := range t.dirty {
		t.clients[id].dirty = false
	}
	if t.dirty = t.dirty[:0]; cap(t.dirty) > 64 {
		t.dirty = nil
	}
	return all, local
}

// Encode returns the states of all who are there; nil when nobody is.
func (t *Table) Encode() []byte {
	return t.encodeThose(func(c *client) bool { return c.state != nil })
}

// Local returns the states of those who are connected here, or shown by us; nil when
// nobody is.
func (t *Table) Local() []byte {
	return t.encodeThose(func(c *client) bool { return c.state != nil && (c.owner != nil || c.ours()) })
}

func (t *Table) encodeThose(want func(*client) bool) []byte {
	ids := make([]uint64, 0, t.present)
	for id, c := range t.clients {
		if want(c) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	return t.encode(len(ids), ids, func(*client) bool { return true })
}

// Dirty says whether Flush has something.
func (t *Table) Dirty() bool { return len(t.dirty) > 0 }

// Shown returns how many clients of our own there are.
func (t *Table) Shown() int { return t.shown }

// Empty says whether there is nothing that Expire could do.
func (t *Table) Empty() bool { return len(t.clients) == 0 }

var null = []byte("null")

func (t *Table) encode(n int, ids []uint64, want func(*client) bool) []byte {
	size := 5
	for _, id := range ids {
		size += 24 + len(t.clients[id].state)
	}
	b := appendUvarint(make([]byte, 0, size), uint64(n))
	for _, id := range ids {
		c := t.clients[id]
		if !want(c) {
			continue
		}
		state := c.state
		if state == nil {
			state = null
		}
		b = appendUvarint(appendUvarint(b, id), c.clock)
		b = append(appendUvarint(b, uint64(len(state))), state...)
	}
	return b
}

// decode appends the entries of an update to entries. Their states are part of it.
func decode(entries []entry, update []byte) ([]entry, error) {
	n, b, ok := uvarint(update)
	if !ok {
		return nil, ErrMalformed
	}
	if n > uint64(len(b)/leastSize) {
		return nil, ErrMalformed
	}
	if n > 2*MaxClients {
		return nil, fmt.Errorf("%w: an update of %d clients", ErrTooMuch, n)
	}
	for range n {
		var e entry
		var size uint64
		var ok1, ok2, ok3 bool
		e.client, b, ok1 = uvarint(b)
		e.clock, b, ok2 = uvarint(b)
		size, b, ok3 = uvarint(b)
		if !ok1 || !ok2 || !ok3 || size > uint64(len(b)) {
			return nil, ErrMalformed
		}
		e.state, b = b[:size], b[size:]
		// Whoever gets it hands it to JSON.parse: one bad state would lose them all.
		if !utf8.Valid(e.state) || !json.Valid(e.state) {
			return nil, ErrMalformed
		}
		if isNull(e.state) {
			e.state = nil
		}
		entries = append(entries, e)
	}
	return entries, nil
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
