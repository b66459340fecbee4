package feed

import (
	"context"

	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

// lag is the maximum number of a run's events by which the record is behind the log. A runner writes
// at most one in 20 ms, and the record is a second behind.
const lag = 100

// record is a part of a session's log as recorded in Postgres, from some event on: canonical, dense,
// and a moment old. An empty record says nothing about the log.
type record struct {
	events []*agentv1.LoggedEvent
	joined place // of the last event if the ring has it too, otherwise 0
	long   bool  // it exceeds the bounds of a tail
	part   bool  // there is more than the wanted page
	failed bool  // it could not be read
}

// readRecord reads the record from the wanted event on, until the ring continues it or the record
// ends. If the event is not recorded yet, it begins at an older one.
func (t *topic) readRecord(ctx context.Context, w wanted) record {
	ctx = identity.With(ctx, w.actor)
	begin := []int64{w.from.Number}
	for _, n := range []int64{w.from.Number - lag, 0} {
		if n >= 0 && n < begin[len(begin)-1] {
			begin = append(begin, n)
		}
	}
	if w.need == needLater { // this event may have been lost before it was recorded, but later ones recorded
		begin = append(begin, w.from.Number+1)
	}
	for i, n := range begin {
		page := w.page
		if i > 0 {
			page = 0 // it has to include the event
		}
		r, err := t.readRecordFrom(ctx, Position{w.from.Run, n}, page)
		if err == nil {
			return r
		}
		if fault.KindOf(err) != fault.NotFound {
			// The log has the last quarter of an hour even if Postgres is down.
			t.shard.feed.cfg.Log.WarnContext(ctx, "record of a session's log not read", "session", t.session, "error", err)
			return record{failed: true}
		}
	}
	return record{}
}

func (t *topic) readRecordFrom(ctx context.Context, from Position, limit int) (record, error) {
	t.shard.feed.metrics.recordReads.Inc()
	var r record
	page, size := "", 0
	for {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		events, next, err := t.shard.feed.cfg.Source.Events(limited, t.session, from, page)
		cancel()
		if err != nil {
			return record{}, err
		}
		if len(events) == 0 {
			return r, nil
		}
		enough := false
		for _, e := range events {
			if enough = limit > 0 && size > limit && len(r.events) > 1; enough {
				break
			}
			r.events = append(r.events, e)
			size += proto.Size(e)
		}
		if len(r.events) > maxRead || size > maxTailBytes {
			return record{long: true}, nil
		}
		last := r.events[len(r.events)-1].GetEvent()
		r.joined = t.placeInRing(last.GetRunOrdinal(), last.GetNumber())
		r.part = enough && r.joined == 0
		if r.joined != 0 || enough || next == "" {
			return r, nil
		}
		page = next
	}
}

// placeInRing returns the place of an event of the log in the ring, 0 if the ring lacks it.
func (t *topic) placeInRing(run, number int64) place {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := findFrame(t.ring.frames, Position{run, number})
	if !ok || t.ring.frames[i].synthetic {
		return 0
	}
	return t.ring.frames[i].place
}
