package main

import (
	"io"
	"net"

	"github.com/hashicorp/yamux"
)

// theirs is yamux over one connection.
type theirs struct {
	client, server   *yamux.Session
	clients, servers []*yamux.Stream
	counter          *counter
}

func openYamux(streams int) (carrier, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	cfg.AcceptBacklog = streams
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	b, err := l.Accept()
	if err != nil {
		return nil, err
	}
	c := &theirs{counter: newCounter()}
	if c.client, err = yamux.Client(a, cfg); err != nil {
		return nil, err
	}
	if c.server, err = yamux.Server(b, cfg); err != nil {
		return nil, err
	}
	for range streams {
		s, err := c.client.OpenStream()
		if err != nil {
			return nil, err
		}
		t, err := c.server.AcceptStream()
		if err != nil {
			return nil, err
		}
		c.clients, c.servers = append(c.clients, s), append(c.servers, t)
		go c.read(s)
		go c.read(t)
	}
	return c, nil
}

// read reads messages of a known size until the stream ends.
func (c *theirs) read(s *yamux.Stream) {
	var message [messageSize]byte
	for {
		if _, err := io.ReadFull(s, message[:]); err != nil {
			return
		}
		c.counter.add()
	}
}

func (c *theirs) up(stream int, message []byte) error {
	_, err := c.clients[stream].Write(message)
	return err
}

func (c *theirs) down(stream int, message []byte) error {
	_, err := c.servers[stream].Write(message)
	return err
}

func (c *theirs) received() *counter { return c.counter }

func (c *theirs) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}
