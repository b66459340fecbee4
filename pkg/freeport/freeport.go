// Package freeport reserves loopback addresses for programs that need to know their address
// before they start, as in tests and load programs.
//
// A port that the system chose for a listener is free again when the listener closes, and may
// then go to another test or to an outgoing connection. The ports here are below the range
// that systems assign, and come in blocks. A process owns a block while it listens on the
// block's first port, until it dies, and returns each of the others once, so that a program
// that was killed finds its port free when it restarts.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The range ends below 32,768, where Linux starts to assign ports.
const (
	first  = 15_000
	size   = 100 // of a block
	blocks = 170
)

var reserved struct {
	sync.Mutex
	blocks []net.Listener // on the first port of each
	next   int            // a port
	left   int            // in the newest block
}

// Addr returns an address, 127.0.0.1 and a port, that is free and that no other call in any
// process of this machine returns while this process lives.
func Addr() (string, error) {
	reserved.Lock()
	defer reserved.Unlock()
	for {
		if reserved.left == 0 {
			if err := takeBlock(); err != nil {
				return "", err
			}
		}
		l, err := listen(reserved.next)
		reserved.next++
		reserved.left--
		if err != nil {
			continue // another program uses it
		}
		addr := l.Addr().String()
		return addr, l.Close()
	}
}

// takeBlock is called with reserved locked.
func takeBlock() error {
	for _, b := range rand.Perm(blocks) {
		port := first + b*size
		l, err := listen(port)
		if err != nil {
			continue
		}
		reserved.blocks = append(reserved.blocks, l)
		reserved.next, reserved.left = port+1, size-1
		return nil
	}
	return errors.New("find a free port: running tests have reserved all of them; wait for them to end")
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}
