package yjs

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
)

// A value is one that JavaScript peers put into maps, arrays, embeds and formats:
//
//	nil         null
//	Undefined   undefined
//	bool        boolean
//	float64     number (integers too; minus zero, NaN and infinities are kept)
//	BigInt      bigint
//	string      string
//	[]byte      Uint8Array
//	[]any       array
//	Object      object, in JavaScript's key order
//
// Values read from a document have these types. Written values may also be of any integer or
// floating point type, or map[string]any, whose keys are sorted.

// UndefinedValue is the type of [Undefined].
type UndefinedValue struct{}

// Undefined is JavaScript's undefined, which differs from null.
var Undefined = UndefinedValue{}

// BigInt is JavaScript's bigint; its encoding has 64 bits.
type BigInt int64

// Member is a key of an [Object] with its value.
type Member struct {
	Key   string
	Value any
}

// Object is a JavaScript object, with its members in JavaScript's enumeration order, which
// determines the encoded bytes.
type Object []Member

// Get returns the value of a key; ok is false if it is absent.
func (o Object) Get(key string) (v any, ok bool) {
	for i := range o {
		if o[i].Key == key {
			return o[i].Value, true
		}
	}
	return nil, false
}

// Set returns the object with key set. A new key is added at the end, unless it is an array
// index, which JavaScript enumerates first.
func (o Object) Set(key string, value any) Object {
	for i := range o {
		if o[i].Key == key {
			o[i].Value = value
			return o
		}
	}
	at := len(o)
	if n, ok := arrayIndex(key); ok {
		at = 0
		for at < len(o) {
			if m, ok := arrayIndex(o[at].Key); !ok || m > n {
				break
			}
			at++
		}
	}
	return slices.Insert(o, at, Member{key, value})
}

// Without returns the object without key.
func (o Object) Without(key string) Object {
	return slices.DeleteFunc(o, func(m Member) bool { return m.Key == key })
}

// arrayIndex reports whether JavaScript enumerates a key first, in numeric order.
func arrayIndex(key string) (uint64, bool) {
	if len(key) == 0 || len(key) > 10 || key[0] < '0' || key[0] > '9' || (key[0] == '0' && len(key) > 1) {
		return 0, false
	}
	n, err := strconv.ParseUint(key, 10, 64)
	return n, err == nil && n < math.MaxUint32
}

// objectFrom makes an object from decoded members: the last of equal keys wins, and array
// indexes come first. It takes O(n log n) steps for any members.
func objectFrom(ms []Member) Object {
	plain := true
	for i := range ms {
		if i > 16 || len(ms[i].Key) == 0 || ms[i].Key[0] <= '9' {
			plain = false
			break
		}
		for j := range i {
			if ms[i].Key == ms[j].Key {
				plain = false
			}
		}
	}
	if plain {
		return ms
	}
	at := make(map[string]int, len(ms))
	out := make(Object, 0, len(ms))
	for _, m := range ms {
		if i, ok := at[m.Key]; ok {
			out[i].Value = m.Value
			continue
		}
		at[m.Key] = len(out)
		out = append(out, m)
	}
	slices.SortStableFunc(out, func(a, b Member) int {
		m, aok := arrayIndex(a.Key)
		n, bok := arrayIndex(b.Key)
		switch {
		case aok && bok:
			return cmp.Compare(m, n)
		case aok:
			return -1
		case bok:
			return 1
		}
		return 0
	})
	return out
}

// normalize converts values that callers may pass to the types above.
func normalize(v any) (any, error) {
	switch v := v.(type) {
	case nil, UndefinedValue, bool, float64, BigInt:
		return v, nil
	case string:
		return validText(v), nil
	case []byte:
		return slices.Clone(v), nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			var err error
			if out[i], err = normalize(v[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	case Object:
		out := make([]Member, 0, len(v))
		for _, m := range v {
			x, err := normalize(m.Value)
			if err != nil {
				return nil, err
			}
			out = append(out, Member{validText(m.Key), x})
		}
		return objectFrom(out), nil
	case map[string]any:
		out := make(Object, 0, len(v))
		for k, x := range v {
			out = append(out, Member{k, x})
		}
		slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.Key, b.Key) })
		return normalize(out)
	default:
		rv := reflect.ValueOf(v)
		switch {
		case rv.CanInt():
			return float64(rv.Int()), nil
		case rv.CanUint():
			return float64(rv.Uint()), nil
		case rv.CanFloat():
			return rv.Float(), nil
		}
		return nil, fmt.Errorf("%w: %T cannot be stored", ErrValue, v)
	}
}

// equalValues compares deeply, like lib0 for attributes.
func equalValues(a, b any) bool {
	switch a := a.(type) {
	case []byte:
		b, ok := b.([]byte)
		return ok && slices.Equal(a, b)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equalValues)
	case Object:
		b, ok := b.(Object)
		if !ok || len(a) != len(b) {
			return false
		}
		for _, m := range a {
			v, ok := b.Get(m.Key)
			if !ok || !equalValues(m.Value, v) {
				return false
			}
		}
		return true
	default:
		switch b.(type) {
		case []byte, []any, Object:
			return false
		}
		return a == b
	}
}

const (
	anyUndefined = 127 - iota
	anyNull
	anyInteger
	anyFloat32
	anyFloat64
	anyBigInt
	anyFalse
	anyTrue
	anyString
	anyObject
	anyArray
	anyBytes
)

const maxAnyDepth = 512

// any decodes a value. Each value decrements left, which bounds the values of an update.
func (c *cursor) any(left *int, depth int) any {
	if *left--; *left < 0 || depth > maxAnyDepth {
		c.fail()
		return nil
	}
	switch c.byte() {
	case anyUndefined:
		return Undefined
	case anyNull:
		return nil
	case anyInteger:
		n, negative := c.varint()
		if negative {
			return -float64(n)
		}
		return float64(n)
	case anyFloat32:
		return c.float32()
	case anyFloat64:
		return c.float64()
	case anyBigInt:
		if p := c.take(8); p != nil {
			return BigInt(binary.BigEndian.Uint64(p))
		}
		return nil
	case anyFalse:
		return false
	case anyTrue:
		return true
	case anyString:
		return string(c.str())
	case anyObject:
		return c.anyObject(left, depth)
	case anyArray:
		n := c.uvarint()
		if n > uint64(len(c.b)-c.pos) {
			c.fail()
			return nil
		}
		out := make([]any, 0, min(n, 64))
		for range n {
			out = append(out, c.any(left, depth+1))
			if c.bad {
				return nil
			}
		}
		return out
	case anyBytes:
		return slices.Clone(c.bytes())
	}
	c.fail()
	return nil
}

func (c *cursor) anyObject(left *int, depth int) any {
	n := c.uvarint()
	if n > uint64(len(c.b)-c.pos) {
		c.fail()
		return nil
	}
	ms := make([]Member, 0, min(n, 16))
	for range n {
		key := string(c.str())
		v := c.any(left, depth+1)
		if c.bad {
			return nil
		}
		// JavaScript's decoder assigns this key, which sets a prototype.
		if key != "__proto__" {
			ms = append(ms, Member{key, v})
		}
	}
	return objectFrom(ms)
}

func appendAny(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, anyNull)
	case bool:
		if v {
			return append(b, anyTrue)
		}
		return append(b, anyFalse)
	case float64:
		return appendNumber(b, v)
	case BigInt:
		return binary.BigEndian.AppendUint64(append(b, anyBigInt), uint64(v))
	case string:
		return appendString(append(b, anyString), v)
	case []byte:
		return appendBytes(append(b, anyBytes), v)
	case []any:
		b = binary.AppendUvarint(append(b, anyArray), uint64(len(v)))
		for _, x := range v {
			b = appendAny(b, x)
		}
		return b
	case Object:
		b = binary.AppendUvarint(append(b, anyObject), uint64(len(v)))
		for _, m := range v {
			b = appendAny(appendString(b, m.Key), m.Value)
		}
		return b
	default:
		return append(b, anyUndefined)
	}
}

func appendNumber(b []byte, f float64) []byte {
	if a := math.Abs(f); a <= math.MaxInt32 && a == math.Trunc(a) {
		return appendVarint(append(b, anyInteger), uint64(a), math.Signbit(f))
	}
	if g := float32(f); float64(g) == f {
		return binary.BigEndian.AppendUint32(append(b, anyFloat32), math.Float32bits(g))
	}
	bits := math.Float64bits(f)
	if f != f {
		bits = 0x7ff8 << 48 // JavaScript's NaN
	}
	return binary.BigEndian.AppendUint64(append(b, anyFloat64), bits)
}
