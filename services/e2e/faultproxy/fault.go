package faultproxy

import "time"

// Fault is how bad a line is. The zero value is a good line; what is set works
// together.
type Fault struct {
	// Latency is added in each direction. What is on its way is bounded (8 MiB for
	// each direction of a connection) and otherwise not slowed down.
	Latency time.Duration
	// Rate limits each direction of each connection, in bytes per second; 0 means no limit.
	Rate int
	// Silent says in which directions nothing comes through. What is said is held
	// back, in the order it came, and comes when the line is good again: packets
	// that are lost and sent again.
	Silent Direction
	// BlackHole swallows whatever is said, and accepts whoever dials. Connections
	// that were there meanwhile are forgotten for good, like those of a firewall that
	// starts anew: they stay open and silent, also when the line is good again, until
	// one of their ends closes; the other end hears of that when the line is good.
	BlackHole bool
	// Reset resets all connections, and new ones as soon as they are accepted.
	Reset bool
	// Refuse refuses new connections; open ones go on.
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
	changed chan struct{} // closed when another took its place
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
