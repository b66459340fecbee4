package run

import (
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// PreClaim is the first claim of a run that is about to be made: the row is written as
// that of a claimed run, which is what Claim would make of it, and what a runner needs
// to know of the conversation is read while its session is being locked. Who makes the
// run calls QueueReads, then Ready, Fill and Made, in this order. The nil Taking takes
// nothing.
type PreClaim struct {
	args  pg.Args
	asked time.Time

	unpublished bool // events of the session wait in the outbox
	full        bool // the workspace has as many runs in work as it may
	before      []Message
	run         id.Run // that is made claimed
	claim       *Claim
}

// PreClaim begins the claim of a run that is about to be made.
func (s *Store) PreClaim(ws id.Workspace, session id.Session) *PreClaim {
	_, subj := LogSubject(s.cfg.Partitions, ws, session)
	return &PreClaim{
		args: pg.Args{
			"workspace": ws, "session": session, "subject": subj, "runner": s.runner, "lease": s.cfg.Lease, "wall": s.cfg.WallTime,
			"most": s.cfg.PerWorkspace,
		},
		asked: time.Now(),
	}
}

// QueueReads adds to a batch that has locked the session what has to be known. What
// waits in the outbox now may have been said when the run is made, and then it is
// refused without a need; nothing can be added to it meanwhile.
func (t *PreClaim) QueueReads(b *pgx.Batch) {
	if t == nil {
		return
	}
	queueWorkspaceLock(b, t.args)
	b.Queue(`SELECT `+countRunning+` >= @most`, t.args).QueryRow(func(row pgx.Row) error { return row.Scan(&t.full) })
	queueUnpublished(b, t.args, &t.unpublished)
	queueMessages(b, `NOT EXISTS (
		SELECT FROM runs o WHERE o.workspace_id = @workspace AND o.session_id = @session AND o.state IN ('queued', 'running', 'waiting'))`, t.args, &t.before)
}

// Ready reports whether a run whose turn it is can be made claimed.
func (t *PreClaim) Ready() bool { return t != nil && !t.unpublished && !t.full }

// SetArgs sets the arguments of the statement that makes the run: its state, epoch,
// runner, lease, wall time and the number of its last event.
func (t *PreClaim) SetArgs(r id.Run, args pg.Args) {
	t.run = r
	args["state"], args["epoch"], args["event"] = Running, 1, 1
	args["runner"], args["lease"], args["wall"] = t.args["runner"], t.args["lease"], t.args["wall"]
}

// Created is told of the run as it was written, of its message, and of the session: its
// settings, and how large its messages are with this one.
func (t *PreClaim) Created(r Run, asked Message, of Settings, size int64) {
	t.claim = &Claim{
		Run: r, First: true, Asked: t.asked,
		history: &history{messages: append(t.before, asked), settings: []Settings{of}, size: size},
		last:    &lastStep{},
	}
}

// Pending returns the run that may have been made claimed, if one may.
func (t *PreClaim) Pending() (r id.Run, ok bool) {
	if t == nil {
		return id.Run{}, false
	}
	return t.run, !id.IsZero(t.run)
}

// Claim returns the claim of a run that was made with it, else nil.
func (t *PreClaim) Claim() *Claim {
	if t == nil {
		return nil
	}
	return t.claim
}
