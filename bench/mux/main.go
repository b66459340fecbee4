// Mux measures package mux beside yamux, a well-known stream multiplexer.
//
// Both carry the same messages over one loopback TCP connection, with both ends in this
// process, by turns. A message has 64 bytes, about what a typed character takes in a
// document. With yamux each end has a goroutine for each stream that reads messages of a
// known size; package mux calls its users from a goroutine of its own.
//
//	up       messages of 1,000 streams to the server, from a goroutine for each document
//	fan-out  each message to the 50 streams of a document, 20 documents, from a goroutine for each
//	idle     heap and stacks of streams that have carried one message in each direction
//
// The figures are medians of the rounds.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

const (
	messageSize = 64
	senders     = streams / fanOut // one for each document
	streams     = 1000
	fanOut      = 50 // streams of a document
)

// carrier is a multiplexer between two ends, with open streams.
type carrier interface {
	// up sends a message on a stream to the server.
	up(stream int, message []byte) error
	// down sends a message to a stream's client.
	down(stream int, message []byte) error
	// received returns how many messages have arrived, at either end.
	received() *counter
	close()
}

var carriers = []struct {
	name string
	open func(streams int) (carrier, error)
}{{"mux", openOurs}, {"yamux", openYamux}}

// sample is what one round measured.
type sample struct {
	up, fanOut rate
	idle       float64 // bytes of a stream
}

// rate is a number of messages a second, and the processor time of one.
type rate struct {
	perSecond float64
	cpu       time.Duration
}

func main() {
	rounds := flag.Int("rounds", 5, "rounds; each figure is the median of its rounds")
	messages := flag.Int("messages", 500_000, "messages of a round, in each direction")
	idle := flag.Int("idle", 10_000, "idle streams")
	flag.Parse()
	if err := run(*rounds, *messages, *idle); err != nil {
		fmt.Fprintln(os.Stderr, "mux:", err)
		os.Exit(1)
	}
}

func run(rounds, messages, idle int) error {
	samples := make([][]sample, len(carriers))
	for range rounds {
		for i, c := range carriers {
			s, err := measure(c.open, messages, idle)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			samples[i] = append(samples[i], s)
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tup: CPU\tmessages/s\tfan-out: CPU\tdeliveries/s\tidle stream")
	for i, c := range carriers {
		middle := func(figure func(sample) float64) float64 {
			all := make([]float64, 0, rounds)
			for _, s := range samples[i] {
				all = append(all, figure(s))
			}
			slices.Sort(all)
			return all[len(all)/2]
		}
		fmt.Fprintf(w, "%s\t%.2f µs\t%.0f\t%.2f µs\t%.0f\t%.0f B\n", c.name,
			middle(func(s sample) float64 { return float64(s.up.cpu) / 1e3 }), middle(func(s sample) float64 { return s.up.perSecond }),
			middle(func(s sample) float64 { return float64(s.fanOut.cpu) / 1e3 }), middle(func(s sample) float64 { return s.fanOut.perSecond }),
			middle(func(s sample) float64 { return s.idle }))
	}
	return w.Flush()
}

func measure(open func(int) (carrier, error), messages, idle int) (s sample, err error) {
	c, err := open(streams)
	if err != nil {
		return s, err
	}
	s.up, err = load(c, messages, func(n int) error { return c.up(n%streams, make([]byte, messageSize)) })
	if err != nil {
		return s, fmt.Errorf("up: %w", err)
	}
	var shared sync.Map // the message of a document, which its streams share
	s.fanOut, err = load(c, messages, func(n int) error {
		message, _ := shared.LoadOrStore(n/fanOut, make([]byte, messageSize))
		if n%fanOut == fanOut-1 {
			shared.Delete(n / fanOut)
		}
		return c.down(n%streams, message.([]byte))
	})
	if err != nil {
		return s, fmt.Errorf("fan-out: %w", err)
	}
	c.close()

	before := memory()
	if c, err = open(idle); err != nil {
		return s, err
	}
	defer c.close()
	for i := range idle {
		if err := c.up(i, make([]byte, messageSize)); err != nil {
			return s, err
		}
		if err := c.down(i, make([]byte, messageSize)); err != nil {
			return s, err
		}
	}
	c.received().wait(2 * idle)
	s.idle = float64(memory()-before) / float64(idle)
	runtime.KeepAlive(c)
	return s, nil
}

// load sends messages from several goroutines, each a block of fanOut at a time, and
// waits until all have arrived.
func load(c carrier, messages int, send func(n int) error) (rate, error) {
	messages -= messages % (fanOut * senders)
	want := c.received().count() + messages
	before, began := processorTime(), time.Now()
	var all sync.WaitGroup
	errs := make([]error, senders)
	for i := range senders {
		all.Go(func() {
			for block := i; block < messages/fanOut; block += senders {
				for n := block * fanOut; n < (block+1)*fanOut && errs[i] == nil; n++ {
					errs[i] = send(n)
				}
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return rate{}, err
		}
	}
	c.received().wait(want)
	took := time.Since(began)
	return rate{float64(messages) / took.Seconds(), (processorTime() - before) / time.Duration(messages)}, nil
}

// memory returns the bytes of heap and stacks in use.
func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// processorTime returns the processor time that this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// counter counts messages.
type counter struct {
	mu   sync.Mutex
	more sync.Cond
	n    int
	want int // 0 if nobody waits
}

func newCounter() *counter {
	c := &counter{}
	c.more.L = &c.mu
	return c
}

func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n++; c.n == c.want {
		c.more.Signal()
	}
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *counter) wait(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.want = n; c.n < n; {
		c.more.Wait()
	}
}
