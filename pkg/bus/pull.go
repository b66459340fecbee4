package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A pull request is short and is not cancelled: a worker that stops waits until it expires.
// Between accounts, and in a cluster, the server may not notice that a requester has gone,
// and a message sent to it would be redelivered only after AckWait.
const (
	pullExpiry = 500 * time.Millisecond
	pullGrace  = 2 * time.Second // after the expiry; then the request is considered lost
)

var pullRequest = fmt.Appendf(nil, `{"batch":1,"expires":%d}`, pullExpiry.Nanoseconds())

// puller fetches from a shared consumer, one message at a time. It replaces the client's own
// iterator, which with a batch of one can miss the moment to send the next request, and then
// hangs until it misses a heartbeat.
type puller struct {
	bus     *Bus
	subject string
	sub     *nats.Subscription
	answers chan *nats.Msg
}

func (b *Bus) openPuller(stream, consumer string) (*puller, error) {
	p := &puller{
		bus:     b,
		subject: jetstream.DefaultAPIPrefix + "CONSUMER.MSG.NEXT." + stream + "." + consumer,
		answers: make(chan *nats.Msg, 4), // one request is open at a time, with one reply
	}
	var err error
	p.sub, err = b.nc.ChanSubscribe(b.nc.NewInbox(), p.answers)
	return p, err
}

func (p *puller) close() { _ = p.sub.Unsubscribe() } // fails only without a subscription

// next returns the next message, or nil when ctx is done. It still returns a message that
// arrives after that.
func (p *puller) next(ctx context.Context) (*nats.Msg, error) {
	request, release := p.bus.inSession(context.WithoutCancel(ctx))
	defer release()
	late := time.NewTimer(pullExpiry + pullGrace)
	defer late.Stop()
	for ctx.Err() == nil {
		if err := p.bus.nc.PublishRequest(p.subject, p.sub.Subject, pullRequest); err != nil {
			return nil, err
		}
		late.Reset(pullExpiry + pullGrace)
		select {
		case m := <-p.answers:
			if again, err := pullStatus(m); err != nil || !again {
				return m, err
			}
		case <-late.C:
			return nil, errLate
		case <-request.Done():
			return nil, sessionErr(request, request.Err())
		}
	}
	return nil, nil
}

// pullStatus reports whether a reply ends its request without a message.
func pullStatus(m *nats.Msg) (again bool, err error) {
	status, description := m.Header.Get("Status"), m.Header.Get("Description")
	switch {
	case status == "" || len(m.Data) > 0:
		return false, nil
	case status == "404" || status == "408":
		return true, nil
	case status == "503":
		return false, nats.ErrNoResponders
	}
	return false, fmt.Errorf("the server replied %s %s", status, description)
}
