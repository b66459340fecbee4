import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { X } from "lucide-react";
import { useEffect } from "react";
import { perPage, slugOf, unwrap, useWorkspace } from "../client.ts";
import { Blank, Button, IconButton, Segments } from "../parts/controls.tsx";
import { RunSmall } from "../parts/RunSmall.tsx";
import { Signal } from "../parts/Signal.tsx";
import { durationWords } from "../run/figures.ts";
import css from "../run/run.module.css";
import { ago, money, tokens } from "../words.ts";
import { Failed, useFailure } from "./failed.tsx";
import { stateOf } from "./run.tsx";

export interface RunsSearch {
	state?: "active" | "waiting" | "failed" | "cancelled";
	session?: string;
}

const states = { active: ["queued", "running", "waiting"], waiting: ["waiting"], failed: ["failed"], cancelled: ["cancelled"] } as const;

/** The runs of all sessions, newest first. */
export function RunsPage({ search }: { search: RunsSearch }) {
	const { client, workspace } = useWorkspace();
	const slug = slugOf(workspace);
	const navigate = useNavigate();
	const runs = useInfiniteQuery({
		queryKey: [workspace.id, "runs", search],
		initialPageParam: "",
		queryFn: ({ pageParam }) =>
			unwrap(
				client.api.GET("/api/runs", {
					params: {
						query: {
							limit: 50,
							...(pageParam ? { cursor: pageParam } : {}),
							...(search.state ? { state: [...states[search.state]] } : {}),
							...(search.session ? { session_id: search.session } : {}),
						},
					},
					querySerializer: { array: { style: "form", explode: false } },
				}),
			),
		getNextPageParam: (page) => page.next_cursor ?? undefined,
		refetchInterval: perPage(10_000),
	});
	const failure = useFailure(runs);
	useEffect(() => {
		document.title = "Runs · Signalbox";
	}, []);
	if (failure) return <Failed error={failure} onRetry={() => void runs.refetch()} />;
	const all = runs.data?.pages.flatMap((p) => p.runs) ?? [];
	const go = (next: RunsSearch) => void navigate({ to: "/w/$slug/runs", params: { slug }, search: next });
	return (
		<div className="scroll">
			<div className="page">
				<header className={css.head}>
					<h1 className="flex-1 text-h2 font-bold">Runs</h1>
					{search.session && (
						<span className="flex items-center gap-1 text-small text-ink-2">
							Of {all[0]?.session_title ?? "one session"}
							<IconButton
								icon={X}
								label="Show the runs of all sessions"
								onClick={() => {
									const { session: _, ...rest } = search;
									go(rest);
								}}
							/>
						</span>
					)}
					<Segments
						label="State"
						value={search.state ?? "all"}
						options={[
							{ value: "all", text: "All" },
							{ value: "active", text: "Active" },
							{ value: "waiting", text: "Waiting" },
							{ value: "failed", text: "Failed" },
							{ value: "cancelled", text: "Stopped" },
						]}
						onChange={(v) => {
							const { state: _, ...rest } = search;
							go(v === "all" ? rest : { ...rest, state: v as NonNullable<RunsSearch["state"]> });
						}}
					/>
				</header>
				{runs.data && all.length === 0 && (
					<Blank line={search.state ? "clear" : "open"} title={search.state ? "None of these" : "No run yet"}>
						{search.state ? "No run is in this state." : "Each message to the agent starts a run. What it did and cost is told here."}
					</Blank>
				)}
				{all.length > 0 && (
					<table className={css.list}>
						<thead>
							<tr className="micro">
								<th>
									<span className="sr">State</span>
								</th>
								<th>Session</th>
								<th>Model</th>
								<th>Steps</th>
								<th>Tokens</th>
								<th>Cost</th>
								<th>Took</th>
								<th>Began</th>
							</tr>
						</thead>
						<tbody>
							{all.map((r) => {
								const used = r.usage.input_tokens + r.usage.output_tokens;
								return (
									<tr key={r.id}>
										<td>
											<Signal name={stateOf[r.state][0]} label={stateOf[r.state][1]} />
										</td>
										<td className="cut">
											<Link to="/w/$slug/runs/$id" params={{ slug, id: r.id }}>
												{r.session_title ?? "New session"}
											</Link>{" "}
											<span className="n text-ink-3">run {r.ordinal}</span>
										</td>
										<td className="cut text-small text-ink-3">{r.model}</td>
										<td>
											<RunSmall small steps={r.steps} state={r.state} />
										</td>
										<td className="n">{used ? tokens(used) : ""}</td>
										<td className="n">{r.cost_micros == null ? "" : r.simulated ? "simulated" : money(r.cost_micros)}</td>
										<td className="n">
											{r.started_at && r.ended_at ? durationWords(Date.parse(r.ended_at) - Date.parse(r.started_at)) : ""}
										</td>
										<td className="n text-ink-3">
											<time dateTime={r.created_at}>{ago(r.created_at)}</time>
										</td>
									</tr>
								);
							})}
						</tbody>
					</table>
				)}
				{runs.hasNextPage && (
					<p className="mt-4">
						<Button busy={runs.isFetchingNextPage} onClick={() => void runs.fetchNextPage()}>
							Older runs
						</Button>
					</p>
				)}
			</div>
		</div>
	);
}
