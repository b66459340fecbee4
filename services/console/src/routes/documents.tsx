import type { Schemas } from "@signalbox/client";
import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { FileText, Pencil, Plus, Search, Trash2 } from "lucide-react";
import { type SyntheticEvent, useEffect, useRef, useState } from "react";
import { perPage, slugOf, unwrap, useWorkspace } from "../client.ts";
import { Blank, Button, Icon, IconButton, Notice } from "../parts/controls.tsx";
import { Confirm, Dialog } from "../parts/Dialog.tsx";
import { usePeople } from "../people.ts";
import { ago } from "../words.ts";
import css from "./documents.module.css";
import { Failed, useFailure } from "./failed.tsx";
import list from "./sessions.module.css";

type Doc = Schemas["Document"];

/** The documents of the workspace, most recently changed first. */
export function DocumentsPage({ search }: { search: { q?: string } }) {
	const { client, workspace } = useWorkspace();
	const slug = slugOf(workspace);
	const navigate = useNavigate();
	const queries = useQueryClient();
	const { nameOf } = usePeople();
	const mayWrite = workspace.role !== "viewer";
	const [asked, setAsked] = useState<{ what: "new" } | { what: "rename" | "delete"; doc: Doc }>();
	const documents = useInfiniteQuery({
		queryKey: [workspace.id, "documents", search],
		initialPageParam: "",
		queryFn: ({ pageParam }) =>
			unwrap(
				client.api.GET("/api/documents", {
					params: { query: { limit: 50, ...(search.q ? { q: search.q } : {}), ...(pageParam ? { cursor: pageParam } : {}) } },
				}),
			),
		getNextPageParam: (page) => page.next_cursor ?? undefined,
		refetchInterval: perPage(15_000),
	});
	const failure = useFailure(documents);
	const typing = useRef<ReturnType<typeof setTimeout>>(undefined);
	const find = (q: string) => {
		clearTimeout(typing.current);
		typing.current = setTimeout(
			() => void navigate({ to: "/w/$slug/documents", params: { slug }, search: q ? { q } : {}, replace: true }),
			200,
		);
	};
	useEffect(() => {
		document.title = "Documents · Signalbox";
		return () => clearTimeout(typing.current);
	}, []);
	if (failure) return <Failed error={failure} onRetry={() => void documents.refetch()} />;
	const all = documents.data?.pages.flatMap((p) => p.documents) ?? [];
	const again = () => queries.invalidateQueries({ queryKey: [workspace.id, "documents"] });
	return (
		<div className="scroll">
			<div className="page">
				<header className={list.head}>
					<h1 className="flex-1 text-h2 font-bold">Documents</h1>
					<label className={list.find}>
						<Icon of={Search} />
						<span className="sr">Search documents</span>
						<input
							type="search"
							defaultValue={search.q}
							maxLength={200}
							onChange={(e) => find(e.target.value)}
							placeholder="Search names"
						/>
					</label>
					{mayWrite && (
						<Button look="primary" icon={Plus} onClick={() => setAsked({ what: "new" })}>
							New document
						</Button>
					)}
				</header>
				{documents.data && all.length === 0 && (
					<Blank line={search.q ? "none" : "open"} title={search.q ? `Nothing with “${search.q}”` : "No document yet"}>
						{search.q ? "Names were searched." : "Write one, or ask the agent: “Create a document about tea”."}
					</Blank>
				)}
				{all.length > 0 && (
					<p className={`micro ${css.heads}`} data-writes={mayWrite || undefined} aria-hidden="true">
						<span>Name</span>
						<span>Created by</span>
						<span>Last change</span>
					</p>
				)}
				{all.length > 0 && (
					<ul aria-label="Documents">
						{all.map((d) => (
							<li key={d.id} className={css.document}>
								<Link to="/w/$slug/d/$id" params={{ slug, id: d.id }}>
									<Icon of={FileText} />
									<span className="cut font-mid">{d.name}</span>
									<span className="cut text-small text-ink-3">{nameOf(d.created_by)}</span>
									<time className="n text-small text-ink-3" dateTime={d.updated_at}>
										{ago(d.updated_at)}
									</time>
								</Link>
								{mayWrite && (
									<>
										<IconButton icon={Pencil} label={`Rename ${d.name}`} onClick={() => setAsked({ what: "rename", doc: d })} />
										<IconButton icon={Trash2} label={`Delete ${d.name}`} onClick={() => setAsked({ what: "delete", doc: d })} />
									</>
								)}
							</li>
						))}
					</ul>
				)}
				{documents.hasNextPage && (
					<p className="mt-4">
						<Button busy={documents.isFetchingNextPage} onClick={() => void documents.fetchNextPage()}>
							More documents
						</Button>
					</p>
				)}
			</div>
			{asked?.what === "new" && (
				<Name
					title="New document"
					action="Create"
					onClose={() => setAsked(undefined)}
					onName={async (name) => {
						const made = await unwrap(client.api.POST("/api/documents", { body: { name } }));
						void again();
						void navigate({ to: "/w/$slug/d/$id", params: { slug, id: made.document.id } });
					}}
				/>
			)}
			{asked?.what === "rename" && (
				<Name
					title="Rename the document"
					action="Rename"
					name={asked.doc.name}
					onClose={() => setAsked(undefined)}
					onName={async (name) => {
						await unwrap(client.api.PATCH("/api/documents/{id}", { params: { path: { id: asked.doc.id } }, body: { name } }));
						void queries.invalidateQueries({ queryKey: [workspace.id, "document", asked.doc.id] });
						await again();
					}}
				/>
			)}
			{asked?.what === "delete" && (
				<Confirm
					title={`Delete “${asked.doc.name}”?`}
					action="Delete"
					onClose={() => setAsked(undefined)}
					onConfirm={async () => {
						await unwrap(client.api.DELETE("/api/documents/{id}", { params: { path: { id: asked.doc.id } } }));
						await again();
					}}
				>
					Editors are closed. Its history goes with it, and nothing brings it back.
				</Confirm>
			)}
		</div>
	);
}

/** Asks for a name. */
function Name({
	title,
	action,
	name = "",
	onName,
	onClose,
}: {
	title: string;
	action: string;
	name?: string;
	onName: (name: string) => Promise<void>;
	onClose: () => void;
}) {
	const [text, setText] = useState(name);
	const [busy, setBusy] = useState(false);
	const [error, setError] = useState("");
	const submit = (e: SyntheticEvent) => {
		e.preventDefault();
		setBusy(true);
		setError("");
		onName(text.trim()).then(onClose, (e: unknown) => {
			setError(e instanceof Error ? e.message : String(e));
			setBusy(false);
		});
	};
	return (
		<Dialog
			title={title}
			onClose={onClose}
			footer={
				<>
					<Button onClick={onClose}>Cancel</Button>
					<Button look="primary" type="submit" form="name" busy={busy} disabled={!text.trim()}>
						{action}
					</Button>
				</>
			}
		>
			<form id="name" onSubmit={submit} className={css.name}>
				<label htmlFor="document-name">Name</label>
				<input id="document-name" value={text} maxLength={200} autoComplete="off" onChange={(e) => setText(e.target.value)} />
			</form>
			{error && (
				<div role="alert" className="mt-3">
					<Notice tone="stop">{error}</Notice>
				</div>
			)}
		</Dialog>
	);
}
