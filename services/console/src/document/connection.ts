import { useEffect, useState } from "react";
import { WebsocketProvider } from "y-websocket";
import * as Y from "yjs";
import { useWorkspace } from "../client.ts";

/** What a person can be told about the document's connection. */
export type Line = "connecting" | "live" | "lost" | "signed-out" | "no-member" | "deleted" | "too-large";

/** Close codes that another try would not change (docs/editor.md). */
const ends: Record<number, Line> = { 4401: "signed-out", 4403: "no-member", 4404: "deleted", 4413: "too-large" };

export interface Connected {
	doc: Y.Doc;
	provider: WebsocketProvider;
}

/** Connects a document until the page leaves it. */
export function useDocument(id: string): { connected: Connected | null; line: Line } {
	const { workspace } = useWorkspace();
	const [connected, setConnected] = useState<Connected | null>(null);
	const [line, setLine] = useState<Line>("connecting");
	useEffect(() => {
		const doc = new Y.Doc();
		const address = `${location.origin.replace(/^http/, "ws")}/ws/documents`;
		const provider = new WebsocketProvider(address, id, doc, { params: { workspace_id: workspace.id }, disableBc: true });
		provider.on("sync", (synced: boolean) => synced && setLine("live"));
		provider.on("connection-close", (e: CloseEvent | null) => {
			const end = e && ends[e.code];
			if (end) provider.disconnect();
			setLine(end ?? "lost");
		});
		setLine("connecting");
		setConnected({ doc, provider });
		return () => {
			provider.destroy();
			doc.destroy();
			setConnected(null);
		};
	}, [id, workspace.id]);
	return { connected, line };
}
