import { expect, test } from "vitest";
import { durationWords, workerOf } from "./figures.ts";
import { type Details, type Trace, ticks, tickWords, waterfall } from "./waterfall.ts";

const at = (s: number) => new Date(Date.UTC(2026, 0, 1) + s * 1000).toISOString();
const usage = { input_tokens: 10, cache_read_tokens: 0, cache_write_tokens: 0, output_tokens: 5, reasoning_tokens: 0, estimated: false };
const call = {
	tool_call_id: "c",
	tool_name: "doc_read",
	args: {},
	phase: "done",
	state: "ok",
	result: "{}",
	duration_ms: 500,
	error_type: null,
};
const details = {
	run: { state: "done", model: "m", created_at: at(0), started_at: at(0), ended_at: at(30) },
	steps: [
		{ index: 0, finish_reason: "tool-calls", usage, wasted: usage, committed_at: at(3), cost_micros: 1000, wasted_cost_micros: null },
		{ index: 1, finish_reason: "stop", usage, wasted: usage, committed_at: at(29), cost_micros: 2000, wasted_cost_micros: 500 },
	],
	tool_calls: [
		{ ...call, step_index: 0, planned_at: at(3), done_at: at(4) },
		{
			...call,
			step_index: 0,
			tool_call_id: "d",
			planned_at: at(3),
			done_at: at(12),
			approval: { decision: "approved", asked_at: at(3), decided_at: at(11) },
		},
	],
} as unknown as Details;
const trace = {
	attempts: [
		{ step_index: 0, claim: 1, started_at: at(0), first_output_at: at(1), ended_at: at(3), void_reason: null },
		{ step_index: 1, claim: 2, started_at: at(12), first_output_at: at(13), ended_at: at(14), void_reason: "lost" },
		{ step_index: 1, claim: 3, started_at: at(16), first_output_at: at(17), ended_at: at(29), void_reason: null },
	],
	moments: [
		{ kind: "run-start", claim: 1, time: at(0), until: null, step_index: 0 },
		{ kind: "parked", claim: 1, time: at(4), until: null, step_index: 0 },
		{ kind: "tool-result", claim: 2, time: at(12), until: null, step_index: 0 },
		{ kind: "text-delta", claim: 2, time: at(13), until: at(14), step_index: 1 },
		{ kind: "run-start", claim: 3, time: at(16), until: null, step_index: 0 },
		{ kind: "step-retry", claim: 3, time: at(16), until: null, step_index: 1 },
	],
	truncated: false,
} as unknown as Trace;

const drawn = (t?: Trace) =>
	waterfall(details, t, 0).rows.map(
		(r) => `${r.key} ${r.signal} ${r.spans.map((s) => `${s.kind} ${s.from / 1000}-${s.to / 1000}`).join(", ")} ${r.note}`,
	);

test("a run with a question and a takeover", () => {
	expect(drawn(trace)).toEqual([
		"0 done step 0-12 ",
		"0.a1 done first 0-1, model 1-3 3.0 s, first token 1.0 s",
		"0.c1 done tool 3.5-4 500 ms",
		"0.c2 done wait 3-11, tool 11.5-12 waited 8.0 s",
		"1 done step 12-29 ",
		"1.a1 failed void 12-14 void: lost",
		"1.a2 done first 16-17, model 17-29 13.0 s, first token 1.0 s",
	]);
	const w = waterfall(details, trace, 0);
	// A run that was parked for a person goes on under another claim, and nobody took it over.
	expect(w.takeovers).toEqual([{ lost: 14_000, back: 16_000, claim: 3, from: 2, again: 1 }]);
	expect([w.length, w.waited]).toEqual([30_000, 8_000]);
});

test("without its trace a model call ends with its commit, and has no first token", () => {
	expect(drawn()).toEqual([
		"0 done step 0-12 ",
		"0.a1 done model 0-3 3.0 s",
		"0.c1 done tool 3.5-4 500 ms",
		"0.c2 done wait 3-11, tool 11.5-12 waited 8.0 s",
		"1 done step 12-29 ",
		"1.a1 done model 12-29 17.0 s",
	]);
});

test("ticks are round and few", () => {
	expect(ticks(0, 58_400)).toEqual([0, 10_000, 20_000, 30_000, 40_000, 50_000]);
	expect(ticks(1200, 1900, 7)).toEqual([1200, 1300, 1400, 1500, 1600, 1700, 1800]);
	expect([tickWords(500, 500), tickWords(10_000, 5000), tickWords(1340, 20), tickWords(120_000, 60_000)]).toEqual([
		"0.5 s",
		"10 s",
		"1.34 s",
		"2 min",
	]);
	for (const length of [1, 90, 61_000, 3_600_000, 90_000_000]) expect(ticks(0, length).length).toBeLessThanOrEqual(8);
});

test("workers have letters in the order of the claims", () => {
	expect([0, 1, 2, 26, 27, 52, 53, 703].map(workerOf)).toEqual(["", "a", "b", "z", "aa", "az", "ba", "aaa"]);
	const names = waterfall(details, trace, 0).rows.map((r) => r.name);
	expect(names.filter((n) => n.startsWith("Attempt"))).toEqual(["Attempt 1, worker b", "Attempt 2, worker c"]);
});

test("durations", () => {
	expect([84, 2340, 59_999, 72_400, 7_500_000].map(durationWords)).toEqual(["84 ms", "2.3 s", "1 min 0 s", "1 min 12 s", "2 h 5 min"]);
});
