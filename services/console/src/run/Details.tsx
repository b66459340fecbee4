import type { Schemas } from "@signalbox/client";
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { X } from "lucide-react";
import { type ReactNode, useState } from "react";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { IconButton } from "../parts/controls.tsx";
import { count, timeOfDay, tokens, toolWords } from "../words.ts";
import { durationWords, workerOf } from "./figures.ts";
import css from "./run.module.css";
import type { Row, Details as RunDetails, Trace, Waterfall } from "./waterfall.ts";

type Message = Schemas["Message"];

/** The messages of the run and the one that it answers, also if an edit or another answer replaced them; read when somebody asks for them. */
export function useMessages(run: Schemas["Run"], wanted: boolean) {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "run-messages", run.id, run.state, run.steps],
		enabled: wanted,
		queryFn: () =>
			unwrap(client.api.GET("/api/sessions/{id}/messages", { params: { path: { id: run.session_id }, query: { run_id: run.id } } })).then(
				(b) => b.messages as Message[],
			),
	});
}

/** The text of a message; its other parts are calls and results, which have rows of their own. */
export function textOf(m: Message): string {
	if (typeof m.content === "string") return m.content;
	if (!Array.isArray(m.content)) return "";
	return (m.content as { type?: string; text?: string }[])
		.filter((p) => p.type === "text")
		.map((p) => p.text ?? "")
		.join("");
}

const tabs = ["Facts", "Input", "Output", "Events"] as const;

/** What is known of a row. */
export function Details({
	details,
	trace,
	fall,
	row,
	names,
	onClose,
}: {
	details: RunDetails;
	trace: Trace | undefined;
	fall: Waterfall;
	row: Row;
	names: (member: string) => string;
	onClose: () => void;
}) {
	const [tab, setTab] = useState<(typeof tabs)[number]>("Facts");
	const above = row.of.kind === "step" ? "Step" : `Step ${row.step + 1}, ${row.of.kind === "call" ? "call" : `attempt ${row.of.number}`}`;
	return (
		<aside className={css.details} aria-label="Details">
			<header>
				<div className="min-w-0 flex-1">
					<p className="micro">{above}</p>
					<h2 className="cut text-h3 font-bold">{row.of.kind === "call" ? toolWords(row.name) : row.name}</h2>
				</div>
				<IconButton icon={X} label="Close the details" onClick={onClose} />
			</header>
			<div className={css.tabs} role="tablist" aria-label="Details">
				{tabs.map((t, i) => (
					<button
						key={t}
						type="button"
						role="tab"
						className={css.tab}
						id={`tab-${t}`}
						aria-selected={t === tab}
						aria-controls="panel"
						tabIndex={t === tab ? 0 : -1}
						onClick={() => setTab(t)}
						onKeyDown={(e) => {
							const by = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
							const next = tabs[(i + by + tabs.length) % tabs.length];
							if (!by || !next) return;
							e.preventDefault();
							setTab(next);
							document.getElementById(`tab-${next}`)?.focus();
						}}
					>
						{t}
					</button>
				))}
			</div>
			<div className={`scroll ${css.panel}`} role="tabpanel" id="panel" aria-labelledby={`tab-${tab}`} tabIndex={0}>
				{tab === "Facts" && <Facts details={details} row={row} names={names} />}
				{tab === "Input" && <Input details={details} row={row} />}
				{tab === "Output" && <Output details={details} row={row} />}
				{tab === "Events" && <Moments trace={trace} fall={fall} row={row} />}
			</div>
		</aside>
	);
}

function Facts({ details, row, names }: { details: RunDetails; row: Row; names: (member: string) => string }) {
	const of = row.of;
	const from = Math.min(...row.spans.map((s) => s.from));
	const to = Math.max(...row.spans.map((s) => s.to));
	const facts: [string, ReactNode][] = [];
	if (of.kind === "call") {
		const { call } = of;
		facts.push(["Tool", <code key="t">{call.tool_name}</code>], ["State", call.state ?? (call.phase === "planned" ? "waits" : "runs")]);
		if (call.duration_ms !== null && call.phase === "done") facts.push(["Took", durationWords(call.duration_ms)]);
		if (call.error_type) facts.push(["Error", call.error_type.replaceAll("_", " ")]);
		const ask = call.approval;
		if (ask) {
			facts.push(["Asked", `${timeOfDay(ask.asked_at)}: ${ask.reason || "approval wanted"}`]);
			if (ask.decision)
				facts.push([
					"Answer",
					`${ask.decision}${ask.decided_by ? ` by ${names(ask.decided_by)}` : ""}${ask.decided_at ? `, ${timeOfDay(ask.decided_at)}` : ""}`,
				]);
			if (ask.decision_reason) facts.push(["Reason", ask.decision_reason]);
		}
		facts.push(["Call", <code key="c">{call.tool_call_id}</code>]);
	} else {
		const attempt = of.kind === "attempt" ? of.attempt : undefined;
		facts.push(["Model", details.run.model], ["Provider", details.run.provider]);
		if (attempt) facts.push(["Worker", workerOf(attempt.claim)]);
		const first = attempt?.first_output_at ? Date.parse(attempt.first_output_at) - Date.parse(attempt.started_at) : undefined;
		facts.push(["Took", `${durationWords(to - from)}${first === undefined ? "" : `, first token ${durationWords(first)}`}`]);
		if (attempt?.void_reason) facts.push(["Void", attempt.void_reason]);
		else if (of.step) {
			const spoke = attempt?.ended_at && attempt.first_output_at ? Date.parse(attempt.ended_at) - Date.parse(attempt.first_output_at) : 0;
			if (spoke > 200) facts.push(["Speed", `${Math.round(of.step.usage.output_tokens / (spoke / 1000))} tokens/s`]);
			if (of.step.finish_reason) facts.push(["Finish", of.step.finish_reason]);
		}
	}
	const step = of.kind !== "call" && !(of.kind === "attempt" && of.attempt?.void_reason) && of.step?.committed_at ? of.step : undefined;
	return (
		<>
			<dl>
				{facts.map(([name, value]) => (
					<div key={name} className="contents">
						<dt>{name}</dt>
						<dd>{value}</dd>
					</div>
				))}
			</dl>
			{step && <Tokens usage={step.usage} wasted={step.wasted} />}
		</>
	);
}

function Tokens({ usage, wasted }: { usage: Schemas["Usage"]; wasted: Schemas["Usage"] }) {
	const fresh = usage.input_tokens - usage.cache_read_tokens;
	return (
		<section className="mt-5">
			<h3 className="micro">Tokens{usage.estimated ? ", partly estimated" : ""}</h3>
			<div className={css.bar} aria-hidden="true">
				{[usage.cache_read_tokens, fresh, usage.output_tokens].map((n, i) => (
					// biome-ignore lint/suspicious/noArrayIndexKey: three fixed parts
					<i key={i} style={{ flexGrow: n }} />
				))}
			</div>
			<p className={`n ${css.key}`}>
				<span>
					<i data-of="cached" />
					{tokens(usage.cache_read_tokens)} cached
				</span>
				<span>
					<i data-of="new" />
					{tokens(fresh)} new
				</span>
				<span>
					<i data-of="out" />
					{tokens(usage.output_tokens)} out
				</span>
			</p>
			{wasted.input_tokens + wasted.output_tokens > 0 && (
				<p className="mt-2 text-small text-stop">
					{tokens(wasted.input_tokens)} in and {tokens(wasted.output_tokens)} out went to calls that broke off.
				</p>
			)}
		</section>
	);
}

function Input({ details, row }: { details: RunDetails; row: Row }) {
	const { workspace } = useWorkspace();
	if (row.of.kind === "call") return <Value value={row.of.call.args} />;
	return (
		<p className="text-ink-2">
			The model got the conversation up to here, with the results of the {row.step === 0 ? "runs" : "steps"} before. Prompts are not kept.{" "}
			<Link to="/w/$slug/s/$id" params={{ slug: slugOf(workspace), id: details.run.session_id }}>
				Open the session
			</Link>
		</p>
	);
}

function Output({ details, row }: { details: RunDetails; row: Row }) {
	const messages = useMessages(details.run, row.of.kind !== "call");
	if (row.of.kind === "call") {
		const { result } = row.of.call;
		return result === null ? <p className="text-ink-3">No result yet.</p> : <Value value={parsed(result)} />;
	}
	if (row.of.kind === "attempt" && row.of.attempt?.void_reason)
		return <p className="text-ink-2">What this attempt said was discarded, and is not kept.</p>;
	if (messages.isPending) return <p role="status">Loading</p>;
	const said = (messages.data ?? []).filter((m) => m.role === "assistant" && m.step_index === row.step);
	const text = said.map(textOf).join("\n\n");
	const asked = details.tool_calls.filter((c) => c.step_index === row.step);
	return (
		<>
			{text && <pre>{text}</pre>}
			{asked.length > 0 && (
				<>
					<h3 className="micro mt-4 mb-1">Asked for</h3>
					<Value value={asked.map((c) => ({ tool: c.tool_name, input: c.args }))} />
				</>
			)}
			{!text && asked.length === 0 && <p className="text-ink-3">Nothing was committed.</p>}
		</>
	);
}

const parsed = (text: string): unknown => {
	try {
		return JSON.parse(text);
	} catch {
		return text;
	}
};

const picture = /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;
const base64 = /^[A-Za-z0-9+/=_-]{512,}$/;

/** A value as JSON. Pictures are shown, and other encoded bytes only as their size. */
function Value({ value }: { value: unknown }) {
	const pictures: string[] = [];
	const text = JSON.stringify(
		value,
		(_, v) => {
			if (typeof v !== "string") return v;
			if (picture.test(v)) return `picture ${pictures.push(v)}, below`;
			return base64.test(v) ? `${count(Math.floor((v.length * 3) / 4))} bytes` : v;
		},
		2,
	);
	return (
		<>
			<pre>{typeof value === "string" && pictures.length === 0 ? value : text}</pre>
			{pictures.map((p, i) => (
				<img key={p.slice(0, 99)} src={p} alt={`Part ${i + 1} of the value`} className="mt-2" />
			))}
		</>
	);
}

/** The events of a row, or of the whole run. */
export function Moments({ trace, fall, row }: { trace: Trace | undefined; fall: Waterfall; row?: Row }) {
	const call = row?.of.kind === "call" ? row.of.call.tool_call_id : undefined;
	const claim = row?.of.kind === "attempt" ? row.of.attempt?.claim : undefined;
	const found = (trace?.moments ?? []).filter(
		(m) =>
			!row ||
			(m.step_index === row.step &&
				(call === undefined || m.tool_call_id === call) &&
				(claim === undefined || m.claim === claim) &&
				!(m.kind === "user-message" || m.kind === "run-start" || m.kind === "done" || m.kind === "error")),
	);
	if (found.length === 0)
		return <p className="text-ink-2">No events are kept. They are copied a moment after they happen, and kept for about a day.</p>;
	return (
		<>
			<table className={css.moments}>
				<thead>
					<tr className="micro">
						<th>At</th>
						<th>Event</th>
						<th>Worker</th>
					</tr>
				</thead>
				<tbody>
					{found.map((m) => (
						<tr key={`${m.claim}.${m.number}`}>
							<td className="n">{durationWords(Date.parse(m.time) - fall.origin)}</td>
							<td>
								{m.kind.replaceAll("-", " ")}
								{m.count > 1 ? `, ${m.count} times` : ""}
								{m.detail && <span className="text-ink-3"> {m.detail}</span>}
							</td>
							<td className="n">{workerOf(m.claim)}</td>
						</tr>
					))}
				</tbody>
			</table>
			{trace?.truncated && !row && <p className="mt-3 text-ink-2">The log of this run is longer; what follows is not shown.</p>}
		</>
	);
}
