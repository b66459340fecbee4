import type { Schemas } from "@signalbox/client";
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { Braces, ChevronLeft, Link2, MessageSquare, Terminal, Waypoints } from "lucide-react";
import { type ReactNode, useEffect, useMemo, useState } from "react";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { copyText } from "../insecure.ts";
import { serverNow } from "../live/servertime.ts";
import { Icon, IconButton, Notice, Segments, Tag } from "../parts/controls.tsx";
import { Markdown } from "../parts/Markdown.tsx";
import { Signal, type SignalName } from "../parts/Signal.tsx";
import { usePeople } from "../people.ts";
import { Details, Moments, textOf, useMessages } from "../run/Details.tsx";
import { durationWords, workerOf } from "../run/figures.ts";
import { Lanes, type Part, Small } from "../run/Lanes.tsx";
import { otlp } from "../run/otlp.ts";
import css from "../run/run.module.css";
import { type Waterfall, waterfall } from "../run/waterfall.ts";
import { money, tokens } from "../words.ts";
import { Failed, useFailure } from "./failed.tsx";

export interface RunSearch {
	step?: string;
	view?: "conversation" | "log";
}

type Run = Schemas["Run"];

export const stateOf: Record<Run["state"], [SignalName, string, "plain" | "live" | "wait" | "stop"]> = {
	queued: ["queued", "Queued", "plain"],
	running: ["running", "Running", "live"],
	waiting: ["waiting", "Waiting", "wait"],
	done: ["done", "Done", "plain"],
	failed: ["failed", "Failed", "stop"],
	cancelled: ["stopped", "Stopped", "plain"],
};

const over = (r: Run) => r.state === "done" || r.state === "failed" || r.state === "cancelled";

/** A run, step by step: where its time, tokens and money went. */
export function RunPage({ id, search }: { id: string; search: RunSearch }) {
	const { client, workspace } = useWorkspace();
	const slug = slugOf(workspace);
	const navigate = useNavigate();
	const read = useQuery({
		queryKey: [workspace.id, "run", id],
		queryFn: async () => {
			const path = { params: { path: { id } } };
			const [details, trace] = await Promise.all([
				unwrap(client.api.GET("/api/runs/{id}", path)),
				unwrap(client.api.GET("/api/runs/{id}/trace", path)).catch(() => undefined), // of a server of an earlier release
			]);
			return { details, trace, at: serverNow() };
		},
		// The trace is a moment behind the run's end.
		refetchInterval: (q) => {
			const d = q.state.data;
			if (!d) return 10_000;
			if (!over(d.details.run)) return 1500;
			return d.trace?.moments.length && !d.trace.moments.some((m) => m.kind === "done" || m.kind === "error") && !d.trace.truncated
				? 1500
				: false;
		},
	});
	const session = useQuery({
		queryKey: [workspace.id, "session-title", read.data?.details.run.session_id],
		enabled: read.data !== undefined,
		queryFn: () =>
			unwrap(client.api.GET("/api/runs", { params: { query: { session_id: read.data?.details.run.session_id ?? "", limit: 1 } } })).then(
				(b) => b.runs[0]?.session_title ?? "a session",
			),
	});
	const failure = useFailure(read);
	const { nameOf } = usePeople();
	const title = read.data ? `Run ${read.data.details.run.ordinal} of ${session.data ?? ""}` : "Run";
	useEffect(() => {
		document.title = `${title} · Signalbox`;
	}, [title]);
	const fall = useMemo(() => read.data && waterfall(read.data.details, read.data.trace, read.data.at), [read.data]);
	const [part, setPart] = useState<Part>();
	if (failure) return <Failed error={failure} onRetry={() => void read.refetch()} />;
	if (!read.data || !fall)
		return (
			<p className="sr" role="status">
				Loading the run
			</p>
		);
	const { details, trace } = read.data;
	const { run } = details;
	const go = (next: RunSearch) =>
		void navigate({ to: "/w/$slug/runs/$id", params: { slug, id }, search: next, replace: true, resetScroll: false });
	const view = search.view ?? "waterfall";
	const row = view === "waterfall" ? fall.rows.find((r) => r.key === search.step) : undefined;
	const shown = part && part.to <= fall.length ? part : { from: 0, to: fall.length };
	return (
		<section className={css.page} aria-label={title}>
			<header className={css.top}>
				<Link to="/w/$slug/runs" params={{ slug }} aria-label="All runs" title="All runs">
					<Icon of={ChevronLeft} />
				</Link>
				<h1 className="cut min-w-0 flex-1 font-mid">
					Run {run.ordinal} <span className="text-ink-3">of {session.data ?? "…"}</span>
				</h1>
				<Link
					to="/w/$slug/s/$id"
					params={{ slug, id: run.session_id }}
					hash={`m-${run.user_message_id}`}
					aria-label="Open the session"
					title="Open the session"
				>
					<Icon of={MessageSquare} />
				</Link>
				<Copy icon={Link2} label="Copy the link" text={() => location.href} />
				<Copy icon={Braces} label="Copy as JSON" text={() => JSON.stringify({ ...details, trace }, null, 2)} />
				<Copy icon={Waypoints} label="Copy as OpenTelemetry" text={() => JSON.stringify(otlp(details, fall), null, 2)} />
				<Copy
					icon={Terminal}
					label="Copy as curl"
					text={() =>
						["", "/trace"]
							.map(
								(p) =>
									`curl -H "Authorization: Bearer $SIGNALBOX_TOKEN" -H "X-Workspace-Id: ${workspace.id}" ${location.origin}/api/runs/${id}${p}`,
							)
							.join("\n")
					}
				/>
			</header>
			<FactsRow run={run} fall={fall} steps={details.steps} />
			<div className={css.body} data-whole={row ? undefined : true} style={row ? undefined : { gridTemplateColumns: "minmax(0, 1fr)" }}>
				<div className={css.main}>
					<div className={css.views}>
						<Segments
							label="View"
							value={view}
							options={[
								{ value: "waterfall", text: "Waterfall" },
								{ value: "conversation", text: "Conversation" },
								{ value: "log", text: "Log" },
							]}
							onChange={(v) => go(v === "waterfall" ? {} : { view: v as "log" })}
						/>
						{view === "waterfall" && (
							<div className={css.legend} aria-hidden="true">
								{(
									[
										["first", "Before the first token"],
										["model", "Model"],
										["tool", "Tool"],
										["wait", "Waiting for a person"],
										["void", "Void"],
									] as const
								).map(([kind, name]) => (
									<span key={kind}>
										<i data-kind={kind} />
										{name}
									</span>
								))}
							</div>
						)}
					</div>
					{run.error && (
						<div className="px-4 pb-3">
							<Notice tone="stop">
								<b className="font-bold">{run.error.code || "Failed"}.</b> {run.error.message}
							</Notice>
						</div>
					)}
					{view === "waterfall" && fall.rows.length > 0 && (
						<>
							<Small fall={fall} part={shown} onPart={setPart} />
							<Lanes fall={fall} part={shown} chosen={search.step} onChoose={(step) => go({ step })} onPart={setPart} />
							<Takeovers fall={fall} />
						</>
					)}
					{view === "waterfall" && fall.rows.length === 0 && (
						<p className="px-4 text-ink-2">{run.state === "queued" ? "The run waits for its turn." : "Nothing has been said yet."}</p>
					)}
					{view === "conversation" && <Said run={run} />}
					{view === "log" && (
						<div className="scroll px-4 pb-6" tabIndex={0} role="region" aria-label="Log">
							<Moments trace={trace} fall={fall} />
						</div>
					)}
				</div>
				{row && <Details key={row.key} details={details} trace={trace} fall={fall} row={row} names={nameOf} onClose={() => go({})} />}
			</div>
		</section>
	);
}

function FactsRow({ run, fall, steps }: { run: Run; fall: Waterfall; steps: Schemas["Step"][] }) {
	const [signal, word, tone] = stateOf[run.state];
	const wasted = steps.reduce((sum, s) => sum + (s.wasted_cost_micros ?? 0), 0);
	const facts: [string, ReactNode, string?][] = [
		[
			"State",
			<Tag key="s" tone={tone} signal={signal}>
				{word}
			</Tag>,
		],
		[over(run) ? "Took" : "So far", durationWords(fall.length)],
	];
	if (fall.waited > 0) facts.push(["Of that, waiting", durationWords(fall.waited), "text-wait"]);
	facts.push(["Steps", String(run.steps)]);
	const { input_tokens, output_tokens, cache_read_tokens } = run.usage;
	if (input_tokens + output_tokens > 0) facts.push(["Tokens", `${tokens(input_tokens)} in, ${tokens(output_tokens)} out`]);
	if (cache_read_tokens > 0) facts.push(["From cache", `${Math.round((cache_read_tokens / input_tokens) * 100)} %`]);
	if (run.cost_micros != null) facts.push(["Cost", run.simulated ? "simulated" : money(run.cost_micros)]);
	if (wasted > 0) facts.push(["Wasted", money(wasted), "text-stop"]);
	return (
		<section className={css.facts} tabIndex={0} aria-label="Facts">
			<dl className="contents">
				{facts.map(([name, value, look]) => (
					<div key={name}>
						<dt className="micro">{name}</dt>
						<dd className={`n ${look ?? ""}`}>{value}</dd>
					</div>
				))}
			</dl>
		</section>
	);
}

function Takeovers({ fall }: { fall: Waterfall }) {
	if (fall.takeovers.length === 0) return null;
	return (
		<ul className={css.takeovers}>
			{fall.takeovers.map((t) => (
				<li key={t.claim}>
					<span>
						Worker {workerOf(t.claim)} took over from worker {workerOf(t.from)} at {durationWords(t.lost)}, after{" "}
						{durationWords(t.back - t.lost)}.{t.again === undefined ? "" : ` Step ${t.again + 1} was said again from its start.`} Nothing
						was lost.
					</span>
				</li>
			))}
		</ul>
	);
}

/** What was said in the run. */
function Said({ run }: { run: Run }) {
	const messages = useMessages(run, true);
	if (messages.isPending)
		return (
			<p className="sr" role="status">
				Loading
			</p>
		);
	return (
		<div className="scroll" tabIndex={0} role="region" aria-label="Conversation">
			<ol className={css.said}>
				{messages.data
					?.map((m) => ({ m, text: textOf(m) }))
					.filter(({ text }) => text)
					.map(({ m, text }) => (
						<li key={m.id} data-role={m.role}>
							{m.role === "assistant" ? <Markdown text={text} /> : <div>{text}</div>}
						</li>
					))}
			</ol>
		</div>
	);
}

/** A button that copies, and says for a moment that it has. */
function Copy({ icon, label, text }: { icon: typeof Link2; label: string; text: () => string }) {
	const [copied, setCopied] = useState(false);
	useEffect(() => {
		if (!copied) return;
		const t = setTimeout(() => setCopied(false), 1500);
		return () => clearTimeout(t);
	}, [copied]);
	if (copied)
		return (
			<span role="status" className="grid size-7 place-items-center" title="Copied">
				<Signal name="done" label="Copied" />
			</span>
		);
	return <IconButton icon={icon} label={label} onClick={() => void copyText(text()).then(() => setCopied(true))} />;
}
