import type { Schemas } from "@signalbox/client";
import { expect, test } from "vitest";
import { costToday, daysUntil, type Group, limitOf, stack, ticks } from "./usage.ts";

const group = (key: string, cost: number): Group => ({
	key,
	calls: 1,
	cost_micros: cost,
	input_tokens: cost,
	output_tokens: 0,
	cache_read_tokens: 0,
	cache_write_tokens: 0,
	duration_ms: 0,
	errors: 0,
	reasoning_tokens: 0,
	tool_calls: 0,
	unpriced_calls: 0,
	wasted_tokens: 0,
});

test("days end today, in UTC", () => {
	expect(daysUntil(Date.parse("2026-03-01T23:30:00Z"), 3)).toEqual(["2026-02-27", "2026-02-28", "2026-03-01"]);
});

test("today's cost is told as far as it is known", () => {
	const budget = (scope: "workspace" | "member", limit: number | null, used: number) =>
		({ scope, cost_micros: limit, used: { cost_micros: used, tokens: 0, steps: 0, seconds: 0 } }) as Schemas["Budget"];
	const today = [group("2026-11-24", 1_200_000)];
	expect(costToday([budget("member", 2_000_000, 5), budget("workspace", 8_000_000, 1_230_000)], today)).toBe("$1.23 of $8.00 today");
	expect(costToday([budget("workspace", 8_000_000, 0)], undefined)).toBe("$0.00 of $8.00 today");
	expect(costToday([budget("workspace", null, 5)], today)).toBe("$1.20 today");
	const unpriced = [{ ...group("2026-11-24", 1_200_000), unpriced_calls: 1 }];
	expect(costToday(undefined, unpriced)).toBe("at least $1.20 today");
	expect(costToday([budget("workspace", 8_000_000, 1_230_000)], unpriced)).toBe("at least $1.23 of $8.00 today");
	expect(costToday([], [{ ...group("2026-11-24", 0), unpriced_calls: 1 }])).toBeUndefined();
	expect(costToday([], [])).toBeUndefined();
	expect(costToday([], undefined)).toBeUndefined();
});

test("usage is stacked by day, with the smallest models as others", () => {
	const days = ["2026-11-23", "2026-11-24"];
	const groups = ["a", "b", "c", "d", "e"].flatMap((m, i) => [group(`2026-11-23 p/${m}`, 10 * (5 - i)), group(`2026-11-24 p/${m}`, 1)]);
	const s = stack([...groups, group("2026-10-01 p/a", 1000)], days, "cost");
	expect(s.series).toEqual(["p/a", "p/b", "p/c", "others"]);
	expect(s.days[0]).toEqual({ day: "2026-11-23", values: [50, 40, 30, 30], total: 150 });
	expect(s.days[1]?.total).toBe(5);
	expect(s.most).toBe(150);
	expect(stack([], days, "cost")).toMatchObject({ series: [], most: 0 });
	expect(stack([group("2026-11-24 openrouter/x/y z", 3)], days, "tokens").series).toEqual(["openrouter/x/y z"]);
});

test("ticks are round and reach over the highest day", () => {
	expect(ticks(0)).toEqual([0]);
	expect(ticks(8)).toEqual([0, 2, 4, 6, 8]);
	expect(ticks(9)).toEqual([0, 2.5, 5, 7.5, 10]);
	expect(ticks(7_900_000)).toEqual([0, 2_000_000, 4_000_000, 6_000_000, 8_000_000]);
});

test("a limit is a number, none, or wrong", () => {
	expect(limitOf("8", 1_000_000)).toBe(8_000_000);
	expect(limitOf(" 1,200.50 ", 100)).toBe(120_050);
	expect(limitOf("", 1)).toBeNull();
	expect(limitOf("-1", 1)).toBeUndefined();
	expect(limitOf("lots", 1)).toBeUndefined();
	expect(limitOf("1e30", 1)).toBeUndefined();
});
