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
const aboutSockets = `WebSockets over HTTP/1.1, with the workspace's id as X-Workspace-Id or ?workspace_id= and the token as a header or ?token=.

- /ws/documents/{id}: edit a document live, with binary messages of y-protocols: sync, awareness, auth. Clients such as y-websocket speak it, which do not connect again by themselves after a code from 4400 to 4499.
- /ws/hocuspocus: edit any number of documents, whose names are their ids, with the messages of @hocuspocus/provider. The token may come with the provider's first message instead. What concerns one document only (4403, 4404, 4413) closes that document, with the provider's authenticationFailed and the reason, and not the socket.

An agent's run is among those whom awareness shows, as user {name: Agent, color, run_id} with its caret, until 20 s after it last read the document or wrote in it.

A handshake that is no WebSocket's is 400, one from a page of an origin that may not is 403, anything but a handshake is 426, and while the server goes away it is 503. A socket that is refused, or whose right ends, is closed with a code and a reason: 4400 something is missing, 4401 no token, or one that is not valid or has expired, 4403 no membership in the workspace, 4404 no such document, or it was deleted, 4413 a change that the document does not take, because it is full or the change is too much at once: it is lost, and connecting again with it is of no use until the page is loaded anew, 1007 a malformed message, 1009 a message over the limit, 1012 the server goes away: connect again, 1013 too many sockets, too slow a reader, or a part of the system is away: try again later.`
