import { connectDocument, type DocumentConnection, type DocumentState } from "@signalbox/client/document";
import { useEffect, useState } from "react";
import { useWorkspace } from "../client.ts";

/** Connects a document until the page leaves it. */
export function useDocument(id: string): { connected: DocumentConnection | null; line: DocumentState } {
	const { workspace } = useWorkspace();
	const [connected, setConnected] = useState<DocumentConnection | null>(null);
	const [line, setLine] = useState<DocumentState>("connecting");
	useEffect(() => {
		const connection = connectDocument(id, { workspace: workspace.id, onState: setLine });
		setLine("connecting");
		setConnected(connection);
		return () => {
			connection.close();
			setConnected(null);
		};
	}, [id, workspace.id]);
	return { connected, line };
}
