package preset

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

// Limits of a workspace's presets.
const (
	maxPresets = 100
	maxName    = 64
	maxParts   = 32
	maxPrompt  = 64 << 10 // bytes of all parts
	maxTools   = 128
)

// Store has the shipped presets and those of workspaces. A workspace's preset with the name of
// a shipped one takes its place. It is safe for concurrent use.
type Store struct {
	db      *pg.DB
	shipped *Set
}

// NewStore returns a store.
func NewStore(db *pg.DB, shipped *Set) *Store { return &Store{db, shipped} }

// Own selects the workspace's own preset of a session s as JSON, or null.
const Own = `(SELECT to_jsonb(p) FROM presets p WHERE p.workspace_id = s.workspace_id AND p.name = s.preset)`

// List returns the presets of a workspace by name, its own marked with Own.
func (s *Store) List(ctx context.Context, ws id.Workspace) ([]*Preset, error) {
	var out []*Preset
	b := &pgx.Batch{}
	b.Queue(`SELECT name, prompt, max_steps, max_output_tokens, tools, true AS own FROM presets WHERE workspace_id = @workspace`, pg.Args{"workspace": ws}).
		Query(func(rows pgx.Rows) (err error) {
			out, err = pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[Preset])
			return err
		})
	if err := s.db.ReadInWorkspace(ctx, ws, b); err != nil {
		return nil, fmt.Errorf("list presets: %w", err)
	}
	for _, name := range s.shipped.Names() {
		if !slices.ContainsFunc(out, func(p *Preset) bool { return p.Name == name }) {
			out = append(out, s.shipped.byName[name])
		}
	}
	slices.SortFunc(out, func(a, b *Preset) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Check returns the name of a preset of the workspace, Default for an empty one, or a fault
// that names the alternatives.
func (s *Store) Check(ctx context.Context, ws id.Workspace, name string) (string, error) {
	p, err := s.shipped.Get(name)
	if err == nil {
		return p.Name, nil
	}
	all, err := s.List(ctx, ws)
	if err != nil {
		return "", err
	}
	names := make([]string, len(all))
	for i, p := range all {
		if names[i] = p.Name; p.Name == name {
			return name, nil
		}
	}
	return "", unknown(name, names)
}

// Put creates or replaces a preset of the workspace.
func (s *Store) Put(ctx context.Context, a identity.Actor, p Preset) error {
	if err := p.validate(); err != nil {
		return err
	}
	args := pg.Args{
		"workspace": a.Workspace, "name": p.Name, "prompt": p.Prompt, "steps": p.MaxSteps, "output": p.MaxOutputTokens, "tools": p.Tools,
		"member": a.Member, "most": maxPresets,
	}
	var put int64
	b := &pgx.Batch{}
	b.Queue(`
		INSERT INTO presets (workspace_id, name, prompt, max_steps, max_output_tokens, tools, updated_by)
		SELECT @workspace, @name, @prompt::text[], @steps, @output, @tools::text[], @member
		WHERE (SELECT count(*) FROM presets WHERE workspace_id = @workspace AND name <> @name) < @most
		ON CONFLICT (workspace_id, name) DO UPDATE SET prompt = @prompt::text[], max_steps = @steps, max_output_tokens = @output, tools = @tools::text[],
			updated_by = @member, updated_at = now()`, args).
		Exec(func(tag pgconn.CommandTag) error { put = tag.RowsAffected(); return nil })
	if err := s.db.WriteInWorkspace(ctx, a.Workspace, b); err != nil {
		return fmt.Errorf("put preset: %w", err)
	}
	if put == 0 {
		return fault.New(fault.Conflict, "the workspace has %d presets, the most that are allowed: delete one first", maxPresets)
	}
	return nil
}

// Delete deletes a preset of the workspace. Sessions that use it get the shipped one of that
// name, or the default.
func (s *Store) Delete(ctx context.Context, ws id.Workspace, name string) error {
	b := &pgx.Batch{}
	b.Queue(`DELETE FROM presets WHERE workspace_id = @workspace AND name = @name`, pg.Args{"workspace": ws, "name": name}).
		Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() == 0 {
				return fault.New(fault.NotFound, "the workspace has no preset of its own with this name")
			}
			return nil
		})
	if err := s.db.WriteInWorkspace(ctx, ws, b); err != nil {
		return fmt.Errorf("delete preset: %w", err)
	}
	return nil
}

func (p *Preset) validate() error {
	size := 0
	for i, part := range p.Prompt {
		if size += len(part); strings.ContainsRune(part, 0) {
			return fault.New(fault.Invalid, "prompt[%d] must not contain NUL", i)
		}
	}
	switch {
	case p.Name == "" || len(p.Name) > maxName || strings.Trim(p.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || p.Name[0] == '-':
		return fault.New(fault.Invalid, "name must have 1 to %d lower-case letters, digits and -, and not begin with -", maxName)
	case len(p.Prompt) > maxParts || size > maxPrompt:
		return fault.New(fault.Invalid, "prompt may have %d parts and %d KiB", maxParts, maxPrompt>>10)
	case p.MaxSteps < 1 || p.MaxSteps > 50:
		return fault.New(fault.Invalid, "max_steps must be 1 to 50")
	case p.MaxOutputTokens < 0 || p.MaxOutputTokens > 1<<30:
		return fault.New(fault.Invalid, "max_output_tokens must be 0, for the provider's, or more")
	case len(p.Tools) > maxTools:
		return fault.New(fault.Invalid, "tools has %d names; at most %d are allowed", len(p.Tools), maxTools)
	}
	for i, name := range p.Tools {
		bare := strings.TrimSuffix(name, "*")
		if name == "" || len(name) > 64 || strings.Trim(bare, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			return fault.New(fault.Invalid, "tools[%d] is not a tool's name or a prefix with * at its end", i)
		}
	}
	return nil
}
