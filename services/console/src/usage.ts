import type { Schemas } from "@signalbox/client";
import { count, money, tokens } from "./words.ts";

export type Group = Schemas["UsageGroup"];
export type Measure = "cost" | "tokens" | "calls";

const amount: Record<Measure, (g: Group) => number> = {
	cost: (g) => g.cost_micros,
	tokens: (g) => g.input_tokens + g.output_tokens,
	calls: (g) => g.calls,
};

/** Writes a value of a measure. */
export const said: Record<Measure, (n: number) => string> = { cost: money, tokens, calls: count };

/**
 * Today's cost in words, by the day's usage, or of the workspace's budget for it. Undefined if it is
 * unknown, and without a budget also if there is none.
 */
export function costToday(budgets: readonly Schemas["Budget"][] | undefined, today: readonly Group[] | undefined): string | undefined {
	const budget = budgets?.find((b) => b.scope === "workspace" && b.cost_micros !== null);
	const atLeast = today?.some((g) => g.unpriced_calls > 0) ? "at least " : "";
	if (budget?.used && budget.cost_micros !== null)
		return `${atLeast}${money(budget.used.cost_micros)} of ${money(budget.cost_micros)} today`;
	if (!today) return;
	const cost = today.reduce((n, g) => n + g.cost_micros, 0);
	if (cost === 0) return;
	return `${atLeast}${money(cost)} today`;
}

/** The days of a period, the last one today, as the server keys them: 2026-11-24, in UTC. */
export function daysUntil(now: number, days: number): string[] {
	return Array.from({ length: days }, (_, i) => new Date(now - (days - 1 - i) * 86_400_000).toISOString().slice(0, 10));
}

export interface Stack {
	/** The models with the most, and at the end "others" if there are more than four. */
	series: string[];
	days: { day: string; values: number[]; total: number }[];
	/** Of the highest day. */
	most: number;
}

const mostSeries = 4;

/** Stacks usage by day and model (keys such as "2026-11-24 anthropic/claude") into one column a day. */
export function stack(groups: readonly Group[], days: readonly string[], measure: Measure): Stack {
	const value = amount[measure];
	const totals = new Map<string, number>();
	const cells = new Map<string, Map<string, number>>();
	for (const g of groups) {
		const [day = "", model = ""] = [g.key.slice(0, 10), g.key.slice(11)];
		if (!days.includes(day)) continue;
		totals.set(model, (totals.get(model) ?? 0) + value(g));
		const column = cells.get(day) ?? new Map<string, number>();
		column.set(model, (column.get(model) ?? 0) + value(g));
		cells.set(day, column);
	}
	const models = [...totals].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0])).map(([m]) => m);
	const named = models.length > mostSeries ? models.slice(0, mostSeries - 1) : models;
	const series = models.length > mostSeries ? [...named, "others"] : named;
	const columns = days.map((day) => {
		const column = cells.get(day) ?? new Map<string, number>();
		const total = [...column.values()].reduce((a, b) => a + b, 0);
		const values = named.map((m) => column.get(m) ?? 0);
		if (series.length > named.length) values.push(total - values.reduce((a, b) => a + b, 0));
		return { day, values, total };
	});
	return { series, days: columns, most: Math.max(0, ...columns.map((c) => c.total)) };
}

/** Three to five round steps that reach over the highest value. */
export function ticks(most: number): number[] {
	if (most <= 0) return [0];
	const rough = most / 4;
	const power = 10 ** Math.floor(Math.log10(rough));
	const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? 10 * power;
	return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, i) => i * step);
}

/** A limit from a field: empty is none, undefined is not a number that can be a limit. */
export function limitOf(text: string, unit: number): number | null | undefined {
	const t = text.trim().replaceAll(",", "");
	if (t === "") return null;
	const n = Number(t);
	return Number.isFinite(n) && n >= 0 && n * unit <= Number.MAX_SAFE_INTEGER ? Math.round(n * unit) : undefined;
}
