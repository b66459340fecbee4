package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/identity"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

type toolsOutput struct {
	Body struct {
		Tools      []Tool  `json:"tools" nullable:"false"`
		NextCursor *string `json:"next_cursor" doc:"Always null: the catalogue comes whole."`
	}
}

func (a *API) tools() {
	handle(a, huma.Operation{
		OperationID: "list-tools", Method: http.MethodGet, Path: "/api/tools",
		Tags: []string{"Tools"}, Summary: "List the tools that a session can enable",
	}, access{role: identity.Viewer}, a.listTools)
}

func (a *API) listTools(ctx context.Context, _ *struct{}) (*toolsOutput, error) {
	res, err := a.cfg.Tools.ListTools(ctx, &toolv1.ListToolsRequest{})
	if err != nil {
		return nil, err
	}
	out := &toolsOutput{}
	out.Body.Tools = make([]Tool, len(res.GetTools()))
	for i, t := range res.GetTools() {
		out.Body.Tools[i] = viewTool(t)
	}
	return out, nil
}
