import { expect, test } from "vitest";
import { announcer, asked, happened } from "./announce.ts";
import type { Call, Line, Question, Step, View } from "./conversation.ts";

const call = (tool: string, state: Call["state"] = "running"): Call => ({ id: tool, tool, state, received: 0 });
const step = (index: number, change: Partial<Step>): Step => ({
	kind: "step",
	key: `${index}`,
	run: "r",
	index,
	reasoning: "",
	text: "",
	calls: [],
	sources: [],
	citations: [],
	state: "writing",
	...change,
});
const view = (active: boolean, ...lines: Line[]) => ({ lines, active: active ? { run: "r" } : null }) as unknown as View;

test("an answer is announced as it begins, calls tools and ends", () => {
	const reads = step(0, { text: "I look.", calls: [call("doc_read"), call("doc_read"), call("doc_read"), call("web_search")] });
	expect(happened(view(true, step(0, { text: "I" })))).toBe("Answer began");
	expect(happened(view(true, step(0, { calls: [call("doc_read"), call("doc_read", "arriving")] })))).toBe("");
	expect(happened(view(true, reads))).toBe("Reads three documents, searches the web");
	expect(happened(view(true, reads, step(1, { text: "Tea is" })))).toBe("");
	expect(happened(view(false, { ...reads, state: "done" }, step(1, { text: "Tea is old.", state: "done" })))).toBe(
		"Answer finished, 5 words",
	);
});

test("only a run that was seen active is announced", () => {
	const old = step(0, { text: "Tea is old.", state: "done" });
	const say = announcer();
	expect(say(view(false, old))).toBe("");
	expect(say(view(false, { ...old }))).toBe(""); // such as after a reconnect
	const answer = step(0, { run: "r2", key: "b", text: "Ink is older." });
	const now = (active: boolean, ...lines: Line[]) => ({ ...view(false, ...lines), active: active ? { run: "r2" } : null }) as View;
	expect(say(now(true, old, answer))).toBe("Answer began");
	const done: Step = { ...answer, state: "done" };
	expect(say(now(false, old, done))).toBe("Answer finished, 3 words");
	expect(say(now(false, old, { ...done }))).toBe("Answer finished, 3 words"); // not said again: the sentence is the same
	expect(say(view(false, old))).toBe(""); // another version
	expect(say(now(false, done))).toBe("");
});

test("a tool without a sentence of its own is named, and notes are said whole", () => {
	expect(happened(view(true, step(2, { calls: [call("mcp__tracker__create_issue"), call("mcp__tracker__create_issue")] })))).toBe(
		"Uses Create issue of tracker two times",
	);
	expect(
		happened(view(false, { kind: "note", key: "n", tone: "stop", title: "The run stopped.", text: "It is too long.", run: "r" })),
	).toBe("The run stopped. It is too long.");
});

test("of a step that begins again only the note is said", () => {
	const note = { kind: "note", key: "n", tone: "note", title: "", text: "Another worker took over.", run: "r" } as const;
	const lost = step(0, { text: "Tea", state: "void" });
	for (const lines of [
		[lost, note],
		[lost, note, step(0, { text: "Tea" })],
		[note, step(0, { text: "Tea is" })],
	])
		expect(happened(view(true, ...lines))).toBe("Another worker took over.");
	expect(happened(view(true, note, step(0, { calls: [call("doc_read")] })))).toBe("Reads a document");
});

test("questions are announced in words", () => {
	const question = (tool: string, outcomeUnknown = false): Question => ({
		run: "r",
		call: call(tool, "asking"),
		ask: { reason: "", outcomeUnknown },
	});
	expect(asked([], true)).toBe("");
	const both = [question("doc_delete"), question("calendar_create_event")];
	expect(asked(both, false)).toBe("Approval wanted: Delete document, Create event");
	expect(asked(both, true)).toBe("Approval wanted: Delete document, Create event. A message that you begin now refuses all of them");
	expect(asked(both.slice(1), true)).toBe("Approval wanted: Create event. A message that you begin now refuses it");
	expect(asked([question("send_mail", true)], true)).toBe("Did it happen? The worker died meanwhile: Send mail");
});
