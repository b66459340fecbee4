// Package branch makes the messages of a session a tree, of which one branch is current.
//
// # The tree
//
// A message has its position from when it joins the conversation: 1, 2, 3 and so on, without
// holes. It follows the message at the position before it, its parent, unless a branch begins with
// it. A row of branches has the position of a branch's first message, and its path: the positions
// of all messages before that, as ranges. Messages with the same parent are siblings, such as an
// edited message and the original, or two answers to one message.
//
// The newest row is the current branch. The conversation is what its path contains and everything
// from its first message on; without a row it is all messages. So whoever adds a message only takes
// the next position, as before there were branches, and need not know the tree. That includes
// runners of the previous version.
//
// # States
//
//	the newest row   its first message              next state, and when
//	none             1                              open, by a switch
//	open             has yet to join                open, by another switch, which replaces it;
//	                                                none, or grown again, by a switch back to the newest message;
//	                                                grown, when the next message joins
//	grown            has joined                     open, by a switch, as another row
//
// A grown branch never changes. A path thus stays valid for ever, and the messages up to one of its
// positions are the same in every path that contains it. Summaries depend on that: one counts for
// each branch that contains the last message that it stands for.
//
// # Switching
//
// A switch needs the session's lock and no run that is queued or active, since the messages of such a
// run would join the wrong branch; otherwise it is refused. An edited message and a repeated answer
// switch, and create their run, in one transaction. A crash before its commit changes nothing. After
// it, the next message joins the new branch whoever adds it, and the outbox publishes the event
// that tells viewers to read the session again (BranchSwitched). No run starts before that is in
// the log (run.ErrTooEarly).
//
// # What branches share
//
// The title, the settings, budgets, approval rules and idempotency keys are the session's. The
// bound of a session's size counts all branches; what a runner reads, and what it sends to the
// model, is one branch.
//
// The effects of tools are not undone: documents stay as they are. The model is told which calls
// other branches, and the sessions that this is a fork of, have made (Elsewhere). It is told names of
// tools and ids of documents, and nothing that was read or written. The taint is that of the
// branch's own messages: what another branch has read reaches this one only through a tool, such as
// doc_read, whose result taints it as well.
//
// # Forks
//
// A fork copies the messages up to one of them into a new session, in one transaction, without
// branches. Their runs, and the events and calls of these, stay those of the original.
package branch

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// OnCurrent is true of messages of the session's current branch that have joined it. Its arguments
// are workspace and session.
const OnCurrent = `position <@ (SELECT current_path(@workspace, @session))`

// maxBranches bounds the branches of a session.
const maxBranches = 1000

// Ref names a message of a session: by its id, by the run whose answer begins with it, or by its
// idempotency key. The zero Ref is the last message of the current branch.
type Ref struct {
	Message id.Message
	Run     id.Run
	Key     string
	// Current selects a sibling on the current branch, if there is one, in place of a message on
	// another branch.
	Current bool
	// Content is that of an edit, which Target.Same compares.
	Content string
}

func (r *Ref) where() (sql string, value any) {
	switch {
	case !id.IsZero(r.Message):
		return `SELECT position FROM messages WHERE workspace_id = @workspace AND session_id = @session AND id = @ref`, r.Message
	case !id.IsZero(r.Run):
		return `SELECT coalesce(
			(SELECT min(position) FROM messages WHERE workspace_id = @workspace AND session_id = @session AND run_id = @ref AND role <> 'user'),
			(SELECT m.position FROM runs r JOIN messages m ON m.id = r.user_message_id WHERE r.workspace_id = @workspace AND r.session_id = @session AND r.id = @ref))`, r.Run
	case r.Key != "":
		return `SELECT position FROM messages WHERE workspace_id = @workspace AND session_id = @session AND idempotency_key = @ref`, r.Key
	}
	return `SELECT max(position) FROM messages WHERE workspace_id = @workspace AND session_id = @session AND @ref = '' AND ` + OnCurrent, ""
}

// Target is a message and its place in the tree.
type Target struct {
	ID       id.Message
	Position int64
	Role     string
	Run      id.Run `db:"run_id"`
	// Parent is the position of the message before it, 0 for none.
	Parent int64
	// Asked is the newest message of the user up to this one, itself included; nil if there is none.
	Asked   *id.Message
	AskedAt *int64
	// Same reports whether it has the Ref's content, and a run of the session that answers it.
	Same bool
	// Below is the position of the newest message of the branches that contain it.
	Below int64
	// Leaf is the position of the last message of the current branch, and Branches how many rows
	// the session has.
	Leaf, Branches int64
}

// QueueTarget looks a message up, after the batch has locked the session. into stays empty if there
// is none, or if it has not joined the conversation.
func QueueTarget(b *pgx.Batch, ws id.Workspace, session id.Session, r Ref, into *[]Target) {
	where, value := r.where()
	b.Queue(`
		WITH current AS MATERIALIZED (
			SELECT current_path(@workspace, @session) AS path
		), named AS MATERIALIZED (
			SELECT n.position, parent_of(@workspace, @session, n.position) AS parent FROM (`+where+`) n (position)
		), chosen AS MATERIALIZED (
			SELECT CASE WHEN @current AND NOT n.position <@ c.path AND (n.parent = 0 OR n.parent <@ c.path) THEN coalesce((
				SELECT min(m.position) FROM messages m
				WHERE m.workspace_id = @workspace AND m.session_id = @session AND m.position <@ c.path AND m.position > n.parent), n.position)
			ELSE n.position END AS position
			FROM named n, current c
		), branch AS (
			SELECT x.first, x.path, lead(x.first, 1, s.next_position) OVER (ORDER BY x.first) - 1 AS last
			FROM sessions s CROSS JOIN LATERAL (
				SELECT 1::bigint AS first, '{}'::int8multirange AS path
				UNION ALL SELECT first, path FROM branches WHERE workspace_id = @workspace AND session_id = @session) x
			WHERE s.workspace_id = @workspace AND s.id = @session
		)
		SELECT m.id, m.position, m.role, m.run_id,
			m.content::text = @content AND EXISTS (SELECT FROM runs r WHERE r.workspace_id = @workspace AND r.session_id = @session AND r.user_message_id = m.id) AS same,
			parent_of(@workspace, @session, m.position) AS parent, a.id AS asked, a.position AS asked_at,
			(SELECT max(last) FROM branch WHERE last >= first AND (m.position <@ path OR m.position BETWEEN first AND last)) AS below,
			(SELECT coalesce(max(l.position), 0) FROM messages l, current c WHERE l.workspace_id = @workspace AND l.session_id = @session AND l.position <@ c.path) AS leaf,
			(SELECT count(*) FROM branches WHERE workspace_id = @workspace AND session_id = @session) AS branches
		FROM chosen JOIN messages m ON m.workspace_id = @workspace AND m.session_id = @session AND m.position = chosen.position
			LEFT JOIN LATERAL (
				SELECT u.id, u.position FROM messages u
				WHERE u.workspace_id = @workspace AND u.session_id = @session AND u.role = 'user' AND u.position <@ (SELECT path_to(@workspace, @session, chosen.position))
				ORDER BY u.position DESC LIMIT 1) a ON true`,
		pg.Args{"workspace": ws, "session": session, "ref": value, "current": r.Current, "content": r.Content}).Query(pg.Collect(into))
}

// Switch makes another branch of a session the current one: the next message follows that at
// Leaf, 0 for none.
type Switch struct {
	Workspace id.Workspace
	Session   id.Session
	By        id.Member
	Leaf      int64
	// Ordinal is the session's next one, which the event gets.
	Ordinal int64
	// Subject is the session's run log.
	Subject string
}

// Queue adds the switch to a batch. The session is locked, no run of it is queued or active, and
// the target is of that state.
func (s Switch) Queue(ctx context.Context, b *pgx.Batch, t *Target) error {
	if t.Branches >= maxBranches {
		return fault.Coded(fault.TooLarge, "BRANCHES_FULL", "this session has %d branches, and more are not possible: fork it", t.Branches)
	}
	args := pg.Args{"workspace": s.Workspace, "session": s.Session, "leaf": s.Leaf}
	b.Queue(`
		DELETE FROM branches b USING sessions s
		WHERE s.workspace_id = @workspace AND s.id = @session AND b.workspace_id = @workspace AND b.session_id = s.id AND b.first = s.next_position`, args)
	b.Queue(`
		INSERT INTO branches (session_id, workspace_id, first, path)
		SELECT id, workspace_id, next_position, path_to(@workspace, @session, @leaf) FROM sessions
		WHERE workspace_id = @workspace AND id = @session AND next_position - 1 <> @leaf`, args)
	b.Queue(`
		UPDATE sessions SET switched = next_ordinal, next_ordinal = next_ordinal + 1, updated_at = clock_timestamp()
		WHERE workspace_id = @workspace AND id = @session`, args)
	return outbox.Queue(ctx, b, outbox.Message{
		Workspace: s.Workspace, Subject: s.Subject, ID: fmt.Sprintf("%s:%d", s.Session, s.Ordinal),
		Body: &runv1.Event{
			RunOrdinal: s.Ordinal, Time: timestamppb.Now(), Body: &runv1.Event_BranchSwitched{BranchSwitched: &runv1.BranchSwitched{SwitchedBy: s.By.String()}},
		},
	})
}

// Child is a message at which branches part: it begins one, or follows the same message as one that does.
type Child struct {
	ID       id.Message
	Position int64
	Parent   int64
}

// Children returns the messages at which a session's branches part, by their position: those that
// have siblings, and those that will have one when the open branch has grown.
func Children(ctx context.Context, tx pgx.Tx, ws id.Workspace, session id.Session) ([]Child, error) {
	rows, err := tx.Query(ctx, `
		WITH beginning AS (
			SELECT first AS position, coalesce(upper(path) - 1, 0) AS parent FROM branches WHERE workspace_id = @workspace AND session_id = @session
		), child AS (
			SELECT position, parent FROM beginning
			UNION SELECT parent + 1, parent FROM beginning WHERE parent + 1 NOT IN (SELECT position FROM beginning)
		)
		SELECT m.id, m.position, c.parent
		FROM child c JOIN messages m ON m.workspace_id = @workspace AND m.session_id = @session AND m.position = c.position
		ORDER BY m.position`, pg.Args{"workspace": ws, "session": session})
	if err != nil {
		return nil, fmt.Errorf("read where branches part: %w", err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByName[Child])
	if err != nil {
		return nil, fmt.Errorf("read where branches part: %w", err)
	}
	return out, nil
}

// Call is a call that another branch of a session has made, or a session that it is a fork of.
type Call struct {
	Tool string `json:"tool"`
	// Document is the id of the document that it is about, or whatever the model gave for one.
	Document string `json:"document"`
}

// Elsewhere selects, of a session s, the calls with an effect that are not on its current branch, the
// newest first, as JSON; null if there are none. A session may be a fork of a fork and so on: each
// response that OpenAI's clients continue may be one. It looks back over 100 forks. Each session is
// read from its newest run until there are enough calls, and the branch's steps are read once: NOT IN
// hashes them, while the planner joins NOT EXISTS in ways that take seconds.
const Elsewhere = `(SELECT jsonb_agg(jsonb_build_object('tool', e.tool_name, 'document', e.document)) FROM (
	WITH RECURSIVE origin AS (
		SELECT s.id, s.forked_from, 0 AS forks
		WHERE s.forked_from IS NOT NULL OR EXISTS (SELECT FROM branches b WHERE b.workspace_id = s.workspace_id AND b.session_id = s.id)
		UNION ALL SELECT p.id, p.forked_from, o.forks + 1 FROM origin o JOIN sessions p ON p.id = o.forked_from WHERE p.workspace_id = s.workspace_id AND o.forks < 100
	), here AS MATERIALIZED (
		SELECT m.run_id, m.step_index FROM messages m WHERE m.workspace_id = s.workspace_id AND m.session_id = s.id
			AND m.step_index IS NOT NULL AND m.position <@ (SELECT current_path(s.workspace_id, s.id))
	)
	SELECT n.tool_name, CASE n.effect WHEN 'same_tx' THEN coalesce(n.args ->> 'id', n.result ->> 'id', '') ELSE '' END AS document
	FROM origin o CROSS JOIN LATERAL (
		SELECT c.tool_name, c.effect, c.args, c.result, c.done_at FROM runs r JOIN tool_calls c ON c.run_id = r.id
		WHERE r.workspace_id = s.workspace_id AND r.session_id = o.id
			AND c.effect <> 'pure' AND c.phase = 'done' AND c.state IN ('ok', 'unknown')
			AND (c.run_id, c.step_index) NOT IN (SELECT run_id, step_index FROM here)
		ORDER BY r.ordinal DESC, c.step_index DESC, c.call_index DESC LIMIT 100) n
	ORDER BY n.done_at DESC LIMIT 100) e)`
