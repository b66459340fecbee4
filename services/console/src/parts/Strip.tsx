import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Square } from "lucide-react";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import type { Active } from "../live/conversation.ts";
import { clock, money, tokens } from "../words.ts";
import { useNow } from "./Clock.tsx";
import { Button } from "./controls.tsx";
import { RunSmall } from "./RunSmall.tsx";
import { Signal, type SignalName } from "./Signal.tsx";
import css from "./Strip.module.css";

const signals: Record<Active["state"], SignalName> = { queued: "queued", running: "running", waiting: "waiting", paused: "parked" };

/** What a session's active run cost so far, read after each step and when it begins to wait. Undefined while it is unknown. */
function useCost(session: string, active: Active): number | undefined {
	const { client, workspace } = useWorkspace();
	const read = useQuery({
		queryKey: [workspace.id, "run-cost", active.run, active.step, active.state],
		enabled: active.step > 0 || active.state === "waiting",
		queryFn: () =>
			unwrap(
				client.api.GET("/api/runs", {
					params: { query: { session_id: session, state: ["running", "waiting"], limit: 1 } },
					querySerializer: { array: { style: "form", explode: false } },
				}),
			).then((b) => b.runs.find((r) => r.id === active.run && !r.simulated)?.cost_micros ?? null),
		placeholderData: (before, query) => (query?.queryKey[2] === active.run ? before : undefined),
		staleTime: Number.POSITIVE_INFINITY,
	});
	return read.data ?? undefined;
}

/** The strip under a conversation's title while a run is active. Without `onStop`, for those who may not stop it. */
export function Strip({
	session,
	active,
	limit,
	onStop,
}: {
	session: string;
	active: Active;
	limit?: number | null;
	onStop: (() => void) | undefined;
}) {
	const { workspace } = useWorkspace();
	const cost = useCost(session, active);
	const now = useNow();
	return (
		<div className={css.strip}>
			<Signal name={active.stopping ? "stopped" : signals[active.state]} />
			<RunSmall steps={active.step} state={active.state} />
			<span className="n">
				Step {active.step + 1}
				{limit ? <span className={css.limit}> of at most {limit}</span> : null}
			</span>
			<span className="n">{active.stopping ? "Stopping…" : clock(now - active.startedAt)}</span>
			{active.tokensIn > 0 && (
				<span className={`n text-ink-3 ${css.tokens}`}>
					{tokens(active.tokensIn)} in, {tokens(active.tokensOut)} out
				</span>
			)}
			{active.run && (
				<Link to="/w/$slug/runs/$id" params={{ slug: slugOf(workspace), id: active.run }} className={`n ${css.run}`} title="Open the run">
					{cost === undefined ? "Run" : money(cost)}
				</Link>
			)}
			{(active.state === "waiting" || active.state === "paused") && active.reason && (
				<span className={`cut text-small text-ink-3 ${css.reason}`}>{active.reason}</span>
			)}
			<span className="flex-1" />
			{onStop && (
				<Button small icon={Square} onClick={onStop} disabled={active.stopping}>
					Stop
				</Button>
			)}
		</div>
	);
}
