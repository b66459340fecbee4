package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A pull request is short and is not withdrawn: a worker that leaves waits for its end.
// Between accounts, and in a cluster, the server may take one for alive whose worker is
// gone, and a message that is sent there is missed for AckWait.
const (
	pullExpiry  = 500 * time.Millisecond
	pullSilence = 2 * time.Second // past the expiry: the request got lost
)

var pullRequest = fmt.Appendf(nil, `{"batch":1,"expires":%d}`, pullExpiry.Nanoseconds())

// puller asks a shared consumer for one message at a time. The client's own iterator is
// not used: with a batch of one it can miss the moment to ask again, and then hangs until
// it misses a heartbeat.
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
		answers: make(chan *nats.Msg, 4), // one is open at a time, with one answer
	}
	var err error
	p.sub, err = b.nc.ChanSubscribe(b.nc.NewInbox(), p.answers)
	return p, err
}

func (p *puller) close() { _ = p.sub.Unsubscribe() } // fails only when the interest is gone

// next returns the next message, or nil when ctx is done. A message that was on its way
// then is returned too.
func (p *puller) next(ctx context.Context) (*nats.Msg, error) {
	asking, forget := p.bus.onLine(context.WithoutCancel(ctx))
	defer forget()
	silence := time.NewTimer(pullExpiry + pullSilence)
	defer silence.Stop()
	for ctx.Err() == nil {
		if err := p.bus.nc.PublishRequest(p.subject, p.sub.Subject, pullRequest); err != nil {
			return nil, err
		}
		silence.Reset(pullExpiry + pullSilence)
		select {
		case m := <-p.answers:
			if again, err := pullStatus(m); err != nil || !again {
				return m, err
			}
		case <-silence.C:
			return nil, errLate
		case <-asking.Done():
			return nil, unanswered(asking, asking.Err())
		}
	}
	return nil, nil
}

// pullStatus reads an answer: again means that the request ended without a message.
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
	return false, fmt.Errorf("the server answers %s %s", status, description)
}
