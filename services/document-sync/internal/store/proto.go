package store

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
)

// Proto converts the document for other services.
func (d Document) Proto() *documentv1.Document {
	return &documentv1.Document{
		Id:          d.ID.String(),
		WorkspaceId: d.Workspace.String(),
		Name:        d.Name,
		CreatedBy:   d.CreatedBy.String(),
		CreatedAt:   timestamppb.New(d.CreatedAt),
		UpdatedAt:   timestamppb.New(d.UpdatedAt),
		Sequence:    d.Sequence,
	}
}

// Proto converts the author for other services.
func (a Author) Proto() *documentv1.Author {
	out := &documentv1.Author{MemberId: a.Member.String()}
	if !id.IsZero(a.Run) {
		out.RunId = a.Run.String()
	}
	return out
}

// Proto converts the version for other services.
func (v Version) Proto() *documentv1.Version {
	return &documentv1.Version{
		Version:   v.Version,
		Author:    v.Author.Proto(),
		CreatedAt: timestamppb.New(v.CreatedAt),
		Operation: v.Operation,
		Name:      v.Name,
		Undoes:    v.Undoes,
		UndoneBy:  v.UndoneBy,
		Undoable:  v.Undoable,
	}
}
