package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

// CodeKeyReused is the code of the fault for a key that was used for another request.
const CodeKeyReused = "IDEMPOTENCY_KEY_REUSED"

// Operations, as recorded in the history. Delete leaves no history, and Write is a stretch of
// live editing.
const (
	Create  = "create"
	Edit    = "edit"
	Append  = "append"
	Replace = "replace"
	Restore = "restore"
	Undo    = "undo"
	Rename  = "rename"
	Delete  = "delete"
	Write   = "write"
)

// Operation is a request to change a document.
type Operation struct {
	Workspace id.Workspace
	Document  id.Document // for Create, the new id
	Author    Author
	Name      string       // one of the constants; Create, Rename and Delete set it themselves
	Key       id.Operation // zero if the request need not be repeatable
	// Request identifies the request in a fixed order; it must be equal for the same key.
	Request []string
	// Undoes is the version that an Undo reverts. If it was undone before, the result is a
	// Conflict fault with CodeUndone.
	Undoes int64
	// IfSequence is the required sequence of the document, 0 for any. Another one is a
	// Conflict fault with fault.CodePrecondition.
	IfSequence int64
	// Warnings, which may be nil, are added to the answer. They are read, and recorded with
	// it, when the operation is committed.
	Warnings *[]*documentv1.Warning
}

// Change is the result of an operation on a document's state.
type Change struct {
	Update       []byte // v1; empty if nothing changed
	Replacements int    // for the answer to Edit
	Name         string // the new name; empty: unchanged
	// Before (v2) and BeforeMarkdown are the document without Update. They become a version
	// if there were live edits since the last one, so that these are not attributed to the
	// operation. Without Before there is none.
	Before         []byte
	BeforeMarkdown string
	// State (v2) and Markdown are the document with Update and everything up to the sequence
	// Since. If more was committed meanwhile, they still become the version, but Markdown
	// does not become the current content.
	State    []byte
	Markdown string
	Since    int64
}

// Answer is the result of an operation for its caller.
type Answer struct {
	Document     *documentv1.Document // at the sequence of the operation's update, if there was one
	Replacements int32
	// Changed means that this call changed the document: its key was new, and there was
	// something to change.
	Changed bool
	// Repeated means that the key was used before, and this is the recorded answer.
	Repeated bool
	// Exact means that the document at its sequence equals the Change: nothing else was
	// committed after Change.Since.
	Exact bool
	// Warnings are those of the operation.
	Warnings []*documentv1.Warning
}

// Create creates a document with a name and the State, Vector, Markdown and Text of first. It has
// sequence 1 and no updates outside State.
func (s *Store) Create(ctx context.Context, op Operation, name string, first Snapshot) (Answer, error) {
	op.Name = Create
	return s.operate(ctx, op, func(b *pgx.Batch, h *lockedDocument) (int, error) {
		if len(first.State) > s.limits.StateBytes {
			return 0, s.tooLarge(len(first.State))
		}
		h.Document = Document{
			Workspace: op.Workspace, ID: op.Document, Name: name, Sequence: 1,
			CreatedBy: op.Author.Member, CreatedAt: h.now, Author: op.Author, UpdatedAt: h.now,
		}
		// A trigger creates the head.
		b.Queue(`
			WITH document AS (
				INSERT INTO documents (workspace_id, id, name, content, content_sequence, seed_before, sequence,
					created_by, created_at, updated_by, updated_run, updated_at, versions, version_bytes)
				VALUES (@ws, @id, @name, @markdown, 1, NULL, 1, @by, @at, @by, @run, @at, 1, @bytes)
			), version AS (
				INSERT INTO versions (workspace_id, document_id, version, member_id, run_id, operation, name, content, state, bytes, created_at)
				VALUES (@ws, @id, 1, @by, @run, @operation, @name, @markdown, @state, @bytes, @at)
			)
			INSERT INTO snapshots (workspace_id, document_id, sequence, state, vector, text, created_at)
			VALUES (@ws, @id, 1, @state, @vector, @text, @at)`,
			pg.Args{
				"ws": op.Workspace, "id": op.Document, "name": name, "by": op.Author.Member, "run": op.Author.run(), "at": h.now,
				"operation": Create, "markdown": first.Markdown, "state": first.State, "vector": first.Vector, "text": first.Text,
				"bytes": len(first.Markdown) + len(first.State),
			})
		return 0, nil
	})
}

// Operate runs an operation on a document's state. change gets the document, whose sequence is
// locked until the commit. It is called at most once per attempt, unless op.Key was answered
// before, and must only compute; its fault is the answer. The key of another request is a
// Conflict fault with CodeKeyReused.
func (s *Store) Operate(ctx context.Context, op Operation, change func(d Document) (Change, error)) (Answer, error) {
	return s.operate(ctx, op, func(b *pgx.Batch, h *lockedDocument) (int, error) {
		c, err := change(h.Document)
		if err != nil {
			return 0, err
		}
		h.exact = c.Since == h.Sequence
		if len(c.Update) == 0 {
			s.queueRename(b, h, op.Author, cmp.Or(c.Name, h.Name))
			return c.Replacements, nil
		}
		if n := max(len(c.Update), len(c.State)); n > s.limits.StateBytes {
			return 0, s.tooLarge(n)
		}
		if c.Before != nil {
			s.queueLive(b, h, live{upTo: c.Since, state: c.Before, markdown: &c.BeforeMarkdown})
		}
		h.advance(op.Author)
		h.Name = cmp.Or(c.Name, h.Name)
		h.derived = 0
		if h.exact {
			h.derived = h.Sequence
		}
		queueUpdate(b, h, op.Author, c.Update)
		s.queueWrite(b, h, entry{operation: op.Name, change: c.Update, state: c.State, markdown: &c.Markdown, undoes: op.Undoes})
		if h.undoTarget != nil {
			return 0, h.undoTarget.queueUndoneBy(b, h)
		}
		return c.Replacements, nil
	})
}

// Rename renames a document.
func (s *Store) Rename(ctx context.Context, op Operation, name string) (Answer, error) {
	op.Name = Rename
	return s.operate(ctx, op, func(b *pgx.Batch, h *lockedDocument) (int, error) {
		s.queueRename(b, h, op.Author, name)
		return 0, nil
	})
}

// queueRename renames h, if the name differs, and keeps its content.
func (s *Store) queueRename(b *pgx.Batch, h *lockedDocument, author Author, name string) {
	if h.Name == name {
		return
	}
	current := h.derived == h.Sequence
	h.advance(author)
	h.Name = name
	if current {
		h.derived = h.Sequence
	}
	queueUpdate(b, h, author, noChange)
	s.queueWrite(b, h, entry{operation: Rename})
}

// Delete replaces a document with a tombstone.
func (s *Store) Delete(ctx context.Context, op Operation) (Answer, error) {
	op.Name = Delete
	return s.operate(ctx, op, func(b *pgx.Batch, h *lockedDocument) (int, error) {
		h.advance(op.Author)
		h.Deleted = true
		// The head, the snapshot and the updates are deleted by triggers and foreign keys.
		b.Queue(`
			UPDATE documents SET content = '', content_sequence = 0, seed_before = NULL, writes = writes + 1, sequence = @sequence,
				updated_by = @by, updated_run = @run, updated_at = @at, deleted_at = @at, versions = 0, version_bytes = 0
			WHERE workspace_id = @ws AND id = @id`,
			pg.Args{
				"ws": op.Workspace, "id": op.Document, "sequence": h.Sequence,
				"by": op.Author.Member, "run": op.Author.run(), "at": h.UpdatedAt,
			})
		b.Queue(`DELETE FROM versions WHERE workspace_id = @ws AND document_id = @id`, Ref{op.Workspace, op.Document}.args())
		return 0, nil
	})
}

func (s *Store) tooLarge(n int) error {
	return fault.New(fault.TooLarge, "the document would take %d bytes; it may take at most %d: split it", n, s.limits.StateBytes)
}

// operate runs an operation. write queues its statements, advances the document and returns the
// number of replacements.
func (s *Store) operate(ctx context.Context, op Operation, write func(b *pgx.Batch, h *lockedDocument) (int, error)) (Answer, error) {
	for attempt := 1; ; attempt++ {
		answer, err := s.operateOnce(ctx, op, write)
		// Two transactions used the same key for different documents, or for Create, where no row
		// serializes them: the second one finds the record of the first.
		if pg.IsUniqueViolation(err, "operations_pkey") && attempt < 3 {
			continue
		}
		if err != nil {
			return Answer{}, fmt.Errorf("%s document %s: %w", op.Name, op.Document, err)
		}
		return answer, nil
	}
}

func (s *Store) operateOnce(ctx context.Context, op Operation, write func(b *pgx.Batch, h *lockedDocument) (int, error)) (answer Answer, err error) {
	var h lockedDocument
	var past record
	reads := &pgx.Batch{}
	if op.Name != Create {
		queueLock(reads, Ref{op.Workspace, op.Document}, &h)
	}
	if op.Undoes != 0 {
		h.undoTarget = &undoTarget{version: op.Undoes}
		queueUndone(reads, Ref{op.Workspace, op.Document}, h.undoTarget)
	}
	// A statement after the one that waits for the lock sees the records of its previous holder.
	reads.Queue(`SELECT clock_timestamp(), o.request, o.response FROM (VALUES (1)) v LEFT JOIN operations o ON o.workspace_id = @ws AND o.key = @key`,
		pg.Args{"ws": op.Workspace, "key": op.key()}).QueryRow(func(r pgx.Row) error { return r.Scan(&h.now, &past.request, &past.response) })
	request := op.digest()
	err = s.db.ChangeInWorkspace(ctx, op.Workspace, reads, func(b *pgx.Batch) error {
		if past.request != nil {
			answer, err = past.answer(request)
			return err
		}
		if !h.exists && op.Name != Create {
			return notFound(op.Document)
		}
		if op.IfSequence != 0 && h.Sequence != op.IfSequence {
			return errStale(h.Sequence)
		}
		before := h.Sequence
		replacements, err := write(b, &h)
		if err != nil {
			return err
		}
		answer = Answer{Document: h.Proto(), Replacements: int32(min(replacements, 1<<30)), Changed: h.Sequence != before, Exact: h.exact}
		if op.Warnings != nil {
			answer.Warnings = *op.Warnings
		}
		return queueAnswer(b, op, answer, request)
	})
	return answer, err
}

// record is the record of an answered operation.
type record struct{ request, response []byte }

// answer returns the recorded answer if the request is the same. All answers are recorded as an
// EditResponse, which has the fields of all of them.
func (r record) answer(request []byte) (Answer, error) {
	if !bytes.Equal(r.request, request) {
		return Answer{}, fault.Coded(fault.Conflict, CodeKeyReused, "operation_key: this key was used for another request; take a new one")
	}
	var past documentv1.EditResponse
	if err := proto.Unmarshal(r.response, &past); err != nil {
		return Answer{}, fmt.Errorf("decode the recorded answer: %w", err)
	}
	return Answer{Document: past.GetDocument(), Replacements: past.GetReplacements(), Exact: past.GetExact(), Warnings: past.GetWarnings(), Repeated: true}, nil
}

func queueAnswer(b *pgx.Batch, op Operation, a Answer, request []byte) error {
	if id.IsZero(op.Key) {
		return nil
	}
	response, err := proto.Marshal(&documentv1.EditResponse{Document: a.Document, Replacements: a.Replacements, Exact: a.Exact, Warnings: a.Warnings})
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	b.Queue(`INSERT INTO operations (workspace_id, key, request, response, created_at) VALUES (@ws, @key, @request, @response, now())`,
		pg.Args{"ws": op.Workspace, "key": op.Key, "request": request, "response": response})
	return nil
}

func (op Operation) key() uuid.NullUUID {
	return uuid.NullUUID{UUID: op.Key.UUID, Valid: !id.IsZero(op.Key)}
}

// digest identifies the request. Each part is preceded by its length, so that the encoding is
// unambiguous.
func (op Operation) digest() []byte {
	h := sha256.New()
	add := func(s string) {
		h.Write([]byte(strconv.Itoa(len(s)) + ":"))
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
