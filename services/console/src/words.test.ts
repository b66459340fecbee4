import { expect, test } from "vitest";
import { stopsOf } from "./parts/RunSmall.tsx";
import {
	ago,
	agoThatDay,
	backAt,
	backWords,
	clock,
	decisionWords,
	money,
	sessionSignal,
	sessionWords,
	since,
	tellingArgument,
	timeOfDay,
	timeOn,
	tokens,
	toolWords,
	until,
} from "./words.ts";

test("tools have names in words", () => {
	expect(toolWords("doc_create")).toBe("Create document");
	expect(toolWords("mcp__tracker__create_issue")).toBe("Create issue, tracker");
	expect(toolWords("something_new")).toBe("Something new");
});

test("how long the line was lost, and what came meanwhile", () => {
	expect([undefined, 0, 1, 1214].map((n) => backWords(38_400, n))).toEqual([
		"Back on the line after 38 s. What happened meanwhile is here.",
		"Back on the line after 38 s. You missed nothing.",
		"Back on the line. You missed one event in 38 s; it is here.",
		"Back on the line. You missed 1,214 events in 38 s; all of them are here.",
	]);
});

test("when something is back", () => {
	const at = "2026-11-25T12:50:00Z";
	const now = Date.parse(at);
	expect(backAt(at, now - 18 * 60_000)).toBe(`It is back at ${timeOfDay(at)}, in 18 min.`);
	expect(backAt(at, now + 1)).toBe(`It was to be back at ${timeOfDay(at)}.`);
});

test("the argument that tells most", () => {
	expect(tellingArgument({ content: "long", name: "Tea" })).toBe("Tea");
	expect(tellingArgument({ limit: 3 })).toBe("");
	expect(tellingArgument({ note: "two\nlines" })).toBe("two");
	expect(tellingArgument(null)).toBe("");
});

test("figures", () => {
	expect([812, 1200, 34_400, 999_700, 61_800_000].map(tokens)).toEqual(["812", "1.2k", "34k", "1.0M", "61.8M"]);
	expect([0, 12, 43_210, 999_999, 1_000_000, 1_234_567_890].map(money)).toEqual([
		"$0.00",
		"under $0.001",
		"$0.043",
		"$1.00",
		"$1.00",
		"$1,234.57",
	]);
	expect([43_000, 725_000, 3_723_000].map(clock)).toEqual(["0:43", "12:05", "1:02:03"]);
	const now = Date.parse("2026-11-24T12:00:00Z");
	expect(ago("2026-11-24T11:59:50Z", now)).toBe("now");
	expect(ago("2026-11-24T11:48:00Z", now)).toBe("12 min");
	expect(["2026-11-24T11:59:50Z", "2026-11-24T11:48:00Z"].map((at) => since(at, now))).toEqual(["just now", "for 12 min"]);
	expect(since("2026-11-01T11:48:00Z", now)).toMatch(/^since .*1/);
	expect(until("2026-11-25T11:48:00Z", now)).toBe("23 h 48 min");
	const yesterday = "2026-11-23T11:48:00Z";
	expect([agoThatDay("2026-11-24T11:48:00Z", now), agoThatDay(yesterday, now)]).toEqual(["12 min", timeOfDay(yesterday)]);
});

test("a session says what it does, or how its newest run ended", () => {
	const run = (state: "running" | "waiting" | "done" | "failed" | "cancelled") => ({ id: "1", steps: 2, state });
	const said = (s: Parameters<typeof sessionWords>[0]) => `${sessionSignal(s)}: ${sessionWords(s)}`;
	expect(said({ state: "idle" })).toBe("idle: ");
	expect(said({ state: "queued", last_run: run("failed") })).toBe("queued: Begins soon");
	expect(said({ state: "waiting", last_run: run("waiting") })).toBe("waiting: Waits for an answer");
	expect(said({ state: "idle", last_run: run("done") })).toBe("done: ");
	expect(said({ state: "idle", last_run: run("failed") })).toBe("failed: Failed");
	expect(said({ state: "idle", last_run: run("cancelled") })).toBe("stopped: Stopped");
	const ended = (["done", "failed", "cancelled"] as const).map((state) =>
		sessionSignal({ state: "idle", last_run: run(state) }, "failures"),
	);
	expect(ended).toEqual(["idle", "failed", "idle"]);
});

test("a run in small has a stop a step, the last twelve", () => {
	expect(stopsOf(2, "running")).toEqual({ before: 0, stops: ["done", "done", "now"] });
	expect(stopsOf(1, "waiting").stops).toEqual(["done", "waiting"]);
	expect(stopsOf(1, "failed").stops).toEqual(["done", "failed"]);
	expect(stopsOf(1, "cancelled").stops).toEqual(["done", "possible"]);
	expect(stopsOf(0, "queued").stops).toEqual(["possible"]);
	expect(stopsOf(3, "done").stops).toEqual(["done", "done", "done"]);
	const long = stopsOf(20, "running");
	expect([long.before, long.stops.length, long.stops.at(-1)]).toEqual([9, 12, "now"]);
});

test("who answered, and what", () => {
	const at = new Date(2026, 10, 24, 14, 43).toISOString();
	const [today, later] = [24, 25].map((day) => new Date(2026, 10, day, 20).getTime());
	const time = timeOfDay(at);
	expect(decisionWords({ decision: "approved", at }, "Ines", today)).toBe(`Approved by Ines, ${time}`);
	expect(decisionWords({ decision: "refused", at, reason: "not yet" }, "You", today)).toBe(`Refused by you, ${time}: not yet`);
	expect(decisionWords({ decision: "approved", at }, "Ines", later)).toBe(`Approved by Ines, ${timeOn(at, later)}`);
	expect(timeOn(at, later)).toMatch(/ on .*24/);
	expect(decisionWords({ decision: "expired" }, "Signalbox")).toBe("Refused: nobody answered in time");
	expect(decisionWords({ decision: "happened" }, "You")).toBe("You said that it happened");
});
