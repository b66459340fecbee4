// Package conversation does what people do with sessions: create, list, change and delete
// them, submit messages, and cancel runs. Package run works on the runs themselves. The
// two packages share their tables and the lock order: a session's row is locked before the
// rows of its runs.
//
// Every write is one transaction, which also puts the events it causes into the outbox.
// The row of a new run shows that it waits for a runner; the caller publishes its wake-up.
package conversation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/visible"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/clienttool"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/provider"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Session is a row of sessions.
type Session struct {
	ID           id.Session
	Workspace    id.Workspace `db:"workspace_id"`
	CreatedBy    id.Member
	Title        string
	TitleSource  string
	Model        string
	Provider     string
	SystemPrompt string
	Preset       string
	Tools        []string // nil: the preset's
	MaxSteps     *int     // nil: the preset's
	ClientTools  []string // the names of the tools that clients run
	Archived     bool
	ForkedFrom   *id.Session
	CreatedAt    time.Time
	UpdatedAt    time.Time
	State        run.State // of its open run, or idle
}

const idle run.State = "idle"

const columns = `id, workspace_id, created_by, title, title_source, model, provider, system_prompt, preset, tools, max_steps,
	ARRAY(SELECT tool ->> 'name' FROM json_array_elements(client_tools) tool) AS client_tools, archived, forked_from, created_at, updated_at,
	` + state + ` AS state`

// state is the state of a session: that of its open run, or idle. Each part has its own partial index.
const state = `coalesce((SELECT state FROM runs r WHERE r.workspace_id = sessions.workspace_id AND r.session_id = sessions.id AND state IN ('running', 'waiting')),
		(SELECT state FROM runs r WHERE r.workspace_id = sessions.workspace_id AND r.session_id = sessions.id AND state = 'queued' LIMIT 1), 'idle')`

// Proto returns the session as other services see it.
func (s *Session) Proto() *agentv1.Session {
	out := &agentv1.Session{
		Id: s.ID.String(), WorkspaceId: s.Workspace.String(), CreatedBy: s.CreatedBy.String(), Title: s.Title, Model: s.Model,
		Provider: s.Provider, SystemPrompt: s.SystemPrompt, Preset: s.Preset, Archived: s.Archived, ClientTools: s.ClientTools, State: string(s.State),
		CreatedAt: timestamppb.New(s.CreatedAt), UpdatedAt: timestamppb.New(s.UpdatedAt),
	}
	if s.Tools != nil {
		out.Tools = &agentv1.ToolSelection{Names: s.Tools}
	}
	if s.ForkedFrom != nil {
		out.ForkedFrom = s.ForkedFrom.String()
	}
	if s.MaxSteps != nil {
		out.MaxSteps = int32(*s.MaxSteps)
	}
	return out
}

// Selection returns nil for no choice and an empty slice for the choice of no tools.
func Selection(t *agentv1.ToolSelection) []string {
	if t == nil {
		return nil
	}
	return append([]string{}, t.GetNames()...)
}

// Models chooses among the models that the context's workspace can call. If the requested
// one is not available, Choose returns a fault that lists the alternatives.
type Models interface {
	Choose(ctx context.Context, w provider.Request) (provider, model string, err error)
}

// Config has the limits of sessions and what their fields are validated against.
type Config struct {
	Models Models
	// Tools returns the names of the tools that the context's workspace has, from a cache
	// unless fresh is true.
	Tools func(ctx context.Context, fresh bool) ([]string, error)
	// Partitions of the run log.
	Partitions int
	// MaxBytes bounds the content of a session's messages.
	MaxBytes int
	// MaxQueued bounds the runs that wait in one session.
	MaxQueued int
	// MaxWaiting bounds the runs that wait in one workspace; 0 means no bound.
	MaxWaiting int
	Content    modelmsg.Limits
}

// Store reads and writes sessions.
type Store struct {
	db      *pg.DB
	out     *outbox.Outbox
	presets *preset.Store
	cfg     Config
}

// NewStore returns a store.
func NewStore(db *pg.DB, out *outbox.Outbox, presets *preset.Set, cfg Config) *Store {
	return &Store{db: db, out: out, presets: preset.NewStore(db, presets), cfg: cfg}
}

// Limits of a session's fields.
const (
	maxTitle  = 200
	maxName   = 100 // model, provider
	maxPrompt = 64 << 10
	maxTools  = 128
	maxKey    = 255
	maxSteps  = 50
)

// newSession is a request to create a session. Empty fields get defaults.
type newSession struct {
	Title, Model, Provider, SystemPrompt, Preset string
	Tools                                        []string
	MaxSteps                                     int
	IdempotencyKey                               string
	ClientTools                                  []clienttool.Tool `json:",omitempty"` // the hash of a request without them is that of versions before
	History                                      []earlier         `json:",omitempty"`
	Archived                                     bool              `json:",omitempty"`
}

func (n *newSession) validate() error {
	if n.MaxSteps < 0 || n.MaxSteps > maxSteps {
		return fault.New(fault.Invalid, "max_steps must be 1 to %d", maxSteps)
	}
	if err := checkKey(n.IdempotencyKey); err != nil {
		return err
	}
	return checkFields(&n.Title, &n.Model, &n.Provider, &n.SystemPrompt, n.Tools)
}

// checkFields validates a session's fields, and removes invisible characters from its title.
func checkFields(title, model, provider, prompt *string, tools []string) error {
	for _, f := range []struct {
		name  string
		value *string
		max   int
		line  bool
	}{
		{"title", title, maxTitle, true},
		{"model", model, maxName, true},
		{"provider", provider, maxName, true},
		{"system_prompt", prompt, maxPrompt, false},
	} {
		if f.value == nil {
			continue
		}
		if err := checkText(f.name, *f.value, f.max, f.line); err != nil {
			return err
		}
	}
	if title != nil {
		*title = visible.Text(*title)
	}
	if provider != nil && *provider != "" && !isName(*provider) {
		return fault.New(fault.Invalid, "provider must be a name of lower-case letters, digits and -, such as anthropic")
	}
	if len(tools) > maxTools {
		return fault.New(fault.Invalid, "tools has %d names; at most %d are allowed", len(tools), maxTools)
	}
	for i, name := range tools {
		pattern, _ := preset.Excluded(name)
		if pattern != "*" && !isToolName(strings.TrimSuffix(pattern, "*")) {
			return fault.New(fault.Invalid, "tools[%d] is not a tool's name: 1 to 64 of letters, digits, _ and -, or a beginning of one and *, with - in front to leave it out", i)
		}
	}
	return nil
}

func checkText(name, value string, limit int, line bool) error {
	if n := len([]rune(value)); n > limit {
		return fault.New(fault.Invalid, "%s has %d characters; at most %d are allowed", name, n, limit)
	}
	if strings.ContainsRune(value, 0) || line && strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fault.New(fault.Invalid, "%s must not contain control characters", name)
	}
	return nil
}

func checkKey(key string) error {
	if len(key) > maxKey {
		return fault.New(fault.Invalid, "idempotency_key has %d bytes; at most %d are allowed", len(key), maxKey)
	}
	return checkText("idempotency_key", key, maxKey, true)
}

func isName(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && s[0] != '-'
}

func isToolName(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

// Create creates a session. If the member has used the idempotency key for the same
// request before, Create returns the session that was created then.
func (s *Store) Create(ctx context.Context, a identity.Actor, req *agentv1.CreateSessionRequest) (*Session, error) {
	n := newSession{
		Title: req.GetTitle(), Model: req.GetModel(), Provider: req.GetProvider(), SystemPrompt: req.GetSystemPrompt(), Preset: req.GetPreset(),
		Tools: Selection(req.GetTools()), MaxSteps: int(req.GetMaxSteps()), IdempotencyKey: req.GetIdempotencyKey(), Archived: req.GetArchived(),
	}
	if err := n.validate(); err != nil {
		return nil, err
	}
	var err error
	if n.History, err = s.readHistory(req.GetHistory()); err != nil {
		return nil, err
	}
	if n.ClientTools, err = s.clientTools(ctx, req.GetClientTools()); err != nil {
		return nil, err
	}
	hash, err := n.hash()
	if err != nil {
		return nil, err
	}
	presetName, err := s.presets.Check(ctx, a.Workspace, n.Preset)
	if err != nil {
		return nil, err
	}
	if err := s.checkTools(ctx, n.Tools); err != nil {
		return nil, err
	}
	provider, model, err := s.cfg.Models.Choose(ctx, provider.Request{Provider: n.Provider, Model: n.Model})
	if err != nil {
		return nil, err
	}
	args := pg.Args{
		"id": id.New[id.Session](), "workspace": a.Workspace, "member": a.Member,
		"title": n.Title, "source": sourceOf(n.Title), "model": model, "provider": provider,
		"prompt": n.SystemPrompt, "preset": presetName, "tools": n.Tools, "steps": orNil(n.MaxSteps), "key": orNil(n.IdempotencyKey), "hash": hash,
		"clienttools": n.ClientTools, "archived": n.Archived, "next": len(n.History) + 1,
	}
	var session Session
	// created_at is the cursor of List and therefore unique in a workspace. If two sessions
	// are created in the same microsecond, the second insert is retried with a later time.
	err = retryOn(ctx, "sessions_created_at", func() error {
		return s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
			if session, err = insert(ctx, tx, args); err != nil {
				return err
			}
			return insertHistory(ctx, tx, &session, n.History)
		})
	})
	if pg.IsUniqueViolation(err, "sessions_idempotency") {
		return s.byKey(ctx, a, n.IdempotencyKey, hash)
	}
	if err != nil {
		return nil, fmt.Errorf("create session: %w", err)
	}
	return &session, nil
}

func insert(ctx context.Context, tx pgx.Tx, args pg.Args) (Session, error) {
	rows, err := tx.Query(ctx, `
		WITH moment AS (
			SELECT greatest(clock_timestamp(), (
				SELECT max(created_at) + interval '1 microsecond' FROM sessions WHERE workspace_id = @workspace)) AS at)
		INSERT INTO sessions (id, workspace_id, created_by, title, title_source, model, provider, system_prompt, preset, tools,
			max_steps, client_tools, archived, next_position, idempotency_key, request_hash, created_at, updated_at)
		SELECT @id, @workspace, @member, @title, @source, @model, @provider, @prompt, @preset, @tools,
			@steps, @clienttools::json, @archived, @next, @key, @hash, at, at FROM moment
		RETURNING `+columns, args)
	if err != nil {
		return Session{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Session])
}

func retryOn(ctx context.Context, constraint string, f func() error) error {
	for {
		err := f()
		if !pg.IsUniqueViolation(err, constraint) || ctx.Err() != nil {
			return err
		}
	}
}

func (s *Store) byKey(ctx context.Context, a identity.Actor, key string, hash []byte) (*Session, error) {
	session, err := s.one(ctx, a, `workspace_id = @workspace AND created_by = @member AND idempotency_key = @key
		AND (request_hash IS NULL OR request_hash = @hash)`,
		pg.Args{"workspace": a.Workspace, "member": a.Member, "key": key, "hash": hash})
	if fault.KindOf(err) == fault.NotFound { // the key exists, so it came with another request
		return nil, fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this idempotency key was used for another session: use a new key for a new request")
	}
	return session, err
}

// Find returns the session that the member created with an idempotency key.
func (s *Store) Find(ctx context.Context, a identity.Actor, key string) (id.Session, error) {
	if err := checkKey(key); err != nil {
		return id.Session{}, err
	}
	session, err := s.one(ctx, a, `workspace_id = @workspace AND created_by = @member AND idempotency_key = @key`,
		pg.Args{"workspace": a.Workspace, "member": a.Member, "key": key})
	if err != nil {
		return id.Session{}, err
	}
	return session.ID, nil
}

// hash returns a digest that tells requests with the same idempotency key apart. It is nil
// without a key.
func (n *newSession) hash() ([]byte, error) {
	if n.IdempotencyKey == "" {
		return nil, nil
	}
	b, err := json.Marshal(n)
	if err != nil {
		return nil, fmt.Errorf("hash the request: %w", err)
	}
	sum := sha256.Sum256(b)
	return sum[:], nil
}

// Get returns a session.
func (s *Store) Get(ctx context.Context, a identity.Actor, session id.Session) (*Session, error) {
	return s.one(ctx, a, `workspace_id = @workspace AND id = @session`,
		pg.Args{"workspace": a.Workspace, "session": session})
}

func (s *Store) one(ctx context.Context, a identity.Actor, where string, args pg.Args) (*Session, error) {
	var session Session
	err := s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+columns+` FROM sessions WHERE `+where, args)
		if err != nil {
			return err
		}
		session, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Session])
		return err
	})
	if pg.NoRows(err) {
		return nil, notFound()
	}
	if err != nil {
		return nil, fmt.Errorf("read session: %w", err)
	}
	return &session, nil
}

func notFound() error { return fault.New(fault.NotFound, "there is no such session") }

// Update changes a session. Absent fields of the request keep their values; its id is not used.
func (s *Store) Update(ctx context.Context, a identity.Actor, session id.Session, req *agentv1.UpdateSessionRequest) (*Session, error) {
	tools := Selection(req.GetTools())
	if err := checkFields(req.Title, req.Model, req.Provider, req.SystemPrompt, tools); err != nil {
		return nil, err
	}
	if err := s.checkTools(ctx, tools); err != nil {
		return nil, err
	}
	clientTools, err := s.clientTools(ctx, req.GetClientTools())
	if err != nil {
		return nil, err
	}
	args := pg.Args{
		"workspace": a.Workspace, "session": session, "clienttools": clientTools, "title": req.Title, "model": req.Model,
		"provider": req.Provider, "prompt": req.SystemPrompt, "archived": req.Archived,
		"tools": tools, "reset": req.GetResetTools(),
	}
	if req.Provider != nil || req.Model != nil {
		provider, model, err := s.choose(ctx, a, session, req.Provider, req.Model)
		if err != nil {
			return nil, err
		}
		args["provider"], args["model"] = provider, model
	}
	var changed Session
	err = s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			UPDATE sessions SET
				title = coalesce(@title, title),
				title_source = CASE WHEN @title::text IS NULL THEN title_source WHEN @title = '' THEN '' ELSE 'person' END,
				model = coalesce(@model, model), provider = coalesce(@provider, provider),
				system_prompt = coalesce(@prompt, system_prompt), archived = coalesce(@archived, archived),
				tools = CASE WHEN @reset::boolean THEN NULL ELSE coalesce(@tools::text[], tools) END,
				client_tools = coalesce(@clienttools::json, client_tools),
				updated_at = clock_timestamp()
			WHERE workspace_id = @workspace AND id = @session
			RETURNING `+columns, args)
		if err != nil {
			return err
		}
		changed, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Session])
		return err
	})
	if pg.NoRows(err) {
		return nil, notFound()
	}
	if err != nil {
		return nil, fmt.Errorf("update session: %w", err)
	}
	return &changed, nil
}

// Compact makes the next run of a session begin with a summary of the conversation so far.
func (s *Store) Compact(ctx context.Context, a identity.Actor, session id.Session) error {
	err := s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE sessions SET compact = true WHERE workspace_id = @workspace AND id = @session`,
			pg.Args{"workspace": a.Workspace, "session": session})
		if err == nil && tag.RowsAffected() == 0 {
			return notFound()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("compact session: %w", err)
	}
	return nil
}

// Delete deletes a session with its messages and runs. It returns the runs that were
// running so that the caller can nudge their runners, whose later writes are fenced off.
func (s *Store) Delete(ctx context.Context, a identity.Actor, session id.Session) ([]id.Run, error) {
	var active []id.Run
	args := pg.Args{"workspace": a.Workspace, "session": session}
	err := s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		if err := lock(ctx, tx, a.Workspace, session); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT id FROM runs WHERE workspace_id = @workspace AND session_id = @session AND state = 'running'`, args)
		if err != nil {
			return err
		}
		if active, err = pgx.CollectRows(rows, pgx.RowTo[id.Run]); err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, `
			DELETE FROM budget_use WHERE workspace_id = @workspace AND (subject = @session
				OR subject IN (SELECT id FROM runs WHERE workspace_id = @workspace AND session_id = @session))`, args); err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, `DELETE FROM sessions WHERE workspace_id = @workspace AND id = @session`, args); err != nil || len(active) == 0 {
			return err
		}
		return run.WakeOther(ctx, tx, a.Workspace, active[0])
	})
	if err != nil {
		return nil, fmt.Errorf("delete session: %w", err)
	}
	s.out.Poke()
	return active, nil
}

// lock locks a session's row, or returns NotFound.
func lock(ctx context.Context, tx pgx.Tx, ws id.Workspace, session id.Session) error {
	var one int
	err := tx.QueryRow(ctx, `SELECT 1 FROM sessions WHERE workspace_id = @workspace AND id = @session FOR UPDATE`,
		pg.Args{"workspace": ws, "session": session}).Scan(&one)
	if pg.NoRows(err) {
		return notFound()
	}
	if err != nil {
		return fmt.Errorf("lock session: %w", err)
	}
	return nil
}

func sourceOf(title string) string {
	if title == "" {
		return ""
	}
	return "person"
}

// orNil returns nil for a zero value. Postgres stores nil as NULL.
func orNil[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
