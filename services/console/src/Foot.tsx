import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleUser, Moon, PanelLeft, Sun } from "lucide-react";
import { useState, useSyncExternalStore } from "react";
import { useBudgets } from "./budgets.ts";
import { slugOf, unwrap, useWorkspace, type Workspace } from "./client.ts";
import { useMe } from "./document/Pane.tsx";
import css from "./Frame.module.css";
import { useDelay } from "./live/delay.ts";
import { useLine } from "./live/line.ts";
import { Icon, IconButton, Notice } from "./parts/controls.tsx";
import { Choice, Menu } from "./parts/Menu.tsx";
import { Signal } from "./parts/Signal.tsx";
import { signOut } from "./signout.ts";
import { toggleTheme } from "./theme.ts";
import { costToday, daysUntil, type Group } from "./usage.ts";

interface FootProps {
	workspaces: Workspace[];
	/** How many sessions run, and calls wait; "" for none. */
	running: string;
	waiting: string;
	onNavigation: () => void;
	onKeys: () => void;
	onWorkspace: (to: Workspace) => void;
}

/** The line along the foot of the window: the connection, what runs, what it costs, and who one is. */
export function Foot({ workspaces, running, waiting, onNavigation, onKeys, onWorkspace }: FootProps) {
	const slug = slugOf(useWorkspace().workspace);
	const line = useLine();
	const clear = useSyncExternalStore(onOnline, () => navigator.onLine) && line.state === "open";
	const delay = useDelay();
	const cost = useCostToday();
	return (
		<footer className={css.foot}>
			<span title={clear && delay ? "How long the last question to the server and its answer took" : undefined}>
				<Signal name={clear ? "running" : "waiting"} label={clear ? "Connected" : "Not connected"} />
				{clear ? `Line clear${delay ? `, ${delay} ms` : ""}` : "No connection"}
			</span>
			{running && (
				<Link to="/w/$slug/sessions" params={{ slug }} search={{ state: "running" }}>
					{running} running
				</Link>
			)}
			{waiting && (
				<Link to="/w/$slug/inbox" params={{ slug }}>
					{waiting} waiting
				</Link>
			)}
			<span className="flex-1" />
			{cost && (
				<Link to="/w/$slug/usage" params={{ slug }}>
					{cost}
				</Link>
			)}
			<IconButton icon={PanelLeft} label="Navigation [" onClick={onNavigation} />
			<button type="button" onClick={toggleTheme} aria-label="Light or dark" title="Light or dark" className={css.theme}>
				<Icon of={Sun} size={13} />
				<Icon of={Moon} size={13} />
			</button>
			<button type="button" onClick={onKeys}>
				Keys <kbd>?</kbd>
			</button>
			<You workspaces={workspaces} onWorkspace={onWorkspace} />
		</footer>
	);
}

/** Who is signed in, the workspaces, and the way out. */
function You({ workspaces, onWorkspace }: Pick<FootProps, "workspaces" | "onWorkspace">) {
	const { workspace } = useWorkspace();
	const me = useMe().data;
	const [error, setError] = useState<Error | null>(null);
	if (!me) return null;
	const name = me.name || me.email || `Member ${me.member_id.slice(-4)}`;
	return (
		<Menu label="You" icon={CircleUser} text={name}>
			{(close) => (
				<>
					<p>
						{me.email && me.email !== name ? `${me.email}, ` : ""}
						{workspace.role} of {workspace.name}
					</p>
					{workspaces.length > 1 && <h3 className="micro">Workspace</h3>}
					{workspaces.length > 1 &&
						workspaces.map((w) => (
							<Choice
								key={w.id}
								chosen={w.id === workspace.id}
								text={w.name}
								onChoose={() => {
									close();
									onWorkspace(w);
								}}
							/>
						))}
					<Choice chosen={false} text="Sign out" onChoose={() => void signOut().catch(setError)} />
					{error && <Notice tone="stop">{error.message}</Notice>}
				</>
			)}
		</Menu>
	);
}

/** Today's cost in words. The workspace's own is told to owners, and to everybody if it has a budget. */
function useCostToday(): string | undefined {
	const { client, workspace } = useWorkspace();
	const budgets = useBudgets().data;
	const usage = useQuery({
		queryKey: [workspace.id, "usage", "today"],
		enabled: workspace.role === "owner",
		queryFn: () =>
			unwrap(client.api.GET("/api/usage", { params: { query: { by: "day", from: `${daysUntil(Date.now(), 1)[0]}T00:00:00Z` } } })).then(
				(b) => b.usage as Group[],
			),
		refetchInterval: 60_000,
	});
	return costToday(budgets, usage.data);
}

/** Subscribes to whether the browser has a network: a page that follows no events learns of a loss by it. */
function onOnline(f: () => void): () => void {
	for (const e of ["online", "offline"]) addEventListener(e, f);
	return () => {
		for (const e of ["online", "offline"]) removeEventListener(e, f);
	};
}
