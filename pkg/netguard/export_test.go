package netguard

// AllowPort lets the guard connect to public addresses on another port, so that a test's
// server on a random port is out of reach because of its address alone.
func (g *Guard) AllowPort(port uint16) { g.ports = append(g.ports, port) }
