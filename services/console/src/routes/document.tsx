import { SignalboxError } from "@signalbox/client";
import { Link, useNavigate } from "@tanstack/react-router";
import { ChevronLeft, History as HistoryIcon, SquareArrowOutUpRight } from "lucide-react";
import { Suspense, useEffect, useState } from "react";
import { slugOf, useWorkspace } from "../client.ts";
import { useDocumentName } from "../document/name.ts";
import { DocumentPane } from "../document/Pane.tsx";
import { Button, Icon, IconButton } from "../parts/controls.tsx";
import { later } from "../parts/later.tsx";
import { Failed, useFailure } from "./failed.tsx";
import css from "./session.module.css";

const history = () => import("../document/History.tsx");
const History = later(() => history().then((h) => h.History));
const Share = later(() => import("../document/Share.tsx").then((s) => s.Share));
const Compared = later(() => history().then((h) => h.Compared));

export interface DocumentSearch {
	history?: boolean;
	/** The version that is compared with the one before it. */
	v?: number;
}

/** A document by itself, and its history. */
export function DocumentPage({ id, search }: { id: string; search: DocumentSearch }) {
	const { workspace } = useWorkspace();
	const slug = slugOf(workspace);
	const navigate = useNavigate();
	const name = useDocumentName(id);
	const failure = useFailure(name);
	const [sharing, setSharing] = useState(false);
	useEffect(() => {
		document.title = `${name.data ?? "Document"} · Signalbox`;
	}, [name.data]);
	// The text of a document that is open stays, also when it is deleted or the network is cut.
	if (failure && !(failure instanceof SignalboxError && failure.status === 0))
		return <Failed error={failure} onRetry={() => void name.refetch()} />;
	const go = (next: DocumentSearch) => void navigate({ to: "/w/$slug/d/$id", params: { slug, id }, search: next, replace: true });
	const open = search.history === true || search.v !== undefined;
	return (
		<section className={css.chat} aria-label="Document">
			<header className={css.top}>
				<Link to="/w/$slug/documents" params={{ slug }} aria-label="All documents" title="All documents">
					<Icon of={ChevronLeft} />
				</Link>
				<h1 className="cut flex-1 font-mid">{name.data ?? "Document"}</h1>
				{workspace.role !== "viewer" && (
					<Button small icon={SquareArrowOutUpRight} onClick={() => setSharing(true)}>
						Share
					</Button>
				)}
				<IconButton
					icon={HistoryIcon}
					label="History"
					aria-pressed={open}
					onPointerEnter={() => void history().catch(() => undefined)}
					onClick={() => go(open ? {} : { history: true })}
				/>
			</header>
			<div className="flex min-h-0 flex-1">
				<div className="flex min-h-0 min-w-0 flex-1 flex-col">
					{/* The editor stays connected while a version is shown in its place. */}
					<div className={search.v === undefined ? "contents" : "hidden"}>
						<DocumentPane id={id} />
					</div>
					{search.v !== undefined && (
						<Suspense>
							<Compared key={search.v} id={id} version={search.v} onClose={() => go({ history: true })} />
						</Suspense>
					)}
				</div>
				{open && (
					<Suspense>
						<History id={id} {...(search.v === undefined ? {} : { chosen: search.v })} onClose={() => go({})} />
					</Suspense>
				)}
			</div>
			{sharing && (
				<Suspense>
					<Share id={id} onClose={() => setSharing(false)} />
				</Suspense>
			)}
		</section>
	);
}
