import type { RefObject } from "react";
import { useActions } from "../actions.ts";

/** The rows of a list, in order: the elements with data-row. */
export const rowsOf = (box: RefObject<HTMLElement | null>): HTMLElement[] => [
	...(box.current?.querySelectorAll<HTMLElement>("[data-row]") ?? []),
];

/** The value of data-row of the row that has the focus. */
export function focusedRow(): string | undefined {
	return document.activeElement?.closest<HTMLElement>("[data-row]")?.dataset.row;
}

/** Moves the focus through a list's rows with J and K. */
export function useRows(box: RefObject<HTMLElement | null>): void {
	const move = (by: 1 | -1) => {
		const rows = rowsOf(box);
		const at = rows.findIndex((r) => r.dataset.row === focusedRow());
		const to = rows[at < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, at + by))];
		to?.focus();
		to?.scrollIntoView({ block: "nearest" });
	};
	useActions([
		{ keys: "j", run: () => move(1) },
		{ keys: "k", run: () => move(-1) },
	]);
}
