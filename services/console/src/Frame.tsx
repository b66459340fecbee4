import { createClient, type Schemas } from "@signalbox/client";
import { useQuery } from "@tanstack/react-query";
import { Link, Outlet, useLocation, useNavigate } from "@tanstack/react-router";
import { FileText, Inbox, type LucideIcon, Menu, MessageSquare, Moon, PanelLeft, Plus, Sun } from "lucide-react";
import { useEffect, useMemo, useState } from "react";
import { slugOf, unwrap, useWorkspace, type Workspace, WorkspaceContext } from "./client.ts";
import css from "./Frame.module.css";
import { useLine } from "./live/line.ts";
import { Icon, IconButton } from "./parts/controls.tsx";
import { Mark, Signal } from "./parts/Signal.tsx";
import { places } from "./places.ts";
import { toggleTheme } from "./theme.ts";

/** The newest sessions; every list of sessions shares it. */
export function useSessions(search: { q?: string; archived?: boolean } = {}) {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "sessions", search],
		queryFn: () =>
			unwrap(client.api.GET("/api/sessions", { params: { query: { limit: 50, ...search } } })).then(
				(b) => b.sessions as Schemas["Session"][],
			),
		refetchInterval: 15_000,
	});
}

/** The calls that wait for a person. */
export function useApprovals() {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "approvals"],
		queryFn: () =>
			unwrap(client.api.GET("/api/approvals", { params: { query: { limit: 100 } } })).then((b) => b.approvals as Schemas["Approval"][]),
		refetchInterval: 5_000,
	});
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
	const [shut, setShut] = useState(() => localStorage.getItem("nav") === "shut");
	const sessions = useSessions();
	const waiting = useApprovals().data?.length ?? 0;
	const line = useLine();
	const at = useLocation({ select: (l) => l.pathname.split("/")[3] ?? "" });

	useEffect(() => {
		let prefix = "";
		const onKey = (e: KeyboardEvent) => {
			const at = e.target as HTMLElement;
			if (e.metaKey || e.ctrlKey || e.altKey || /INPUT|TEXTAREA|SELECT/.test(at.tagName) || at.isContentEditable) {
				if ((e.metaKey || e.ctrlKey) && e.shiftKey && e.key.toLowerCase() === "l") {
					e.preventDefault();
					toggleTheme();
				}
				return;
			}
			const go = (to: "/w/$slug" | "/w/$slug/inbox" | "/w/$slug/sessions" | "/w/$slug/documents") =>
				void navigate({ to, params: { slug } });
			if (prefix === "g") {
				if (e.key === "i") go("/w/$slug/inbox");
				if (e.key === "s") go("/w/$slug/sessions");
				if (e.key === "d") go("/w/$slug/documents");
			} else if (e.key === "c") {
				e.preventDefault();
				go("/w/$slug");
			} else if (e.key === "[") setShut((s) => !s);
			prefix = e.key === "g" && prefix !== "g" ? "g" : "";
			if (prefix) setTimeout(() => (prefix = ""), 800);
		};
		addEventListener("keydown", onKey);
		return () => removeEventListener("keydown", onKey);
	}, [navigate, slug]);
	useEffect(() => localStorage.setItem("nav", shut ? "shut" : "open"), [shut]);

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
							if (to) void navigate({ to: "/w/$slug", params: { slug: slugOf(to) } });
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
				<span className="h-2" />
				<Place icon={Inbox} to="/w/$slug/inbox" text="Inbox" count={waiting} />
				<Place icon={MessageSquare} to="/w/$slug/sessions" text="Sessions" />
				<Place icon={FileText} to="/w/$slug/documents" text="Documents" />
				<div className={css.recent} tabIndex={0} role="region" aria-label="Recent sessions">
					<h2 className="micro">Recent</h2>
					{sessions.data?.length === 0 && <p className="px-2 text-small text-ink-3">Your sessions will be here, with their signals.</p>}
					{sessions.data?.slice(0, 20).map((s) => (
						<Link key={s.id} to="/w/$slug/s/$id" params={{ slug, id: s.id }} className={css.place} activeProps={{ "aria-current": "page" }}>
							<Signal name="idle" />
							<span className={css.text}>{s.title ?? "New session"}</span>
						</Link>
					))}
				</div>
				<div className={css.operate}>
					{places
						.filter((p) => p.roles.includes(workspace.role))
						.map((p) => (
							<Place key={p.to} {...p} current={p.also?.includes(at)} />
						))}
				</div>
			</nav>
			<main className={css.main} id="main">
				{line.state === "lost" && <Offline retryAt={line.retryAt} />}
				<Outlet />
			</main>
			<footer className={css.foot}>
				<span>
					<Signal name={line.state === "open" ? "running" : "waiting"} label={line.state === "open" ? "Connected" : "Not connected"} />
					{line.state === "open" ? "Line clear" : "No connection"}
				</span>
				{waiting > 0 && (
					<Link to="/w/$slug/inbox" params={{ slug }}>
						{waiting} waiting
					</Link>
				)}
				<span className="flex-1" />
				<IconButton icon={PanelLeft} label="Navigation [" onClick={() => setShut((s) => !s)} />
				<button type="button" onClick={toggleTheme} aria-label="Light or dark" title="Light or dark" className={css.theme}>
					<Icon of={Sun} size={13} />
					<Icon of={Moon} size={13} />
				</button>
			</footer>
			<nav className={css.tabs} aria-label="Sections">
				<Tab icon={MessageSquare} to="/w/$slug/sessions" text="Sessions" />
				<Tab icon={Inbox} to="/w/$slug/inbox" text="Inbox" count={waiting} />
				<Tab icon={Plus} to="/w/$slug" text="New" exact />
				<Tab icon={FileText} to="/w/$slug/documents" text="Documents" />
				<Tab icon={Menu} to="/w/$slug/more" text="More" />
			</nav>
		</div>
	);
}

interface PlaceProps {
	icon: LucideIcon;
	to: "/w/$slug" | "/w/$slug/inbox" | "/w/$slug/sessions" | "/w/$slug/documents" | "/w/$slug/more" | (typeof places)[number]["to"];
	text: string;
	shortcut?: string;
	count?: number;
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

function Count({ n }: { n: number }) {
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
