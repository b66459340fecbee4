package bus_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

// After the callback of OnReconnect, subscriptions miss nothing.
func TestOnReconnect(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	b := natstest.Dial(t, srv, subject.Gateway)
	stream, subj, live := session()
	in := make(chan *nats.Msg, 10)
	if _, err := b.SubscribeChan(live, in); err != nil {
		t.Fatal(err)
	}
	told, gone := make(chan struct{}, 10), make(chan struct{}, 10)
	b.OnReconnect(func() { told <- struct{}{} })
	stop := b.OnReconnect(func() { gone <- struct{}{} })
	stop()
	for i := range 2 {
		srv.Shutdown()
		srv = natstest.Start(t, srv.Config())
		writer := natstest.Dial(t, srv, subject.AgentRunner)
		receive(t, told)
		// A reply to a request sent now means that the server knows the subscription.
		_, _ = b.Last(t.Context(), stream, subj)
		publish(t, writer, subj, fmt.Sprint(i))
		receive(t, in)
	}
	if len(told) != 0 || len(gone) != 0 {
		t.Errorf("called %d more times than reconnected, and %d times after stop", len(told), len(gone))
	}
}
