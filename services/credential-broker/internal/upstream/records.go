package upstream

import "net"

// records is what TLS reads from: the socket, of which it notes where records begin
// and end. While it is shut, it gives out nothing more, so that whoever reads from TLS
// gets what TLS has taken in already, and then errShut. One goroutine uses it at a
// time.
type records struct {
	net.Conn
	head [recordHead]byte // of the record under way, as far as it came
	had  int              // bytes in head
	left int              // bytes of the record's content to come
	shut bool
}

// recordHead is the length of a record's head, whose last two bytes are the length of
// what follows (RFC 8446, 5.1).
const recordHead = 5

// Read implements net.Conn.
func (r *records) Read(b []byte) (int, error) {
	if r.shut {
		return 0, errShut
	}
	n, err := r.Conn.Read(b)
	r.follow(b[:n])
	return n, err
}

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

// errShut is the error of records that are shut. To TLS it is a timeout, after which
// reading may go on.
var errShut net.Error = shutError{}

type shutError struct{}

// Error implements error.
func (shutError) Error() string { return "nothing is read from the connection now" }

// Timeout implements net.Error.
func (shutError) Timeout() bool { return true }

// Temporary implements net.Error.
func (shutError) Temporary() bool { return true }
