package yjs

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// ApplyUpdate integrates an update in encoding v1. It may be partly or completely known. Parts
// that depend on missing updates become pending. After ErrMalformed the document is
// unchanged, and so it is after ErrBudget, except for [Limits.MaxScan] and MaxPending: then
// it contains part of the update, is consistent, and gets the rest when a peer syncs.
func (d *Doc) ApplyUpdate(update []byte, origin any) error {
	return d.apply(update, origin, false)
}

// ApplyUpdateV2 is [Doc.ApplyUpdate] for encoding v2.
func (d *Doc) ApplyUpdateV2(update []byte, origin any) error {
	return d.apply(update, origin, true)
}

func (d *Doc) apply(update []byte, origin any, v2 bool) error {
	p := d.parsed
	d.parsed = nil // an observer may apply another update
	if p == nil {
		p = &parsed{}
	}
	if err := p.parse(update, v2, &d.limits); err != nil {
		return err
	}
	t, opened := d.begin(origin, false)
	t.local = false
	t.resetBudget()
	err := d.applyParsed(p)
	if d.ownClocksAwaited() {
		d.clientID = newClientID()
	}
	d.end(opened)
	if cap(p.structs) <= 64 {
		p.reset()
		d.parsed = p
	}
	return err
}

// parsed is a decoded update.
type parsed struct {
	structs []wireStruct
	groups  []group
	ds      DeleteSet
	stack   []int32
}

// group holds the structs of one client in a parsed update: structs[i:to] are not yet
// processed, those from rest on are pending.
type group struct {
	client      uint64
	i, to, rest int32
}

func (p *parsed) reset() {
	clear(p.structs)
	p.structs, p.groups, p.ds, p.stack = p.structs[:0], p.groups[:0], nil, p.stack[:0]
}

func (p *parsed) parse(update []byte, v2 bool, limits *Limits) error {
	p.reset()
	var dec decoder
	dec.init(update, v2, limits.MaxValues)
	n := dec.rest.uvarint()
	if n > uint64(limits.MaxClients) {
		return budgetError("clients in update", n, uint64(limits.MaxClients))
	}
	most := limits.structs(len(update))
	for range n {
		count := dec.rest.uvarint()
		client := dec.client()
		clock := dec.rest.clock()
		if dec.failed() {
			return ErrMalformed
		}
		if total := uint64(len(p.structs)) + count; total > most {
			return budgetError("structs in update", total, most)
		}
		from := len(p.structs)
		p.structs = slices.Grow(p.structs, int(min(count, uint64(len(update)))))
		for range count {
			p.structs = append(p.structs, wireStruct{})
			s := &p.structs[len(p.structs)-1]
			if !dec.read(s, client, clock) {
				if dec.values < 0 {
					return budgetError("values in update", uint64(limits.MaxValues)+1, uint64(limits.MaxValues))
				}
				return ErrMalformed
			}
			if clock = s.end(); s.length == 0 {
				p.structs = p.structs[:len(p.structs)-1]
			}
		}
		p.groups = append(p.groups, group{client, int32(from), int32(len(p.structs)), -1})
	}
	ds, err := dec.deleteSet(limits)
	if err != nil {
		return err
	}
	p.ds = ds
	if len(p.groups) > 1 {
		// The last of several groups of a client wins.
		slices.Reverse(p.groups)
		slices.SortStableFunc(p.groups, func(a, b group) int { return cmp.Compare(a.client, b.client) })
		p.groups = slices.CompactFunc(p.groups, func(a, b group) bool { return a.client == b.client })
	}
	return nil
}

func (p *parsed) group(client uint64) *group {
	if len(p.groups) == 1 {
		if p.groups[0].client == client {
			return &p.groups[0]
		}
		return nil
	}
	i, ok := slices.BinarySearchFunc(p.groups, client, func(g group, id uint64) int { return cmp.Compare(g.client, id) })
	if !ok {
		return nil
	}
	return &p.groups[i]
}

// pending holds structs that wait for missing updates, as updates in encoding v2 that are
// merged on demand, and what they wait for: by client, the last known clock.
type pending struct {
	missing map[uint64]int64
	parts   [][]byte
	size    int
}

// join returns all pending structs. After an error, which is not expected, they are unchanged.
func (p *pending) join() ([]byte, error) {
	if len(p.parts) > 1 {
		all, err := mergeUpdates(p.parts, true, &ownLimits)
		if err != nil {
			return nil, fmt.Errorf("merge pending structs: %w", err)
		}
		p.parts = append(p.parts[:0], all)
		p.size = len(all)
	}
	return p.parts[0], nil
}

func (d *Doc) applyParsed(p *parsed) error {
	before := d.added
	again, err := d.applyOnce(p)
	// Yjs checks only what was pending before. Structs that became pending just now may depend
	// on later structs of the same update.
	again = again || d.added != before && d.pendingReady()
	if err != nil || !again {
		return err
	}
	// Pending structs have a budget of their own: the sender of their dependencies is not
	// charged for them.
	d.txn.resetBudget()
	for again && err == nil {
		again, err = d.retry()
	}
	return err
}

// applyOnce applies an update and reports whether pending structs may now be integrated.
func (d *Doc) applyOnce(p *parsed) (again bool, err error) {
	missing, err := d.integrateAll(p)
	if err != nil {
		return false, err
	}
	again = d.pendingReady()
	if missing != nil {
		err = d.addPending(p, missing, d.limits.MaxPending)
	}
	return again, cmp.Or(err, d.applyAllDeletes(p.ds))
}

// retry integrates pending structs and reports whether another attempt may succeed. Only
// MaxScan limits them now. If it is exceeded, all of them stay pending, and the next update
// tries again.
func (d *Doc) retry() (again bool, err error) {
	waits := d.pending
	update, err := waits.join()
	if err != nil {
		return false, err
	}
	p := &parsed{}
	if err := p.parse(update, true, &ownLimits); err != nil {
		return false, fmt.Errorf("decode pending structs: %w", err)
	}
	d.pending = nil
	before := d.added
	missing, err := d.integrateAll(p)
	if err != nil {
		waits.missing = map[uint64]int64{p.groups[0].client: -1} // always ripe
		d.pending = waits
		return false, nil
	}
	if missing != nil {
		err = d.addPending(p, missing, math.MaxInt)
	}
	err = cmp.Or(err, d.applyAllDeletes(nil))
	return d.added != before && d.pendingReady(), err
}

// applyAllDeletes applies ds and the pending deletions as far as their structs are known, and
// keeps the rest pending.
func (d *Doc) applyAllDeletes(ds DeleteSet) error {
	rest := d.applyDeletes(ds)
	if len(ds) > 0 && d.txn.overBudget() {
		return budgetError("steps of splitting", uint64(d.limits.MaxScan)+1, uint64(d.limits.MaxScan))
	}
	if len(d.pendingDeletes) > 0 {
		if left := d.applyDeletes(d.pendingDeletes); !d.txn.overBudget() { // otherwise all of them stay pending
			d.pendingDeletes = left
		}
	}
	switch {
	case len(rest) == 0:
		return nil
	case len(d.pendingDeletes) > 0:
		rest = mergeDeleteSets(rest, d.pendingDeletes)
	}
	if n, most := rest.ranges(), d.limits.MaxPending/8; n > most {
		return budgetError("pending deletions", uint64(n), uint64(most))
	}
	d.pendingDeletes = rest
	return nil
}

// pendingReady reports whether pending structs may be integrated now.
func (d *Doc) pendingReady() bool {
	if d.pending != nil {
		for client, clock := range d.pending.missing {
			if clock < int64(d.stateOf(client)) {
				return true
			}
		}
	}
	return false
}

// ownClocksAwaited reports whether something waits for unused clocks of our own: another writer uses
// our client id.
func (d *Doc) ownClocksAwaited() bool {
	if d.pending != nil {
		if _, ok := d.pending.missing[d.clientID]; ok {
			return true
		}
	}
	return slices.ContainsFunc(d.pendingDeletes, func(c ClientRanges) bool { return c.Client == d.clientID })
}

func (ds DeleteSet) ranges() (n int) {
	for i := range ds {
		n += len(ds[i].Ranges)
	}
	return n
}

// addPending makes the structs of p that could not be integrated pending, unless all pending
// structs exceed a size.
func (d *Doc) addPending(p *parsed, missing map[uint64]int64, most int) error {
	update := p.encodeRest()
	size := len(update)
	if d.pending != nil {
		size += d.pending.size
	}
	if size > most {
		return budgetError("bytes of pending structs", uint64(size), uint64(most))
	}
	if d.pending == nil {
		d.pending = &pending{missing: missing, parts: [][]byte{update}, size: size}
		return nil
	}
	for client, clock := range missing {
		if have, ok := d.pending.missing[client]; !ok || have > clock {
			d.pending.missing[client] = clock
		}
	}
	d.pending.parts = append(d.pending.parts, update)
	d.pending.size = size
	if len(d.pending.parts) >= 256 {
		_, err := d.pending.join()
		return err
	}
	return nil
}

func (p *parsed) encodeRest() []byte {
	e := newEncoder(true, 64)
	n := 0
	for i := range p.groups {
		if p.groups[i].rest >= 0 {
			n++
		}
	}
	e.uvarint(uint64(n))
	for i := len(p.groups) - 1; i >= 0; i-- {
		g := &p.groups[i]
		if g.rest < 0 {
			continue
		}
		e.uvarint(uint64(g.to - g.rest))
		e.client(g.client)
		e.uvarint(uint64(p.structs[g.rest].clock))
		for j := g.rest; j < g.to; j++ {
			e.wire(&p.structs[j], 0)
		}
	}
	e.uvarint(0)
	return e.finish()
}

// integrateAll integrates structs by descending client id. A struct that depends on another
// client waits on a stack while that client's structs are integrated. It returns what the
// remaining structs, which are marked in the groups, depend on.
func (d *Doc) integrateAll(p *parsed) (missing map[uint64]int64, err error) {
	if len(p.groups) == 1 && len(p.structs) == 1 && d.appendFast(&p.structs[0]) {
		return nil, nil
	}
	cur := len(p.groups) - 1 // the current group
	stack := p.stack[:0]
	defer func() { p.stack = stack[:0] }()
	want := func(client uint64, clock int64) {
		if missing == nil {
			missing = make(map[uint64]int64)
		}
		if have, ok := missing[client]; !ok || have > clock {
			missing[client] = clock
		}
	}
	note := func(client uint64, clock int64) {
		want(client, clock)
		for _, i := range stack {
			s := &p.structs[i]
			// Record the own dependency of each. Yjs records only that of the last one, and may
			// then wait forever.
			if need, ok := d.missing(s); ok {
				want(need, int64(d.stateOf(need)))
			}
			// If the beginning of s arrives from elsewhere, the rest has no other dependency.
			want(s.client, int64(s.clock))
			g := p.group(p.structs[i].client)
			if g.rest < 0 || i < g.rest {
				g.rest = i
			}
			g.i = g.to
		}
		stack = stack[:0]
	}
	head := int32(-1)
	for {
		if head < 0 {
			if n := len(stack); n > 0 {
				head, stack = stack[n-1], stack[:n-1]
			} else {
				for cur >= 0 && p.groups[cur].i == p.groups[cur].to {
					cur--
				}
				if cur < 0 {
					return missing, nil
				}
				head = p.groups[cur].i
				p.groups[cur].i++
			}
		}
		s := &p.structs[head]
		if s.kind == kindSkip {
			head = -1
			continue
		}
		have := d.stateOf(s.client)
		if have < s.clock {
			stack = append(stack, head)
			note(s.client, int64(s.clock)-1)
			head = -1
			continue
		}
		if have >= s.end() {
			head = -1
			continue
		}
		if have > s.clock {
			s.cut(have - s.clock)
		}
		if need, ok := d.missing(s); ok {
			stack = append(stack, head)
			g := p.group(need)
			if g == nil || g.i == g.to {
				note(need, int64(d.stateOf(need)))
				head = -1
			} else {
				head = g.i
				g.i++
			}
			continue
		}
		if d.txn.overBudget() || !d.integrateWire(s) {
			return nil, budgetError("steps of integration", uint64(d.limits.MaxScan)+1, uint64(d.limits.MaxScan))
		}
		head = -1
	}
}

// missing returns a client whose structs s depends on and that are not known.
func (d *Doc) missing(s *wireStruct) (client uint64, yes bool) {
	if s.flags&(flagOrigin|flagParent) != 0 && s.oc != s.client && s.ok >= d.stateOf(s.oc) {
		return s.oc, true
	}
	if s.flags&flagRight != 0 && s.rc != s.client && s.rk >= d.stateOf(s.rc) {
		return s.rc, true
	}
	return 0, false
}

// appendFast extends the last text of a client in place, the most common update. The result
// equals integration followed by the merge at commit.
func (d *Doc) appendFast(s *wireStruct) bool {
	if s.kind != kindString || s.flags&flagOrigin == 0 || s.oc != s.client || s.ok != s.clock-1 {
		return false
	}
	ci := d.lookup(s.client)
	if ci == none || d.clients[ci].state != s.clock {
		return false
	}
	var rc, rk uint32 = none, 0
	if s.flags&flagRight != 0 {
		rc, rk = d.lookup(s.rc), s.rk
		if rc == none {
			return false
		}
	}
	return d.extendLast(ci, rc, rk, s.body, s.length, s.flags&flagASCII != 0)
}

// extendLast extends the last item of a client if a new item would be merged into it: same
// neighbours, same right origin, both visible text.
func (d *Doc) extendLast(ci, rc, rk uint32, body []byte, length uint32, ascii bool) bool {
	c := &d.clients[ci]
	if len(c.structs) == 0 {
		return false
	}
	l := d.at(c.structs[len(c.structs)-1])
	if l.kind != kindString || l.flags&(itDeleted|itRedone) != 0 || l.sub != 0 || l.rClient != rc || (rc != none && l.rClock != rk) {
		return false
	}
	if rc == none {
		if l.right != 0 {
			return false
		}
	} else if l.right == 0 {
		return false
	} else if r := d.at(l.right); r.client != rc || r.clock != rk {
		return false
	}
	d.touch(ci)
	d.added++
	d.appendText(l, body, ascii)
	l.length += length
	c = &d.clients[ci]
	c.state += length
	b := d.branches[l.parent]
	b.length += length
	d.noteChange(b, 0)
	return true
}

// integrateWire integrates a struct that continues its client's structs and whose
// dependencies are known. It returns false when the scan budget is exhausted.
func (d *Doc) integrateWire(s *wireStruct) bool {
	if d.appendFast(s) {
		return true
	}
	if s.kind == kindGC {
		d.addGC(d.clientOf(s.client), s.clock, s.length)
		return true
	}
	var left, right ref
	oClient, rClient := none, none
	if s.flags&flagOrigin != 0 {
		oClient = d.lookup(s.oc)
		left = d.cleanEnd(oClient, s.ok)
	}
	if s.flags&flagRight != 0 {
		rClient = d.lookup(s.rc)
		right = d.itemAt(rClient, s.rk)
	}
	parent, sub := d.parentOf(s, left, right)
	ci := d.clientOf(s.client)
	if parent == 0 {
		d.addGC(ci, s.clock, s.length)
		return true
	}
	if right != 0 {
		within := d.at(right).clock < s.rk
		switch {
		case !within && left != 0 && d.at(left).right == right: // neighbours
		case d.invalidRight(s, left, right):
			right, rClient = 0, none
		case within:
			right = d.cleanStart(rClient, s.rk)
		}
	}
	r, it := d.newItem()
	*it = item{
		clock: s.clock, length: s.length, client: ci,
		left: left, right: right, oClient: oClient, oClock: s.ok, rClient: rClient, rClock: s.rk,
		parent: parent, sub: sub, kind: s.kind,
	}
	d.wireContent(it, s)
	if !d.integrate(r, it) {
		if b := d.branchOf(it); b != nil {
			d.freeBranch(b)
		}
		d.dropContent(it)
		d.freeItem(r)
		return false
	}
	return true
}

// invalidRight reports whether no editor can have had right, the item of the right origin, to
// the right of left: see doc.go. If right is a whole item after left, place decides.
func (d *Doc) invalidRight(s *wireStruct, left, right ref) bool {
	r := d.at(right)
	within := r.clock < s.rk
	if left == 0 {
		return within
	}
	l := d.at(left)
	return r.parent != l.parent || r.sub != l.sub ||
		within && d.descendsFrom(r, s.rk, s.oc, s.ok, false) ||
		s.oc == s.rc && s.rk <= s.ok && d.descendsFrom(l, s.ok+1, s.rc, s.rk, true)
}

// descendsFrom reports whether the unit of a client at clock of is the unit before clock in an item,
// or one of its ancestors by origin; with same, connected through that client's units only.
func (d *Doc) descendsFrom(it *item, clock uint32, client uint64, of uint32, same bool) bool {
	for ; d.txn.scan >= 0; d.txn.scan-- {
		mine := d.clients[it.client].id == client
		if mine && it.clock <= of && of < clock {
			return true
		}
		if it.oClient == none || same && !mine {
			break
		}
		clock = it.oClock + 1
		it = d.at(d.itemAt(it.oClient, it.oClock))
	}
	return false
}

// parentOf returns the type and key of a struct, or 0 if the type was collected.
func (d *Doc) parentOf(s *wireStruct, left, right ref) (parent, sub uint32) {
	switch {
	case left != 0: // the parent is 0 if it was collected
		l := d.at(left)
		return l.parent, l.sub
	case right != 0:
		r := d.at(right)
		return r.parent, r.sub
	case s.flags&flagRoot != 0:
		parent = d.rootBytes(s.root).index
	default:
		b := d.branchOf(d.at(d.itemAt(d.lookup(s.oc), s.ok)))
		if b == nil {
			return 0, 0
		}
		parent = b.index
	}
	if s.flags&flagSub != 0 {
		sub = d.key(s.sub)
	}
	return parent, sub
}

func (d *Doc) rootBytes(name []byte) *branch {
	if b := d.roots[string(name)]; b != nil {
		return b
	}
	return d.root(string(name), refNone)
}

func (d *Doc) addGC(ci, clock, length uint32) {
	r, it := d.newItem()
	*it = item{clock: clock, length: length, client: ci, oClient: none, rClient: none, kind: kindGC, flags: itDeleted}
	d.addStruct(r, it)
}

func (d *Doc) wireContent(it *item, s *wireStruct) {
	switch s.kind {
	case kindString:
		d.setText(it, s.body, s.flags&flagASCII != 0)
	case kindAny, kindJSON:
		vs, _ := s.val.([]any)
		it.a = d.newPayload(vs)
	case kindBinary:
		it.a = d.newPayload(slices.Clone(s.body))
	case kindEmbed:
		it.a = d.newPayload(s.val)
	case kindFormat:
		it.a = d.newPayload(s.val)
		it.b = d.key(s.body)
	case kindType:
		b := d.newBranch(s.ref)
		if s.ref == refXMLElement || s.ref == refXMLHook {
			b.name = d.key(s.body)
		}
		it.a = d.newPayload(b)
	case kindDoc:
		it.a = d.newPayload(newSubdoc(string(s.body), s.val))
	}
}

// applyDeletes applies ds as far as its structs are known and returns the rest.
func (d *Doc) applyDeletes(ds DeleteSet) (rest DeleteSet) {
	for _, c := range ds {
		ci := d.lookup(c.Client)
		var wait []Range
		// Peers send sorted ranges. From right to left, each split would move all list entries
		// after it.
		if !slices.IsSortedFunc(c.Ranges, func(a, b Range) int { return cmp.Compare(a.Clock, b.Clock) }) {
			c.Ranges = sortRanges(slices.Clone(c.Ranges))
		}
		for _, r := range c.Ranges {
			var state uint32
			if ci != none {
				state = d.clients[ci].state
			}
			if r.Clock >= state {
				wait = append(wait, r)
				continue
			}
			if r.end() > state {
				wait = append(wait, Range{state, r.end() - state})
			}
			if d.deleteRange(ci, r.Clock, r.end()); d.txn.overBudget() {
				return nil
			}
		}
		if wait != nil {
			rest = append(rest, ClientRanges{c.Client, wait})
		}
	}
	return rest
}

func (d *Doc) deleteRange(ci, clock, end uint32) {
	i := d.find(ci, clock)
	if it := d.at(d.clients[ci].structs[i]); !it.deleted() && it.clock < clock {
		d.split(ci, i, clock-it.clock)
		i++
	}
	for ; i < len(d.clients[ci].structs); i++ {
		r := d.clients[ci].structs[i]
		it := d.at(r)
		if it.clock >= end {
			return
		}
		if it.deleted() {
			continue
		}
		if end < it.end() {
			d.split(ci, i, end-it.clock)
		}
		d.deleteItem(r)
	}
}
