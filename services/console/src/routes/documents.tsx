import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { FileText } from "lucide-react";
import { useEffect } from "react";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { Blank, Icon } from "../parts/controls.tsx";
import { ago } from "../words.ts";
import { Failed } from "./failed.tsx";
import css from "./sessions.module.css";

export function DocumentsPage() {
	const { client, workspace } = useWorkspace();
	const documents = useQuery({
		queryKey: [workspace.id, "documents"],
		queryFn: () => unwrap(client.api.GET("/api/documents", { params: { query: { limit: 100 } } })).then((b) => b.documents),
	});
	useEffect(() => {
		document.title = "Documents · Signalbox";
	}, []);
	if (documents.error) return <Failed error={documents.error} onRetry={() => void documents.refetch()} />;
	return (
		<div className="scroll">
			<div className="page">
				<h1 className="mb-5 text-h2 font-bold">Documents</h1>
				{documents.data?.length === 0 && (
					<Blank line="open" title="No document yet">
						Ask the agent to write one: “Create a document about tea”.
					</Blank>
				)}
				{documents.data?.map((d) => (
					<Link key={d.id} to="/w/$slug/d/$id" params={{ slug: slugOf(workspace), id: d.id }} className={css.session}>
						<Icon of={FileText} />
						<span className="cut font-mid">{d.name}</span>
						<span />
						<time className="n text-small text-ink-3" dateTime={d.updated_at}>
							{ago(d.updated_at)}
						</time>
					</Link>
				))}
			</div>
		</div>
	);
}
