package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// audience is a set of viewers. They are cheap, because they share the machine with the measured
// system: each is a connection and a goroutine that searches the stream for a mark.
type audience struct {
	group     sync.WaitGroup
	stop      context.CancelFunc
	events    atomic.Int64
	cut       atomic.Int64 // connections that ended
	mu        sync.Mutex   // guards latencies
	latencies sample
	keep      atomic.Bool // record latencies
}

// mark begins the time, in nanoseconds, at which an event was published, in its text.
const mark = "published:"

// target is what a viewer requests.
type target struct {
	address string // host:port
	request string // the whole request
}

// watch opens the viewers, a few at a time, and returns when all have their headers.
func watch(ctx context.Context, targets []target) (*audience, error) {
	ctx, stop := context.WithCancel(ctx)
	a := &audience{stop: stop}
	opening := make(chan target)
	failed := make(chan error, len(targets))
	var openers sync.WaitGroup
	for range 32 {
		openers.Go(func() {
			for t := range opening {
				if err := a.open(ctx, t); err != nil {
					failed <- err
				}
			}
		})
	}
	for _, t := range targets {
		opening <- t
	}
	close(opening)
	openers.Wait()
	select {
	case err := <-failed:
		a.close()
		return nil, err
	default:
		return a, nil
	}
}

// open sends a request and reads the response headers; the rest is read in the background.
func (a *audience) open(ctx context.Context, t target) error {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(t.request)); err != nil {
		return errors.Join(err, conn.Close())
	}
	r := bufio.NewReaderSize(conn, 2048)
	status := ""
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return errors.Join(fmt.Errorf("open a stream: %w", err), conn.Close())
		}
		if status == "" {
			status = strings.TrimSpace(line)
		}
		if line == "\r\n" {
			break
		}
	}
	if !strings.Contains(status, " 200 ") {
		return errors.Join(fmt.Errorf("open a stream: %s", status), conn.Close())
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	a.group.Go(func() {
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		a.read(r)
	})
	return nil
}

func (a *audience) read(r *bufio.Reader) {
	defer a.cut.Add(1)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
		_, rest, ok := bytes.Cut(line, []byte(mark))
		if !ok {
			continue
		}
		a.events.Add(1)
		if !a.keep.Load() {
			continue
		}
		now := time.Now().UnixNano()
		digits, _, _ := bytes.Cut(rest, []byte(";"))
		if at, err := strconv.ParseInt(string(digits), 10, 64); err == nil {
			a.mu.Lock()
			a.latencies = append(a.latencies, time.Duration(now-at))
			a.mu.Unlock()
		}
	}
}

func (a *audience) close() {
	a.stop()
	a.group.Wait()
}
