package store

import (
	"context"

	"signalbox.dev/pkg/id"
)

// Connections is Store.Connections: without a database nobody has connected anything.
func (*File) Connections(context.Context, id.Workspace) (map[string]Connection, error) {
	return nil, nil
}

// NameConnection is Store.NameConnection: only a database has accounts of workspaces.
func (*File) NameConnection(context.Context, id.Workspace, Connection) error {
	return ErrOwn
}
