package yjs

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
)

// Options are how a document is made. The zero value is what most want.
type Options struct {
	// ClientID names the author of local edits; 0 takes a random one. No two writers may
	// use the same at the same time.
	ClientID uint64
	// GUID names the document; empty makes one up.
	GUID string
	// KeepDeleted turns garbage collection off: deleted content stays, and snapshots can
	// be read.
	KeepDeleted bool
	// Limits bound what updates may cost.
	Limits Limits
}

// Doc is a document: a replica that converges with all others that have seen the same
// updates, in whatever order. It is not safe for concurrent use: one goroutine owns it.
type Doc struct {
	opts     Options
	limits   Limits
	clientID uint64

	chunks    []*chunk // the slab of items
	used      uint32
	free      ref
	freeItems int // behind free

	clients    []client
	byID       map[uint64]uint32
	lastClient uint32

	text    []byte // the arena of texts
	garbage int

	payloads     []any
	weights      []uint32 // of payloads, see weigh
	weight       int      // of them all
	freePayloads []uint32
	keys         []string
	keyBytes     int
	keyIndex     map[string]uint32
	branches     []*branch
	freeBranches []uint32
	roots        map[string]*branch
	rootOrder    []*branch
	redone       map[ref]ID
	subdocs      map[*Subdoc]struct{}

	pending        *pending
	pendingDeletes DeleteSet

	txn        *Txn   // open
	queue      []*Txn // to be committed
	committing bool
	lastTxn    uint64
	spare      *Txn
	parsed     *parsed

	added   uint64 // structs that were ever integrated
	placed  placement
	seen    []ref // scratch of place
	stamps  []uint32
	stamp   uint32
	scratch []byte // of Text.Insert

	wide      bool // has text that is not ASCII
	updateFns []*listener[func(*Update)]
	txnFns    []*listener[func(*Txn)]
	watched   int // observers on types
}

// New returns an empty document.
func New(o Options) *Doc {
	if o.ClientID == 0 || o.ClientID > maxSafe {
		o.ClientID = newClientID()
	}
	if o.GUID == "" {
		o.GUID = newGUID()
	}
	d := &Doc{opts: o, limits: o.Limits.withDefaults(), clientID: o.ClientID, used: 1}
	return d
}

// SetLimits has updates that are applied from now on obey other limits: a document may
// be loaded with wide ones from where it is kept, and then take updates of strangers.
func (d *Doc) SetLimits(l Limits) { d.limits = l.withDefaults() }

// newClientID returns 32 random bits, as Yjs does: more would make every id longer.
func newClientID() uint64 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return uint64(binary.BigEndian.Uint32(b[:]))
}

// ClientID names the author of local edits. It changes when somebody else turns out to
// use it too, or has used up its clocks.
func (d *Doc) ClientID() uint64 { return d.clientID }

// GUID names the document.
func (d *Doc) GUID() string { return d.opts.GUID }

// ID names a unit of content: the clock-th that a client made.
type ID struct {
	Client uint64
	Clock  uint32
}

// Text returns the root text of a name. The kind of a root type is decided by who asks
// first; asked for as another kind, the same content is seen through that kind's methods.
func (d *Doc) Text(name string) *Text { return (*Text)(d.root(name, refText)) }

// Array returns the root array of a name.
func (d *Doc) Array(name string) *Array { return (*Array)(d.root(name, refArray)) }

// Map returns the root map of a name.
func (d *Doc) Map(name string) *Map { return (*Map)(d.root(name, refMap)) }

// XMLFragment returns the root fragment of a name.
func (d *Doc) XMLFragment(name string) *XMLFragment {
	return (*XMLFragment)(d.root(name, refXMLFragment))
}

// XMLElement returns the root element of a name, whose node name is always UNDEFINED,
// as in Yjs.
func (d *Doc) XMLElement(name string) *XMLElement {
	return (*XMLElement)(d.root(name, refXMLElement))
}

// Roots returns the names of the root types in the order in which they came up.
func (d *Doc) Roots() []string {
	out := make([]string, len(d.rootOrder))
	for i, b := range d.rootOrder {
		out[i] = d.keys[b.name]
	}
	return out
}

// Pending says whether updates wait for others that have not arrived.
func (d *Doc) Pending() bool { return d.pending != nil || len(d.pendingDeletes) > 0 }

// Update is a committed transaction on its way to others.
type Update struct {
	Origin any
	Local  bool
	txn    *Txn
	v1, v2 []byte
}

// V1 returns the update in encoding v1. It may be called only while the listener runs;
// what it returns may be kept.
func (u *Update) V1() []byte {
	if u.v1 == nil {
		u.v1 = u.txn.doc.encodeTxn(u.txn, false)
	}
	return u.v1
}

// V2 is [Update.V1] for encoding v2.
func (u *Update) V2() []byte {
	if u.v2 == nil {
		u.v2 = u.txn.doc.encodeTxn(u.txn, true)
	}
	return u.v2
}

type listener[F any] struct{ f F }

func listen[F any](list *[]*listener[F], f F) (stop func()) {
	l := &listener[F]{f}
	*list = append(slices.Clone(*list), l)
	return func() {
		*list = slices.DeleteFunc(slices.Clone(*list), func(x *listener[F]) bool { return x == l })
	}
}

// OnUpdate calls f after every transaction that changed something. The returned
// function ends it.
func (d *Doc) OnUpdate(f func(*Update)) (stop func()) { return listen(&d.updateFns, f) }

// OnTransaction calls f after the observers of every transaction. The returned function
// ends it.
func (d *Doc) OnTransaction(f func(*Txn)) (stop func()) { return listen(&d.txnFns, f) }
