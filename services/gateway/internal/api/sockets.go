package api

import (
	"net/http"
)

// Package docproxy serves the sockets. This file describes them in the OpenAPI document and has
// the functions that both packages use.

// TokenOf returns a request's token from its header or URL, or "".
func TokenOf(r *http.Request) string {
	if token, ok := headerToken(r); ok {
		return token
	}
	return urlToken(r)
}

// WorkspaceOf returns the id of a request's workspace, or "".
func WorkspaceOf(r *http.Request) string {
	if ws := r.Header.Get("X-Workspace-Id"); ws != "" {
		return ws
	}
	return r.URL.Query().Get(workspaceParam)
}

// WriteUpgradeRequired answers a request for a socket that is not a WebSocket handshake.
func WriteUpgradeRequired(w http.ResponseWriter) {
	e := &Error{
		status: http.StatusUpgradeRequired, Code: "UPGRADE_REQUIRED", Message: "this is a WebSocket: connect with a WebSocket client, over HTTP/1.1",
		header: http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}},
	}
	e.write(w)
}

// aboutSockets describes the sockets in a tag, because generated clients could not use an
// operation that is a WebSocket.
const aboutSockets = `WebSockets over HTTP/1.1. Send the workspace's id as X-Workspace-Id or ?workspace_id=, and the token as a bearer token or ?token=.

- /ws/documents/{id}: edit one document live, with the binary messages of y-protocols (sync, awareness, auth). y-websocket and similar clients use them. These clients do not reconnect after a close code from 4400 to 4499.
- /ws/hocuspocus: edit any number of documents over one socket, with the messages of @hocuspocus/provider. The name of a document is its id. The token may be sent in the provider's first message instead. An error of one document (4403, 4404, 4413) closes only this document, with the provider's authenticationFailed message and the reason; the socket stays open.

An agent's run that reads or changes a document appears in its awareness, as user {name: Agent, color, run_id} with a caret, until 20 s after its last access.

A request without a WebSocket handshake gets 426, an invalid handshake 400, a page of a forbidden origin 403, and every handshake during a shutdown 503. After the handshake, a socket that is refused, or whose permission ends, is closed with one of these codes and a reason:

- 4400: a parameter is missing.
- 4401: the token is missing, invalid or expired.
- 4403: the person is not a member of the workspace.
- 4404: the document does not exist or was deleted.
- 4413: the document refuses a change, because the document is full or the change is too large. The change is lost. Reconnecting does not help until the page has been reloaded.
- 1007: a malformed message.
- 1009: a message over the size limit.
- 1012: the server is shutting down; reconnect.
- 1013: too many sockets, a client that reads too slowly, or an unavailable service; try again later.`
