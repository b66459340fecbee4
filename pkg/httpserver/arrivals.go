package httpserver

import (
	"container/list"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// maxArrivals is how many connections may be waiting for their first request.
const maxArrivals = 1000

// arrivals are the connections that wait for their first request. Each has a limited time for
// it. If there are too many, the oldest one of the address with the most is closed. A
// connection that sends its request at once is never among them.
type arrivals struct {
	limit time.Duration

	mu        sync.Mutex // guards what follows
	conns     map[net.Conn]*arrival
	addresses map[netip.Prefix]*list.List // of arrivals, oldest first
}

type arrival struct {
	conn    net.Conn
	address netip.Prefix
	timer   *time.Timer   // closes the connection
	element *list.Element // in the list of its address
}

func newArrivals(limit time.Duration) *arrivals {
	return &arrivals{limit: limit, conns: map[net.Conn]*arrival{}, addresses: map[netip.Prefix]*list.List{}}
}

// note is http.Server.ConnState. A connection becomes active with its first request.
func (a *arrivals) note(conn net.Conn, state http.ConnState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if state != http.StateNew {
		a.remove(a.conns[conn])
		return
	}
	n := &arrival{conn: conn, address: Network(remote(conn)), timer: time.AfterFunc(a.limit, func() { _ = conn.Close() })}
	a.conns[conn] = n
	if a.addresses[n.address] == nil {
		a.addresses[n.address] = list.New()
	}
	n.element = a.addresses[n.address].PushBack(n)
	if len(a.conns) > maxArrivals {
		a.evict()
	}
}

// remove forgets an arrival unless it is nil. The lock is held.
func (a *arrivals) remove(n *arrival) {
	if n == nil {
		return
	}
	n.timer.Stop()
	delete(a.conns, n.conn)
	same := a.addresses[n.address]
	if same.Remove(n.element); same.Len() == 0 {
		delete(a.addresses, n.address)
	}
}

// evict closes one connection. The lock is held.
func (a *arrivals) evict() {
	var most *list.List
	for _, same := range a.addresses {
		if most == nil || same.Len() > most.Len() {
			most = same
		}
	}
	if n, ok := most.Front().Value.(*arrival); ok {
		a.remove(n)
		_ = n.conn.Close() // its goroutine notices
	}
}

func remote(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	return netip.Addr{}
}

// Network returns the addresses that count as one caller: a single IPv4 address, or a /64 of
// IPv6.
func Network(at netip.Addr) netip.Prefix {
	at = at.Unmap().WithZone("")
	bits := at.BitLen()
	if at.Is6() {
		bits = 64
	}
	p, _ := at.Prefix(bits) // the zero address has the zero prefix
	return p
}
