import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type Answer, answersGiven, forgetFailure, giveAnswer, questionId, sendAnswer, takeBackAnswer } from "./answers.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** A server that keeps answers until it refuses one. */
function server() {
	const got: Answer[] = [];
	return {
		got,
		refuse: "",
		deliver(a: Answer) {
			if (this.refuse) return Promise.reject(new Error(this.refuse));
			got.push(a);
			return Promise.resolve();
		},
	};
}

test("an answer is sent once, after a while in which it can be taken back", async () => {
	const s = server();
	const give = (name: string, a: Answer) => giveAnswer(name, a, (x) => s.deliver(x));
	give("taken back", { approved: true });
	expect(takeBackAnswer("taken back")).toBe(true);
	give("late", { approved: true });
	give("late", { approved: false });
	give("at once", { approved: false, reason: "no" });
	sendAnswer("at once");
	expect(s.got).toEqual([{ approved: false, reason: "no" }]);
	await vi.advanceTimersByTimeAsync(5000);
	expect(s.got).toEqual([{ approved: false, reason: "no" }, { approved: true }]);
	expect(answersGiven().get("taken back")).toBeUndefined();
	expect(answersGiven().get("late")?.state).toBe("sent");
	expect(takeBackAnswer("late")).toBe(false);
	forgetFailure("late");
	expect(answersGiven().get("late")?.state).toBe("sent");
});

test("an answer that was not accepted leaves the question open", async () => {
	const s = server();
	s.refuse = "Ines has answered.";
	const failed: unknown[] = [];
	const give = () =>
		giveAnswer(
			"q",
			{ approved: true },
			(a) => s.deliver(a),
			() => failed.push(answersGiven().get("q")?.state),
		);
	give();
	await vi.advanceTimersByTimeAsync(5000);
	expect(answersGiven().get("q")).toMatchObject({ state: "failed", error: "Ines has answered." });
	expect(failed).toEqual(["failed"]);
	forgetFailure("q");
	expect(answersGiven().get("q")).toBeUndefined();
	give();
	await vi.advanceTimersByTimeAsync(5000);
	s.refuse = "";
	giveAnswer("q", { approved: false }, (a) => s.deliver(a));
	await vi.advanceTimersByTimeAsync(5000);
	expect(s.got).toEqual([{ approved: false }]);
});

test("a question has one name, whether an event or the run tells of it", () => {
	const call = { id: "c", tool: "t", state: "asking" as const, received: 0 };
	const ask = { reason: "", outcomeUnknown: false, expiresAt: "2026-11-25T12:00:00.123Z" };
	const read = { ...ask, askedAt: "2026-11-24T12:00:00.1Z", expiresAt: "2026-11-25T12:00:00.123456Z" };
	expect(questionId({ run: "r", call, ask: read })).toBe(questionId({ run: "r", call, ask }));
	expect(questionId({ run: "r", call, ask: { ...ask, expiresAt: "2026-11-25T12:00:01Z" } })).not.toBe(questionId({ run: "r", call, ask }));
});
