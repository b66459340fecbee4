// Package outbox says things on the bus if, and only if, a transaction
// committed: the transaction writes rows with Add, and the publisher of any
// replica says them afterwards.
//
// # Order
//
// Events of one session are said in the order of their ids, each when the log has
// the one before. Sessions, and messages of work queues, are said side by side: what
// waits here waits for answers and not for work, and those who watch wait with it. A
// run's wake-up is said when the rows of the end before it are gone, because whoever
// hears it looks for them (run.ErrTooEarly).
//
// # If it dies here
//
// States of a row: written → published → deleted. It dies here: after a crash
// between publish and delete the row is published again, under the same message
// id, which the stream drops or, after its window, readers do (a work message
// for a run that is taken, an event whose number was seen). One publisher works
// at a time in the whole cluster, behind an advisory lock, so that rows of one
// transaction reach a subject in their order; a stream that takes nothing holds up
// its own rows only.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/propagation"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Message is one thing to say on a durable subject.
type Message struct {
	Workspace id.Workspace
	Subject   string
	// ID makes a second publication harmless.
	ID   string
	Body proto.Message
}

// Add writes messages in the caller's transaction. Call Outbox.Poke after it committed.
func Add(ctx context.Context, tx pgx.Tx, messages ...Message) error {
	b := &pgx.Batch{}
	if err := Queue(ctx, b, messages...); err != nil {
		return err
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("write to the outbox: %w", err)
	}
	return nil
}

// Queue is Add with a batch of the caller's transaction.
func Queue(ctx context.Context, b *pgx.Batch, messages ...Message) error {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for _, m := range messages {
		payload, err := proto.Marshal(m.Body)
		if err != nil {
			return fmt.Errorf("encode %s for the outbox: %w", m.ID, err)
		}
		b.Queue(`
			INSERT INTO outbox (workspace_id, subject, message_id, schema, payload, trace)
			VALUES (@workspace, @subject, @id, @schema, @payload, @trace)`,
			pg.Args{
				"workspace": m.Workspace, "subject": m.Subject, "id": m.ID,
				"schema": string(m.Body.ProtoReflect().Descriptor().FullName()), "payload": payload,
				"trace": carrier.Get("traceparent"),
			})
	}
	return nil
}

const (
	batchSize = 64
	// maxInFlight is how many messages are on their way at a time.
	maxInFlight = 32
	// pollInterval finds rows of replicas that died before they could publish.
	pollInterval = time.Second
	// publishTimeout bounds a batch, and so how long the lock is held.
	publishTimeout = 5 * time.Second
	// messageTimeout bounds one message: a stream that is silent leaves time for the others.
	messageTimeout = time.Second
	// lockTimeout is when the server takes the lock from a publisher that says nothing:
	// its process is stopped, or cut off. All others wait for it.
	lockTimeout = publishTimeout + time.Second
	// lock is the advisory lock's number; arbitrary, and never to be changed.
	lock = 0x6f75_7462_6f78
)

// Publisher is where rows go: *bus.Bus, whose contract this is.
type Publisher interface {
	Publish(ctx context.Context, subj, id string, m proto.Message) (uint64, error)
}

// Rows is the table, as the publisher needs it.
type Rows interface {
	// Page gives say the first rows behind an id, in order, and deletes those whose
	// ids it returns, in one transaction that holds the lock of all publishers. It
	// returns how many there were.
	Page(ctx context.Context, after int64, limit int, publish func(ctx context.Context, rows []Row) (published []int64)) (n int, err error)
}

// Outbox publishes rows. Run is its only goroutine.
type Outbox struct {
	rows  Rows
	bus   Publisher
	ready func(context.Context) error // nil: it is
	log   *slog.Logger
	poke  chan struct{}
	stuck bool // the last pass could not publish everything
}

// New returns an outbox over the table of a database; nothing is published until Run.
func New(db *pg.DB, b *bus.Bus, log *slog.Logger) *Outbox {
	o := NewWithRows(postgres{db}, b, log)
	o.ready = b.Ready
	return o
}

// NewWithRows is New over rows that are kept anywhere.
func NewWithRows(rows Rows, b Publisher, log *slog.Logger) *Outbox {
	return &Outbox{rows: rows, bus: b, log: log, poke: make(chan struct{}, 1)}
}

// Poke tells the publisher that a transaction with rows has committed. It never blocks.
func (o *Outbox) Poke() {
	select {
	case o.poke <- struct{}{}:
	default: // it is going to look anyway
	}
}

// Run publishes until ctx is done, and then once more what there is.
func (o *Outbox) Run(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*publishTimeout)
			defer cancel()
			o.drain(last)
			return nil
		case <-o.poke:
		case <-tick.C:
		}
		o.dropPokes(tick)
		o.drain(ctx)
	}
}

// dropPokes takes what else asks for a look: one look answers all.
func (o *Outbox) dropPokes(tick *time.Ticker) {
	select {
	case <-o.poke:
	default:
	}
	select {
	case <-tick.C:
	default:
	}
}

// drain goes through the outbox once, page by page. A stream that does not take a
// message (it is full, or away) keeps its later ones waiting, and no other's.
func (o *Outbox) drain(ctx context.Context) {
	if o.stuck && o.ready != nil {
		// It may be this process alone that does not reach the bus: it must not hold the
		// lock for that, or nobody publishes.
		if err := o.ready(ctx); err != nil {
			if ctx.Err() == nil {
				o.log.WarnContext(ctx, "outbox waits", "error", err)
			}
			return
		}
	}
	p := pass{stuck: map[string]error{}, deferred: map[int64]bool{}}
	defer func() { o.stuck = len(p.stuck) > 0 }()
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = o.page(ctx, &p); err != nil && ctx.Err() == nil {
			o.log.WarnContext(ctx, "outbox waits", "error", err)
			return
		}
	}
	for subj, err := range p.stuck {
		if ctx.Err() == nil {
			o.log.WarnContext(ctx, "outbox waits", "stream", subj, "error", err)
		}
	}
}

// pass is one way through the outbox.
type pass struct {
	after    int64          // the id of the last row that was looked at
	deferred map[int64]bool // wake-ups that were left for the page after theirs

	mu    sync.Mutex       // guards stuck
	stuck map[string]error // streams that take nothing now, by the beginning of their subjects
}

// isStuck reports whether a row's stream takes nothing now, or nobody here can say it.
func (p *pass) isStuck(r Row) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stuck[stream(r.Subject)] != nil || p.stuck[r.Subject] != nil
}

func (p *pass) setStuck(what string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stuck[what] = err
}

// stream returns the part of a subject that says which stream takes it: work.run, ev.03.
func stream(subj string) string {
	kind, rest, _ := strings.Cut(subj, ".")
	part, _, _ := strings.Cut(rest, ".")
	return kind + "." + part
}

// Row is a message as it waits.
type Row struct {
	ID        int64
	Subject   string
	MessageID string
	Schema    string
	Payload   []byte
	Trace     string
}

// page says the rows of one page and deletes what was said; more tells whether
// another page may follow.
func (o *Outbox) page(ctx context.Context, p *pass) (more bool, err error) {
	deferred := len(p.deferred)
	n, err := o.rows.Page(ctx, p.after, batchSize, func(ctx context.Context, rows []Row) []int64 { return o.publishAll(ctx, p, rows) })
	return n == batchSize || len(p.deferred) > deferred, err
}

// postgres is the table in a database.
type postgres struct{ db *pg.DB }

// Page implements Rows.
func (p postgres) Page(ctx context.Context, after int64, limit int, publish func(context.Context, []Row) []int64) (n int, err error) {
	// AsSystem: the outbox carries the messages of all workspaces.
	err = p.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('idle_in_transaction_session_timeout', $2, true), pg_advisory_xact_lock($1)`,
			int64(lock), strconv.FormatInt(lockTimeout.Milliseconds(), 10)); err != nil {
			return fmt.Errorf("wait for the outbox lock: %w", err)
		}
		rows, err := tx.Query(ctx, `
			SELECT id, subject, message_id, schema, payload, trace
			FROM outbox WHERE id > $1 ORDER BY id LIMIT $2`, after, limit)
		if err != nil {
			return fmt.Errorf("read the outbox: %w", err)
		}
		batch, err := pgx.CollectRows(rows, pgx.RowToStructByName[Row])
		if err != nil {
			return fmt.Errorf("read the outbox: %w", err)
		}
		n = len(batch)
		published := publish(ctx, batch)
		if len(published) == 0 {
			return nil
		}
		if _, err := tx.Exec(ctx, `DELETE FROM outbox WHERE id = ANY ($1)`, published); err != nil {
			return fmt.Errorf("empty the outbox: %w", err)
		}
		return nil
	})
	return n, err
}

// publishAll publishes what can be published, and returns the ids of it. It leaves time
// to delete them.
func (o *Outbox) publishAll(ctx context.Context, p *pass, batch []Row) (published []int64) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	var (
		lanes errgroup.Group
		mu    sync.Mutex // guards said
	)
	lanes.SetLimit(maxInFlight)
	for _, lane := range p.lanes(batch) {
		lanes.Go(func() error {
			panics.Contain(ctx, o.log, "outbox", func() {
				for _, r := range lane {
					if !o.publishRow(ctx, p, r) {
						break
					}
					mu.Lock()
					published = append(published, r.ID)
					mu.Unlock()
				}
			})
			return nil
		})
	}
	_ = lanes.Wait() // each has noted what went wrong
	return published
}

// lanes splits a page into what is said side by side. The wake-up of a session of
// which the page has events is left for the next page, once.
func (p *pass) lanes(batch []Row) (lanes [][]Row) {
	events := map[string]int{}      // subject → which line has its events
	withEvents := map[string]bool{} // sessions of events
	firstDeferred := int64(0)       // the id of the first wake-up that is left
	for _, r := range batch {
		p.after = r.ID
		if session, ok := eventSession(r); ok {
			i, known := events[r.Subject]
			if !known {
				i = len(lanes)
				events[r.Subject] = i
				lanes = append(lanes, nil)
			}
			lanes[i] = append(lanes[i], r)
			withEvents[session] = true
			continue
		}
		if withEvents[wakeSession(r)] && !p.deferred[r.ID] {
			p.deferred[r.ID] = true
			if firstDeferred == 0 {
				firstDeferred = r.ID
			}
			continue
		}
		lanes = append(lanes, []Row{r})
	}
	if firstDeferred > 0 {
		p.after = firstDeferred - 1
	}
	return lanes
}

// eventSession returns the session whose event a row is; false for another message.
func eventSession(r Row) (session string, ok bool) {
	if !strings.HasPrefix(r.Subject, "ev.") {
		return "", false
	}
	return r.Subject[strings.LastIndexByte(r.Subject, '.')+1:], true
}

// wakeSession returns the session that a row wakes a runner for, "" when it is no wake-up.
func wakeSession(r Row) string {
	var w runv1.Work
	if r.Schema != string(w.ProtoReflect().Descriptor().FullName()) || proto.Unmarshal(r.Payload, &w) != nil {
		return ""
	}
	return w.GetSessionId()
}

// publishRow publishes a row; false when it is to be tried again, and so are those after it.
func (o *Outbox) publishRow(ctx context.Context, p *pass, r Row) bool {
	if p.isStuck(r) {
		return false
	}
	body, err := decode(r)
	if err != nil {
		// Nobody here will ever be able to say this: a row of a newer version is
		// published by the replica that knows its schema.
		p.setStuck(r.Subject, err)
		return false
	}
	if err := o.publish(ctx, r, body); err != nil {
		p.setStuck(stream(r.Subject), err)
		return false
	}
	return true
}

func (o *Outbox) publish(ctx context.Context, r Row, body proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, messageTimeout)
	defer cancel()
	if r.Trace != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": r.Trace})
	}
	_, err := o.bus.Publish(ctx, r.Subject, r.MessageID, body)
	if errors.Is(err, bus.ErrTooLarge) {
		o.log.ErrorContext(ctx, "message dropped from the outbox", "subject", r.Subject, "message", r.MessageID, "error", err)
		return nil
	}
	return err
}

func decode(r Row) (proto.Message, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(r.Schema))
	if err != nil {
		return nil, fmt.Errorf("outbox row %d has the unknown schema %s: %w", r.ID, r.Schema, err)
	}
	m := t.New().Interface()
	if err := proto.Unmarshal(r.Payload, m); err != nil {
		return nil, fmt.Errorf("outbox row %d: %w", r.ID, err)
	}
	return m, nil
}
