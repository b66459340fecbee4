package sim

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/agent-runner/internal/clienttool"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/run"
)

// rows is an in-memory model of the agent schema: its tables, and a method for each
// transaction of packages run and conversation that belongs to the protocol. A method that
// returns an error has changed nothing. rows knows neither processes nor faults, and the caller
// must hold the lock that guards it.
//
// TestRowsArePostgres compares it with Postgres.
type rows struct {
	cfg rowsConfig

	sessions map[id.Session]*sessionRow
	runs     map[id.Run]*runRow
	messages map[id.Message]*messageRow
	steps    map[stepKey]*stepRow
	calls    map[id.Operation]*callRow
	retired  map[id.Operation]bool // keys of calls that a person let run again
	usage    map[stepKey]run.Usage
	wasted   map[stepKey]run.Usage
	// summaries are those of conversations, by the step that made them.
	summaries map[stepKey]run.Summary
	inbox     []*inboxRow
	outbox    []outbox.Row

	// In the order of creation, because the order of a map is random.
	allSessions []*sessionRow
	allRuns     []*runRow
	allMessages []*messageRow

	lastOutbox int64
	lastID     uint64
}

type rowsConfig struct {
	run       run.Config
	maxQueued int
	now       func() time.Time
	salt      uint32 // of ids
	plant     plant
	// clientTools are those of each session.
	clientTools []clienttool.Tool
}

type sessionRow struct {
	id                        id.Session
	ws                        id.Workspace
	model, provider, preset   string
	maxSteps                  *int
	nextOrdinal, nextPosition int64
	leaf                      int64 // the position of the message that the next one follows; 0: none
	summaries                 map[int]madeSummary
}

type runRow struct {
	run.Run
	runner string
	lease  time.Time // zero: none
	key    string    // of a run that answers a message again
	// These are not columns but for checks, in the world's time: when the run was first asked to
	// stop, and when a runner last read the inbox at a step border. Zero means never.
	stop, border time.Time
}

type messageRow struct {
	run.Message
	session  id.Session
	position int64 // 0: it has not joined
	parent   int64 // the position of the message that it follows; 0: none
	key      string
}

type stepKey struct {
	run   id.Run
	index int
}

type stepRow struct {
	state, response, reason string
	message                 *id.Message
	usage, wasted           run.Usage
	waitingSince            time.Time // zero: the run has not waited for a person
}

type callRow struct {
	run.Call
	run  id.Run
	step int
	done bool
	// unknown is the outcome that a person is asked about.
	unknown *run.Outcome
}

type inboxRow struct {
	run     id.Run
	kind    string
	message id.Message
	read    bool
}

func newRows(cfg rowsConfig) *rows {
	return &rows{
		cfg: cfg, sessions: map[id.Session]*sessionRow{}, runs: map[id.Run]*runRow{}, messages: map[id.Message]*messageRow{},
		steps: map[stepKey]*stepRow{}, calls: map[id.Operation]*callRow{}, retired: map[id.Operation]bool{}, usage: map[stepKey]run.Usage{}, wasted: map[stepKey]run.Usage{}, summaries: map[stepKey]run.Summary{},
	}
}

// newID returns the next id, which is the same in each run of a seed.
func newID[T id.Kind](d *rows) T {
	d.lastID++
	var b uuid.UUID
	binary.BigEndian.PutUint32(b[0:], d.cfg.salt)
	b[6], b[8] = 0x70, 0x80
	binary.BigEndian.PutUint32(b[12:], uint32(d.lastID))
	return T{b}
}

// session returns a workspace's session, or nil.
func (d *rows) session(ws id.Workspace, s id.Session) *sessionRow {
	if row := d.sessions[s]; row != nil && row.ws == ws {
		return row
	}
	return nil
}

// runsOf returns a session's runs by their ordinals.
func (d *rows) runsOf(s id.Session) []*runRow {
	var out []*runRow
	for _, r := range d.allRuns {
		if r.Session == s && d.runs[r.ID] == r {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b *runRow) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	return out
}

// joined returns a session's messages that have joined, of all branches, by their positions.
func (d *rows) joined(s id.Session) []*messageRow {
	var out []*messageRow
	for _, m := range d.allMessages {
		if m.session == s && m.position > 0 && d.messages[m.ID] == m {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *messageRow) int { return cmp.Compare(a.position, b.position) })
	return out
}

// callsOf returns a step's calls in order.
func (d *rows) callsOf(r id.Run, step int) []run.Call {
	var out []run.Call
	for _, c := range d.calls {
		if c.run == r && c.step == step {
			out = append(out, c.Call)
		}
	}
	slices.SortFunc(out, func(a, b run.Call) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

// blocked reports whether another run of the session keeps r from starting.
func (d *rows) blocked(r *runRow) bool {
	for _, o := range d.runsOf(r.Session) {
		if o.State == run.Running || o.State == run.Waiting || o.State == run.Queued && o.Ordinal < r.Ordinal {
			return true
		}
	}
	return false
}

// join moves a waiting message to the end of the conversation.
func (d *rows) join(s *sessionRow, m id.Message) {
	if row := d.messages[m]; row != nil && row.position == 0 {
		row.CreatedAt = d.cfg.now()
		s.place(row)
	}
}

func (d *rows) insertMessage(s *sessionRow, m messageRow) *messageRow {
	if id.IsZero(m.ID) {
		m.ID = newID[id.Message](d)
	}
	m.session, m.CreatedAt = s.id, d.cfg.now()
	d.messages[m.ID] = &m
	d.allMessages = append(d.allMessages, &m)
	return &m
}

// say puts messages into the outbox.
func (d *rows) say(messages ...outbox.Message) {
	for _, m := range messages {
		payload, err := proto.Marshal(m.Body)
		if err != nil {
			panic(fmt.Sprintf("encode %s: %v", m.ID, err)) // our messages always encode
		}
		d.lastOutbox++
		d.outbox = append(d.outbox, outbox.Row{
			ID: d.lastOutbox, Subject: m.Subject, MessageID: m.ID,
			Schema: string(m.Body.ProtoReflect().Descriptor().FullName()), Payload: payload,
		})
	}
}

// page returns the outbox's rows after an id.
func (d *rows) page(after int64, limit int) []outbox.Row {
	var out []outbox.Row
	for _, r := range d.outbox {
		if r.ID > after && len(out) < limit {
			out = append(out, r)
		}
	}
	return out
}

func (d *rows) deleteOutbox(said []int64) {
	d.outbox = slices.DeleteFunc(d.outbox, func(r outbox.Row) bool { return slices.Contains(said, r.ID) })
}
