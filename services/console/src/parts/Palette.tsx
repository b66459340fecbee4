import type { Schemas } from "@signalbox/client";
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { FileText, MessageSquare, Plus, Square } from "lucide-react";
import { type KeyboardEvent, type ReactNode, useDeferredValue, useEffect, useId, useMemo, useRef, useState } from "react";
import { type Action, actions, composes } from "../actions.ts";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { useSessions } from "../Frame.tsx";
import { ago } from "../words.ts";
import { drafts } from "./Composer.tsx";
import { Caps, Icon } from "./controls.tsx";
import { Dialog } from "./Dialog.tsx";
import { Marked } from "./Marked.tsx";
import css from "./Palette.module.css";
import { Signal } from "./Signal.tsx";

interface Entry {
	key: string;
	group: string;
	icon: ReactNode;
	text: string;
	/** What stands at the right: a time, or keys. */
	side: ReactNode;
	run: (beside: boolean) => void;
}

const most = 6;

/** Finds sessions, documents, messages and commands. ↵ opens; ⌘↵ opens a document beside the conversation, and the rest in a new tab. */
export default function Palette({ onClose }: { onClose: () => void }) {
	const { client, workspace } = useWorkspace();
	const slug = slugOf(workspace);
	const navigate = useNavigate();
	const [text, setText] = useState("");
	/** The key of the chosen entry, which keeps its choice when the lists change. */
	const [at, setAt] = useState<string>();
	const list = useRef<HTMLDivElement>(null);
	const id = useId();
	const q = useDeferredValue(text.trim());
	const sessions = useSessions(q ? { q } : {});
	const documents = useQuery({
		queryKey: [workspace.id, "documents", q],
		queryFn: () =>
			unwrap(client.api.GET("/api/documents", { params: { query: { limit: most, ...(q ? { q } : {}) } } })).then(
				(b) => b.documents as Schemas["Document"][],
			),
		placeholderData: (before) => before,
	});
	const known = useMemo(actions, []);

	const openSession = (found: string) => (beside: boolean) => {
		if (beside) window.open(`/w/${slug}/s/${found}`, "_blank", "noopener");
		else void navigate({ to: "/w/$slug/s/$id", params: { slug, id: found } });
	};
	const entries: Entry[] = [];
	for (const s of sessions.data?.slice(0, most) ?? [])
		entries.push({
			key: s.id,
			group: "Sessions and documents",
			icon: <Signal name={s.state} />,
			text: s.title ?? "New session",
			side: ago(s.updated_at),
			run: openSession(s.id),
		});
	for (const d of documents.data?.slice(0, most) ?? [])
		entries.push({
			key: d.id,
			group: "Sessions and documents",
			icon: <Icon of={FileText} />,
			text: d.name,
			side: `document, ${ago(d.updated_at)}`,
			run: (beside) => {
				const open = /\/s\/([^/]+)$/.exec(location.pathname)?.[1];
				if (beside && open) void navigate({ to: "/w/$slug/s/$id", params: { slug, id: open }, search: { doc: d.id } });
				else void navigate({ to: "/w/$slug/d/$id", params: { slug, id: d.id } });
			},
		});
	for (const s of sessions.data?.filter((f) => f.match).slice(0, most) ?? [])
		entries.push({
			key: `said ${s.id}`,
			group: "In messages",
			icon: <Icon of={MessageSquare} />,
			text: s.match ?? "",
			side: <span className={`cut ${css.from}`}>{s.title ?? "New session"}</span>,
			run: openSession(s.id),
		});
	const wanted = q.toLowerCase();
	const commands = known.filter((a): a is Action & { name: string } => Boolean(a.name?.toLowerCase().includes(wanted)));
	for (const a of commands)
		entries.push({
			key: a.name,
			group: "Do",
			icon: <Icon of={a.icon ?? Square} />,
			text: a.name,
			side: a.keys && <Caps keys={a.keys} />,
			run: a.run,
		});
	if (q && workspace.role !== "viewer")
		entries.push({
			key: "new",
			group: "Do",
			icon: <Icon of={Plus} />,
			text: `New session with “${q}”`,
			side: null,
			run: () => {
				drafts.set("new", [drafts.read("new"), q].filter(Boolean).join("\n"));
				void navigate({ to: "/w/$slug", params: { slug } });
			},
		});
	const found = entries.findIndex((e) => e.key === at);
	const chosen = entries.length === 0 ? -1 : Math.max(0, found);
	// With other words the first one is chosen, once all that is found is there.
	const complete = sessions.data !== undefined && documents.data !== undefined && !documents.isPlaceholderData;
	const first = complete ? entries[0]?.key : undefined;
	// biome-ignore lint/correctness/useExhaustiveDependencies: the choice begins anew with other words
	useEffect(() => setAt(undefined), [q]);
	useEffect(() => {
		if (found < 0) setAt(first);
	}, [found, first]);
	// biome-ignore lint/correctness/useExhaustiveDependencies: the chosen entry stays in view
	useEffect(() => {
		list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
	}, [chosen]);

	const run = (e: Entry | undefined, beside: boolean) => {
		if (!e) return;
		onClose();
		e.run(beside);
	};
	const onKeyDown = (e: KeyboardEvent) => {
		if (composes(e.nativeEvent)) return;
		const move = { ArrowDown: 1, ArrowUp: -1 }[e.key];
		if (move && entries.length) {
			e.preventDefault();
			setAt(entries[(chosen + move + entries.length) % entries.length]?.key);
		} else if (e.key === "Enter") {
			e.preventDefault();
			run(entries[chosen], e.metaKey || e.ctrlKey);
		} else if ((e.metaKey || e.ctrlKey) && e.key === "k") {
			e.preventDefault();
			onClose();
		}
	};
	return (
		<Dialog title="Search and commands" bare light width={600} onClose={onClose}>
			<input
				className={css.say}
				role="combobox"
				aria-label="Search and commands"
				aria-expanded="true"
				aria-controls={`${id}-list`}
				aria-activedescendant={chosen >= 0 ? `${id}-${chosen}` : undefined}
				placeholder="Go to, do, or find…"
				value={text}
				maxLength={200}
				onChange={(e) => setText(e.target.value)}
				onKeyDown={onKeyDown}
			/>
			<div className={css.list} id={`${id}-list`} role="listbox" aria-label="Results" ref={list}>
				{[...new Set(entries.map((e) => e.group))].map((group) => (
					<div key={group} role="group" aria-label={group}>
						<p className={`micro ${css.group}`} aria-hidden="true">
							{group}
						</p>
						{entries.map((e, i) => {
							if (e.group !== group) return null;
							return (
								// biome-ignore lint/a11y/useKeyWithClickEvents: the field has the keys
								<div
									key={e.key}
									id={`${id}-${i}`}
									role="option"
									tabIndex={-1}
									aria-selected={i === chosen}
									className={css.entry}
									onPointerMove={() => setAt(e.key)}
									onClick={(c) => run(e, c.metaKey || c.ctrlKey)}
								>
									{e.icon}
									<span className="cut">
										<Marked text={e.text} words={q} />
									</span>
									<span className={css.side}>{e.side}</span>
								</div>
							);
						})}
					</div>
				))}
				{entries.length === 0 && !sessions.isFetching && <p className={css.none}>Nothing with “{q}”.</p>}
			</div>
			<footer className={css.foot} aria-hidden="true">
				<span>
					<kbd>↑</kbd> <kbd>↓</kbd> move
				</span>
				<span>
					<kbd>↵</kbd> open
				</span>
				<span>
					<Caps keys="mod+enter" /> beside
				</span>
				<span className="flex-1" />
				<kbd>esc</kbd>
			</footer>
		</Dialog>
	);
}
