import type { Schemas } from "@signalbox/client";
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { History as HistoryIcon, Tag as TagIcon, X } from "lucide-react";
import { type FormEvent, Fragment, type ReactNode, useMemo, useState } from "react";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { Button, Face, Icon, IconButton, Notice } from "../parts/controls.tsx";
import { usePeople } from "../people.ts";
import { dayOf, timeOfDay } from "../words.ts";
import { type Changed, compare, type Run } from "./diff.ts";
import css from "./History.module.css";

type Version = Schemas["DocumentVersion"];

const did: Record<string, string> = {
	create: "created it",
	edit: "edited it",
	append: "added to it",
	replace: "replaced the text",
	restore: "restored a version",
	undo: "undid a change",
	rename: "renamed it",
	write: "wrote",
};

/** The versions of a document, by day: who, for whom and in which run, and how many words. */
export function History({ id, chosen, onClose }: { id: string; chosen?: number; onClose: () => void }) {
	const { client, workspace } = useWorkspace();
	const slug = slugOf(workspace);
	const { nameOf } = usePeople();
	const [agentOnly, setAgentOnly] = useState(false);
	const versions = useInfiniteQuery({
		queryKey: [workspace.id, "versions", id],
		initialPageParam: "",
		queryFn: ({ pageParam }) =>
			unwrap(
				client.api.GET("/api/documents/{id}/versions", {
					params: { path: { id }, query: { limit: 30, words: true, ...(pageParam ? { cursor: pageParam } : {}) } },
				}),
			),
		getNextPageParam: (page) => page.next_cursor ?? undefined,
		refetchInterval: 5_000,
	});
	const all = (versions.data?.pages.flatMap((p) => p.versions) ?? []).filter((v) => !agentOnly || v.run_id);
	let day = "";
	return (
		<aside className={css.history} aria-label="History">
			<header className={css.head}>
				<h2 className="flex-1 font-mid">History</h2>
				<label className={css.only}>
					Agent only
					<input
						type="checkbox"
						role="switch"
						aria-checked={agentOnly}
						checked={agentOnly}
						onChange={(e) => setAgentOnly(e.target.checked)}
					/>
				</label>
				<IconButton icon={X} label="Close the history" onClick={onClose} />
			</header>
			<div className="scroll" tabIndex={0} role="region" aria-label="Versions">
				{versions.error && <Notice tone="stop">{versions.error.message}</Notice>}
				<ol>
					{all.map((v) => {
						const heading = dayOf(v.created_at);
						const fresh = heading !== day;
						day = heading;
						const by = v.run_id ? "Signalbox" : nameOf(v.member_id);
						return (
							<Fragment key={v.version}>
								{fresh && (
									<li className={css.day}>
										<h3 className="micro">{heading}</h3>
									</li>
								)}
								<li className={css.version}>
									<Link
										to="/w/$slug/d/$id"
										params={{ slug, id }}
										search={{ history: true, v: v.version }}
										replace
										aria-current={v.version === chosen ? "true" : undefined}
									>
										<Face name={by} id={v.run_id ? undefined : (v.member_id ?? by)} />
										<span className="min-w-0">
											{v.label && <b className="block cut font-bold">{v.label}</b>}
											<span className="font-mid">{by}</span>
											<span className="block text-small text-ink-3">
												{did[v.operation] ?? v.operation}
												{v.run_id && v.member_id ? ` for ${nameOf(v.member_id).replace("You", "you")}` : ""} · {timeOfDay(v.created_at)}
												{v.undone_by ? " · undone" : ""}
											</span>
										</span>
										<Words version={v} />
									</Link>
								</li>
							</Fragment>
						);
					})}
				</ol>
				{versions.hasNextPage && (
					<p className="p-4">
						<Button small busy={versions.isFetchingNextPage} onClick={() => void versions.fetchNextPage()}>
							Older versions
						</Button>
					</p>
				)}
				<p className={css.foot}>
					Older versions get fewer with age; those with a name stay. Restoring adds a version; it never removes one.
				</p>
			</div>
		</aside>
	);
}

function Words({ version: v }: { version: Version }) {
	if (v.words_added == null || v.words_removed == null || (!v.words_added && !v.words_removed)) return null;
	return (
		<span className={`n ${css.words}`}>
			{v.words_added > 0 && (
				<span className="text-live">
					+{v.words_added}
					<span className="sr"> words</span>
				</span>
			)}
			{v.words_removed > 0 && (
				<span className="text-stop">
					−{v.words_removed}
					<span className="sr"> words</span>
				</span>
			)}
		</span>
	);
}

/** A version compared with the one before it, in the document's place. */
export function Compared({ id, version, onClose }: { id: string; version: number; onClose: () => void }) {
	const { client, workspace } = useWorkspace();
	const slug = slugOf(workspace);
	const navigate = useNavigate();
	const queries = useQueryClient();
	const { nameOf } = usePeople();
	const [busy, setBusy] = useState<"restore" | "undo" | "label">();
	const [label, setLabel] = useState<string>();
	const [told, setTold] = useState<{ tone: "live" | "stop"; text: string }>();
	const path = { path: { id, version } };
	const read = useQuery({
		queryKey: [workspace.id, "version", id, version],
		queryFn: () => unwrap(client.api.GET("/api/documents/{id}/versions/{version}", { params: path })),
		staleTime: Number.POSITIVE_INFINITY,
	});
	const changes = useMemo(() => read.data && compare(read.data.before, read.data.content), [read.data]);
	if (read.error)
		return (
			<div className="p-4">
				<Notice tone="stop">{read.error.message}</Notice>
			</div>
		);
	if (!read.data || !changes)
		return (
			<p className="sr" role="status">
				Loading the version
			</p>
		);
	const v = read.data.version;
	const name = (e: FormEvent) => {
		e.preventDefault();
		void act("label", async () => {
			await unwrap(client.api.PATCH("/api/documents/{id}/versions/{version}", { params: path, body: { label: label?.trim() ?? "" } }));
			setLabel(undefined);
			void read.refetch();
			return "";
		});
	};
	const act = async (what: "restore" | "undo" | "label", run: () => Promise<string>) => {
		setBusy(what);
		try {
			setTold({ tone: "live", text: await run() });
		} catch (e) {
			setTold({ tone: "stop", text: e instanceof Error ? e.message : String(e) });
		}
		setBusy(undefined);
		void queries.invalidateQueries({ queryKey: [workspace.id, "versions", id] });
	};
	return (
		<>
			<div className={css.banner} role="group" aria-label="Compared">
				<Icon of={HistoryIcon} />
				<p className="min-w-0 flex-1">
					<b className="font-bold">
						{v.label && `${v.label}. `}
						{timeOfDay(v.created_at)}, {v.run_id ? "Signalbox" : nameOf(v.member_id)}
					</b>{" "}
					compared with the version before it. <ins>Added</ins> and <del>removed</del>.{" "}
					{v.run_id && (
						<Link to="/w/$slug/runs/$id" params={{ slug, id: v.run_id }}>
							Its run
						</Link>
					)}
				</p>
				{workspace.role !== "viewer" && label !== undefined && (
					<form className={css.label} onSubmit={name}>
						<input
							aria-label="Name of this version"
							placeholder="Name of this version"
							value={label}
							autoFocus
							maxLength={100}
							onChange={(e) => setLabel(e.target.value)}
							onKeyDown={(e) => e.key === "Escape" && setLabel(undefined)}
						/>
						<Button small type="submit" busy={busy === "label"}>
							Save
						</Button>
					</form>
				)}
				{workspace.role !== "viewer" && label === undefined && (
					<>
						<Button small icon={TagIcon} disabled={busy !== undefined} onClick={() => setLabel(v.label ?? "")}>
							{v.label ? "Rename" : "Name"}
						</Button>
						{v.run_id && (
							<Button
								small
								busy={busy === "undo"}
								disabled={busy !== undefined}
								title="Takes back what this run changed, and keeps what people wrote"
								onClick={() =>
									void act("undo", async () => {
										const r = await unwrap(
											client.api.POST("/api/documents/{id}/runs/{run}/undo", { params: { path: { id, run: v.run_id ?? "" } } }),
										);
										if (r.undone === 0) return "Nothing of this run was left to undo. Restore a version instead.";
										return `Undone: ${r.undone === 1 ? "one change" : `${r.undone} changes`} of this run. What people wrote is kept.`;
									})
								}
							>
								Undo its edits
							</Button>
						)}
						<Button
							small
							look="primary"
							busy={busy === "restore"}
							disabled={busy !== undefined}
							onClick={() =>
								void act("restore", async () => {
									await unwrap(client.api.POST("/api/documents/{id}/versions/{version}/restore", { params: path }));
									void navigate({ to: "/w/$slug/d/$id", params: { slug, id }, search: { history: true }, replace: true });
									return "";
								})
							}
						>
							Restore this version
						</Button>
					</>
				)}
				<IconButton icon={X} label="Back to the document" onClick={onClose} />
			</div>
			{told?.text && (
				<div role="status" className="px-4 pt-3">
					<Notice tone={told.tone}>{told.text}</Notice>
				</div>
			)}
			<div className="scroll" tabIndex={0} role="region" aria-label="The version">
				<div className={css.text}>
					{changes.map((c, i) => (
						<Line key={i} of={c} />
					))}
					{changes.length === 0 && <p className="text-ink-3">This version has no text.</p>}
				</div>
			</div>
		</>
	);
}

function Line({ of: { unit, change, words } }: { of: Changed }) {
	const inner =
		change === "within"
			? words.map((w, i) => {
					const piece = look(w);
					return w.change === "added" ? (
						<ins key={i}>{piece}</ins>
					) : w.change === "removed" ? (
						<del key={i}>{piece}</del>
					) : (
						<Fragment key={i}>{piece}</Fragment>
					);
				})
			: unit.runs.map((r, i) => <Fragment key={i}>{look(r)}</Fragment>);
	const marked = change === "added" ? <ins>{inner}</ins> : change === "removed" ? <del>{inner}</del> : inner;
	const Tag = unit.kind === "heading" ? "h2" : unit.kind === "rule" ? "hr" : "p";
	if (Tag === "hr") return <hr />;
	return (
		<Tag data-kind={unit.kind} data-depth={unit.depth}>
			{marked}
		</Tag>
	);
}

function look(r: Run): ReactNode {
	if (r.code) return <code>{r.text}</code>;
	if (r.strong) return <strong>{r.text}</strong>;
	if (r.em) return <em>{r.text}</em>;
	return r.text;
}
