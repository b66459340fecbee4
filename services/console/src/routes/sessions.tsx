import { Link, useNavigate } from "@tanstack/react-router";
import { Search } from "lucide-react";
import { Fragment, useEffect, useRef } from "react";
import { slugOf, useWorkspace } from "../client.ts";
import { useApprovals, useSessions } from "../Frame.tsx";
import { Blank, Button, Icon, Segments } from "../parts/controls.tsx";
import { Signal } from "../parts/Signal.tsx";
import { ago, dayOf } from "../words.ts";
import { Failed } from "./failed.tsx";
import css from "./sessions.module.css";

export function SessionsPage({ search }: { search: { q?: string; archived?: boolean } }) {
	const { workspace } = useWorkspace();
	const slug = slugOf(workspace);
	const navigate = useNavigate();
	const sessions = useSessions(search);
	const waiting = new Set(useApprovals().data?.map((a) => a.session_id));
	const typing = useRef<ReturnType<typeof setTimeout>>(undefined);
	/** Searches when the typing pauses. */
	const find = (q: string) => {
		clearTimeout(typing.current);
		const { q: _, ...rest } = search;
		typing.current = setTimeout(
			() => void navigate({ to: "/w/$slug/sessions", params: { slug }, search: q ? { ...rest, q } : rest, replace: true }),
			200,
		);
	};
	const show = (archived: boolean) => {
		const { archived: _, ...rest } = search;
		void navigate({ to: "/w/$slug/sessions", params: { slug }, search: archived ? { ...rest, archived } : rest });
	};
	useEffect(() => {
		document.title = "Sessions · Signalbox";
	}, []);
	if (sessions.error) return <Failed error={sessions.error} onRetry={() => void sessions.refetch()} />;
	let day = "";
	return (
		<div className="scroll">
			<div className="page">
				<header className={css.head}>
					<h1 className="flex-1 text-h2 font-bold">Sessions</h1>
					<label className={css.find}>
						<Icon of={Search} />
						<span className="sr">Search sessions</span>
						<input type="search" defaultValue={search.q} onChange={(e) => find(e.target.value)} placeholder="Search titles" />
					</label>
				</header>
				<Segments
					label="State"
					value={search.archived ? "archived" : "all"}
					options={[
						{ value: "all", text: "All" },
						{ value: "archived", text: "Archived" },
					]}
					onChange={(v) => show(v === "archived")}
				/>
				{sessions.data?.length === 0 &&
					(search.q ? (
						<Blank line="none" title={`Nothing with “${search.q}”`}>
							Titles were searched.
						</Blank>
					) : (
						<Blank
							line="open"
							title={search.archived ? "Nothing archived" : "No session yet"}
							action={
								!search.archived && (
									<Button look="primary" onClick={() => void navigate({ to: "/w/$slug", params: { slug } })}>
										New session
									</Button>
								)
							}
						>
							Ask something, or try one of the examples.
						</Blank>
					))}
				{sessions.data?.map((s) => {
					const heading = dayOf(s.updated_at);
					const fresh = heading !== day;
					day = heading;
					return (
						<Fragment key={s.id}>
							{fresh && <h2 className={`micro ${css.day}`}>{heading}</h2>}
							<Link to="/w/$slug/s/$id" params={{ slug, id: s.id }} className={css.session}>
								<Signal name={waiting.has(s.id) ? "waiting" : "idle"} />
								<span className="cut font-mid">{s.title ?? "New session"}</span>
								<span className="cut text-small text-ink-3">{s.model}</span>
								<time className="n text-small text-ink-3" dateTime={s.updated_at}>
									{ago(s.updated_at)}
								</time>
							</Link>
						</Fragment>
					);
				})}
			</div>
		</div>
	);
}
