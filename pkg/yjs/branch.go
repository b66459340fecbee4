package yjs

// The kinds of shared types, by their number in the encoding.
const (
	refArray = iota
	refMap
	refText
	refXMLElement
	refXMLFragment
	refXMLHook
	refXMLText
	refNone // a root type not yet accessed
)

// branch implements all shared types: a sequence and a set of named entries. The exported
// types (Text, Map, Array ...) are defined from it.
type branch struct {
	doc      *Doc
	item     ref    // the item that contains the type; 0 for a root type
	index    uint32 // in Doc.branches
	start    ref
	length   uint32 // the countable units that are not deleted
	name     uint32 // the key of the root name, node name or hook name
	kind     uint8
	flags    uint8
	changed  uint64 // the last transaction that changed the sequence
	entries  []entry
	lookup   map[uint32]uint32 // the index in entries by key, if there are many
	markers  *markers
	prelim   []func() // edits made before insertion
	nodeName string   // the name of an element or hook before insertion
	watch    *watchers
}

const (
	brFormatted = 1 << iota // has had formats: search markers are disabled
	brDead                  // garbage collected
)

// entry is a key with the item that was set last.
type entry struct {
	key  uint32
	item ref
}

const manyEntries = 12

func (b *branch) entry(key uint32) ref {
	if b.lookup != nil {
		if i, ok := b.lookup[key]; ok {
			return b.entries[i].item
		}
		return 0
	}
	for i := range b.entries {
		if b.entries[i].key == key {
			return b.entries[i].item
		}
	}
	return 0
}

func (b *branch) setEntry(key uint32, r ref) {
	if b.lookup != nil {
		if i, ok := b.lookup[key]; ok {
			b.entries[i].item = r
			return
		}
		b.lookup[key] = uint32(len(b.entries))
		b.entries = append(b.entries, entry{key, r})
		return
	}
	for i := range b.entries {
		if b.entries[i].key == key {
			b.entries[i].item = r
			return
		}
	}
	b.entries = append(b.entries, entry{key, r})
	if len(b.entries) > manyEntries {
		b.lookup = make(map[uint32]uint32, 2*manyEntries)
		for i := range b.entries {
			b.lookup[b.entries[i].key] = uint32(i)
		}
	}
}

func (d *Doc) newBranch(kind uint8) *branch {
	b := &branch{kind: kind}
	d.register(b)
	return b
}

// register adds a branch to the document.
func (d *Doc) register(b *branch) {
	b.doc = d
	if len(d.branches) == 0 {
		d.branches = append(d.branches, nil) // 0 is none
	}
	if n := len(d.freeBranches); n > 0 {
		b.index = d.freeBranches[n-1]
		d.freeBranches = d.freeBranches[:n-1]
		d.branches[b.index] = b
		return
	}
	b.index = uint32(len(d.branches))
	d.branches = append(d.branches, b)
}

func (d *Doc) freeBranch(b *branch) {
	d.branches[b.index] = nil
	d.freeBranches = append(d.freeBranches, b.index)
	b.flags |= brDead
	b.item, b.start, b.length, b.entries, b.lookup, b.markers = 0, 0, 0, nil, nil, nil
}

// branchOf returns the type that an item contains, or nil.
func (d *Doc) branchOf(it *item) *branch {
	if it.kind != kindType {
		return nil
	}
	b, _ := d.payloads[it.a].(*branch)
	return b
}

// root returns the root type of that name and creates it if necessary.
func (d *Doc) root(name string, kind uint8) *branch {
	b := d.roots[name]
	if b == nil {
		b = d.newBranch(kind)
		b.name = d.keyOf(name)
		if d.roots == nil {
			d.roots = make(map[string]*branch)
		}
		d.roots[name] = b
		d.rootOrder = append(d.rootOrder, b)
	}
	if b.kind == refNone {
		b.kind = kind
	}
	return b
}

// deletedItem reports whether the type is deleted.
func (b *branch) deletedItem() bool {
	return b.flags&brDead != 0 || (b.item != 0 && b.doc.at(b.item).deleted())
}

// parent returns the enclosing type, or nil.
func (b *branch) parent() *branch {
	if b.item == 0 || b.doc == nil {
		return nil
	}
	return b.doc.branches[b.doc.at(b.item).parent]
}

// within reports whether the branch is outer or inside it.
func (b *branch) within(outer *branch) bool {
	for ; b != nil; b = b.parent() {
		if b == outer {
			return true
		}
	}
	return false
}
