import { useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { Archive, ArchiveRestore, Plus, Search } from "lucide-react";
import { Fragment, useEffect, useRef, useState } from "react";
import { useActions } from "../actions.ts";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { useSessions } from "../Frame.tsx";
import { Blank, Button, Face, Icon, Segments } from "../parts/controls.tsx";
import { Marked } from "../parts/Marked.tsx";
import { RunSmall } from "../parts/RunSmall.tsx";
import { focusedRow, rowsOf, useRows } from "../parts/rows.ts";
import { Signal } from "../parts/Signal.tsx";
import { toast } from "../parts/Toast.tsx";
import { usePeople } from "../people.ts";
import { agoThatDay, dayOf, sessionSignal, sessionWords } from "../words.ts";
import { Failed, useFailure } from "./failed.tsx";
import css from "./sessions.module.css";

export type SessionSearch = { q?: string; archived?: boolean; state?: "running" | "waiting" };

export function SessionsPage({ search }: { search: SessionSearch }) {
	const { client, workspace } = useWorkspace();
	const slug = slugOf(workspace);
	const navigate = useNavigate();
	const queries = useQueryClient();
	const sessions = useSessions(search);
	const failure = useFailure(sessions);
	const { nameOf } = usePeople();
	const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
	const list = useRef<HTMLDivElement>(null);
	const field = useRef<HTMLInputElement>(null);
	const typing = useRef<ReturnType<typeof setTimeout>>(undefined);
	const writes = workspace.role !== "viewer";

	const show = (next: SessionSearch, replace = false) => {
		setSelected(new Set());
		void navigate({ to: "/w/$slug/sessions", params: { slug }, search: next, replace });
	};
	/** Searches when the typing pauses. */
	const find = (q: string) => {
		clearTimeout(typing.current);
		const { q: _, ...rest } = search;
		typing.current = setTimeout(() => show(q.trim() ? { ...rest, q: q.trim() } : rest, true), 200);
	};
	const archive = async (ids: readonly string[], archived: boolean) => {
		const set = (to: boolean) =>
			Promise.all(
				ids.map((id) => unwrap(client.api.PATCH("/api/sessions/{id}", { params: { path: { id } }, body: { archived: to } }))),
			).then(() => queries.invalidateQueries({ queryKey: [workspace.id, "sessions"] }));
		setSelected(new Set());
		try {
			await set(archived);
			const what = ids.length === 1 ? "Session" : `${ids.length} sessions`;
			toast({ text: `${what} ${archived ? "archived" : "back in the list"}.`, undo: () => void set(!archived) });
		} catch (e) {
			toast({ text: e instanceof Error ? e.message : String(e) });
		}
	};
	/** What E acts on: the selected sessions, or the one with the focus. */
	const meant = () => {
		const at = focusedRow();
		return selected.size > 0 ? [...selected] : at ? [at] : [];
	};
	const select = (range: boolean) => {
		const at = focusedRow();
		if (!at) return;
		const all = rowsOf(list).map((r) => r.dataset.row ?? "");
		const to = all.indexOf(at);
		const from = range ? all.findLastIndex((id, i) => i < to && selected.has(id)) : -1;
		setSelected((before) => {
			const next = new Set(before);
			if (from >= 0) for (const id of all.slice(from, to + 1)) next.add(id);
			else if (!next.delete(at)) next.add(at);
			return next;
		});
	};
	useRows(list);
	useActions([
		{ keys: "/", run: () => field.current?.focus() },
		...(writes
			? [
					{ keys: "x", run: () => select(false) },
					{ keys: "shift+x", run: () => select(true) },
					{ keys: "e", run: () => meant().length > 0 && void archive(meant(), !search.archived) },
				]
			: []),
	]);
	useEffect(() => {
		document.title = "Sessions · Signalbox";
	}, []);
	if (failure) return <Failed error={failure} onRetry={() => void sessions.refetch()} />;
	let day = "";
	return (
		<div className="scroll">
			<div className="page">
				<header className={css.head}>
					<h1 className="flex-1 text-h2 font-bold">Sessions</h1>
					<label className={css.find}>
						<Icon of={Search} />
						<span className="sr">Search sessions</span>
						<input
							ref={field}
							type="search"
							defaultValue={search.q}
							maxLength={200}
							onChange={(e) => find(e.target.value)}
							onKeyDown={(e) => {
								if (e.key !== "Escape") return;
								e.preventDefault(); // a browser would empty the field
								e.currentTarget.blur();
							}}
							placeholder="Search titles and messages"
						/>
						<kbd>/</kbd>
					</label>
					{writes && (
						<Button
							look="primary"
							icon={Plus}
							shortcut="C"
							className={css.fresh ?? ""}
							onClick={() => void navigate({ to: "/w/$slug", params: { slug } })}
						>
							New session
						</Button>
					)}
				</header>
				<div className={css.bar}>
					<Segments
						label="State"
						value={search.archived ? "archived" : (search.state ?? "all")}
						options={[
							{ value: "all", text: "All" },
							{ value: "running", text: "Running" },
							{ value: "waiting", text: "Waiting" },
							{ value: "archived", text: "Archived" },
						]}
						onChange={(v) => {
							const q = search.q ? { q: search.q } : {};
							show(v === "all" ? q : v === "archived" ? { ...q, archived: true } : { ...q, state: v as "running" });
						}}
					/>
					{selected.size > 0 && (
						<Button
							small
							icon={search.archived ? ArchiveRestore : Archive}
							shortcut="E"
							onClick={() => void archive([...selected], !search.archived)}
						>
							{search.archived ? "Put back" : "Archive"} {selected.size}
						</Button>
					)}
				</div>
				{sessions.data?.length === 0 && <Nothing search={search} onNew={() => void navigate({ to: "/w/$slug", params: { slug } })} />}
				<div ref={list}>
					{sessions.data?.map((s) => {
						const heading = dayOf(s.updated_at);
						const fresh = heading !== day;
						day = heading;
						const words = sessionWords(s);
						const signal = sessionSignal(s);
						return (
							<Fragment key={s.id}>
								{fresh && <h2 className={`micro ${css.day}`}>{heading}</h2>}
								<Link
									to="/w/$slug/s/$id"
									params={{ slug, id: s.id }}
									className={css.session ?? ""}
									data-row={s.id}
									data-selected={selected.has(s.id) || undefined}
								>
									<Signal name={signal} />
									<span className={css.words}>
										<span className="cut font-mid">
											{selected.has(s.id) && <span className="sr">Selected: </span>}
											<Marked text={s.title ?? "New session"} words={search.q ?? ""} />
										</span>
										{(s.match || words) && (
											<span className="cut text-small text-ink-3" data-is={s.match ? undefined : signal}>
												{s.match ? <Marked text={s.match} words={search.q ?? ""} /> : words}
											</span>
										)}
									</span>
									{s.last_run ? <RunSmall small steps={s.last_run.steps} state={s.last_run.state} /> : <span />}
									<span className="cut text-small text-ink-3">{s.model}</span>
									<time className="n text-small text-ink-3" dateTime={s.updated_at}>
										{agoThatDay(s.updated_at)}
									</time>
									<Face name={nameOf(s.created_by)} id={s.created_by} />
								</Link>
							</Fragment>
						);
					})}
				</div>
				{sessions.hasNextPage && (
					<p className="mt-4">
						<Button busy={sessions.isFetchingNextPage} onClick={() => void sessions.fetchNextPage()}>
							Older sessions
						</Button>
					</p>
				)}
				{(sessions.data?.length ?? 0) > 0 && (
					<p className={css.keys}>
						<kbd>J</kbd> <kbd>K</kbd> move, <kbd>↵</kbd> open
						{writes && (
							<>
								, <kbd>X</kbd> select, <kbd>E</kbd> {search.archived ? "put back" : "archive"}
							</>
						)}
						.
					</p>
				)}
			</div>
		</div>
	);
}

function Nothing({ search, onNew }: { search: SessionSearch; onNew: () => void }) {
	if (search.q)
		return (
			<Blank line="none" title={`Nothing with “${search.q}”`}>
				Titles and messages were searched{search.archived ? ", of archived sessions" : ""}.
			</Blank>
		);
	if (search.archived)
		return (
			<Blank line="open" title="Nothing archived">
				Archive a session with E, and it is here.
			</Blank>
		);
	if (search.state) return <Blank line="clear" title={search.state === "running" ? "Nothing runs" : "Nothing waits for you"} />;
	return (
		<Blank
			line="open"
			title="No session yet"
			action={
				<Button look="primary" onClick={onNew}>
					New session
				</Button>
			}
		>
			Ask something, or try one of the examples.
		</Blank>
	);
}
