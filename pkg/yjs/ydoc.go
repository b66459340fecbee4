package yjs

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
)

// Options configure a document. The zero value is ready to use.
type Options struct {
	// ClientID identifies the author of local edits; 0 chooses a random one. No two
	// writers may use the same id at the same time.
	ClientID uint64
	// GUID identifies the document; empty chooses a random one.
	GUID string
	// KeepDeleted disables garbage collection: deleted content stays, and snapshots can be
	// restored.
	KeepDeleted bool
	// Limits bound the cost of updates.
	Limits Limits
}

// Doc is a document: a replica that converges with all others that have seen the same
// updates, in any order. It is not safe for concurrent use: one goroutine owns it.
type Doc struct {
	opts     Options
	limits   Limits
	clientID uint64

	chunks    []*chunk // the slab of items
	used      uint32
	free      ref
	freeItems int // the length of the list at free

	clients    []client
	byID       map[uint64]uint32
	lastClient uint32

	text    []byte // the arena of text
	garbage int

	payloads     []any
	weights      []uint32 // the weight of each payload, see weigh
	weight       int      // their sum
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

	txn        *Txn   // the open transaction
	queue      []*Txn // the transactions to be committed
	committing bool
	lastTxn    uint64
	spare      *Txn
	parsed     *parsed

	added   uint64 // the number of structs ever integrated
	placed  placement
	seen    []ref // scratch space of search
	stamps  []uint32
	stamp   uint32
	scratch []byte // scratch space of Text.Insert

	wide      bool // the text is not pure ASCII
	updateFns []*listener[func(*Update)]
	txnFns    []*listener[func(*Txn)]
	watched   int // the number of observers on types
}

// New returns an empty document.
func New(o Options) *Doc {
	if o.ClientID == 0 || o.ClientID > maxSafe {
		o.ClientID = newClientID()
	}
	if o.GUID == "" {
		o.GUID = newGUID()
	}
	return &Doc{opts: o, limits: o.Limits.withDefaults(), clientID: o.ClientID, used: 1}
}

// SetLimits changes the limits for later updates: a document may be loaded from trusted
// storage with wide limits and then receive untrusted updates.
func (d *Doc) SetLimits(l Limits) { d.limits = l.withDefaults() }

// newClientID returns 32 random bits like Yjs: longer ids would enlarge every struct.
func newClientID() uint64 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return uint64(binary.BigEndian.Uint32(b[:]))
}

// ClientID identifies the author of local edits. It changes when somebody else uses it too,
// or has used up its clocks.
func (d *Doc) ClientID() uint64 { return d.clientID }

// GUID identifies the document.
func (d *Doc) GUID() string { return d.opts.GUID }

// ID identifies a unit of content by its client and that client's clock.
type ID struct {
	Client uint64
	Clock  uint32
}

// Text returns the root type of that name as a text. The first access decides the kind of a
// root type; a later access as another kind gives the same content other methods.
func (d *Doc) Text(name string) *Text { return (*Text)(d.root(name, refText)) }

// Array returns the root array of that name.
func (d *Doc) Array(name string) *Array { return (*Array)(d.root(name, refArray)) }

// Map returns the root map of that name.
func (d *Doc) Map(name string) *Map { return (*Map)(d.root(name, refMap)) }

// XMLFragment returns the root fragment of that name.
func (d *Doc) XMLFragment(name string) *XMLFragment {
	return (*XMLFragment)(d.root(name, refXMLFragment))
}

// XMLElement returns the root element of that name. Its node name is always UNDEFINED, as
// in Yjs.
func (d *Doc) XMLElement(name string) *XMLElement {
	return (*XMLElement)(d.root(name, refXMLElement))
}

// Roots returns the names of the root types in order of creation.
func (d *Doc) Roots() []string {
	out := make([]string, len(d.rootOrder))
	for i, b := range d.rootOrder {
		out[i] = d.keys[b.name]
	}
	return out
}

// Pending reports whether structs or deletions wait for missing updates.
func (d *Doc) Pending() bool { return d.pending != nil || len(d.pendingDeletes) > 0 }

// Update is a committed transaction, ready to be sent.
type Update struct {
	Origin any
	Local  bool
	txn    *Txn
	v1, v2 []byte
}

// V1 returns the update in encoding v1. It may be called only while the listener runs; the
// result may be kept.
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

// OnUpdate calls f after every transaction that changed the document, until stop is called.
func (d *Doc) OnUpdate(f func(*Update)) (stop func()) { return listen(&d.updateFns, f) }

// OnTransaction calls f after the observers of every transaction, until stop is called.
func (d *Doc) OnTransaction(f func(*Txn)) (stop func()) { return listen(&d.txnFns, f) }
