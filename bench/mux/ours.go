package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"signalbox.dev/pkg/mux"
)

// ours is package mux with one connection.
type ours struct {
	clients []*mux.ClientStream
	servers []*mux.ServerStream
	counter *counter
	end     func()
}

func openOurs(streams int) (carrier, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &ours{counter: newCounter()}
	accepted := make(chan *mux.ServerStream, streams)
	server := &mux.Server{Accept: func(s *mux.ServerStream, _ mux.OpenRequest) mux.Session {
		accepted <- s
		return c
	}}
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, first, err := mux.Hijack(w, r); err == nil {
			_ = server.Serve(conn, first)
		}
	})}
	go web.Serve(l)
	pool := mux.NewPool(mux.Config{Conns: 1, Dial: func(ctx context.Context) (net.Conn, []byte, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		if err != nil {
			return nil, nil, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/", nil)
		if err != nil {
			return nil, nil, err
		}
		first, err := mux.Upgrade(conn, req)
		return conn, first, err
	}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = pool.Run(ctx) }()
	c.end = func() {
		cancel()
		<-done
		server.Close(time.After(time.Second))
		_ = web.Close()
	}
	for i := range streams {
		s, err := pool.Open(ctx, "", mux.OpenRequest{Path: fmt.Sprint(i)}, c)
		if err != nil {
			return nil, err
		}
		c.clients = append(c.clients, s)
		c.servers = append(c.servers, <-accepted)
	}
	return c, nil
}

func (c *ours) up(stream int, message []byte) error {
	return c.clients[stream].Send(message, false, nil)
}
func (c *ours) down(stream int, message []byte) error { return c.servers[stream].Send(message) }
func (c *ours) received() *counter                    { return c.counter }
func (c *ours) close()                                { c.end() }

// The methods of mux.Session and mux.Sink.

func (c *ours) Begin()                          {}
func (c *ours) Receive(_ []byte, _ bool)        { c.counter.add() }
func (c *ours) Stop()                           {}
func (c *ours) Closed(int, string)              {}
func (c *ours) Deliver(_ []byte, _ bool, _ int) { c.counter.add() }
func (c *ours) Flush()                          {}
func (c *ours) Broken(error)                    {}
