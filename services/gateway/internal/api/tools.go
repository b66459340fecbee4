package api

import (
	"context"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

type toolsOutputBody struct {
	Tools      []Tool  `json:"tools" nullable:"false"`
	NextCursor *string `json:"next_cursor" doc:"Always null: the list has one page."`
}

func (a *API) tools() {
	handle(a, op("list-tools", "GET /api/tools", "Tools", "List the tools that a session can enable"), viewers, a.listTools)
}

func (a *API) listTools(ctx context.Context, _ *struct{}) (*toolsOutputBody, error) {
	res, err := a.cfg.Tools.ListTools(ctx, &toolv1.ListToolsRequest{})
	return &toolsOutputBody{Tools: each(res.GetTools(), viewTool)}, err
}
