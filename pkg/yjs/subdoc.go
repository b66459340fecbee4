package yjs

import (
	"crypto/rand"
	"encoding/hex"
	"maps"
	"slices"
)

// Subdoc is a reference to another document, whose content is synced separately under its
// guid.
type Subdoc struct {
	guid    string
	options Object
	parent  *Doc
	item    ref
}

// NewSubdoc returns a reference to be inserted into a type. Peers know the options gc,
// autoLoad and meta.
func NewSubdoc(guid string, options Object) *Subdoc {
	return &Subdoc{guid: validText(guid), options: options}
}

func newSubdoc(guid string, options any) *Subdoc {
	o, _ := options.(Object)
	return &Subdoc{guid: guid, options: o}
}

// GUID identifies the document.
func (s *Subdoc) GUID() string { return s.guid }

// Options returns the options stored with the reference.
func (s *Subdoc) Options() Object { return s.options }

// wireOptions returns the options that JavaScript peers keep, in their order.
func (s *Subdoc) wireOptions() Object {
	out := Object{}
	if v, ok := s.options.Get("gc"); ok && v != Undefined && !truthy(v) {
		out = append(out, Member{"gc", false})
	}
	if v, ok := s.options.Get("autoLoad"); ok && truthy(v) {
		out = append(out, Member{"autoLoad", true})
	}
	if v, ok := s.options.Get("meta"); ok && v != nil && v != Undefined {
		out = append(out, Member{"meta", v})
	}
	return out
}

// truthy converts to a boolean like JavaScript.
func truthy(v any) bool {
	switch v := v.(type) {
	case nil, UndefinedValue:
		return false
	case bool:
		return v
	case float64:
		return v != 0 && v == v
	case BigInt:
		return v != 0
	case string:
		return v != ""
	}
	return true
}

type subdocChange struct {
	s     *Subdoc
	added bool
}

// commitSubdocs updates the set of subdocuments.
func (d *Doc) commitSubdocs(t *Txn) {
	for _, c := range t.subdocs {
		if c.added {
			if d.subdocs == nil {
				d.subdocs = make(map[*Subdoc]struct{})
			}
			d.subdocs[c.s] = struct{}{}
		} else {
			delete(d.subdocs, c.s)
		}
	}
}

// Subdocs returns the references to other documents, in no particular order.
func (d *Doc) Subdocs() []*Subdoc { return slices.Collect(maps.Keys(d.subdocs)) }

func newGUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
