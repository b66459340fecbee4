package yjs

import (
	"math"
	"slices"
	"unicode/utf8"
)

// The kinds of structs, by their number in the encoding.
const (
	kindGC = iota
	kindDeleted
	kindJSON
	kindBinary
	kindString
	kindEmbed
	kindFormat
	kindType
	kindAny
	kindDoc
	kindSkip
)

const (
	infoOrigin = 0x80
	infoRight  = 0x40
	infoSub    = 0x20
	infoKind   = 0x1f

	maxClock = math.MaxUint32 - 1
)

const (
	flagOrigin = 1 << iota // has an origin
	flagRight              // has a right origin
	flagSub                // has a key
	flagRoot               // parent is a root type, by name
	flagParent             // parent is an item, whose id is in oc and ok
	flagASCII
)

// wireStruct is a struct in an update. The byte slices of a decoded one point into the update
// or, in encoding v2, into its string table.
type wireStruct struct {
	client uint64
	clock  uint32
	length uint32
	oc, rc uint64 // clients of origin and right origin
	ok, rk uint32 // clocks of origin and right origin
	kind   uint8
	flags  uint8
	ref    uint8  // of a type
	body   []byte // string, binary, key, node name, guid
	val    any    // embed, format value, subdocument options; []any for any and JSON
	root   []byte
	sub    []byte
}

func (s *wireStruct) end() uint32 { return s.clock + s.length }

// decoder decodes updates in both encodings; v2 is nil for v1.
type decoder struct {
	rest   cursor
	v2     *columns
	ds     uint64
	values int // remaining budget
}

// columns are the streams into which encoding v2 divides the fields of structs.
type columns struct {
	keyClock diffRLEReader
	client   uintRLEReader
	left     diffRLEReader
	right    diffRLEReader
	info     rleReader
	str      stringReader
	parent   rleReader
	typeRef  uintRLEReader
	length   uintRLEReader
	keys     [][]byte
}

func (d *decoder) init(update []byte, v2 bool, values int) {
	*d = decoder{rest: cursor{b: update}, values: values}
	if !v2 {
		return
	}
	c := &columns{}
	r := &d.rest
	r.uvarint() // feature flag
	c.keyClock.b = r.bytes()
	c.client.b = r.bytes()
	c.left.b = r.bytes()
	c.right.b = r.bytes()
	c.info.b = r.bytes()
	if !c.str.init(r.bytes()) {
		r.fail()
	}
	c.parent.b = r.bytes()
	c.typeRef.b = r.bytes()
	c.length.b = r.bytes()
	d.v2 = c
}

// failed reports whether any read so far failed.
func (d *decoder) failed() bool {
	if d.rest.bad {
		return true
	}
	c := d.v2
	return c != nil && (c.keyClock.bad || c.client.bad || c.left.bad || c.right.bad || c.info.bad ||
		c.str.lens.bad || c.parent.bad || c.typeRef.bad || c.length.bad)
}

func clock32(c *cursor, n uint64) uint32 {
	if n > maxClock {
		c.fail()
		return 0
	}
	return uint32(n)
}

func (d *decoder) leftID() (client uint64, clock uint32) {
	if d.v2 == nil {
		return d.rest.uvarint(), d.rest.clock()
	}
	return d.v2.client.read(), clock32(&d.rest, d.v2.left.read())
}

func (d *decoder) rightID() (client uint64, clock uint32) {
	if d.v2 == nil {
		return d.rest.uvarint(), d.rest.clock()
	}
	return d.v2.client.read(), clock32(&d.rest, d.v2.right.read())
}

func (d *decoder) client() uint64 {
	if d.v2 == nil {
		return d.rest.uvarint()
	}
	return d.v2.client.read()
}

func (d *decoder) info() byte {
	if d.v2 == nil {
		return d.rest.byte()
	}
	return d.v2.info.read()
}

func (d *decoder) str() []byte {
	if d.v2 == nil {
		return d.rest.str()
	}
	s, _ := d.v2.str.read()
	return s
}

func (d *decoder) parentIsRoot() bool {
	if d.v2 == nil {
		return d.rest.uvarint() == 1
	}
	return d.v2.parent.read() == 1
}

func (d *decoder) typeRef() uint64 {
	if d.v2 == nil {
		return d.rest.uvarint()
	}
	return d.v2.typeRef.read()
}

func (d *decoder) length() uint32 {
	if d.v2 == nil {
		return d.rest.clock()
	}
	return clock32(&d.rest, d.v2.length.read())
}

func (d *decoder) json() any {
	if d.v2 != nil {
		return d.rest.any(&d.values, 0)
	}
	return d.jsonText(d.rest.str())
}

func (d *decoder) jsonText(p []byte) any {
	v, ok := parseJSON(p, &d.values)
	if !ok {
		d.rest.fail()
	}
	return v
}

func (d *decoder) key() []byte {
	c := d.v2
	if c == nil {
		return d.rest.str()
	}
	n := c.keyClock.read()
	if n < uint64(len(c.keys)) {
		return c.keys[n]
	}
	s, _ := c.str.read()
	c.keys = append(c.keys, s)
	return s
}

// read decodes the struct of client at clock and reports whether it is valid. Structs without
// length, which npm yjs writes for an empty string as an embed, are skipped by the callers.
func (d *decoder) read(s *wireStruct, client uint64, clock uint32) bool {
	info := d.info()
	*s = wireStruct{client: client, clock: clock, kind: info & infoKind}
	switch s.kind {
	case kindGC:
		s.length = d.length()
	case kindSkip:
		s.length = d.rest.clock()
	default:
		if info&infoOrigin != 0 {
			s.flags |= flagOrigin
			s.oc, s.ok = d.leftID()
		}
		if info&infoRight != 0 {
			s.flags |= flagRight
			s.rc, s.rk = d.rightID()
		}
		if info&(infoOrigin|infoRight) == 0 {
			if d.parentIsRoot() {
				s.flags |= flagRoot
				s.root = d.str()
			} else {
				s.flags |= flagParent
				s.oc, s.ok = d.leftID()
			}
			if info&infoSub != 0 {
				s.flags |= flagSub
				s.sub = d.str()
			}
		}
		d.content(s)
		// A struct can refer neither to itself nor to later structs of its client.
		if (s.flags&(flagOrigin|flagParent) != 0 && s.oc == client && s.ok >= clock) ||
			(s.flags&flagRight != 0 && s.rc == client && s.rk >= clock) {
			return false
		}
	}
	return uint64(clock)+uint64(s.length) <= maxClock && !d.failed()
}

func (d *decoder) content(s *wireStruct) {
	s.length = 1
	switch s.kind {
	case kindDeleted:
		s.length = d.length()
	case kindJSON:
		n := d.length()
		var vs []any
		for i := uint32(0); i < n && !d.failed(); i++ {
			if p := d.str(); string(p) == "undefined" {
				d.values--
				vs = append(vs, Undefined)
			} else {
				vs = append(vs, d.jsonText(p))
			}
			if d.values < 0 {
				d.rest.fail()
			}
		}
		s.val, s.length = vs, n
	case kindBinary:
		s.body = d.rest.bytes()
	case kindString:
		d.text(s)
	case kindEmbed:
		s.val = d.json()
	case kindFormat:
		s.body = d.key()
		s.val = d.json()
	case kindType:
		n := d.typeRef()
		if n > uint64(refXMLText) {
			d.rest.fail()
			return
		}
		s.ref = uint8(n)
		if s.ref == refXMLElement || s.ref == refXMLHook {
			s.body = d.key()
		}
	case kindAny:
		n := d.length()
		vs := make([]any, 0, min(n, 16))
		for i := uint32(0); i < n && !d.failed(); i++ {
			vs = append(vs, d.rest.any(&d.values, 0))
		}
		s.val, s.length = vs, n
	case kindDoc:
		s.body = d.str()
		s.val = d.rest.any(&d.values, 0)
	default:
		d.rest.fail()
	}
}

func (d *decoder) text(s *wireStruct) {
	if d.v2 != nil {
		s.body, s.length = d.v2.str.read()
		if d.v2.str.ascii || uint32(len(s.body)) == s.length {
			s.flags |= flagASCII
		}
		return
	}
	p := d.rest.bytes()
	n, ascii := len16(p)
	if ascii {
		s.flags |= flagASCII
	} else if !utf8.Valid(p) {
		d.rest.fail()
	}
	s.body, s.length = p, n
}

func (d *decoder) dsReset() { d.ds = 0 }

func (d *decoder) dsClock() uint64 {
	n := d.rest.uvarint()
	if d.v2 != nil {
		d.ds += n
		n = d.ds
	}
	return n
}

func (d *decoder) dsLen() uint64 {
	n := d.rest.uvarint()
	if d.v2 != nil {
		n++
		d.ds += n
	}
	return n
}

// deleteSet decodes the delete set at the end of an update without empty ranges.
func (d *decoder) deleteSet(limits *Limits) (ds DeleteSet, err error) {
	n := d.rest.uvarint()
	if n > uint64(limits.MaxClients) {
		return nil, budgetError("clients in delete set", n, uint64(limits.MaxClients))
	}
	for range n {
		d.dsReset()
		client := d.rest.uvarint()
		count := d.rest.uvarint()
		if d.failed() || count > uint64(len(d.rest.b)-d.rest.pos)/2 {
			return nil, ErrMalformed
		}
		if count == 0 {
			continue
		}
		at := slices.IndexFunc(ds, func(c ClientRanges) bool { return c.Client == client })
		if at < 0 || len(ds) > 64 { // beyond 64 clients, leave the merge to the caller
			at = len(ds)
			ds = append(ds, ClientRanges{Client: client, Ranges: make([]Range, 0, count)})
		}
		for range count {
			clock := d.dsClock()
			length := d.dsLen()
			if clock > maxClock || length > maxClock || clock+length > maxClock {
				return nil, ErrMalformed
			}
			if length > 0 {
				ds[at].Ranges = append(ds[at].Ranges, Range{uint32(clock), uint32(length)})
			}
		}
	}
	if d.failed() {
		return nil, ErrMalformed
	}
	return slices.DeleteFunc(ds, func(c ClientRanges) bool { return len(c.Ranges) == 0 }), nil
}

// structReader iterates over the structs of an update.
type structReader struct {
	dec     decoder
	limits  *Limits
	cur     wireStruct
	clients uint64 // the clients to come
	structs uint64 // the structs of this client to come
	client  uint64
	clock   uint32
	count   uint64
	done    bool
	err     error
}

func (r *structReader) init(update []byte, v2 bool, limits *Limits) {
	*r = structReader{limits: limits}
	r.dec.init(update, v2, limits.MaxValues)
	r.clients = r.dec.rest.uvarint()
	if r.clients > uint64(limits.MaxClients) {
		r.stop(budgetError("clients in update", r.clients, uint64(limits.MaxClients)))
	}
}

func (r *structReader) stop(err error) bool {
	r.done, r.err = true, err
	return false
}

// next decodes the next struct into cur. It returns false at the end and on error.
func (r *structReader) next() bool {
	if r.done {
		return false
	}
	for r.structs == 0 {
		if r.clients == 0 || r.dec.failed() {
			r.done = true
			if r.dec.failed() {
				r.err = ErrMalformed
			}
			return false
		}
		r.clients--
		r.structs = r.dec.rest.uvarint()
		r.client = r.dec.client()
		r.clock = r.dec.rest.clock()
	}
	r.structs--
	if r.count++; r.count > r.limits.structs(len(r.dec.rest.b)) {
		return r.stop(budgetError("structs in update", r.count, r.limits.structs(len(r.dec.rest.b))))
	}
	if !r.dec.read(&r.cur, r.client, r.clock) {
		if r.dec.values < 0 {
			return r.stop(budgetError("values in update", uint64(r.limits.MaxValues)+1, uint64(r.limits.MaxValues)))
		}
		return r.stop(ErrMalformed)
	}
	if r.cur.length == 0 {
		return r.next()
	}
	r.clock += r.cur.length
	return true
}
