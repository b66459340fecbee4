package yjs

import "encoding/binary"

// encoder encodes updates in both encodings; v2 is nil for v1.
type encoder struct {
	rest []byte
	v2   *columnWriters
	ds   uint64
}

type columnWriters struct {
	keys     uint64
	keyClock diffRLEWriter
	client   uintRLEWriter
	left     diffRLEWriter
	right    diffRLEWriter
	info     rleWriter
	str      stringWriter
	parent   rleWriter
	typeRef  uintRLEWriter
	length   uintRLEWriter
}

func newEncoder(v2 bool, size int) *encoder {
	e := &encoder{rest: make([]byte, 0, size)}
	if v2 {
		e.v2 = &columnWriters{}
	}
	return e
}

// finish returns the update. The encoder must not be used afterwards.
func (e *encoder) finish() []byte {
	c := e.v2
	if c == nil {
		return e.rest
	}
	c.keyClock.flush()
	c.client.flush()
	c.left.flush()
	c.right.flush()
	c.typeRef.flush()
	c.length.flush()
	b := make([]byte, 0, 64+len(c.client.b)+len(c.left.b)+len(c.right.b)+len(c.info.b)+len(c.str.s)+len(c.str.lens.b)+
		len(c.keyClock.b)+len(c.parent.b)+len(c.typeRef.b)+len(c.length.b)+len(e.rest))
	b = append(b, 0) // feature flag
	b = appendBytes(b, c.keyClock.b)
	b = appendBytes(b, c.client.b)
	b = appendBytes(b, c.left.b)
	b = appendBytes(b, c.right.b)
	b = appendBytes(b, c.info.b)
	b = c.str.append(b)
	b = appendBytes(b, c.parent.b)
	b = appendBytes(b, c.typeRef.b)
	b = appendBytes(b, c.length.b)
	return append(b, e.rest...)
}

func (e *encoder) uvarint(n uint64) { e.rest = binary.AppendUvarint(e.rest, n) }

func (e *encoder) leftID(client uint64, clock uint32) {
	if e.v2 == nil {
		e.rest = binary.AppendUvarint(binary.AppendUvarint(e.rest, client), uint64(clock))
		return
	}
	e.v2.client.write(client)
	e.v2.left.write(uint64(clock))
}

func (e *encoder) rightID(client uint64, clock uint32) {
	if e.v2 == nil {
		e.rest = binary.AppendUvarint(binary.AppendUvarint(e.rest, client), uint64(clock))
		return
	}
	e.v2.client.write(client)
	e.v2.right.write(uint64(clock))
}

func (e *encoder) client(client uint64) {
	if e.v2 == nil {
		e.uvarint(client)
		return
	}
	e.v2.client.write(client)
}

func (e *encoder) info(info byte) {
	if e.v2 == nil {
		e.rest = append(e.rest, info)
		return
	}
	e.v2.info.write(info)
}

func (e *encoder) str(s []byte) {
	if e.v2 == nil {
		e.rest = appendString(e.rest, s)
		return
	}
	n, _ := len16(s)
	e.v2.str.write(s, uint64(n))
}

// text writes the string of an item of length n.
func (e *encoder) text(s []byte, n uint32, ascii bool) {
	switch {
	case e.v2 != nil:
		e.v2.str.write(s, uint64(n))
	case ascii:
		e.rest = appendBytes(e.rest, s)
	default:
		e.rest = appendString(e.rest, s)
	}
}

func (e *encoder) parentIsRoot(root bool) {
	var x byte
	if root {
		x = 1
	}
	if e.v2 == nil {
		e.rest = append(e.rest, x)
		return
	}
	e.v2.parent.write(x)
}

func (e *encoder) typeRef(ref uint8) {
	if e.v2 == nil {
		e.rest = append(e.rest, ref)
		return
	}
	e.v2.typeRef.write(uint64(ref))
}

func (e *encoder) length(n uint32) {
	if e.v2 == nil {
		e.uvarint(uint64(n))
		return
	}
	e.v2.length.write(uint64(n))
}

func (e *encoder) any(v any) { e.rest = appendAny(e.rest, v) }

func (e *encoder) json(v any) {
	if e.v2 != nil {
		e.any(v)
		return
	}
	// The length precedes the text: reserve one byte, which is usually enough.
	at := len(e.rest)
	e.rest = AppendJSON(append(e.rest, 0), v)
	n := len(e.rest) - at - 1
	if n < 0x80 {
		e.rest[at] = byte(n)
		return
	}
	text := string(e.rest[at+1:])
	e.rest = appendString(e.rest[:at], text)
}

func (e *encoder) key(s []byte) {
	if e.v2 == nil {
		e.str(s)
		return
	}
	// Yjs 13 never fills its table of keys, so each key is written again.
	e.v2.keyClock.write(e.v2.keys)
	e.v2.keys++
	e.str(s)
}

func (e *encoder) dsReset() { e.ds = 0 }

func (e *encoder) dsRange(r Range) {
	if e.v2 == nil {
		e.rest = binary.AppendUvarint(binary.AppendUvarint(e.rest, uint64(r.Clock)), uint64(r.Len))
		return
	}
	e.rest = binary.AppendUvarint(e.rest, uint64(r.Clock)-e.ds)
	e.rest = binary.AppendUvarint(e.rest, uint64(r.Len)-1)
	e.ds = uint64(r.Clock) + uint64(r.Len)
}

// values writes the content of structs of kind any or JSON.
func (e *encoder) values(kind uint8, vs []any) {
	e.length(uint32(len(vs)))
	for _, v := range vs {
		switch {
		case kind == kindAny:
			e.any(v)
		case v == Undefined:
			e.str([]byte("undefined"))
		default:
			e.str(AppendJSON(nil, v))
		}
	}
}

// wire writes a struct without its first offset units.
func (e *encoder) wire(s *wireStruct, offset uint32) {
	switch s.kind {
	case kindGC:
		e.info(kindGC)
		e.length(s.length - offset)
		return
	case kindSkip:
		e.info(kindSkip)
		e.uvarint(uint64(s.length - offset))
		return
	}
	oc, ok, hasOrigin := s.oc, s.ok, s.flags&flagOrigin != 0
	if offset > 0 {
		oc, ok, hasOrigin = s.client, s.clock+offset-1, true
	}
	info := s.kind
	if hasOrigin {
		info |= infoOrigin
	}
	if s.flags&flagRight != 0 {
		info |= infoRight
	}
	if s.flags&flagSub != 0 {
		info |= infoSub
	}
	e.info(info)
	if hasOrigin {
		e.leftID(oc, ok)
	}
	if s.flags&flagRight != 0 {
		e.rightID(s.rc, s.rk)
	}
	if !hasOrigin && s.flags&flagRight == 0 {
		if s.flags&flagRoot != 0 {
			e.parentIsRoot(true)
			e.str(s.root)
		} else {
			e.parentIsRoot(false)
			e.leftID(s.oc, s.ok)
		}
		if s.flags&flagSub != 0 {
			e.str(s.sub)
		}
	}
	e.wireContent(s, offset)
}

func (e *encoder) wireContent(s *wireStruct, offset uint32) {
	switch s.kind {
	case kindDeleted:
		e.length(s.length - offset)
	case kindJSON, kindAny:
		vs, _ := s.val.([]any)
		e.values(s.kind, vs[offset:])
	case kindBinary:
		e.rest = appendBytes(e.rest, s.body)
	case kindString:
		body, ascii := s.body, s.flags&flagASCII != 0
		if offset > 0 {
			body = tailText(body, offset, ascii)
		}
		e.text(body, s.length-offset, ascii)
	case kindEmbed:
		e.json(s.val)
	case kindFormat:
		e.key(s.body)
		e.json(s.val)
	case kindType:
		e.typeRef(s.ref)
		if s.ref == refXMLElement || s.ref == refXMLHook {
			e.key(s.body)
		}
	case kindDoc:
		e.str(s.body)
		e.any(s.val)
	}
}

// cutText drops the first n units and replaces half of a split pair with U+FFFD.
func cutText(p []byte, n uint32, ascii bool) []byte {
	if ascii {
		return p[n:]
	}
	at, rest := wtf8Offset(p, uint64(n))
	if rest == 0 || at >= len(p) {
		return p[at:]
	}
	return append([]byte(replacement), p[at+4:]...)
}

// tailText cuts like a JavaScript slice: half of a split pair remains.
func tailText(p []byte, n uint32, ascii bool) []byte {
	if ascii {
		return p[n:]
	}
	at, rest := wtf8Offset(p, uint64(n))
	if rest == 0 || at >= len(p) {
		return p[at:]
	}
	_, lo := splitPair(p[at:])
	return append(lo, p[at+4:]...)
}
