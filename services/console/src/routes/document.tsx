import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { ChevronLeft } from "lucide-react";
import { useEffect } from "react";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { DocumentPane } from "../document/Pane.tsx";
import { Icon } from "../parts/controls.tsx";
import { Failed } from "./failed.tsx";
import css from "./session.module.css";

/** A document's name, without its text, which the editor gets by itself. */
export function useDocumentName(id: string) {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "document", id],
		queryFn: () => unwrap(client.api.GET("/api/documents/{id}", { params: { path: { id } } })).then((b) => b.document.name),
	});
}

/** A document by itself. */
export function DocumentPage({ id }: { id: string }) {
	const { workspace } = useWorkspace();
	const name = useDocumentName(id);
	useEffect(() => {
		document.title = `${name.data ?? "Document"} · Signalbox`;
	}, [name.data]);
	if (name.error) return <Failed error={name.error} onRetry={() => void name.refetch()} />;
	return (
		<section className={css.chat} aria-label="Document">
			<header className={css.top}>
				<Link to="/w/$slug/documents" params={{ slug: slugOf(workspace) }} aria-label="All documents" title="All documents">
					<Icon of={ChevronLeft} />
				</Link>
				<h1 className="cut font-mid">{name.data ?? ""}</h1>
			</header>
			<DocumentPane id={id} />
		</section>
	);
}
