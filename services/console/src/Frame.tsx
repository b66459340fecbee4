import { createClient, type Schemas } from "@signalbox/client";
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, Outlet, useLocation, useNavigate } from "@tanstack/react-router";
import { FileText, Inbox, Keyboard, type LucideIcon, Menu, MessageSquare, Moon, PanelLeft, Plus, Search } from "lucide-react";
import { Suspense, useEffect, useMemo, useState } from "react";
import { useActions } from "./actions.ts";
import { perPage, slugOf, unwrap, useWorkspace, type Workspace, WorkspaceContext } from "./client.ts";
import css from "./Frame.module.css";
import { timed } from "./live/delay.ts";
import { useLine } from "./live/line.ts";
import { noticeOn, useCount, useNotices } from "./notices.tsx";
import { Caps, Icon } from "./parts/controls.tsx";
import { later } from "./parts/later.tsx";
import { Mark, Signal } from "./parts/Signal.tsx";
import { Toast } from "./parts/Toast.tsx";
import { places } from "./places.ts";
import { storage } from "./storage.ts";
import { toggleTheme } from "./theme.ts";
import { backWords, sessionSignal } from "./words.ts";

const placeKeys: Record<string, string> = { Runs: "g r", Usage: "g u" };

/** It can wait until the page's work is on screen. */
const Foot = later(() => import("./Foot.tsx").then((f) => f.Foot), NoFoot);

const overlays = () => import("./parts/overlays.tsx");
const Palette = later(() => overlays().then((o) => o.Palette));
const Keys = later(() => overlays().then((o) => o.Keys));

/** The sessions that changed last, and more of them page by page; every list of sessions shares it. */
export function useSessions(search: { q?: string; archived?: boolean; state?: "running" | "waiting" } = {}) {
	const { client, workspace } = useWorkspace();
	return useInfiniteQuery({
		queryKey: [workspace.id, "sessions", search],
		initialPageParam: "",
		queryFn: ({ pageParam }) =>
			unwrap(
				client.api.GET("/api/sessions", {
					params: { query: { limit: 50, order: "updated", ...search, ...(pageParam ? { cursor: pageParam } : {}) } },
				}),
			),
		getNextPageParam: (page) => page.next_cursor ?? undefined,
		select: (d) => d.pages.flatMap((p) => p.sessions as Schemas["Session"][]),
		refetchInterval: perPage(15_000),
		refetchIntervalInBackground: noticeOn("waits") || noticeOn("ends"),
	});
}

/** The calls that wait for a person, oldest first, page by page. */
export function useApprovals() {
	const { client, workspace } = useWorkspace();
	return useInfiniteQuery({
		queryKey: [workspace.id, "approvals"],
		initialPageParam: "",
		queryFn: ({ pageParam }) =>
			timed(unwrap(client.api.GET("/api/approvals", { params: { query: { limit: 100, ...(pageParam ? { cursor: pageParam } : {}) } } }))),
		getNextPageParam: (page) => page.next_cursor ?? undefined,
		select: (d) => d.pages.flatMap((p) => p.approvals as Schemas["Approval"][]),
		refetchInterval: perPage(5_000),
		refetchIntervalInBackground: noticeOn("waits"),
	});
}

/** How many there are, as far as they were read: "100+" if more follow, "" for none. */
function counted(list: { data: readonly unknown[] | undefined; hasNextPage: boolean }): string {
	const n = list.data?.length ?? 0;
	return n === 0 ? "" : `${n}${list.hasNextPage ? "+" : ""}`;
}

/** The frame around every page of a workspace: navigation, work, and the foot. */
export function Frame({ workspaces, workspace }: { workspaces: Workspace[]; workspace: Workspace }) {
	const value = useMemo(() => ({ client: createClient({ workspace: workspace.id }), workspace }), [workspace]);
	return (
		<WorkspaceContext value={value}>
			<Shell workspaces={workspaces} />
		</WorkspaceContext>
	);
}

function Shell({ workspaces }: { workspaces: Workspace[] }) {
	const { workspace } = useWorkspace();
	const navigate = useNavigate();
	const slug = slugOf(workspace);
	const [shut, setShut] = useState(() => storage.get("nav") === "shut");
	const sessions = useSessions();
	const running = counted(useSessions({ state: "running" }));
	const waiting = counted(useApprovals());
	const line = useLine();
	useCount(waiting);
	useNotices(sessions.data);
	const at = useLocation({ select: (l) => l.pathname.split("/")[3] ?? "" });

	const [overlay, setOverlay] = useState<"palette" | "keys">();
	useEffect(() => {
		const idle = setTimeout(() => void overlays().catch(() => undefined), 500); // opening one tries again
		return () => clearTimeout(idle);
	}, []);
	const show = (w: Workspace) => void navigate({ to: "/w/$slug", params: { slug: slugOf(w) } });
	const go = (to: PlaceProps["to"]) => () => void navigate({ to, params: { slug } });
	useActions([
		{ name: "New session", keys: "c", icon: Plus, run: go("/w/$slug") },
		{ name: "Go to Inbox", keys: "g i", icon: Inbox, run: go("/w/$slug/inbox") },
		{ name: "Go to Sessions", keys: "g s", icon: MessageSquare, run: go("/w/$slug/sessions") },
		{ name: "Go to Documents", keys: "g d", icon: FileText, run: go("/w/$slug/documents") },
		...places
			.filter((p) => p.roles.includes(workspace.role))
			.map((p) => ({ name: `Go to ${p.text}`, keys: placeKeys[p.text] ?? "", icon: p.icon, run: go(p.to) })),
		{ name: "Light or dark", keys: "mod+shift+l", icon: Moon, run: toggleTheme },
		{ name: "Show or hide the navigation", keys: "[", icon: PanelLeft, run: () => setShut((s) => !s) },
		{ name: "Keys", keys: "?", icon: Keyboard, run: () => setOverlay("keys") },
		{ keys: "mod+k", run: () => setOverlay("palette") },
	]);
	useEffect(() => storage.set("nav", shut ? "shut" : "open"), [shut]);

	return (
		<div className={css.shell} data-shut={shut || undefined}>
			<nav className={css.nav} aria-label="Main">
				<div className={css.workspace}>
					<Mark />
					<select
						aria-label="Workspace"
						value={workspace.id}
						onChange={(e) => {
							const to = workspaces.find((w) => w.id === e.target.value);
							if (to) show(to);
						}}
					>
						{workspaces.map((w) => (
							<option key={w.id} value={w.id}>
								{w.name}
							</option>
						))}
					</select>
				</div>
				<Place icon={Plus} to="/w/$slug" text="New session" shortcut="C" exact />
				<button type="button" className={css.place} title="Search" onClick={() => setOverlay("palette")}>
					<Icon of={Search} />
					<span className={css.text}>Search</span>
					<Caps keys="mod+k" />
				</button>
				<span className="h-2" />
				<Place icon={Inbox} to="/w/$slug/inbox" text="Inbox" count={waiting} />
				<Place icon={MessageSquare} to="/w/$slug/sessions" text="Sessions" />
				<Place icon={FileText} to="/w/$slug/documents" text="Documents" />
				{places
					.filter((p) => p.work)
					.map((p) => (
						<Place key={p.to} {...p} />
					))}
				<div className={css.recent} tabIndex={0} role="region" aria-label="Recent sessions">
					<h2 className="micro">Recent</h2>
					{sessions.data?.length === 0 && <p className="px-2 text-small text-ink-3">Your sessions will be here, with their signals.</p>}
					{sessions.data?.map((s) => (
						<Link key={s.id} to="/w/$slug/s/$id" params={{ slug, id: s.id }} className={css.place} activeProps={{ "aria-current": "page" }}>
							<Signal name={sessionSignal(s, "failures")} />
							<span className={css.text}>{s.title ?? "New session"}</span>
						</Link>
					))}
					{sessions.hasNextPage && (
						<button
							type="button"
							className={css.place}
							disabled={sessions.isFetchingNextPage}
							onClick={() => void sessions.fetchNextPage()}
						>
							<span className={css.text}>Older sessions</span>
						</button>
					)}
				</div>
				<div className={css.operate}>
					{places
						.filter((p) => !p.work && p.roles.includes(workspace.role))
						.map((p) => (
							<Place key={p.to} {...p} current={p.also?.includes(at)} />
						))}
				</div>
			</nav>
			<main className={css.main} id="main">
				{line.state === "lost" && <Offline retryAt={line.retryAt} />}
				{line.state === "open" && line.away !== undefined && (
					<p className={css.back} role="status">
						{backWords(line.away, line.missed)}
					</p>
				)}
				<Suspense key={overlay}>
					{overlay === "palette" && <Palette onClose={() => setOverlay(undefined)} />}
					{overlay === "keys" && <Keys onClose={() => setOverlay(undefined)} />}
				</Suspense>
				<Outlet />
			</main>
			<Suspense fallback={<NoFoot />}>
				<Foot
					workspaces={workspaces}
					running={running}
					waiting={waiting}
					onNavigation={() => setShut((s) => !s)}
					onKeys={() => setOverlay("keys")}
					onWorkspace={show}
				/>
			</Suspense>
			<nav className={css.tabs} aria-label="Sections">
				<Tab icon={MessageSquare} to="/w/$slug/sessions" text="Sessions" />
				<Tab icon={Inbox} to="/w/$slug/inbox" text="Inbox" count={waiting} />
				<Tab icon={Plus} to="/w/$slug" text="New" exact />
				<Tab icon={FileText} to="/w/$slug/documents" text="Documents" />
				<Tab icon={Menu} to="/w/$slug/more" text="More" />
			</nav>
			<Toast />
		</div>
	);
}

function NoFoot() {
	return <footer className={css.foot} />;
}

interface PlaceProps {
	icon: LucideIcon;
	to:
		| "/w/$slug"
		| "/w/$slug/inbox"
		| "/w/$slug/sessions"
		| "/w/$slug/documents"
		| "/w/$slug/runs"
		| "/w/$slug/more"
		| (typeof places)[number]["to"];
	text: string;
	shortcut?: string;
	count?: string;
	exact?: boolean;
	/** The page is a part of this place, though its path is another. */
	current?: boolean | undefined;
}

function Place({ icon, to, text, shortcut, count, exact, current }: PlaceProps) {
	const slug = slugOf(useWorkspace().workspace);
	return (
		<Link
			to={to}
			params={{ slug }}
			className={css.place}
			title={text}
			{...(current ? { "aria-current": "page" } : {})}
			activeOptions={{ exact: exact ?? false }}
			activeProps={{ "aria-current": "page" }}
		>
			<Icon of={icon} />
			<span className={css.text}>{text}</span>
			{count ? <Count n={count} /> : shortcut && <kbd>{shortcut}</kbd>}
		</Link>
	);
}

function Tab({ icon, to, text, count, exact }: PlaceProps) {
	const slug = slugOf(useWorkspace().workspace);
	return (
		<Link to={to} params={{ slug }} activeOptions={{ exact: exact ?? false }} activeProps={{ "aria-current": "page" }}>
			<Icon of={icon} size={20} />
			{text}
			{count ? <Count n={count} /> : null}
		</Link>
	);
}

function Count({ n }: { n: string }) {
	return (
		<span className={css.count}>
			{n}
			<span className="sr"> waiting</span>
		</span>
	);
}

function Offline({ retryAt }: { retryAt: number }) {
	const [now, setNow] = useState(Date.now());
	useEffect(() => {
		const t = setInterval(() => setNow(Date.now()), 500);
		return () => clearInterval(t);
	}, []);
	const seconds = Math.max(0, Math.ceil((retryAt - now) / 1000));
	return (
		<p className={css.offline} role="status">
			No connection. {seconds > 0 ? `Next try in ${seconds} s.` : "Trying now."} The run goes on without you.
		</p>
	);
}
