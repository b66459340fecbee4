/** A run as the rows of a waterfall: steps, the attempts of their model calls, and tool calls. */
import type { Schemas } from "@signalbox/client";
import type { SignalName } from "../parts/Signal.tsx";
import { durationWords, workerOf } from "./figures.ts";
import { type TakenOver, takeovers } from "./takeovers.ts";

export type Details = Schemas["RunDetails"];
export type Trace = Schemas["RunTrace"];
export type SpanKind = "step" | "first" | "model" | "tool" | "wait" | "void" | "failed";

/** A piece of a row's lane; times are milliseconds since the run began. */
export interface Span {
	kind: SpanKind;
	from: number;
	to: number;
}

export interface Row {
	/** Names the row in the address: 3, 3.a2, 3.c1. */
	key: string;
	step: number;
	signal: SignalName;
	name: string;
	spans: Span[];
	/** Said at the end of the row's spans. */
	note: string;
	tokens: number | undefined;
	costMicros: number | undefined;
	of:
		| { kind: "step"; step: Schemas["Step"] | undefined }
		| { kind: "attempt"; attempt: Schemas["Attempt"] | undefined; number: number; step: Schemas["Step"] | undefined }
		| { kind: "call"; call: Schemas["ToolCall"] };
}

export type Takeover = TakenOver<number>;

export interface Waterfall {
	rows: Row[];
	takeovers: Takeover[];
	/** How long the run is, or has been so far. */
	length: number;
	/** How long it waited for people. */
	waited: number;
	/** When the run began, in milliseconds since 1970. */
	origin: number;
}

const ended: ReadonlySet<string> = new Set(["done", "failed", "cancelled"]);

/** Makes the waterfall of a run as it is at `now`. Without a trace there are no attempts: model calls then end when their answer was committed. */
export function waterfall({ run, steps, tool_calls: calls }: Details, trace: Trace | undefined, now: number): Waterfall {
	const origin = Date.parse(run.started_at ?? run.created_at);
	const at = (time: string) => Math.max(0, Date.parse(time) - origin);
	const over = ended.has(run.state);
	// The simulator costs nothing, which is another thing than a price of 0.
	const price = (micros: number | null | undefined) => (run.simulated ? undefined : (micros ?? undefined));
	const end = run.ended_at ? at(run.ended_at) : Math.max(0, now - origin);
	const attempts = trace?.attempts ?? [];
	const indexes = new Set([...steps.map((s) => s.index), ...attempts.map((a) => a.step_index), ...calls.map((c) => c.step_index)]);
	const rows: Row[] = [];
	let before = 0;
	let waited = 0;
	for (const index of [...indexes].sort((a, b) => a - b)) {
		const step = steps.find((s) => s.index === index);
		const tried = attempts.filter((a) => a.step_index === index);
		const asked = calls.filter((c) => c.step_index === index);
		const own: Row[] = [];
		const answered = step?.committed_at ? at(step.committed_at) : undefined;
		if (tried.length === 0 && (answered !== undefined || !over)) {
			const to = answered ?? end;
			own.push({
				key: `${index}.a1`,
				step: index,
				signal: answered === undefined ? "running" : "done",
				name: run.model,
				spans: [{ kind: "model", from: Math.min(before, to), to }],
				note: durationWords(to - before),
				tokens: step && answered !== undefined ? step.usage.input_tokens + step.usage.output_tokens : undefined,
				costMicros: price(step?.cost_micros),
				of: { kind: "attempt", attempt: undefined, number: 1, step },
			});
		}
		tried.forEach((a, i) => {
			const from = at(a.started_at);
			const first = a.first_output_at ? at(a.first_output_at) : undefined;
			const to = a.ended_at ? at(a.ended_at) : end;
			const broken = a.void_reason !== null;
			const last = i === tried.length - 1;
			const spans: Span[] = broken
				? [{ kind: "void", from, to }]
				: first === undefined
					? [{ kind: "first", from, to }]
					: [
							{ kind: "first", from, to: first },
							{ kind: "model", from: first, to },
						];
			const counted = last && !broken && step && answered !== undefined;
			own.push({
				key: `${index}.a${i + 1}`,
				step: index,
				signal: broken ? "failed" : a.ended_at || over ? "done" : "running",
				name: tried.length > 1 ? `Attempt ${i + 1}, worker ${workerOf(a.claim)}` : run.model,
				spans,
				note: broken
					? `void: ${a.void_reason}`
					: first === undefined
						? durationWords(to - from)
						: `${durationWords(to - from)}, first token ${durationWords(first - from)}`,
				tokens: counted ? step.usage.input_tokens + step.usage.output_tokens : undefined,
				costMicros: counted ? price(step.cost_micros) : undefined,
				of: { kind: "attempt", attempt: a, number: i + 1, step },
			});
		});
		asked.forEach((c, i) => {
			const row = callRow(c, `${index}.c${i + 1}`, at, end, over);
			for (const s of row.spans) if (s.kind === "wait") waited += s.to - s.from;
			own.push(row);
		});
		const spans = own.flatMap((r) => r.spans);
		const from = Math.min(...spans.map((s) => s.from), ...(spans.length ? [] : [before]));
		const to = Math.max(before, ...spans.map((s) => s.to));
		const signal = own.some((r) => r.signal === "waiting")
			? "waiting"
			: own.some((r) => r.signal === "running")
				? "running"
				: own.every((r) => r.signal === "failed")
					? "failed"
					: "done";
		rows.push({
			key: String(index),
			step: index,
			signal,
			name: `Step ${index + 1}`,
			spans: [{ kind: "step", from, to }],
			note: "",
			tokens: step && answered !== undefined ? step.usage.input_tokens + step.usage.output_tokens : undefined,
			costMicros: step?.cost_micros == null ? undefined : price(step.cost_micros + (step.wasted_cost_micros ?? 0)),
			of: { kind: "step", step },
		});
		rows.push(...own);
		before = to;
	}
	return {
		rows,
		takeovers: takeovers(trace).map((t) => ({ ...t, lost: at(t.lost), back: at(t.back) })),
		length: Math.max(end, before, 1),
		waited,
		origin,
	};
}

function callRow(c: Schemas["ToolCall"], key: string, at: (time: string) => number, end: number, over: boolean): Row {
	const spans: Span[] = [];
	const planned = c.planned_at ? at(c.planned_at) : end;
	const done = c.done_at ? at(c.done_at) : over ? planned : end;
	const ask = c.approval?.decision === "rule" ? undefined : c.approval;
	let begun = planned;
	let waits = false;
	if (ask) {
		const decided = ask.decided_at ? at(ask.decided_at) : undefined;
		waits = decided === undefined && !over;
		begun = decided ?? (over ? at(ask.asked_at) : end);
		spans.push({ kind: "wait", from: at(ask.asked_at), to: begun });
	}
	const failed = c.state === "error" || c.state === "unknown";
	const ran = c.phase === "done" && c.state !== "cancelled" && !(ask && (ask.decision === "refused" || ask.decision === "expired"));
	if (ran) spans.push({ kind: failed ? "failed" : "tool", from: Math.min(done, Math.max(begun, done - (c.duration_ms ?? 0))), to: done });
	else if (c.phase === "dispatched") spans.push({ kind: "tool", from: begun, to: done });
	if (!spans.length) spans.push({ kind: "tool", from: planned, to: done });
	const said = [
		...(ask ? [`waited ${durationWords((spans[0]?.to ?? 0) - (spans[0]?.from ?? 0))}`] : []),
		...(ran && !ask ? [durationWords(c.duration_ms ?? 0)] : []),
		...(c.state === "error" ? [c.error_type?.replaceAll("_", " ") ?? "failed"] : []),
		...(c.state === "unknown" ? ["outcome unknown"] : []),
		...(c.state === "cancelled" ? ["stopped"] : []),
	];
	return {
		key,
		step: c.step_index,
		signal: waits
			? "waiting"
			: c.state === "error"
				? "failed"
				: c.state === "unknown"
					? "unknown"
					: c.state === "cancelled" || (over && c.phase !== "done")
						? "stopped"
						: c.phase === "done"
							? "done"
							: c.result_expires_at
								? "parked"
								: "running",
		name: c.tool_name,
		spans,
		note: said.join(", "),
		tokens: undefined,
		costMicros: undefined,
		of: { kind: "call", call: c },
	};
}

/** Times for the lane's head: round ones, at most `most` of them. */
export function ticks(from: number, to: number, most = 7): number[] {
	const span = Math.max(1, to - from);
	const rough = span / most;
	const power = 10 ** Math.floor(Math.log10(rough));
	// Above a minute, steps are parts of minutes and hours.
	const steps =
		rough > 30_000 ? [60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400].map((s) => s * 1000) : [1, 2, 5, 10].map((n) => n * power);
	const step = steps.find((s) => s >= rough) ?? steps.at(-1) ?? span;
	const found: number[] = [];
	for (let t = Math.ceil(from / step) * step; t < to; t += step) found.push(t);
	return found;
}

/** A tick in words, as exact as the distance between two needs. */
export function tickWords(t: number, apart: number): string {
	if (apart >= 60_000) return durationWords(t).replace(" 0 s", "");
	const digits = apart >= 1000 || apart <= 0 ? 0 : apart >= 100 ? 1 : apart >= 10 ? 2 : 3;
	return `${(t / 1000).toFixed(digits)} s`;
}
