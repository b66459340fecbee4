package upstream

// records notes where the TLS records of a connection begin and end.
type records struct {
	head [recordHead]byte // of the record under way, as far as it came
	had  int              // bytes in head
	left int              // bytes of the record's content to come
}

// recordHead is the length of a record's head, whose last two bytes are the length of what
// follows (RFC 8446, 5.1).
const recordHead = 5

// follow goes over what was read.
func (r *records) follow(b []byte) {
	for len(b) > 0 {
		if r.left > 0 {
			n := min(r.left, len(b))
			r.left -= n
			b = b[n:]
			continue
		}
		n := copy(r.head[r.had:], b)
		r.had += n
		b = b[n:]
		if r.had == recordHead {
			r.had, r.left = 0, int(r.head[3])<<8|int(r.head[4])
		}
	}
}

// between reports whether no record is under way.
func (r *records) between() bool { return r.had == 0 && r.left == 0 }
