package archive

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

// Bounds of one page. A page ends where a row ends; a row larger than a page comes alone.
const (
	maxPage      = 512
	maxPageBytes = 1 << 20
	rowsAtOnce   = 64
)

// Query selects what to list: the events from Run and Number on, or the page after Token.
type Query struct {
	Session     id.Session
	Run, Number int64
	Token       string
}

// List returns events in canonical order, as far as they are consecutive, and a token if more
// follow. The first event is the requested one; if the copy does not have it, the error is
// NotFound.
func (a *Archive) List(ctx context.Context, ws id.Workspace, q Query) (*agentv1.ListEventsResponse, error) {
	p := &page{db: a.cfg.DB, ws: ws, session: q.Session, order: order{}, res: &agentv1.ListEventsResponse{}}
	var err error
	if q.Token == "" {
		err = p.begin(ctx, q.Run, q.Number)
	} else {
		err = p.resume(ctx, q.Token)
	}
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	return p.res, nil
}

// cursor is the start of a page: a row, and the progress of its run before it.
type cursor struct {
	row, run int64
	progress
}

// token encodes a cursor.
func (c cursor) token() string {
	return fmt.Sprintf("%d.%d.%d.%d", c.row, c.run, c.epoch, c.number+1)
}

func parseToken(s string) (cursor, bool) {
	parts := strings.Split(s, ".")
	if len(s) > 80 || len(parts) != 4 {
		return cursor{}, false
	}
	var n [4]int64
	for i, part := range parts {
		v, err := strconv.ParseInt(part, 10, 64)
		if err != nil || v < 0 || part != strconv.FormatInt(v, 10) {
			return cursor{}, false
		}
		n[i] = v
	}
	return cursor{row: n[0], run: n[1], progress: progress{epoch: n[2], number: n[3] - 1}}, true
}

// page builds one response, usually with one statement. Rows that are added between several
// statements come after those read, which is harmless.
type page struct {
	db      *pg.DB
	ws      id.Workspace
	session id.Session
	order   order
	size    int
	res     *agentv1.ListEventsResponse
}

const columnsOfRow = `id, run_ordinal, epoch, first_number, last_number, ends, stream_created, events`

// row is a row of run_log.
type row struct {
	ID            int64
	RunOrdinal    int64
	Epoch         int64
	FirstNumber   int64
	LastNumber    int64
	Ends          bool
	StreamCreated int64
	Events        []byte
}

// begin fills the page from an event on. Several claims may have written the event; the
// newest one's row counts. No row counts if a claim wrote it after a newer claim had begun,
// or if the event was written twice because its stream was lost, which makes it ambiguous.
func (p *page) begin(ctx context.Context, run, number int64) error {
	if run < 1 || number < 0 {
		return fault.New(fault.Invalid, "run_ordinal counts from 1 and number from 0")
	}
	c := cursor{run: run, progress: progress{number: number - 1}}
	err := p.read(ctx, c, `
		WITH rows AS NOT MATERIALIZED (
			SELECT epoch, id, first_number, last_number FROM run_log
			WHERE workspace_id = @workspace AND session_id = @session AND run_ordinal = @run),
		hit AS (
			SELECT id, epoch FROM rows
			WHERE last_number BETWEEN @number AND @number::bigint + @chunk - 1 AND first_number <= @number
			ORDER BY epoch DESC, id LIMIT 1),
		start AS (
			SELECT id FROM hit
			WHERE coalesce(id < (SELECT o.id FROM rows o WHERE o.epoch > hit.epoch ORDER BY o.epoch, o.id LIMIT 1), true)
				AND (
					SELECT o.id FROM rows o WHERE o.epoch < hit.epoch AND o.last_number >= @number
						AND o.id < (SELECT n.id FROM rows n WHERE n.epoch > o.epoch ORDER BY n.epoch, n.id LIMIT 1)
					LIMIT 1) IS NULL)
		SELECT `+columnsOfRow+` FROM run_log
		WHERE workspace_id = @workspace AND session_id = @session AND id >= (SELECT id FROM start)
		ORDER BY id LIMIT @limit`, pg.Args{"run": run, "number": number, "chunk": maxChunk})
	if err == nil && len(p.res.GetEvents()) == 0 {
		return fault.New(fault.NotFound, "event %d of run %d is not available: it is too old, or not copied yet", number, run)
	}
	return err
}

// resume fills the page from the end of the previous one.
func (p *page) resume(ctx context.Context, token string) error {
	from, ok := parseToken(token)
	if !ok {
		return fault.New(fault.Invalid, "page_token is not valid: send next_page_token unchanged")
	}
	p.order[from.run] = &from.progress
	return p.read(ctx, from, rowsFrom, nil)
}

const rowsFrom = `
	SELECT ` + columnsOfRow + ` FROM run_log
	WHERE workspace_id = @workspace AND session_id = @session AND id >= @from
	ORDER BY id LIMIT @limit`

// read fills the page with the rows of a statement and those after them.
func (p *page) read(ctx context.Context, from cursor, sql string, args pg.Args) error {
	next := from.row
	for {
		var n int
		var last row
		verdict := pass
		err := p.query(ctx, sql, args, next, func(rows pgx.Rows) error {
			for n, verdict = 0, pass; verdict != stop && verdict != unknown && rows.Next(); n++ {
				err := rows.Scan(&last.ID, &last.RunOrdinal, &last.Epoch, &last.FirstNumber, &last.LastNumber, &last.Ends, &last.StreamCreated, &last.Events)
				if err != nil {
					return err
				}
				if p.order[from.run] == nil {
					p.order[from.run] = &progress{epoch: last.Epoch, number: from.number}
				}
				if verdict, err = p.addRow(&last); err != nil {
					return err
				}
			}
			return rows.Err()
		})
		switch {
		case err != nil:
			return err
		case verdict == unknown:
			next = last.ID
			if err := p.readProgress(ctx, &last); err != nil {
				return err
			}
		case verdict == stop || n < rowsAtOnce:
			return nil
		default:
			next = last.ID + 1
		}
		sql, args = rowsFrom, nil
	}
}

// query reads rows in one round trip.
func (p *page) query(ctx context.Context, sql string, args pg.Args, from int64, each func(pgx.Rows) error) error {
	all := pg.Args{"workspace": p.ws, "session": p.session, "from": from, "limit": rowsAtOnce}
	maps.Copy(all, args)
	b := &pgx.Batch{}
	b.Queue(sql, all).Query(each)
	return p.db.ReadInWorkspace(ctx, p.ws, b)
}

// addRow adds a row's events if they come next and there is room. It returns stop if the page
// ends before the row.
func (p *page) addRow(r *row) (verdict, error) {
	v, skip := p.order.admit(r)
	if v != pass {
		return v, nil
	}
	if n := len(p.res.Events); n > 0 && (n+int(r.LastNumber-r.FirstNumber)+1-skip > maxPage || p.size+len(r.Events) > maxPageBytes) {
		p.res.NextPageToken = cursor{row: r.ID, run: r.RunOrdinal, progress: p.order.before(r)}.token()
		return stop, nil
	}
	var events agentv1.ListEventsResponse
	if err := proto.Unmarshal(r.Events, &events); err != nil {
		return stop, fmt.Errorf("row %d of the run log: %w", r.ID, err)
	}
	if got, want := int64(len(events.GetEvents())), r.LastNumber-r.FirstNumber+1; got != want {
		return stop, fmt.Errorf("row %d of the run log has %d events, want %d", r.ID, got, want)
	}
	created := timestamppb.New(time.Unix(0, r.StreamCreated))
	for _, e := range events.GetEvents()[skip:] {
		e.StreamCreated = created
		p.res.Events = append(p.res.Events, e)
	}
	p.size += len(r.Events)
	p.order.record(r)
	return pass, nil
}

// readProgress reads the progress of a row's run before the row.
func (p *page) readProgress(ctx context.Context, before *row) error {
	known := &progress{number: -1}
	err := p.query(ctx, `
		WITH rows AS (
			SELECT epoch, last_number, ends FROM run_log
			WHERE workspace_id = @workspace AND session_id = @session AND run_ordinal = @run AND id < @from)
		SELECT epoch, max(last_number), bool_or(ends) FROM rows
		WHERE epoch = (SELECT max(epoch) FROM rows) GROUP BY epoch`,
		pg.Args{"run": before.RunOrdinal}, before.ID, func(rows pgx.Rows) error {
			for rows.Next() {
				if err := rows.Scan(&known.epoch, &known.number, &known.ended); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	p.order[before.RunOrdinal] = known
	return err
}
