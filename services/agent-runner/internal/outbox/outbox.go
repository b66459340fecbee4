// Package outbox publishes messages on the bus if, and only if, a transaction commits: the
// transaction writes rows with Add, and afterwards the publisher of any replica publishes
// and deletes them.
//
// # Order
//
// Events of one session are published in the order of their ids, each after the log has
// acknowledged the one before. The ids of one transaction need not be consecutive, and it may commit
// after a page was read that ends between them: rows whose subject has a row before the page are
// left to the next pass. Different sessions and messages of work queues are published
// concurrently, because publishing is mostly waiting for acknowledgements and viewers wait
// with it. A run's wake-up is published after the rows of the previous run's end are
// deleted, because a claim fails while they exist (run.ErrTooEarly).
//
// # What happens on a crash
//
// A row is written, published, and deleted. After a crash between publish and delete it is
// published again under the same message id. The stream drops it, or after the stream's
// duplicate window its readers do: the run of a work message has a runner, and the number of
// an event was seen. An advisory lock lets one publisher work at a time in the whole
// cluster, so that rows of one transaction reach a subject in their order. A stream that
// takes no messages delays only its own rows.
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

// Message is a message for a durable subject.
type Message struct {
	Workspace id.Workspace
	Subject   string
	// ID makes a second publication harmless.
	ID   string
	Body proto.Message
}

// Add writes messages in the caller's transaction. Call Outbox.Poke after the commit.
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

// Queue is like Add for a batch of the caller's transaction.
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
	// maxInFlight is how many messages are published concurrently.
	maxInFlight = 32
	// retryInterval is how often rows that could not be published are tried again.
	retryInterval = time.Second
	// publishTimeout bounds a batch, and so how long the lock is held.
	publishTimeout = 5 * time.Second
	// messageTimeout bounds one message, so that a silent stream leaves time for the others.
	messageTimeout = time.Second
	// lockTimeout is when the server ends the transaction of a publisher that is stopped or
	// cut off, because all others wait for its lock.
	lockTimeout = publishTimeout + time.Second
	// lock is the advisory lock's number; arbitrary, and never to be changed.
	lock = 0x6f75_7462_6f78
)

// Publisher is the part of *bus.Bus that the outbox needs.
type Publisher interface {
	Publish(ctx context.Context, subj, id string, m proto.Message) (uint64, error)
}

// Rows is the outbox table.
type Rows interface {
	// Page passes the first rows after an id to publish, in order, without those of subjects that
	// have a row up to that id. It deletes the rows whose ids publish returns, in one transaction
	// that holds the publishers' lock. It returns the number of rows read.
	Page(ctx context.Context, after int64, limit int, publish func(ctx context.Context, rows []Row) (published []int64)) (n int, err error)
}

// Outbox publishes rows. Run is its only goroutine.
type Outbox struct {
	rows  Rows
	bus   Publisher
	ready func(context.Context) error // whether this process reaches the bus; nil if always
	log   *slog.Logger
	poke  chan struct{}
	stuck bool // the last pass could not read or publish all rows
}

// New returns an outbox on a database. Nothing is published until Run is called.
func New(db *pg.DB, b *bus.Bus, log *slog.Logger) *Outbox {
	o := NewWithRows(postgres{db}, b, log)
	o.ready = b.Ready
	return o
}

// NewWithRows is like New with another implementation of the table.
func NewWithRows(rows Rows, b Publisher, log *slog.Logger) *Outbox {
	return &Outbox{rows: rows, bus: b, log: log, poke: make(chan struct{}, 1)}
}

// Poke tells the publisher that a transaction with rows has committed. It never blocks.
func (o *Outbox) Poke() {
	select {
	case o.poke <- struct{}{}:
	default: // a poke is pending
	}
}

// Run publishes until ctx is done, and then publishes the remaining rows. It looks for rows after
// each Poke. The sweeper (package sweep) pokes for those of replicas that died before publishing.
func (o *Outbox) Run(ctx context.Context) error {
	tick := time.NewTicker(retryInterval)
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
			if !o.stuck {
				continue
			}
		}
		o.dropPokes(tick)
		o.drain(ctx)
	}
}

// dropPokes discards pending signals: the pass that follows answers them all.
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

// drain goes through the outbox once, page by page. A stream that does not take a message,
// because it is full or unavailable, delays only its own later messages.
func (o *Outbox) drain(ctx context.Context) {
	if o.stuck && o.ready != nil {
		// Perhaps only this process cannot reach the bus. It must not take the lock then, or
		// no other process could publish.
		if err := o.ready(ctx); err != nil {
			if ctx.Err() == nil {
				o.log.WarnContext(ctx, "outbox waits", "error", err)
			}
			return
		}
	}
	p := pass{stuck: map[string]error{}, deferred: map[int64]bool{}}
	failed := false
	defer func() { o.stuck = failed || len(p.stuck) > 0 }()
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = o.page(ctx, &p); err != nil && ctx.Err() == nil {
			o.log.WarnContext(ctx, "outbox waits", "error", err)
			failed = true
			return
		}
	}
	for subj, err := range p.stuck {
		if ctx.Err() == nil {
			o.log.WarnContext(ctx, "outbox waits", "stream", subj, "error", err)
		}
	}
}

// pass is one pass through the outbox.
type pass struct {
	after    int64          // the id of the last row read
	deferred map[int64]bool // wake-ups deferred to the page after theirs

	mu    sync.Mutex       // guards stuck
	stuck map[string]error // failures by the prefix of a stream's subjects, or by subject
}

// isStuck reports whether an earlier row of the same stream or subject has failed.
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

// stream returns the part of a subject that identifies its stream, such as work.run or ev.03.
func stream(subj string) string {
	kind, rest, _ := strings.Cut(subj, ".")
	part, _, _ := strings.Cut(rest, ".")
	return kind + "." + part
}

// Row is a row of the outbox.
type Row struct {
	ID        int64
	Subject   string
	MessageID string
	Schema    string
	Payload   []byte
	Trace     string
}

// page publishes and deletes the rows of one page. more reports whether another page may
// follow.
func (o *Outbox) page(ctx context.Context, p *pass) (more bool, err error) {
	deferred := len(p.deferred)
	n, err := o.rows.Page(ctx, p.after, batchSize, func(ctx context.Context, rows []Row) []int64 { return o.publishAll(ctx, p, rows) })
	return n == batchSize || len(p.deferred) > deferred, err
}

// postgres implements Rows.
type postgres struct{ db *pg.DB }

// Page implements Rows.
func (p postgres) Page(ctx context.Context, after int64, limit int, publish func(context.Context, []Row) []int64) (n int, err error) {
	// AsSystem: the outbox carries the messages of all workspaces.
	err = p.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('idle_in_transaction_session_timeout', @timeout, true), pg_advisory_xact_lock(@lock)`,
			pg.Args{"lock": int64(lock), "timeout": strconv.FormatInt(lockTimeout.Milliseconds(), 10)}); err != nil {
			return fmt.Errorf("wait for the outbox lock: %w", err)
		}
		rows, err := tx.Query(ctx, `
			SELECT id, subject, message_id, schema, payload, trace
			FROM outbox o WHERE id > @after AND NOT EXISTS (SELECT FROM outbox e WHERE e.id <= @after AND e.subject = o.subject)
			ORDER BY id LIMIT @limit`, pg.Args{"after": after, "limit": limit})
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
		if _, err := tx.Exec(ctx, `DELETE FROM outbox WHERE id = ANY (@published)`, pg.Args{"published": published}); err != nil {
			return fmt.Errorf("delete from the outbox: %w", err)
		}
		return nil
	})
	return n, err
}

// publishAll publishes rows and returns the ids of those that succeeded. It leaves time to
// delete them.
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
	_ = lanes.Wait() // failures are in p.stuck
	return published
}

// lanes splits a page into rows to be published concurrently. The wake-up of a session that
// has events on the page is deferred to the next page, once.
func (p *pass) lanes(batch []Row) (lanes [][]Row) {
	events := map[string]int{}      // subject → the index of its lane
	withEvents := map[string]bool{} // sessions with events on the page
	firstDeferred := int64(0)       // the id of the first deferred wake-up
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

// eventSession returns the session of a row's event. ok is false if the row is not an event.
func eventSession(r Row) (session string, ok bool) {
	if !strings.HasPrefix(r.Subject, "ev.") {
		return "", false
	}
	return r.Subject[strings.LastIndexByte(r.Subject, '.')+1:], true
}

// wakeSession returns the session of a row's wake-up, or "" if the row is not a wake-up.
func wakeSession(r Row) string {
	var w runv1.Work
	if r.Schema != string(w.ProtoReflect().Descriptor().FullName()) || proto.Unmarshal(r.Payload, &w) != nil {
		return ""
	}
	return w.GetSessionId()
}

// publishRow publishes a row. It returns false if the row, and those after it in its lane,
// must be tried again.
func (o *Outbox) publishRow(ctx context.Context, p *pass, r Row) bool {
	if p.isStuck(r) {
		return false
	}
	body, err := decode(r)
	if err != nil {
		// A row of a newer version: a replica that knows its schema publishes it.
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
