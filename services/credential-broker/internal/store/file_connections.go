package store

import (
	"context"

	"signalbox.dev/pkg/id"
)

// Connections is Store.Connections: without a database nobody has connected anything.
func (*File) Connections(context.Context, id.Workspace) (map[string]Connection, error) {
	return nil, nil
}

// Connect is Store.Connect: only a database has accounts of workspaces.
func (*File) Connect(context.Context, id.Workspace, Connection) (bool, error) {
	return false, ErrOwn
}
