/** What the addresses of pages say, checked. The defaults are not in an address. */

/** The period, the measure and the view of the usage page. */
export interface UsageSearch {
	days?: 7 | 90;
	of?: "tokens" | "calls";
	view?: "table";
}

/** Reads what is in the address; the defaults are not. */
export function usageSearch(s: Record<string, unknown>): UsageSearch {
	return {
		...(s.days === 7 || s.days === 90 ? { days: s.days } : {}),
		...(s.of === "tokens" || s.of === "calls" ? { of: s.of } : {}),
		...(s.view === "table" ? { view: s.view } : {}),
	};
}
