package world

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports below those that systems give to outgoing connections: one of a program
// that was killed is still free when the program starts again.
const firstPort, ports = 15_000, 17_000

// freeAddr returns an address that nobody listens on at the moment.
func freeAddr() (string, error) {
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(ports))); err == nil {
			defer l.Close()
			return l.Addr().String(), nil
		}
	}
	return "", fmt.Errorf("find a free port: %w", err)
}
