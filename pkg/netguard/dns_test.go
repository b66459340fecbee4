package netguard_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// dns answers look-ups from a table. Each look-up of a name takes the next of its answers,
// and the last one for ever.
type dns struct {
	mu    sync.Mutex // guards names
	names map[string][]answers
}

// answers are the addresses of one look-up.
type answers []netip.Addr

func (d *dns) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go d.serve(ours) // ends when the resolver closes its side
		return theirs, nil
	}}
}

// serve speaks DNS over a stream: each message follows its length.
func (d *dns) serve(c net.Conn) {
	defer c.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, question); err != nil {
			return
		}
		reply, err := d.reply(question)
		if err != nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

func (d *dns) reply(question []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return nil, err
	}
	m.Response, m.Additionals = true, nil
	q := m.Questions[0]
	found := d.next(strings.TrimSuffix(strings.ToLower(q.Name.String()), "."), q.Type)
	if found == nil {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range found {
		h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
		switch {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case !a.Is4() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	return m.Pack()
}

func (d *dns) next(name string, kind dnsmessage.Type) answers {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.names[name]
	if len(all) == 0 {
		return nil
	}
	if kind == dnsmessage.TypeA && len(all) > 1 {
		d.names[name] = all[1:]
	}
	return all[0]
}
