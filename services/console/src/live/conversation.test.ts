import type { SignalboxEvent } from "@signalbox/client";
import { expect, test } from "vitest";
import { answerEndingAt, Conversation, questionsOf, type Said, type Step } from "./conversation.ts";

const session = {
	id: "s",
	workspace_id: "w",
	created_by: "me",
	title: null,
	model: "m",
	provider: "p",
	system_prompt: null,
	preset: "workspace",
	tools: null,
	max_steps: null,
	archived: false,
	created_at: "2026-11-24T12:00:00Z",
	updated_at: "2026-11-24T12:00:00Z",
};

function conversation(messages: unknown[] = [], active: unknown = null) {
	const frames: (() => void)[] = [];
	const timers: [f: () => void, ms: number][] = [];
	const c = new Conversation(
		{ session, messages, active_run: active, last_event_id: "0-0", unavailable_tools: [] } as never,
		(f) => void frames.push(f),
		(f, ms) => void timers.push([f, ms]),
	);
	let n = 0;
	return {
		c,
		frames,
		timers,
		apply: (...events: unknown[]) => {
			for (const e of events) c.apply(`1-${++n}`, e as SignalboxEvent, 1000 + n);
		},
		steps: () => c.view().lines.filter((l): l is Step => l.kind === "step"),
	};
}

const start = { type: "run-start", runId: "r1", model: "m", provider: "p", simulated: false };
const text = (delta: string) => ({ type: "text-delta", delta });
const done = {
	type: "done",
	text: "",
	final_text: "",
	totalTokensIn: 1,
	totalTokensOut: 1,
	steps: 1,
	finishReason: "stop",
	runId: "r1",
	simulated: false,
};
const complete = (stepIndex: number) => ({ type: "step-complete", stepIndex, tokensIn: 5, tokensOut: 2, finishReason: "stop" });

test("an answer is written into one step and ends", () => {
	const { c, apply, steps } = conversation();
	apply(start, text("Hel"), text("lo"));
	expect(steps()).toMatchObject([{ text: "Hello", state: "writing", run: "r1" }]);
	expect(c.view().active).toMatchObject({ run: "r1", state: "running", step: 0 });
	apply(complete(0), done);
	expect(steps()).toMatchObject([{ text: "Hello", state: "done", tokensIn: 5 }]);
	expect(c.view().active).toBeNull();
	expect(c.lastEvent).toBe("1-5");
});

test("many events are one call of a listener a frame, and other lines keep their identity", () => {
	const { c, apply, frames } = conversation([{ id: "u1", role: "user", content: "hi", created_at: "2026-11-24T12:00:00Z", run_id: "r0" }]);
	let told = 0;
	c.subscribe(() => told++);
	const before = c.view().lines[0];
	apply(start, text("a"), text("b"), text("c"));
	expect(told).toBe(0);
	expect(frames).toHaveLength(1);
	frames[0]?.();
	expect(told).toBe(1);
	expect(c.view().lines[0]).toBe(before);
});

test("a call arrives, runs and ends", () => {
	const { apply, steps } = conversation();
	apply(
		start,
		{ type: "tool-call-start", toolCallId: "c1", toolName: "doc_list" },
		{ type: "tool-call-delta", toolCallId: "c1", toolName: "doc_list", delta: '{"li' },
	);
	expect(steps()[0]?.calls).toMatchObject([{ id: "c1", state: "arriving", received: 4 }]);
	apply({ type: "tool-call-complete", toolCallId: "c1", toolName: "doc_list", args: { limit: 3 } });
	expect(steps()[0]?.calls).toMatchObject([{ state: "running", args: { limit: 3 } }]);
	apply({ type: "tool-progress", toolCallId: "c1", toolName: "doc_list", message: "reading", percent: 40 });
	expect(steps()[0]?.calls).toMatchObject([{ state: "running", progress: { message: "reading", percent: 40 } }]);
	apply({ type: "tool-result", toolCallId: "c1", toolName: "doc_list", result: '{"error":"no"}', isError: true });
	expect(steps()[0]?.calls).toMatchObject([{ state: "failed", result: { error: "no" } }]);
});

test("a call is queued until the answer is complete, and its times are the server's", () => {
	const { c, apply, steps } = conversation();
	const begins = (toolCallId: string) => ({ type: "tool-call-start", toolCallId, toolName: "doc_list" });
	const runs = (toolCallId: string, at?: string) => ({ type: "tool-call-complete", toolCallId, toolName: "doc_list", args: {}, at });
	apply(start, begins("a"), begins("b"));
	expect(steps()[0]?.calls).toMatchObject([{ state: "queued" }, { state: "arriving" }]);
	apply(runs("a", "2026-11-24T12:00:00.5Z"), runs("b"));
	expect(steps()[0]?.calls).toMatchObject([
		{ state: "running", startedAt: Date.parse("2026-11-24T12:00:00.5Z") },
		{ state: "running", startedAt: 1005 }, // an older server does not say it
	]);
	c.mergeCalls("r1", [{ tool_call_id: "b", step_index: 0, args: {}, planned_at: "2026-11-24T12:00:00.7Z" }] as never);
	expect(steps()[0]?.calls[1]).toMatchObject({ startedAt: Date.parse("2026-11-24T12:00:00.7Z") });
	const result = { type: "tool-result", toolName: "doc_list", result: "1", isError: false };
	apply({ ...result, toolCallId: "a", durationMs: 84 }, { ...result, toolCallId: "b" });
	expect(steps()[0]?.calls.map((c) => [c.state, c.durationMs])).toEqual([
		["done", 84],
		["done", undefined],
	]);
});

test("stored calls have the durations of their run and step", () => {
	const answer = (step: number) => ({
		id: `a${step}`,
		role: "assistant",
		content: [
			{ type: "tool-call", toolCallId: "c", toolName: "doc_list", input: {} },
			{ type: "tool-result", toolCallId: "c", output: { type: "json", value: 1 } },
		],
		created_at: "",
		run_id: "r1",
		step_index: step,
		tokens_in: null,
		tokens_out: null,
	});
	const c = new Conversation({
		session,
		messages: [answer(0), answer(1)],
		active_run: null,
		last_event_id: "0-0",
		unavailable_tools: [],
		runs: [{ run_id: "r1", ended_at: null, tool_calls: [{ step_index: 1, tool_call_id: "c", duration_ms: 230 }] }],
	} as never);
	expect(c.view().lines.map((l) => l.kind === "step" && l.calls[0]?.durationMs)).toEqual([undefined, 230]);
});

test("stored calls say who answered the question about them", () => {
	const ids = ["yes", "no", "nobody"];
	const message = {
		id: "a",
		role: "assistant",
		content: ids.flatMap((toolCallId) => [
			{ type: "tool-call", toolCallId, toolName: "doc_delete", input: {} },
			{ type: "tool-result", toolCallId, output: { type: toolCallId === "yes" ? "json" : "error-json", value: { error: "x" } } },
		]),
		created_at: "",
		run_id: "r1",
		step_index: 0,
		tokens_in: null,
		tokens_out: null,
	};
	const answers = [
		{ decision: "approved", decided_by: "ines", decided_at: "2026-11-24T14:43:00Z", decision_reason: null },
		{ decision: "refused", decided_by: "ines", decided_at: "2026-11-24T14:44:00Z", decision_reason: "Keep it." },
		{ decision: null, decided_by: null, decided_at: null, decision_reason: null },
	];
	const tool_calls = ids.map((tool_call_id, i) => ({ step_index: 0, tool_call_id, duration_ms: 0, ...answers[i] }));
	const details = { session, messages: [message], active_run: null, last_event_id: "0-0", unavailable_tools: [] };
	const c = new Conversation({ ...details, runs: [{ run_id: "r1", ended_at: null, tool_calls }] } as never);
	const [step] = c.view().lines;
	expect(step?.kind === "step" && step.calls.map((c) => [c.state, c.ask?.decision, c.durationMs])).toEqual([
		["done", { decision: "approved", by: "ines", at: "2026-11-24T14:43:00Z" }, undefined],
		["refused", { decision: "refused", by: "ines", at: "2026-11-24T14:44:00Z", reason: "Keep it." }, undefined],
		["failed", undefined, undefined],
	]);
});

test("an approval is asked and answered", () => {
	const { c, apply, steps } = conversation();
	apply(start, { type: "tool-call-complete", toolCallId: "c1", toolName: "doc_delete", args: {} }, complete(0));
	apply(
		{ type: "tool-approval-request", toolCallId: "c1", toolName: "doc_delete", args: { id: "d" }, reason: "It deletes." },
		{ type: "waiting", reason: "for a person", forPerson: true },
	);
	expect(steps()[0]?.calls).toMatchObject([{ state: "asking", ask: { reason: "It deletes.", outcomeUnknown: false } }]);
	expect(c.view().active?.state).toBe("waiting");
	apply({
		type: "tool-approval-response",
		toolCallId: "c1",
		toolName: "doc_delete",
		decision: "refused",
		decidedBy: "you",
		reason: "keep it",
	});
	apply({ type: "tool-result", toolCallId: "c1", toolName: "doc_delete", result: '{"error":"refused"}', isError: true });
	expect(steps()[0]?.calls).toMatchObject([{ state: "refused", ask: { decision: { decision: "refused", by: "you" } } }]);
	expect(c.view().active?.state).toBe("running");
});

test("a page that opens while calls wait says for whom", () => {
	const asked = { id: "u0", role: "user", content: "hi", created_by: "me", created_at: "", run_id: "r1" };
	const called = (toolCallId: string) => ({ type: "tool-call", toolCallId, toolName: toolCallId, input: { n: 1 } });
	const answer = {
		id: "a0",
		role: "assistant",
		content: [called("ask"), called("do")],
		created_at: "",
		run_id: "r1",
		tokens_in: null,
		tokens_out: null,
	};
	const { c, steps, apply } = conversation([asked, answer], { id: "r1", state: "waiting", user_message_id: "u0", usage: {} });
	expect(c.calling).toBe("r1");
	c.mergeCalls("r1", [
		{
			tool_call_id: "ask",
			step_index: 0,
			args: { n: 1 },
			approval: { reason: "why", args: { n: 1 }, question: "approval", decision: null },
		},
		{ tool_call_id: "do", step_index: 0, args: { n: 1 }, result_expires_at: "2026-11-29T10:00:00Z" },
	] as never);
	expect(steps()[0]?.calls).toMatchObject([
		{ state: "asking", ask: { reason: "why" } },
		{ state: "client", until: "2026-11-29T10:00:00Z", step: 0 },
	]);
	expect(c.view().active?.state).toBe("waiting");
	expect(c.calling).toBeUndefined();
	apply({ type: "tool-result", toolCallId: "do", toolName: "do", result: "1", isError: false });
	expect(steps()[0]?.calls[1]?.state).toBe("done");
});

test("a retried step is void, and its text comes again; what is void is struck off after a second", () => {
	const { c, apply, steps, timers } = conversation();
	apply(start, text("lost"), { type: "step-retry", stepIndex: 0, reason: "the worker died" }, text("again"));
	expect(steps()).toMatchObject([
		{ text: "lost", state: "void" },
		{ text: "again", state: "writing" },
	]);
	expect(c.view().lines[1]).toMatchObject({ kind: "note", tone: "note" });
	const retry = { type: "step-retry", stepIndex: 0, reason: "the worker died" };
	apply(retry); // within the second
	expect(timers.map(([, ms]) => ms)).toEqual([1000, 1000]);
	timers[0]?.[0]();
	expect(steps()).toMatchObject([{ text: "again", state: "void" }]);
	timers[1]?.[0]();
	expect(steps()).toEqual([]);
	apply(retry, retry, text("at last"), complete(0));
	expect(timers).toHaveLength(2);
	const { lines } = c.view();
	expect(lines.map((l) => l.kind)).toEqual(["note", "note", "note", "note", "step"]);
	expect(new Set(lines.map((l) => l.key)).size).toBe(lines.length);
});

test("a message that is sent while a run is active waits in the queue, until its run begins", () => {
	const { c, apply } = conversation();
	apply(start, text("a"));
	const said: Said = { kind: "said", key: "k", text: "next", files: [], by: "me", at: "", run: null, state: "sending" };
	c.sending(said);
	expect(c.view().queue).toMatchObject([{ key: "k", state: "sending" }]);
	c.sent("k", { messageId: "u2", run: "r2" });
	expect(c.view().queue).toMatchObject([{ key: "u2", state: "sent" }]);
	apply(complete(0), done, { type: "user-message", messageId: "u2", content: "next", createdBy: "me", runId: "r2" });
	expect(c.view().queue).toHaveLength(0);
	expect(c.view().lines.at(-1)).toMatchObject({ kind: "said", key: "u2", text: "next" });
});

test("the event of a message may come before the answer to its request", () => {
	const { c, apply } = conversation();
	c.sending({ kind: "said", key: "k", text: "hi", files: [], by: "me", at: "", run: null, state: "sending" });
	apply({ type: "user-message", messageId: "u1", content: "hi", createdBy: "me", runId: "r1" });
	c.sent("k", { messageId: "u1", run: "r1" });
	expect(c.view().lines).toMatchObject([{ key: "u1", state: "sent" }]);
});

test("a large message, whose event has no files, keeps those that were sent", () => {
	const { c, apply } = conversation();
	const files = [{ url: "data:image/png;base64,aGk=", mediaType: "image/png", name: "a.png" }];
	c.sending({ kind: "said", key: "k", text: "see", files, by: "me", at: "", run: null, state: "sending" });
	const content = [
		{ type: "text", text: "see" },
		{ type: "file", mediaType: "image/png", data: "", filename: "a.png" },
	];
	const heard = (messageId: string) => ({ type: "user-message", messageId, content, createdBy: "me", runId: "r1" });
	apply(heard("u1"), heard("u2"));
	expect(c.view().lines).toMatchObject([
		{ key: "u1", files },
		{ key: "u2", files: [{ url: "", name: "a.png" }] }, // of another page
	]);
});

test("the message of somebody else with the same text is not this page's own", () => {
	const { c, apply } = conversation();
	const files = [{ url: "data:image/png;base64,aGk=", mediaType: "image/png", name: "mine.png" }];
	c.sending({ kind: "said", key: "k", text: "", files, by: "me", at: "", run: null, state: "sending" });
	const content = [{ type: "file", mediaType: "image/png", data: "", filename: "hers.png" }];
	apply({ type: "user-message", messageId: "u1", content, createdBy: "she", runId: "r1" });
	expect(c.view().lines).toMatchObject([
		{ key: "k", by: "me", files },
		{ key: "u1", by: "she", files: [{ url: "", name: "hers.png" }] },
	]);
});

test("a message that is taken back leaves the queue without a word", () => {
	const { c, apply } = conversation();
	apply(start, text("a"));
	c.sending({ kind: "said", key: "k", text: "next", files: [], by: "me", at: "", run: null, state: "sending" });
	c.sent("k", { messageId: "u2", run: "r2" });
	apply({ ...done, runId: "r2", finishReason: "cancelled" });
	// A page that has taken one back itself no longer has it when the event comes.
	apply({ ...done, runId: "r3", finishReason: "cancelled" }, text("b"));
	expect(c.view()).toMatchObject({ queue: [], active: { run: "r1" }, lines: [{ kind: "step", text: "ab" }] });
});

test("messages that others have sent wait in the queue, in the order of their runs", () => {
	const { c, apply } = conversation();
	apply(start);
	const said = (key: string, run: string, parent: string | null = null) => {
		return { id: key, role: "user", content: key, created_by: "she", created_at: "", run_id: run, parent_id: parent };
	};
	const asked = { id: "u0", role: "user", content: "hi", created_by: "me", created_at: "", run_id: "r1" };
	const stored = (...waiting: unknown[]) =>
		({ session, messages: [asked, ...waiting], active_run: { id: "r1", user_message_id: "u0", usage: {} } }) as never;
	const shown = () => c.view().queue.map((q) => q.key);
	c.waits(stored(said("one", "r2"), said("two", "r3")), []);
	expect(shown()).toEqual(["one", "two"]);
	// A page's own message is there once, whichever answer comes first.
	c.sending({ kind: "said", key: "own", text: "three", files: [], by: "me", at: "", run: null, state: "sending" });
	c.waits(stored(said("one", "r2"), said("two", "r3"), said("three", "r4")), c.view().queue);
	expect(shown()).toEqual(["one", "two", "own"]);
	c.sent("own", { messageId: "three", run: "r4" });
	// One was moved to the end, the event of which comes first, and two was taken back.
	apply({ ...done, runId: "r2", finishReason: "cancelled" });
	c.waits(stored(said("three", "r4"), said("one", "r5")), c.view().queue);
	expect(shown()).toEqual(["three", "one"]);
	// The answer to a question that was asked before an event does not undo it.
	const before = c.view().queue;
	apply({ ...done, runId: "r5", finishReason: "cancelled" });
	c.waits(stored(said("three", "r4"), said("one", "r5")), before);
	expect(shown()).toEqual(["three"]);
	// Its run has begun: the event of it adds it to the conversation.
	apply(done);
	c.waits(
		{ session, messages: [asked, said("three", "r4")], active_run: { id: "r4", user_message_id: "three", usage: {} } } as never,
		c.view().queue,
	);
	expect(shown()).toEqual(["three"]);
	apply({ type: "user-message", messageId: "three", content: "three", createdBy: "she", runId: "r4" });
	expect(shown()).toEqual([]);
	// One that steers the run waits until it follows another message.
	const steers = said("four", "r4");
	const now = () =>
		({ session, messages: [said("three", "r4"), steers], active_run: { id: "r4", user_message_id: "three", usage: {} } }) as never;
	c.waits(now(), []);
	expect(shown()).toEqual(["four"]);
	apply({ type: "user-message", messageId: "four", content: "four", createdBy: "she", runId: "r4" });
	steers.parent_id = "a3";
	c.waits(now(), c.view().queue);
	expect(shown()).toEqual([]);
	// One whose run was stopped before it began is in the conversation without an answer.
	const { c: later } = conversation([asked, said("five", "r2", "u0"), said("six", "r3")], { id: "r1", user_message_id: "u0", usage: {} });
	expect(later.view().lines.map((l) => l.key)).toEqual(["u0", "five"]);
	expect(later.view().queue.map((q) => q.key)).toEqual(["six"]);
});

test("an answer that is made again is a sibling of the others, by its first step", () => {
	const stored = (id: string, role: string, content: unknown) => ({
		id,
		role,
		content,
		run_id: "r1",
		step_index: 0,
		tokens_in: 1,
		tokens_out: 1,
	});
	const asked = stored("u1", "user", "hi");
	const { c, apply } = conversation([asked, stored("a1", "assistant", "one")]);
	const snapshot = { type: "snapshot", session, messages: [asked], active_run: null, last_event_id: "1-1", unavailable_tools: [] };
	apply({ ...snapshot, next_siblings: ["a1"] });
	apply({ type: "user-message", messageId: "u1", content: "hi", createdBy: "me", runId: "r2" }, { ...start, runId: "r2" });
	apply({ type: "tool-call-complete", toolCallId: "c1", toolName: "doc_read", args: {} }, { ...complete(0), messageId: "a2" });
	apply({ type: "tool-result", toolCallId: "c1", toolName: "doc_read", result: "{}", isError: false });
	apply(text("two"), { ...complete(1), messageId: "a3" }, { ...done, runId: "r2" });
	expect(answerEndingAt(c.view().lines, 0)).toEqual([]);
	expect(answerEndingAt(c.view().lines, 1)).toEqual([]);
	expect(c.view().lines[0]).not.toHaveProperty("siblings");
	const answer = answerEndingAt(c.view().lines, 2);
	expect(answer).toMatchObject([
		{ messageId: "a2", siblings: ["a1", "a2"] },
		{ messageId: "a3", text: "two" },
	]);
	expect(answer[1]).not.toHaveProperty("siblings");
});

test("an edited message is a sibling of what it said before", () => {
	const { c, apply } = conversation();
	apply({ type: "snapshot", session, messages: [], active_run: null, last_event_id: "1-1", unavailable_tools: [], next_siblings: ["u1"] });
	apply({ type: "user-message", messageId: "u2", content: "hey", createdBy: "me", runId: "r2" });
	apply({ ...start, runId: "r2" }, text("a"), { ...complete(0), messageId: "a2" }, { ...done, runId: "r2" });
	expect(c.view().lines).toMatchObject([{ key: "u2", siblings: ["u1", "u2"] }, { messageId: "a2" }]);
	expect(c.view().lines[1]).not.toHaveProperty("siblings");
});

test("a refused message stays with its reason, and can be forgotten", () => {
	const { c } = conversation();
	c.sending({ kind: "said", key: "k", text: "hi", files: [], by: "me", at: "", run: null, state: "sending" });
	c.sent("k", { error: "too many" });
	expect(c.view().lines).toMatchObject([{ key: "k", state: "failed", error: "too many" }]);
	c.forget("k");
	expect(c.view().lines).toHaveLength(0);
});

test("stored messages become the same lines as their events", () => {
	const { c, steps } = conversation(
		[
			{
				id: "u1",
				role: "user",
				content: [
					{ type: "text", text: "look" },
					{ type: "file", data: "AAAA", mediaType: "image/png", filename: "a.png" },
				],
				created_at: "2026-11-24T12:00:00Z",
				run_id: "r1",
			},
			{
				id: "a1",
				role: "assistant",
				run_id: "r1",
				step_index: 0,
				tokens_in: 7,
				tokens_out: 3,
				model: "m",
				created_at: "",
				content: [
					{ type: "reasoning", text: "hm" },
					{ type: "text", text: "ok" },
					{ type: "tool-call", toolCallId: "c1", toolName: "doc_list", input: {} },
				],
			},
			{
				id: "t1",
				role: "tool",
				run_id: "r1",
				content: [{ type: "tool-result", toolCallId: "c1", toolName: "doc_list", output: { type: "json", value: { documents: [] } } }],
			},
			{ id: "u2", role: "user", content: "later", created_at: "2026-11-24T12:00:00Z", run_id: "r2", parent_id: null },
		],
		{
			id: "r1",
			user_message_id: "u1",
			state: "running",
			steps: 1,
			usage: { input_tokens: 7, cache_read_tokens: 0, output_tokens: 3 },
			model: "m",
			created_at: "2026-11-24T12:00:00Z",
		},
	);
	expect(c.view().lines[0]).toMatchObject({ kind: "said", text: "look", files: [{ url: "data:image/png;base64,AAAA", name: "a.png" }] });
	expect(steps()).toMatchObject([
		{ reasoning: "hm", text: "ok", tokensIn: 7, calls: [{ id: "c1", state: "done", result: { documents: [] } }] },
	]);
	expect(c.view().queue).toMatchObject([{ key: "u2", text: "later" }]);
	expect(c.view().active).toMatchObject({ run: "r1", step: 1, tokensIn: 7 });
});

test("an answer's sources, and where its text relies on them, are the same in its events and when it is stored", () => {
	const page = (name: string) => ({ url: `https://${name}.example`, title: name });
	const cites = (name: string, said: string) => ({ ...page(name), cited_text: said });
	const source = (name: string) => ({ type: "source", ...page(name) });
	const citation = (name: string, said: string) => ({ type: "citation", url: page(name).url, text: said });
	const live = conversation();
	live.apply(
		start,
		text("I look. "),
		source("a"),
		source("b"),
		text("🚂 runs"),
		text(" on time."),
		source("c"),
		citation("c", "On time."),
		citation("a", "é".repeat(500)),
		text(" Mostly."),
		complete(0),
	);
	const content = [
		{ type: "text", text: "I look. " },
		{ type: "tool-call", toolCallId: "w", toolName: "web_search", input: {}, providerExecuted: true },
		{
			type: "tool-result",
			toolCallId: "w",
			toolName: "web_search",
			output: { type: "json", value: [page("a"), { ...page("b"), pageAge: "today" }] },
		},
		{
			type: "text",
			text: "🚂 runs on time.",
			providerOptions: { anthropic: { citations: [cites("c", "On time."), cites("a", "é".repeat(900)), { cited_text: "of a file" }] } },
		},
		{ type: "text", text: " Mostly." },
	];
	const message = {
		id: "m1",
		role: "assistant",
		content,
		created_at: session.created_at,
		run_id: "r1",
		step_index: 0,
		tokens_in: 1,
		tokens_out: 1,
	};
	const [stored, streamed] = [conversation([message]).steps()[0], live.steps()[0]];
	expect(streamed?.sources).toEqual([page("a"), page("b"), page("c")]);
	expect(streamed?.citations.map((c) => [streamed.text.slice(0, c.at), c.url])).toEqual([
		["I look. 🚂 runs on time.", "https://c.example"],
		["I look. 🚂 runs on time.", "https://a.example"],
	]);
	expect({ sources: stored?.sources, citations: stored?.citations }).toEqual({
		sources: streamed?.sources,
		citations: streamed?.citations,
	});
});

test("a citation of a range stands at its end, in its events and when it is stored", () => {
	const live = conversation();
	const url = "https://a.example";
	live.apply(
		start,
		text("🚂🚂 run. And so on."),
		{ type: "source", url, title: "" },
		{ type: "citation", url, text: "", end: 7 },
		complete(0),
	);
	const annotations = [{ url_citation: { url, start_index: 0, end_index: 7 } }, { url_citation: { url } }, { type: "file_citation" }];
	const content = [{ type: "text", text: "🚂🚂 run. And so on.", providerOptions: { openai: { annotations } } }];
	const message = {
		id: "m1",
		role: "assistant",
		content,
		created_at: session.created_at,
		run_id: "r1",
		step_index: 0,
		tokens_in: 1,
		tokens_out: 1,
	};
	for (const [step] of [live.steps(), conversation([message]).steps()]) {
		expect(step?.sources).toEqual([{ url, title: "" }]);
		expect(step?.citations).toEqual([{ at: "🚂🚂 run.".length, url, text: "" }]);
	}
});

test("a run that did not end by itself says why", () => {
	const { c, apply } = conversation();
	apply(start, text("half"), { ...done, finishReason: "cancelled" });
	expect(c.view().lines.at(-1)).toMatchObject({ kind: "note", text: "Stopped. What was said is kept." });
	apply({ ...start, runId: "r2" }, { type: "error", error: "No account could answer.", code: "accounts_exhausted", runId: "r2" });
	expect(c.view().lines.at(-1)).toMatchObject({ kind: "note", tone: "stop", text: "No account could answer.", code: "accounts_exhausted" });
	apply({ ...start, runId: "r3" }, { ...done, runId: "r3", finishReason: "max-steps", steps: 20 });
	expect(c.view().lines.at(-1)).toMatchObject({ title: "Stopped after 20 steps.", text: "The agent had more in mind.", about: "steps" });
});

test("a takeover says who took over and how long it took, once that is known", () => {
	const { c, apply } = conversation();
	const retry = { type: "step-retry", stepIndex: 0, reason: "the runner was lost: this step begins again" };
	apply(start, text("Hel"), retry, text("He"), { ...retry, reason: "The model provider had an internal error." }, text("H"), retry);
	const notes = () => c.view().lines.flatMap((l) => (l.kind === "note" ? [l.text] : []));
	const between = "This step is written again: The model provider had an internal error.";
	expect(notes()).toEqual(["Another worker took over. Nothing was lost.", between, "Another worker took over. Nothing was lost."]);
	c.setTakeovers("r1", [
		{ from: 1, claim: 2, ms: 900 }, // before the page was opened
		{ from: 2, claim: 3, ms: 4000 },
		{ from: 3, claim: 4, ms: 1900 },
	]);
	expect(notes()).toEqual([
		"Worker c took over from worker b after 4.0 s. Nothing was lost.",
		between,
		"Worker d took over from worker c after 1.9 s. Nothing was lost.",
	]);
});

test("a run whose worker shuts down is paused until another one goes on", () => {
	const { c, apply } = conversation();
	apply(start, text("a"), complete(0), { type: "waiting", reason: "this runner shuts down", forRunner: true });
	expect(c.view().active).toMatchObject({
		state: "paused",
		step: 1,
		reason: "Paused between steps: a deploy is going on. Goes on by itself.",
	});
	apply(start);
	expect(c.view().active).toMatchObject({ state: "running", step: 1 });
});

test("a run stays paused in a snapshot, until it is beyond that step", () => {
	const { c, apply } = conversation();
	apply(start, text("a"), complete(0), { type: "waiting", reason: "this runner shuts down", forRunner: true });
	const active = (steps: number) => ({ id: "r1", state: "running", steps, created_at: "2026-11-24T12:00:00Z", usage: {} });
	const snapshot = (active_run: unknown) => ({
		type: "snapshot",
		session,
		messages: [],
		active_run,
		last_event_id: "1-1",
		unavailable_tools: [],
	});
	apply(snapshot(active(1)));
	expect(c.view().active).toMatchObject({ run: "r1", state: "paused", step: 1 });
	apply(snapshot(active(2)));
	expect(c.view().active).toMatchObject({ run: "r1", state: "running", step: 2 });
});

test("the questions of a step, and who answered them", () => {
	const { c, apply, steps } = conversation();
	const call = (id: string) => ({ type: "tool-call-start", toolCallId: id, toolName: "send" });
	const request = (id: string) => ({
		type: "tool-approval-request",
		toolCallId: id,
		toolName: "send",
		args: {},
		expiresAt: "2026-11-25T12:00:00Z",
	});
	const response = {
		type: "tool-approval-response",
		toolCallId: "a",
		toolName: "send",
		decision: "refused",
		reason: "not yet",
		decidedBy: "ines",
	};
	apply(start, call("a"), complete(0), call("a"), call("b"), request("a"), request("b"));
	expect(questionsOf(c.view()).map((q) => [q.run, q.call.id])).toEqual([
		["r1", "a"],
		["r1", "b"],
	]);
	apply(response);
	expect(questionsOf(c.view()).map((q) => q.call.id)).toEqual(["b"]);
	// The run says when; its earlier call with the same id is another one.
	const approval = { reason: "", asked_at: "", question: "approval", decision: "refused", decision_reason: "not yet", decided_by: "ines" };
	c.mergeCalls("r1", [
		{ tool_call_id: "a", step_index: 1, args: {}, approval: { ...approval, decided_at: "2026-11-24T14:43:00Z" } },
	] as never);
	expect(steps()[1]?.calls[0]).toMatchObject({
		state: "refused",
		ask: { decision: { by: "ines", reason: "not yet", at: "2026-11-24T14:43:00Z" } },
	});
	expect(steps()[0]?.calls[0]?.ask).toBeUndefined();
	apply({ ...response, toolCallId: "b", decision: "approved" }, complete(1), done);
	expect(questionsOf(c.view())).toEqual([]);
	// What was read of the run can come after its end.
	const approved = { ...approval, decision: "approved", decided_at: "2026-11-24T14:44:00Z" };
	c.mergeCalls("r1", [{ tool_call_id: "b", step_index: 1, args: {}, approval: approved }] as never);
	expect(steps()[1]?.calls[1]?.ask?.decision?.at).toBe("2026-11-24T14:44:00Z");
	c.mergeCalls("r1", [{ tool_call_id: "b", step_index: 1, args: {}, approval: { ...approval, decision: null } }] as never);
	expect(questionsOf(c.view())).toEqual([]);
});

test("what was read of a run changes no call that has been answered or has ended since", () => {
	const { c, apply, steps } = conversation();
	const begun = (id: string) => ({ type: "tool-call-complete", toolCallId: id, toolName: "send", args: {} });
	const request = (id: string) => ({ type: "tool-approval-request", toolCallId: id, toolName: "send", args: {} });
	const response = (id: string) => ({
		type: "tool-approval-response",
		toolCallId: id,
		toolName: "send",
		decision: "approved",
		decidedBy: "ines",
	});
	const approval = { reason: "why", args: {}, asked_at: "2026-11-24T14:00:00Z", question: "approval", decision: null };
	const read = (id: string) => ({ tool_call_id: id, step_index: 0, args: {}, planned_at: "2026-11-24T13:00:00Z", approval });
	const waits = { tool_call_id: "d", step_index: 0, args: {}, result_expires_at: "2026-11-24T15:00:00Z" };
	apply(start, begun("a"), begun("b"), begun("c"), begun("d"), complete(0), request("a"), request("b"), request("c"));
	// The run is read; its answer comes after these events.
	apply(
		{ type: "tool-client-request", toolCallId: "d", toolName: "send", args: {}, expiresAt: "2026-11-24T15:00:00Z", stepIndex: 0 },
		{ type: "tool-result", toolCallId: "d", toolName: "send", result: "1", isError: false },
		response("a"),
		response("b"),
		{ type: "tool-result", toolCallId: "b", toolName: "send", result: "1", isError: false },
	);
	const since = steps()[0]?.calls[0]?.startedAt;
	c.mergeCalls("r1", [read("a"), read("b"), read("c"), waits] as never);
	expect(steps()[0]?.calls.map((c) => c.state)).toEqual(["running", "done", "asking", "done"]);
	expect(steps()[0]?.calls[0]?.startedAt).toBe(since);
	expect(questionsOf(c.view()).map((q) => q.call.id)).toEqual(["c"]);
});

test("an answer that comes before the run was read closes its question, and the call runs from then on", () => {
	const called = { type: "tool-call", toolCallId: "a", toolName: "send", input: {} };
	const answer = { id: "a0", role: "assistant", content: [called], created_at: "", run_id: "r1", tokens_in: null, tokens_out: null };
	const { c, apply, steps } = conversation([answer], { id: "r1", state: "waiting", user_message_id: "u0", usage: {} });
	apply({ type: "tool-approval-response", toolCallId: "a", toolName: "send", decision: "approved", decidedBy: "ines" });
	const approval = { reason: "why", args: {}, asked_at: "2026-11-24T14:00:00Z", question: "approval" };
	const call = { tool_call_id: "a", step_index: 0, args: {}, planned_at: "2026-11-24T13:00:00Z" };
	c.mergeCalls("r1", [{ ...call, approval: { ...approval, decision: null } }] as never);
	expect(questionsOf(c.view())).toEqual([]);
	expect(steps()[0]?.calls).toMatchObject([{ state: "running", startedAt: 1001, ask: { decision: { by: "ines" } } }]);
	const decided = { decision: "approved", decided_by: "ines", decided_at: "2026-11-24T14:10:00Z" };
	c.mergeCalls("r1", [{ ...call, approval: { ...approval, ...decided } }] as never);
	expect(steps()[0]?.calls).toMatchObject([
		{ startedAt: Date.parse("2026-11-24T14:10:00Z"), ask: { reason: "why", decision: { at: "2026-11-24T14:10:00Z" } } },
	]);
});

test("a stop that was refused leaves the run as it is by then", () => {
	const { c, apply } = conversation();
	apply(start, text("half"));
	c.stopping("r1", true);
	expect(c.view().active).toMatchObject({ state: "running", stopping: true });
	apply({ type: "waiting", reason: "The rate limit is reached." });
	c.stopping("r1", false);
	expect(c.view().active).toMatchObject({ state: "waiting", stopping: false });
	apply(done, { ...start, runId: "r2" });
	c.stopping("r1", true);
	expect(c.view().active).not.toHaveProperty("stopping");
});

test("a title that a model has written is the session's", () => {
	const { c, apply } = conversation();
	apply(start, text("Tea"), { type: "session-title", title: "Tea in Japan" }, text("."));
	expect(c.view().session.title).toBe("Tea in Japan");
	expect(c.view().lines).toMatchObject([{ kind: "step", text: "Tea." }]);
});

test("a summary is told between the steps", () => {
	const { c, apply } = conversation();
	apply(start, { type: "waiting", reason: "earlier messages are being summarized" });
	expect(c.view().active).toMatchObject({ state: "waiting" });
	apply({ type: "compaction", stepIndex: 0, messages: 12, summary: "They met." }, complete(0));
	expect(c.view().active).toMatchObject({ state: "running", step: 1 });
	apply(text("Hello"), complete(1), done);
	expect(c.view().lines).toMatchObject([
		{ kind: "note", tone: "plain" },
		{ kind: "step", text: "Hello", state: "done", index: 1 },
	]);
});

test("earlier messages come before the others, with their ends and what they took", () => {
	const message = (id: string, role: string, run: string, content: unknown) => ({
		id,
		role,
		run_id: run,
		content,
		created_at: "2026-11-24T12:00:00Z",
	});
	const { c } = conversation([message("q2", "user", "r2", "two"), message("a2", "assistant", "r2", [{ type: "text", text: "Second." }])]);
	const figures = {
		usage: { input_tokens: 5, cache_read_tokens: 0, output_tokens: 2 },
		cost_micros: 7,
		started_at: null,
		ended_at: "2026-11-24T12:00:01Z",
	};
	c.prepend({
		messages: [message("q1", "user", "r1", "one"), message("a1", "assistant", "r1", [{ type: "text", text: "First." }])],
		stopped_runs: [{ run_id: "r1", finish_reason: "cancelled" }],
		runs: [{ run_id: "r1", ...figures }],
		next_cursor: "1",
	} as never);
	const v = c.view();
	expect(v.lines.map((l) => l.key)).toEqual(["q1", "a1", "r1/end", "q2", "a2"]);
	expect([v.earlier, v.prepended]).toEqual(["1", 3]);
	expect(v.figures.get("r1")).toEqual(figures);
});

test("a message that is moved stays in the queue when its old run ends, before or after the answer", () => {
	for (const late of [true, false]) {
		const { c, apply } = conversation();
		apply(start);
		const said: Said = { kind: "said", key: "k", text: "next", files: [], by: "me", at: "", run: null, state: "sending" };
		c.sending(said);
		c.sent("k", { messageId: "m", run: "old" });
		const ends = () => apply({ ...done, runId: "old", finishReason: "cancelled" });
		const [waiting] = c.view().queue;
		if (!late) ends();
		if (waiting) c.moved(waiting, "new");
		if (late) ends();
		expect(c.view().queue).toMatchObject([{ key: "m", run: "new" }]);
	}
});

test("a call whose tool cannot be used is told from one that failed", () => {
	const { apply, steps } = conversation();
	const call = (id: string, code?: string) => [
		{ type: "tool-call-complete", toolCallId: id, toolName: "notion_read", args: {} },
		{ type: "tool-result", toolCallId: id, toolName: "notion_read", result: JSON.stringify({ error: "no", code }), isError: true },
	];
	apply(start, ...call("a", "NOT_CONNECTED"), ...call("b", "UNAVAILABLE"), ...call("c", "RATE_LIMITED"), ...call("d"));
	expect(steps()[0]?.calls.map((c) => c.state)).toEqual(["unavailable", "unavailable", "failed", "failed"]);
});
