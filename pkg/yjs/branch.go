package yjs

// The types that an item's content may have, by their number on the wire.
const (
	refArray = iota
	refMap
	refText
	refXMLElement
	refXMLFragment
	refXMLHook
	refXMLText
	refNone // a root type that nobody has asked for yet
)

// branch is what all shared types are: a sequence and a set of named entries. The
// exported types (Text, Map, Array ...) are other names for it.
type branch struct {
	doc      *Doc
	item     ref    // the item whose content this is; 0 for a root type
	index    uint32 // in Doc.branches
	start    ref
	length   uint32 // countable units that are not deleted
	name     uint32 // key of root name, node name or hook name
	kind     uint8
	flags    uint8
	changed  uint64 // the transaction that changed the sequence last
	entries  []entry
	lookup   map[uint32]uint32 // key to index in entries, where there are many
	markers  *markers
	prelim   []func() // edits made before the type was inserted
	nodeName string   // of an element or hook that is not inserted yet
	watch    *watchers
}

const (
	brFormatted = 1 << iota // has held formats: search markers are off
	brDead                  // collected
)

// entry is a key with the last item that was set.
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
	d.adopt(b)
	return b
}

// adopt gives a branch its place in the document.
func (d *Doc) adopt(b *branch) {
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

// branchOf returns the type that an item holds, or nil.
func (d *Doc) branchOf(it *item) *branch {
	if it.kind != kindType {
		return nil
	}
	b, _ := d.payloads[it.a].(*branch)
	return b
}

// root returns the root type of a name, made if need be.
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

// deletedItem says whether the item that holds the type is deleted.
func (b *branch) deletedItem() bool {
	return b.flags&brDead != 0 || (b.item != 0 && b.doc.at(b.item).deleted())
}

// parent returns the type around this one, or nil.
func (b *branch) parent() *branch {
	if b.item == 0 || b.doc == nil {
		return nil
	}
	return b.doc.branches[b.doc.at(b.item).parent]
}

// within says whether the branch is b or lies in it.
func (b *branch) within(outer *branch) bool {
	for ; b != nil; b = b.parent() {
		if b == outer {
			return true
		}
	}
	return false
}
