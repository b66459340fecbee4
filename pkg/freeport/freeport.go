// Package freeport lends addresses on the loopback interface to programs that are told
// theirs before they run: those that tests and load programs start.
//
// A port that the system chose for a listener which was closed again is anybody's: another
// test may be given it, and so may an outgoing connection. The ports here lie below the
// range that systems give out by themselves, and come in blocks. A process has a block for
// itself for as long as it listens on the block's first port, that is until it dies, and
// gives each of the others once: a program that was killed finds its port free when it
// starts again.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The range is below 32,768, where Linux begins; others begin later.
const (
	first  = 15_000
	size   = 100 // of a block
	blocks = 170
)

var mine struct {
	sync.Mutex
	blocks []net.Listener // on the first port of each
	next   int            // a port
	left   int            // in the newest block
}

// Addr returns an address, 127.0.0.1 and a port, that nobody listens on, and that no other
// call in any process of this machine returns while this process lives.
func Addr() (string, error) {
	mine.Lock()
	defer mine.Unlock()
	for {
		if mine.left == 0 {
			if err := takeBlock(); err != nil {
				return "", err
			}
		}
		l, err := listen(mine.next)
		mine.next++
		mine.left--
		if err != nil {
			continue // some other program's
		}
		addr := l.Addr().String()
		return addr, l.Close()
	}
}

// takeBlock is called with mine locked.
func takeBlock() error {
	for _, b := range rand.Perm(blocks) {
		port := first + b*size
		l, err := listen(port)
		if err != nil {
			continue
		}
		mine.blocks = append(mine.blocks, l)
		mine.next, mine.left = port+1, size-1
		return nil
	}
	return errors.New("find a free port: all of them are lent to tests that run: wait for these")
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}
