/** A table as a file for spreadsheets (RFC 4180). */
export function csv(head: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
	return [head, ...rows].map((r) => `${r.map(cell).join(",")}\r\n`).join("");
}

function cell(v: string | number): string {
	if (typeof v === "number") return String(v);
	// A spreadsheet would run what looks like a formula.
	const text = /^[=+\-@\t\r]/.test(v) ? `'${v}` : v;
	return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Saves a table as a file of the person's. */
export function saveCsv(name: string, head: readonly string[], rows: readonly (readonly (string | number)[])[]): void {
	// Without the mark a spreadsheet may not take it for UTF-8.
	const url = URL.createObjectURL(new Blob(["\ufeff", csv(head, rows)], { type: "text/csv" }));
	const link = document.createElement("a");
	link.href = url;
	link.download = `${name}.csv`;
	link.click();
	URL.revokeObjectURL(url);
}
