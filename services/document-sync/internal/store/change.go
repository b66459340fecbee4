package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

// CodeKeyReused is the code of the fault for a key that stands for another request.
const CodeKeyReused = "OPERATION_KEY_REUSED"

// Operations, as history shows them. Delete leaves no history.
const (
	Create  = "create"
	Edit    = "edit"
	Append  = "append"
	Replace = "replace"
	Restore = "restore"
	Rename  = "rename"
	Delete  = "delete"
)

// Operation is one request to change a document.
type Operation struct {
	Workspace id.Workspace
	Document  id.Document // for Create, that of the document to be
	Author    Author
	Name      string       // one of the constants
	Key       id.Operation // zero: the request need not be repeatable
	// Request is what was asked, in a fixed order; with the same key it must be the same.
	Request []string
}

// Next is what becomes of a document.
type Next struct {
	Name         string
	Content      string
	Deleted      bool
	Replacements int // for the answer to Edit
}

// Answer is what the caller of an operation is told.
type Answer struct {
	Document     *documentv1.Document
	Replacements int32
	// Changed is set when this very call changed the document; not when its key
	// was seen before, nor when there was nothing to change.
	Changed bool
}

// Change runs op. next is called at most once per attempt with the locked
// document, content included (for Create with none), and its fault is the
// answer; it must only compute. It is not called when op.Key was answered before.
func (s *Store) Change(ctx context.Context, op Operation, next func(ctx context.Context, d Document, h History) (Next, error)) (Answer, error) {
	for attempt := 1; ; attempt++ {
		answer, err := s.change(ctx, op, next)
		// Two transactions had the same key for different documents, or for Create,
		// where no row makes them queue: the second one finds the first one's record.
		if pg.IsUniqueViolation(err, "operations_pkey") && attempt < 3 {
			continue
		}
		if err != nil {
			return Answer{}, fmt.Errorf("%s document %s: %w", op.Name, op.Document, err)
		}
		return answer, nil
	}
}

// History gives next access to old versions within the transaction.
type History struct {
	tx pgx.Tx
	op Operation
}

// Content returns the content of an old version, or a NotFound fault.
func (h History) Content(ctx context.Context, version int64) (string, error) {
	var content string
	err := h.tx.QueryRow(ctx, `select content from versions where workspace_id = $1 and document_id = $2 and version = $3`,
		h.op.Workspace, h.op.Document, version).Scan(&content)
	if pg.NoRows(err) {
		return "", fault.New(fault.NotFound, "document %s has no version %d", h.op.Document, version)
	}
	if err != nil {
		return "", fmt.Errorf("read version %d: %w", version, err)
	}
	return content, nil
}

func (s *Store) change(ctx context.Context, op Operation, next func(context.Context, Document, History) (Next, error)) (Answer, error) {
	var answer Answer
	request := op.digest()
	err := s.db.InWorkspace(ctx, op.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		cur, found, past, now, err := begin(ctx, tx, op)
		if err != nil {
			return err
		}
		if past != nil {
			if !bytes.Equal(past.request, request) {
				return fault.Coded(fault.Conflict, CodeKeyReused, "operation_key: this key was used for another request; take a new one")
			}
			answer, err = past.answer()
			return err
		}
		if !found && op.Name != Create {
			return notFound(op.Document)
		}
		n, err := next(ctx, cur, History{tx, op})
		if err != nil {
			return err
		}
		after := cur
		after.apply(op, n, now)
		answer, err = s.write(ctx, tx, op, cur, after, n.Replacements, request)
		return err
	})
	return answer, err
}

// past is the record of an operation that was answered before.
type past struct{ request, response []byte }

// The record of every operation is an EditResponse: it has all that any answer has.
func (p *past) answer() (Answer, error) {
	var r documentv1.EditResponse
	if err := proto.Unmarshal(p.response, &r); err != nil {
		return Answer{}, fmt.Errorf("read the recorded answer: %w", err)
	}
	return Answer{Document: r.GetDocument(), Replacements: r.GetReplacements()}, nil
}

// begin locks the document and then, with the view of a later statement, looks
// for the key: whoever waited for the lock sees what its holder recorded.
func begin(ctx context.Context, tx pgx.Tx, op Operation) (cur Document, found bool, before *past, now time.Time, err error) {
	b := &pgx.Batch{}
	if op.Name != Create {
		b.Queue(`select `+columns+`, content, versions, version_bytes from documents
			where workspace_id = $1 and id = $2 and deleted_at is null for update`, op.Workspace, op.Document).Query(func(rows pgx.Rows) error {
			var content string
			var n int
			var size int64
			all, err := pgx.CollectRows(rows, row(&content, &n, &size))
			if len(all) == 1 {
				cur, found = all[0], true
				cur.Content, cur.versions, cur.versionBytes = content, n, size
			}
			return err
		})
	}
	key := uuid.NullUUID{UUID: op.Key.UUID, Valid: !id.IsZero(op.Key)}
	b.Queue(`select clock_timestamp(), o.request, o.response
		from (values (1)) v left join operations o on o.workspace_id = $1 and o.key = $2`, op.Workspace, key).QueryRow(func(r pgx.Row) error {
		var p past
		err := r.Scan(&now, &p.request, &p.response)
		if p.request != nil {
			before = &p
		}
		return err
	})
	err = tx.SendBatch(ctx, b).Close()
	return cur, found, before, now, err
}

// apply makes d the document after n.
func (d *Document) apply(op Operation, n Next, now time.Time) {
	if op.Name == Create {
		*d = Document{Workspace: op.Workspace, ID: op.Document, CreatedBy: op.Author.Member, CreatedAt: now}
	} else if d.Name == n.Name && d.Content == n.Content && !n.Deleted {
		return
	}
	// The order of changes is the order of the list; a clock that was set back must not break it.
	if earliest := d.UpdatedAt.Add(time.Microsecond); now.Before(earliest) {
		now = earliest
	}
	d.Name, d.Content, d.Deleted = n.Name, n.Content, n.Deleted
	d.Author, d.UpdatedAt = op.Author, now
	d.Sequence++
}

// write puts down what changed, if anything, and the operation.
func (s *Store) write(ctx context.Context, tx pgx.Tx, op Operation, before, after Document, replacements int, request []byte) (Answer, error) {
	answer := Answer{Document: after.Proto(), Replacements: int32(min(replacements, 1<<30)), Changed: after.Sequence != before.Sequence}
	b := &pgx.Batch{}
	switch {
	case !answer.Changed:
	case op.Name == Create:
		s.queueCreate(b, after)
	case after.Deleted:
		queueDelete(b, after)
	default:
		s.queueUpdate(b, op, after)
	}
	if !id.IsZero(op.Key) {
		response, err := proto.Marshal(&documentv1.EditResponse{Document: answer.Document, Replacements: answer.Replacements})
		if err != nil {
			return Answer{}, fmt.Errorf("write the answer down: %w", err)
		}
		b.Queue(`insert into operations (workspace_id, key, request, response, created_at) values ($1, $2, $3, $4, now())`,
			op.Workspace, op.Key, request, response)
	}
	if b.Len() == 0 {
		return answer, nil
	}
	return answer, tx.SendBatch(ctx, b).Close()
}

func (d Document) args() pg.Args {
	return pg.Args{
		"ws": d.Workspace, "id": d.ID, "name": d.Name, "content": d.Content, "sequence": d.Sequence,
		"created_by": d.CreatedBy, "created_at": d.CreatedAt,
		"by": d.Author.Member, "run": uuid.NullUUID{UUID: d.Author.Run.UUID, Valid: !id.IsZero(d.Author.Run)}, "at": d.UpdatedAt,
		"bytes": len(d.Content),
	}
}

func (s *Store) queueCreate(b *pgx.Batch, d Document) {
	args := d.args()
	b.Queue(`insert into documents (workspace_id, id, name, content, sequence, created_by, created_at, updated_by, updated_run, updated_at, versions, version_bytes)
		values (@ws, @id, @name, @content, @sequence, @created_by, @created_at, @by, @run, @at, 1, @bytes)`, args)
	queueVersion(b, Create, args)
}

func queueVersion(b *pgx.Batch, operation string, args pg.Args) {
	args["operation"] = operation
	b.Queue(`insert into versions (workspace_id, document_id, version, member_id, run_id, operation, name, content, bytes, created_at)
		values (@ws, @id, @sequence, @by, @run, @operation, @name, @content, @bytes, @at)`, args)
}

func (s *Store) queueUpdate(b *pgx.Batch, op Operation, d Document) {
	args := d.args()
	b.Queue(`update documents set name = @name, content = @content, sequence = @sequence, updated_by = @by, updated_run = @run, updated_at = @at,
		versions = versions + 1, version_bytes = version_bytes + @bytes
		where workspace_id = @ws and id = @id`, args)
	queueVersion(b, op.Name, args)
	if d.versions+1 > s.limits.Versions || d.versionBytes+int64(len(d.Content)) > s.limits.VersionBytes {
		queueThin(b, d)
	}
}

// queueThin removes every second version of the older half, but never the first:
// what is long ago is remembered coarsely. Repeated, it keeps a history within
// any limit, as long as that holds three versions.
func queueThin(b *pgx.Batch, d Document) {
	b.Queue(`with ranked as (
			select version, row_number() over (order by version) as n, count(*) over () as total
			from versions where workspace_id = $1 and document_id = $2
		), thinned as (
			delete from versions where workspace_id = $1 and document_id = $2
				and version in (select version from ranked where n <= total / 2 and n % 2 = 0)
			returning bytes
		)
		update documents set versions = versions - (select count(*) from thinned),
			version_bytes = version_bytes - (select coalesce(sum(bytes), 0) from thinned)
		where workspace_id = $1 and id = $2`, d.Workspace, d.ID)
}

func queueDelete(b *pgx.Batch, d Document) {
	args := d.args()
	b.Queue(`update documents set content = '', sequence = @sequence, updated_by = @by, updated_run = @run, updated_at = @at,
		deleted_at = @at, versions = 0, version_bytes = 0 where workspace_id = @ws and id = @id`, args)
	b.Queue(`delete from versions where workspace_id = @ws and document_id = @id`, args)
}

// digest identifies what was asked. Each part is preceded by its length, so that
// no two requests look the same.
func (op Operation) digest() []byte {
	h := sha256.New()
	add := func(s string) {
		h.Write([]byte(strconv.Itoa(len(s)) + ":")) // a hash never refuses
		h.Write([]byte(s))
	}
	add(op.Name)
	if op.Name != Create {
		add(op.Document.String())
	}
	for _, s := range op.Request {
		add(s)
	}
	return h.Sum(nil)
}
