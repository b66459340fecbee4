package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Server is a server that a workspace has added.
type Server struct {
	Workspace id.Workspace
	ID        ServerID
	Name      string
	URL       string
	// Credential is set if requests go through the credential broker.
	Credential bool
	// Operator is set if the operator offers the server to the workspace. It has no URL; URL
	// changes with its configuration.
	Operator  bool
	CreatedBy id.Member
	CreatedAt time.Time
	// Tools are nil until the server first answers.
	Tools []Definition
	// Approved are the hashes of the approved definitions.
	Approved  []string
	CheckedAt *time.Time
	// Failure says why the server cannot be used; empty if it can.
	Failure string
	// FailingSince is when the first of the failures in a row was noticed; nil if it can be used.
	FailingSince *time.Time
	// SignIn says whether an owner has to sign in; empty if not. ResourceMetadata and Scope
	// are what the server's last challenge said of it.
	SignIn                  SignIn
	ResourceMetadata, Scope string

	command *Command // starts it, if it is the operator's
	version string   // changes with each change of the row
	due     bool     // for a check
	// shadowed is set if the operator has a server of this name. Its tools are not listed.
	shadowed bool
}

// key returns which session the operations of a conversation share. A process is shared by the
// whole workspace.
func (s Server) key(session id.Session) linkKey {
	if s.command != nil {
		session = id.Session{}
	}
	return linkKey{s.Workspace, s.ID, session, s.Credential}
}

// ServerID identifies a server.
type ServerID struct{ id.Operation }

const (
	maxServers = 32
	maxStored  = 1 << 20 // bytes of a server's definitions
	checkEvery = time.Minute
	// The operator's servers are started for a check, and announce changes while they run.
	checkOperatorEvery = time.Hour
	firstBackoff       = 5 * time.Second
	longestBackof      = 5 * time.Minute
	checkLease         = 2 * listTimeout // until another replica may check a server
)

// store reads and writes the table.
type store struct{ db *pg.DB }

const columns = `id, name, url, credential, operator, created_by, created_at, coalesce(tools, 'null'), coalesce(approved, '{}'), checked_at, failure, CASE WHEN failure <> '' THEN failing_since END, sign_in, resource_metadata, scope, xmin::text, next_check <= now()`

func scan(ws id.Workspace) pgx.RowToFunc[Server] {
	return func(r pgx.CollectableRow) (Server, error) {
		s := Server{Workspace: ws}
		var tools string
		err := r.Scan(&s.ID, &s.Name, &s.URL, &s.Credential, &s.Operator, &s.CreatedBy, &s.CreatedAt, &tools, &s.Approved, &s.CheckedAt, &s.Failure, &s.FailingSince, &s.SignIn, &s.ResourceMetadata, &s.Scope, &s.version, &s.due)
		if err != nil {
			return s, err
		}
		return s, json.Unmarshal([]byte(tools), &s.Tools)
	}
}

// all returns a workspace's servers, by name.
func (s store) all(ctx context.Context, ws id.Workspace) (all []Server, err error) {
	err = s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+columns+` FROM mcp_servers WHERE workspace_id = @workspace ORDER BY name, id`, pg.Args{"workspace": ws})
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, scan(ws))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read MCP servers: %w", err)
	}
	return all, nil
}

func one(ctx context.Context, tx pgx.Tx, ws id.Workspace, sql string, args pg.Args) (Server, error) {
	rows, err := tx.Query(ctx, sql, args)
	if err != nil {
		return Server{}, err
	}
	s, err := pgx.CollectExactlyOneRow(rows, scan(ws))
	if pg.NoRows(err) {
		return Server{}, errNone()
	}
	return s, err
}

func errNone() error { return fault.New(fault.NotFound, "there is no MCP server with this id") }

// add stores a new server. It reports false if a server with the id exists.
func (s store) add(ctx context.Context, n Server) (added bool, err error) {
	err = s.db.InWorkspace(ctx, n.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		var others int
		args := pg.Args{"workspace": n.Workspace, "id": n.ID, "name": n.Name, "url": n.URL, "credential": n.Credential, "member": n.CreatedBy}
		err := tx.QueryRow(ctx, `SELECT count(*) FROM mcp_servers WHERE workspace_id = @workspace AND id <> @id`, args).Scan(&others)
		if err != nil {
			return err
		}
		if others >= maxServers {
			return fault.New(fault.Conflict, "a workspace can have %d MCP servers: remove one first", maxServers)
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO mcp_servers (workspace_id, id, name, url, credential, created_by)
			VALUES (@workspace, @id, @name, @url, @credential, @member)
			ON CONFLICT (workspace_id, id) DO NOTHING`, args)
		if added = tag.RowsAffected() > 0; added {
			err = record(ctx, tx, n, ServerAdded, origin(n.URL))
		}
		return err
	})
	if pg.IsUniqueViolation(err, "mcp_servers_name") {
		return false, fault.Coded(fault.Conflict, "MCP_NAME_TAKEN", "name: there is an MCP server called %q already: choose another name", n.Name)
	}
	if err != nil {
		return false, fmt.Errorf("add an MCP server: %w", err)
	}
	return added, nil
}

// offer stores that the operator offers a server to its workspace, or has changed how it is
// started. The server is checked then.
func (s store) offer(ctx context.Context, n Server) error {
	err := s.db.InWorkspace(ctx, n.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO mcp_servers (workspace_id, id, name, url, credential, operator, created_by)
			VALUES (@workspace, @id, @name, @url, false, true, @nobody)
			ON CONFLICT (workspace_id, id) DO UPDATE SET url = @url, failure = '', failures = 0, next_check = now()`,
			pg.Args{"workspace": n.Workspace, "id": n.ID, "name": n.Name, "url": n.URL, "nobody": id.Member{}})
		return err
	})
	if err != nil {
		return fmt.Errorf("offer the operator's MCP server %s: %w", n.Name, err)
	}
	return nil
}

func (s store) remove(ctx context.Context, ws id.Workspace, server ServerID) error {
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		n := Server{Workspace: ws, ID: server}
		err := tx.QueryRow(ctx, `DELETE FROM mcp_servers WHERE workspace_id = @workspace AND id = @id RETURNING name`,
			pg.Args{"workspace": ws, "id": server}).Scan(&n.Name)
		switch {
		case pg.NoRows(err):
			return errNone()
		case err != nil:
			return err
		}
		return record(ctx, tx, n, ServerRemoved, "")
	})
	if err != nil {
		return fmt.Errorf("remove MCP server %s: %w", server, err)
	}
	return nil
}

// claim reports whether the caller is to check a server that is due. Other replicas do not for
// a while then.
func (s store) claim(ctx context.Context, n Server) (claimed bool, err error) {
	err = s.db.InWorkspace(ctx, n.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE mcp_servers SET next_check = now() + make_interval(secs => @lease)
			WHERE workspace_id = @workspace AND id = @id AND next_check <= now()`,
			pg.Args{"workspace": n.Workspace, "id": n.ID, "lease": checkLease.Seconds()})
		claimed = tag.RowsAffected() > 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("claim the check of MCP server %s: %w", n.ID, err)
	}
	return claimed, nil
}

// hasten makes the next check of a server due, though not right after the previous one.
func (s store) hasten(ctx context.Context, n Server) error {
	err := s.db.InWorkspace(ctx, n.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE mcp_servers SET next_check = least(next_check, greatest(now(), checked_at + make_interval(secs => @pause)))
			WHERE workspace_id = @workspace AND id = @id`,
			pg.Args{"workspace": n.Workspace, "id": n.ID, "pause": firstBackoff.Seconds()})
		return err
	})
	if err != nil {
		return fmt.Errorf("hasten the check of MCP server %s: %w", n.ID, err)
	}
	return nil
}

// answered stores the definitions that a server sent. The first ones are approved.
func (s store) answered(ctx context.Context, n Server, tools []Definition) error {
	text, err := json.Marshal(tools)
	if err != nil {
		return fmt.Errorf("encode the tools of MCP server %s: %w", n.ID, err)
	}
	if len(text) > maxStored {
		return fmt.Errorf("%w: the definitions of its tools have %d bytes, over the limit of %d", errLimit, len(text), maxStored)
	}
	every := checkEvery
	if n.Operator {
		every = checkOperatorEvery
	}
	hashes := []string{}
	for _, d := range tools {
		hashes = append(hashes, d.Hash())
	}
	err = s.db.InWorkspace(ctx, n.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE mcp_servers SET tools = @tools, approved = coalesce(approved, @hashes), checked_at = now(), failure = '', failures = 0,
				sign_in = CASE sign_in WHEN 'required' THEN '' ELSE sign_in END,
				next_check = now() + make_interval(secs => @every)
			WHERE workspace_id = @workspace AND id = @id`,
			pg.Args{"workspace": n.Workspace, "id": n.ID, "tools": string(text), "hashes": hashes, "every": every.Seconds()})
		return err
	})
	if err != nil {
		return fmt.Errorf("store the tools of MCP server %s: %w", n.ID, err)
	}
	return nil
}

// failed stores why a check failed, and when the next one is due.
func (s store) failed(ctx context.Context, n Server, reason string) error {
	err := s.db.InWorkspace(ctx, n.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE mcp_servers SET checked_at = now(), failure = @reason, failures = failures + 1,
				failing_since = CASE WHEN failures = 0 THEN now() ELSE coalesce(failing_since, now()) END,
				next_check = now() + make_interval(secs => least(@longest, @first * power(2, least(failures, 20))))
			WHERE workspace_id = @workspace AND id = @id`,
			pg.Args{"workspace": n.Workspace, "id": n.ID, "reason": reason, "first": firstBackoff.Seconds(), "longest": longestBackof.Seconds()})
		return err
	})
	if err != nil {
		return fmt.Errorf("store the failure of MCP server %s: %w", n.ID, err)
	}
	return nil
}

// approve replaces the approved definitions by those of the current ones that were approved
// before or are among hashes. A hash of no current definition is a Conflict fault.
func (s store) approve(ctx context.Context, ws id.Workspace, server ServerID, hashes []string) error {
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"workspace": ws, "id": server}
		n, err := one(ctx, tx, ws, `SELECT `+columns+` FROM mcp_servers WHERE workspace_id = @workspace AND id = @id FOR UPDATE`, args)
		if err != nil {
			return err
		}
		wanted, current, names := map[string]bool{}, []string{}, []string{}
		for _, h := range hashes {
			wanted[h] = true
		}
		for _, d := range n.Tools {
			h := d.Hash()
			switch {
			case n.approved(d):
				current = append(current, h)
			case wanted[h]:
				current, names = append(current, h), append(names, d.Name)
			}
			delete(wanted, h)
		}
		if len(wanted) > 0 {
			return fault.Coded(fault.Conflict, "MCP_TOOL_CHANGED", "%d of the definitions are no longer current: look at the server's tools again, and approve those", len(wanted))
		}
		args["approved"] = current
		_, err = tx.Exec(ctx, `UPDATE mcp_servers SET approved = @approved WHERE workspace_id = @workspace AND id = @id`, args)
		if err != nil || len(names) == 0 {
			return err
		}
		return record(ctx, tx, n, ToolsApproved, strings.Join(names, ", "))
	})
	if err != nil {
		return fmt.Errorf("approve tools of MCP server %s: %w", server, err)
	}
	return nil
}
