package conversation

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/branch"
	"signalbox.dev/services/agent-runner/internal/run"
)

// RefOf returns what names a message in a request; absent for the last message of the branch.
func RefOf(in *agentv1.MessageRef) (r branch.Ref, err error) {
	r.Current = in.GetCurrent()
	switch by := in.GetBy().(type) {
	case *agentv1.MessageRef_MessageId:
		r.Message, err = id.Parse[id.Message](by.MessageId)
	case *agentv1.MessageRef_RunId:
		r.Run, err = id.Parse[id.Run](by.RunId)
	case *agentv1.MessageRef_IdempotencyKey:
		r.Key = by.IdempotencyKey
		return r, checkKey(r.Key)
	}
	if err != nil {
		return r, noMessage()
	}
	return r, nil
}

func noMessage() error { return fault.New(fault.NotFound, "this session has no such message") }

func runActive() error {
	return fault.Coded(fault.Conflict, "RUN_ACTIVE", "a run of this session is active or queued: wait for its end or cancel it, then switch to another branch, edit a message or have it answered again")
}

// branches reports whether the message begins a branch.
func (n *NewMessage) branches() bool { return n.Edit != nil || n.Regenerate != nil }

// branch queues the switch to the branch that the message begins or continues.
func (s *Store) branch(ctx context.Context, b *pgx.Batch, a identity.Actor, n *NewMessage, found *submitState) error {
	if len(found.target) == 0 {
		return noMessage()
	}
	t := &found.target[0]
	leaf := t.Parent
	switch {
	case n.Edit != nil && t.Role != "user":
		return fault.New(fault.Invalid, "only a message of the user can be edited: have it answered again instead")
	case n.Regenerate != nil && t.Asked == nil:
		return fault.New(fault.Invalid, "there is no message of the user to answer again")
	case n.Regenerate != nil:
		leaf = *t.AskedAt
	}
	if leaf == t.Leaf {
		return nil
	}
	session := &found.session[0]
	session.NextOrdinal++ // the event has one
	return s.switchTo(n.Session, a, leaf, session.NextOrdinal-1).Queue(ctx, b, t)
}

// sameAgain returns the newest run that answers a message which an edit does not change.
func sameAgain(b *pgx.Batch, a identity.Actor, n NewMessage, message id.Message) *Submitted {
	out := &Submitted{Message: message}
	b.Queue(`
		SELECT `+run.Columns+` FROM runs WHERE workspace_id = @workspace AND session_id = @session AND user_message_id = @message
		ORDER BY ordinal DESC LIMIT 1`, pg.Args{"workspace": a.Workspace, "session": n.Session, "message": message}).
		Query(func(rows pgx.Rows) (err error) {
			out.Run, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[run.Run])
			return err
		})
	return out
}

func (s *Store) switchTo(session id.Session, a identity.Actor, leaf, ordinal int64) branch.Switch {
	_, subj := run.LogSubject(s.cfg.Partitions, a.Workspace, session)
	return branch.Switch{Workspace: a.Workspace, Session: session, By: a.Member, Leaf: leaf, Ordinal: ordinal, Subject: subj}
}

// Switch makes the branch with a message the current one, up to the newest message of the branches
// that contain it. Nothing changes if that is the last message already.
func (s *Store) Switch(ctx context.Context, a identity.Actor, session id.Session, message id.Message) error {
	var (
		ordinals []int64
		open     []run.Run
		target   []branch.Target
	)
	args := pg.Args{"workspace": a.Workspace, "session": session}
	reads := &pgx.Batch{}
	reads.Queue(`SELECT next_ordinal FROM sessions WHERE workspace_id = @workspace AND id = @session FOR UPDATE`, args).
		Query(func(rows pgx.Rows) (err error) { ordinals, err = pgx.CollectRows(rows, pgx.RowTo[int64]); return err })
	reads.Queue(selectOpen, args).Query(pg.Collect(&open))
	branch.QueueTarget(reads, a.Workspace, session, branch.Ref{Message: message}, &target)
	err := s.db.ChangeInWorkspace(ctx, a.Workspace, reads, func(b *pgx.Batch) error {
		switch {
		case len(ordinals) == 0:
			return notFound()
		case len(open) > 0:
			return runActive()
		case len(target) == 0:
			return noMessage()
		case target[0].Below == target[0].Leaf:
			return nil
		}
		return s.switchTo(session, a, target[0].Below, ordinals[0]).Queue(ctx, b, &target[0])
	})
	if err != nil {
		return fmt.Errorf("switch to another branch: %w", err)
	}
	s.out.Poke()
	return nil
}

// Fork is a request to copy a session.
type Fork struct {
	Session id.Session
	// Message is the last one to copy, with the whole answer that it belongs to. Zero: the last one
	// of the current branch.
	Message id.Message
	// Run stands for the last message of its answer.
	Run            id.Run
	Title          string // empty: the session's
	Archived       bool
	IdempotencyKey string
}

// Fork creates a session with a copy of the messages up to one, and with the same settings. If the
// member has used the idempotency key for the same request before, Fork returns that session.
func (s *Store) Fork(ctx context.Context, a identity.Actor, f Fork) (*Session, error) {
	if err := checkKey(f.IdempotencyKey); err != nil {
		return nil, err
	}
	if err := checkFields(&f.Title, nil, nil, nil, nil); err != nil {
		return nil, err
	}
	var hash []byte
	if f.IdempotencyKey != "" {
		of := f.Message.String()
		if !id.IsZero(f.Run) {
			of = f.Run.String()
		}
		sum := sha256.Sum256(fmt.Appendf(nil, "fork %s %s %s", f.Session, of, f.Title))
		hash = sum[:]
	}
	var out Session
	err := retryOn(ctx, "sessions_created_at", func() error {
		return s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) (err error) {
			out, err = fork(ctx, tx, a, f, hash)
			return err
		})
	})
	if pg.IsUniqueViolation(err, "sessions_idempotency") {
		return s.byKey(ctx, a, f.IdempotencyKey, hash)
	}
	if err != nil {
		return nil, fmt.Errorf("fork session: %w", err)
	}
	return &out, nil
}

func fork(ctx context.Context, tx pgx.Tx, a identity.Actor, f Fork, hash []byte) (Session, error) {
	if err := lock(ctx, tx, a.Workspace, f.Session); err != nil {
		return Session{}, err
	}
	var target []branch.Target
	b := &pgx.Batch{}
	branch.QueueTarget(b, a.Workspace, f.Session, branch.Ref{Message: f.Message, Run: f.Run}, &target)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return Session{}, fmt.Errorf("look the message up: %w", err)
	}
	args := pg.Args{
		"workspace": a.Workspace, "session": f.Session, "new": id.New[id.Session](), "member": a.Member, "title": f.Title,
		"key": orNil(f.IdempotencyKey), "hash": hash, "at": 0, "archived": f.Archived,
	}
	switch {
	case len(target) == 0 && (!id.IsZero(f.Message) || !id.IsZero(f.Run)):
		return Session{}, noMessage()
	case len(target) > 0:
		at, err := endOfAnswer(ctx, tx, a, f.Session, &target[0])
		if err != nil {
			return Session{}, err
		}
		args["at"] = at
	}
	rows, err := tx.Query(ctx, `
		WITH moment AS (
			SELECT greatest(clock_timestamp(), (
				SELECT max(created_at) + interval '1 microsecond' FROM sessions WHERE workspace_id = @workspace)) AS at)
		INSERT INTO sessions (id, workspace_id, created_by, title, title_source, model, provider, system_prompt, preset, tools,
			max_steps, client_tools, archived, idempotency_key, request_hash, forked_from, next_position, created_at, updated_at)
		SELECT @new, workspace_id, @member, CASE @title WHEN '' THEN title ELSE @title END, CASE @title WHEN '' THEN title_source ELSE 'person' END,
			model, provider, system_prompt, preset, tools, max_steps, client_tools, @archived, @key, @hash, id, (
				SELECT count(*) + 1 FROM messages WHERE workspace_id = @workspace AND session_id = @session AND position <@ (SELECT path_to(@workspace, @session, @at))),
			moment.at, moment.at
		FROM sessions, moment WHERE workspace_id = @workspace AND id = @session
		RETURNING `+columns, args)
	if err != nil {
		return Session{}, fmt.Errorf("copy the session: %w", err)
	}
	out, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Session])
	if err != nil {
		return Session{}, err //nolint:wrapcheck // the caller looks for unique violations, and wraps it
	}
	for _, sql := range []string{`
		INSERT INTO messages (id, workspace_id, session_id, run_id, position, step_index, role, content, raw_dialect, raw,
			interrupted, tokens_in, tokens_out, model, created_at)
		SELECT gen_random_uuid(), workspace_id, @new, run_id, row_number() OVER (ORDER BY position), step_index, role, content, raw_dialect, raw,
			interrupted, tokens_in, tokens_out, model, created_at
		FROM messages WHERE workspace_id = @workspace AND session_id = @session AND position <@ (SELECT path_to(@workspace, @session, @at))`, `
		INSERT INTO summaries (session_id, workspace_id, messages, known, run_id, nth, text, created_at)
		SELECT @new, workspace_id, messages, known, run_id, nth, text, created_at FROM summaries
		WHERE workspace_id = @workspace AND session_id = @session AND coalesce(position, messages) <@ (SELECT path_to(@workspace, @session, @at))
		ORDER BY messages DESC LIMIT 1`} {
		if _, err := tx.Exec(ctx, sql, args); err != nil {
			return Session{}, fmt.Errorf("copy the messages: %w", err)
		}
	}
	return out, nil
}

// endOfAnswer returns the position of the last message of the answer that a message belongs to,
// since a tool call cannot be without its result: the last one of its run or, of a history that was
// sent with the session, the last one before the next message of the user. A message of the user
// stands alone.
func endOfAnswer(ctx context.Context, tx pgx.Tx, a identity.Actor, session id.Session, t *branch.Target) (at int64, err error) {
	if t.Role == "user" {
		return t.Position, nil
	}
	var open bool
	err = tx.QueryRow(ctx, `
		SELECT max(position), EXISTS (SELECT FROM runs WHERE workspace_id = @workspace AND id = @run AND session_id = @session AND state IN ('running', 'waiting'))
		FROM messages m WHERE workspace_id = @workspace AND session_id = @session AND run_id = @run AND NOT EXISTS (
			SELECT FROM messages u WHERE @imported AND u.workspace_id = @workspace AND u.session_id = @session AND u.run_id = @run
				AND u.role = 'user' AND u.position > @at AND u.position <= m.position)`,
		pg.Args{"workspace": a.Workspace, "session": session, "run": t.Run, "at": t.Position, "imported": id.IsZero(t.Run)}).Scan(&at, &open)
	if err != nil {
		return 0, fmt.Errorf("look for the end of the answer: %w", err)
	}
	if open {
		return 0, fault.Coded(fault.Conflict, "RUN_ACTIVE", "the answer is not complete yet: wait for its end or cancel its run, or fork from an earlier message")
	}
	return at, nil
}

// addSiblings adds to the messages of a view their siblings, and the next message's.
func (v *View) addSiblings(ctx context.Context, tx pgx.Tx, page Page) error {
	all, err := branch.Children(ctx, tx, v.Session.Workspace, v.Session.ID)
	if err != nil || len(all) == 0 {
		return err
	}
	parents, children := map[id.Message]int64{}, map[int64][]id.Message{}
	for _, c := range all {
		parents[c.ID] = c.Parent
		children[c.Parent] = append(children[c.Parent], c.ID)
	}
	leaf := int64(0)
	for i := range v.Messages {
		m := &v.Messages[i]
		if parent, ok := parents[m.ID]; ok && len(children[parent]) > 1 {
			m.Siblings = children[parent]
		}
		if m.Position != nil {
			leaf = *m.Position
		}
	}
	if id.IsZero(page.Run) {
		v.NextSiblings = children[leaf]
	}
	return nil
}
