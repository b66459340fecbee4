package faultproxy

import "time"

// Fault describes the faults of a line, which are combined. The zero value is a good line.
type Fault struct {
	// Latency is added in each direction. It does not limit the throughput, apart from the
	// buffer of 8 MiB for each direction of a connection.
	Latency time.Duration
	// Rate limits each direction of each connection, in bytes per second; 0 means no limit.
	Rate int
	// Silent names the directions in which nothing passes. The bytes are held back in order and
	// pass when the line is good again, like packets that are lost and retransmitted.
	Silent Direction
	// BlackHole drops all bytes and accepts new connections. Connections that exist meanwhile
	// are forgotten permanently, as by a restarted firewall: they stay open and silent, even when
	// the line is good again, until one end closes, which the other end notices when the line is
	// good.
	BlackHole bool
	// Reset resets all connections, and new ones as soon as they are accepted.
	Reset bool
	// Refuse refuses new connections; open ones continue.
	Refuse bool
	// SlowClose delays the close of an end.
	SlowClose time.Duration
}

// Direction is a direction of a connection, or both.
type Direction int

// Directions, as seen from the client.
const (
	Up   Direction = 1 << iota // to the target
	Down                       // from the target
	Both = Up | Down
)

// line is the fault that connections read.
type line struct {
	Fault
	changed chan struct{} // closed when it is replaced
}

// room is how many bytes a direction of a connection may buffer.
func (l *line) room() int {
	if l.Latency > 0 {
		return 8 << 20
	}
	return 64 << 10
}

// holds reports whether a direction is silent.
func (l *line) holds(d Direction) bool { return l.BlackHole || l.Silent&d != 0 }
