import { expect, test, vi } from "vitest";
import { allPages, perPage } from "./client.ts";

test("a list is not read more often for having more pages", () => {
	const every = perPage(15_000);
	expect([undefined, { pages: [] }, { pages: [1] }, { pages: [1, 2, 3] }].map((data) => every({ state: { data } }))).toEqual([
		15_000, 15_000, 15_000, 45_000,
	]);
});

test("all pages of a list are read, with the signal, until it is aborted", async () => {
	const read = vi.fn(async ({ cursor }: { cursor?: string }, _: AbortSignal) => ({
		next_cursor: cursor === "b" ? null : cursor === "a" ? "b" : "a",
	}));
	const stop = new AbortController();
	expect(await allPages(stop.signal, read)).toHaveLength(3);
	expect(read.mock.calls.map(([query]) => query.cursor)).toEqual([undefined, "a", "b"]);
	expect(read.mock.calls.every(([, signal]) => signal === stop.signal)).toBe(true);

	read.mockClear();
	const later = new AbortController();
	const reading = allPages(later.signal, read);
	later.abort();
	await expect(reading).rejects.toThrow();
	expect(read).toHaveBeenCalledTimes(1);
});
