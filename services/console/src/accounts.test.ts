import { expect, test } from "vitest";
import { type Account, canAnswer, keyProblem, nowOf } from "./accounts.ts";

const now = Date.parse("2026-11-24T12:00:00Z");
const account = (over: Partial<Account>): Account => ({
	id: "1",
	provider: "anthropic",
	profile: "anthropic-api-key",
	label: "team",
	hint: "4Qx7",
	base_url: null,
	origin: "workspace",
	enabled: true,
	flat_rate: false,
	created_at: "2026-11-01T00:00:00Z",
	last_used_at: null,
	status: "ready",
	reason: null,
	health: 100,
	tokens: 50,
	cooldowns: [],
	...over,
});
const cooldown = (over: Partial<Account["cooldowns"][number]>): Account["cooldowns"][number] => ({
	family: null,
	http_status: 429,
	passed_over: false,
	reason: "RATE_LIMIT_EXCEEDED",
	retry_after: null,
	since: "2026-11-24T11:59:00Z",
	step: 0,
	until: "2026-11-24T12:01:00Z",
	...over,
});

test("what an account does now", () => {
	expect(nowOf(account({}), now).is).toBe("ready");
	expect(nowOf(account({ last_used_at: "2026-11-24T11:59:30Z" }), now).is).toBe("in use");
	expect(nowOf(account({ status: "unhealthy" }), now).is).toBe("resting");
	expect(nowOf(account({ status: "disabled" }), now).is).toBe("off");
	expect(nowOf(account({ origin: "shared", status: null }), now).is).toBe("shared");
	expect(nowOf(account({ status: "reauthorize", reason: "withdrawn on 3 November" }), now)).toEqual({
		is: "withdrawn",
		why: "withdrawn on 3 November",
	});
	const parked = account({
		status: "cooling",
		cooldowns: [
			cooldown({ family: "opus", until: "2026-11-24T18:00:00Z" }),
			cooldown({ reason: "QUOTA_EXHAUSTED", until: "2026-11-24T14:00:00Z" }),
			cooldown({ passed_over: true, until: "2026-11-24T20:00:00Z" }),
		],
	});
	expect(nowOf(parked, now)).toMatchObject({ is: "waiting", until: "2026-11-24T14:00:00Z", quota: true, family: null });
	expect(canAnswer(parked, now)).toBe(false);
	expect(canAnswer(parked, Date.parse("2026-11-24T15:00:00Z"))).toBe(true);
});

test("a key is checked before it is sent", () => {
	expect(keyProblem(" sk-ant-api03-x ", "anthropic")).toBe("");
	expect(keyProblem("", "anthropic")).toMatch(/Paste/);
	expect(keyProblem("sk-ant-\nx", "anthropic")).toMatch(/no spaces/);
	expect(keyProblem("sk-or-v1-x", "anthropic")).toMatch(/OpenRouter, not of Anthropic/);
	expect(keyProblem("sk-ant-x", "openai")).toMatch(/Anthropic/);
	expect(keyProblem("sk-ant-x", "my-proxy")).toBe("");
	expect(keyProblem("sb_abc", "openai")).toMatch(/Signalbox/);
});
