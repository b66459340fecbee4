import { connectDocument, type DocumentConnection, type DocumentState } from "@signalbox/client/document";
import { useEffect, useState } from "react";
import { useWorkspace } from "../client.ts";
import { type Draft, keepDraft } from "./draft.ts";
import { placeOf } from "./kept.ts";

/**
 * Connects a document until the page leaves it, and keeps what its member writes without a connection. `here`
 * says whether the document's text has come, `keeps` whether the browser's storage takes what is written.
 */
export function useDocument(
	id: string,
	member: string,
): { connected: DocumentConnection | null; line: DocumentState; here: boolean; keeps: boolean; draft: Draft | null } {
	const { workspace } = useWorkspace();
	const [connected, setConnected] = useState<DocumentConnection | null>(null);
	const [draft, setDraft] = useState<Draft | null>(null);
	const [line, setLine] = useState<DocumentState>("connecting");
	const [here, setHere] = useState(false);
	const [keeps, setKeeps] = useState(true);
	useEffect(() => {
		const connection = connectDocument(id, {
			workspace: workspace.id,
			onState: (state) => {
				kept.line(state);
				setLine(state);
				if (state === "live") setHere(true);
			},
		});
		const kept = keepDraft(placeOf(workspace.id, member, id), connection, setKeeps);
		setLine("connecting");
		setHere(false);
		setKeeps(true);
		setConnected(connection);
		setDraft(kept);
		return () => {
			kept.close();
			connection.close();
			setConnected(null);
			setDraft(null);
		};
	}, [id, member, workspace.id]);
	return { connected, line, here, keeps, draft };
}
