package run

import (
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// PreClaim claims a run in the transaction that creates it: the run's row is inserted with
// the values that Claim would set, and the conversation is read in the batch that locks the
// session. The creator of the run calls QueueReads, Ready, SetArgs and Created in this
// order. A nil PreClaim claims nothing.
type PreClaim struct {
	args      pg.Args
	requested time.Time

	unpublished bool // events of the session wait in the outbox
	full        bool // the workspace is at its limit of running runs
	before      []Message
	run         id.Run // set by SetArgs
	claim       *Claim // set by Created
}

// PreClaim returns the claim of a run that is about to be created.
func (s *Store) PreClaim(ws id.Workspace, session id.Session) *PreClaim {
	_, subj := LogSubject(s.cfg.Partitions, ws, session)
	return &PreClaim{
		args: pg.Args{
			"workspace": ws, "session": session, "subject": subj, "runner": s.runner, "lease": s.cfg.Lease, "wall": s.cfg.WallTime,
			"most": s.cfg.PerWorkspace,
		},
		requested: time.Now(),
	}
}

// QueueReads adds the necessary reads to a batch that has locked the session. While the
// session is locked nothing is added to the outbox for it. Events that are published
// between the reads and the insert only make Ready return false without need.
func (p *PreClaim) QueueReads(b *pgx.Batch) {
	if p == nil {
		return
	}
	queueWorkspaceLock(b, p.args)
	b.Queue(`SELECT `+countRunning+` >= @most`, p.args).QueryRow(func(row pgx.Row) error { return row.Scan(&p.full) })
	queueUnpublished(b, p.args, &p.unpublished)
	queueMessages(b, `NOT EXISTS (
		SELECT FROM runs o WHERE o.workspace_id = @workspace AND o.session_id = @session AND o.state IN ('queued', 'running', 'waiting'))`, p.args, &p.before)
}

// Ready reports whether a run that is the next of its session can be created claimed.
func (p *PreClaim) Ready() bool { return p != nil && !p.unpublished && !p.full }

// SetArgs sets arguments of the statement that inserts the run: its state, epoch, runner,
// lease, wall time and the number of its last event.
func (p *PreClaim) SetArgs(r id.Run, args pg.Args) {
	p.run = r
	args["state"], args["epoch"], args["event"] = Running, 1, 1
	args["runner"], args["lease"], args["wall"] = p.args["runner"], p.args["lease"], p.args["wall"]
}

// Created makes the claim from the inserted run, its message, the session's settings, and
// the size of the session's messages including this one.
func (p *PreClaim) Created(r Run, asked Message, of Settings, size int64) {
	p.claim = &Claim{
		Run: r, First: true, RequestedAt: p.requested,
		history: &history{messages: append(p.before, asked), settings: []Settings{of}, size: size},
		last:    &lastStep{},
	}
}

// Pending returns the run that may have been created claimed. ok is false if none can.
func (p *PreClaim) Pending() (r id.Run, ok bool) {
	if p == nil {
		return id.Run{}, false
	}
	return p.run, !id.IsZero(p.run)
}

// Claim returns the claim of the run that was created claimed, or nil.
func (p *PreClaim) Claim() *Claim {
	if p == nil {
		return nil
	}
	return p.claim
}
