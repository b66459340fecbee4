import { expect, test } from "vitest";
import { otlp } from "./otlp.ts";
import { type Details, waterfall } from "./waterfall.ts";

const at = (s: number) => new Date(Date.UTC(2026, 0, 1) + s * 1000).toISOString();
const usage = { input_tokens: 10, cache_read_tokens: 0, cache_write_tokens: 0, output_tokens: 5, reasoning_tokens: 0, estimated: false };
const details = {
	run: {
		id: "01a2261c-0015-7895-9b10-d758501e74c6",
		session_id: "s",
		ordinal: 3,
		state: "failed",
		model: "m",
		provider: "p",
		usage,
		error: { code: "X", message: "It broke." },
		cost_micros: null,
		created_at: at(0),
		started_at: at(0),
		ended_at: at(30.5),
	},
	steps: [
		{ index: 0, finish_reason: "tool-calls", usage, wasted: usage, committed_at: at(3), cost_micros: 1000, wasted_cost_micros: null },
	],
	tool_calls: [
		{
			step_index: 0,
			tool_call_id: "c",
			tool_name: "doc_read",
			args: {},
			phase: "done",
			state: "error",
			result: "{}",
			duration_ms: 500,
			error_type: "timed_out",
			planned_at: at(3),
			done_at: at(4),
		},
	],
} as unknown as Details;
const trace = {
	attempts: [
		{ step_index: 0, claim: 1, started_at: at(0), first_output_at: null, ended_at: at(1), void_reason: "lost" },
		{ step_index: 0, claim: 2, started_at: at(1), first_output_at: at(2), ended_at: at(3), void_reason: null },
	],
	moments: [],
	truncated: false,
};

const spansOf = (made: object) =>
	(made as { resourceSpans: { scopeSpans: { spans: Record<string, unknown>[] }[] }[] }).resourceSpans[0]?.scopeSpans[0]?.spans ?? [];

test("a run is a trace: steps, attempts and calls, with exact times and what failed", () => {
	const fall = waterfall(details, trace, Date.parse(at(60)));
	const spans = spansOf(otlp(details, fall));
	expect(spans.map((s) => [s.name, s.spanId, s.parentSpanId, s.status])).toEqual([
		["run 3", "0000000000000001", undefined, { code: 2, message: "It broke." }],
		["step 1", "0000000100000000", "0000000000000001", {}],
		["chat m", "0000000101000001", "0000000100000000", { code: 2, message: "lost" }],
		["chat m", "0000000101000002", "0000000100000000", {}],
		["execute_tool doc_read", "0000000102000001", "0000000100000000", { code: 2, message: "timed_out" }],
	]);
	expect(new Set(spans.map((s) => s.traceId))).toEqual(new Set(["01a2261c001578959b10d758501e74c6"]));
	expect([spans[0]?.startTimeUnixNano, spans[0]?.endTimeUnixNano]).toEqual(["1767225600000000000", "1767225630500000000"]);
	const of = (i: number) =>
		Object.fromEntries(((spans[i]?.attributes ?? []) as { key: string; value: object }[]).map((a) => [a.key, a.value]));
	expect(of(3)).toMatchObject({ "gen_ai.usage.input_tokens": { intValue: "10" }, "signalbox.cost_micros": { intValue: "1000" } });
	expect(of(2)).not.toHaveProperty("gen_ai.usage.input_tokens"); // an attempt that broke off has no known tokens
	expect(of(0)).not.toHaveProperty("signalbox.cost_micros"); // unknown, which is not 0
});

test("what has not ended has no end", () => {
	const [call] = details.tool_calls;
	const parked = { ...call, phase: "parked", state: "running", result_expires_at: at(90), done_at: null, duration_ms: null };
	const running = {
		...details,
		run: { ...details.run, state: "running", error: null, ended_at: null },
		tool_calls: [parked],
	} as unknown as Details;
	const spans = spansOf(otlp(running, waterfall(running, trace, Date.parse(at(60)))));
	expect(spans.filter((s) => !s.endTimeUnixNano).map((s) => s.name)).toEqual(["run 3", "step 1", "execute_tool doc_read"]);
	expect(spans).toHaveLength(5);
});
