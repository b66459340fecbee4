import { useQuery } from "@tanstack/react-query";
import { unwrap, useWorkspace } from "../client.ts";

/** A document's name, without its text, which the editor gets by itself. */
export function useDocumentName(id: string) {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "document", id],
		queryFn: () =>
			unwrap(client.api.GET("/api/documents/{id}", { params: { path: { id }, query: { content: false } } })).then((b) => b.document.name),
	});
}
