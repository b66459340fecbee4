package yjs

// Approximate sizes without contents, with the entry in the client's list and the unused
// capacity of lists included.
const (
	itemSize   = 64
	clientSize = 96
	branchSize = 256
	keySize    = 48
	valueSize  = 16
	slotSize   = 24 // a payload and its weight
)

// Size returns the approximate size of the document in memory, without free space that its
// next edits may reuse: it decreases when content is deleted. It takes constant time and may
// be called in a transaction.
func (d *Doc) Size() int {
	n := itemSize*(int(d.used)-1-d.freeItems) + clientSize*len(d.clients)
	n += len(d.text) - d.garbage
	n += slotSize*(len(d.payloads)-len(d.freePayloads)) + d.weight
	n += keySize*len(d.keys) + d.keyBytes
	if d.pending != nil {
		n += d.pending.size
	}
	return n
}

// weigh returns the approximate size of a payload in addition to its slot.
func weigh(v any) (n int) {
	switch v := v.(type) {
	case string:
		return len(v)
	case []byte:
		return len(v)
	case []any:
		for _, x := range v {
			n += valueSize + weigh(x)
		}
	case Object:
		for i := range v {
			n += 2*valueSize + len(v[i].Key) + weigh(v[i].Value)
		}
	case *branch:
		return branchSize
	case *Subdoc:
		return branchSize + len(v.guid) + weigh(v.options)
	}
	return n
}

// splitWeight divides the weight of a list of values that is split. It weighs the shorter
// part only.
func splitWeight(all uint32, left, right []any) (l, r uint32) {
	if len(left) <= len(right) {
		l = uint32(weigh(left))
		return l, all - l
	}
	r = uint32(weigh(right))
	return all - r, r
}
