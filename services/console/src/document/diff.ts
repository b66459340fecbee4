/** Two versions of a document as one text with what was added and removed. */
import { lexer, type Token, type Tokens } from "marked";

/** A piece of text in one look. */
export interface Run {
	text: string;
	strong?: true;
	em?: true;
	code?: true;
}

export type Change = "same" | "added" | "removed";

/** A line of the document: a paragraph, a heading, an item, a row. */
export interface Unit {
	kind: "heading" | "paragraph" | "item" | "row" | "code" | "rule";
	depth: number;
	runs: Run[];
}

export interface Changed {
	unit: Unit;
	change: Change | "within";
	/** Of a unit that changed within: its words. */
	words: (Run & { change: Change })[];
}

/** The lines of a document. */
export function unitsOf(markdown: string): Unit[] {
	const units: Unit[] = [];
	const walk = (tokens: readonly Token[], depth: number) => {
		for (const t of tokens) {
			if (t.type === "heading") units.push({ kind: "heading", depth: (t as Tokens.Heading).depth, runs: runsOf(t.tokens ?? []) });
			else if (t.type === "paragraph") units.push({ kind: "paragraph", depth, runs: runsOf(t.tokens ?? []) });
			else if (t.type === "list") {
				for (const item of (t as Tokens.List).items) {
					const [first, ...rest] = item.tokens.filter((i) => i.type !== "checkbox" && i.type !== "space");
					const inline = first && "tokens" in first && first.type !== "list" ? (first.tokens ?? []) : [];
					const box: Run[] = item.task ? [{ text: item.checked ? "☑ " : "☐ " }] : [];
					units.push({ kind: "item", depth: depth + 1, runs: [...box, ...runsOf(inline)] });
					walk(first?.type === "list" ? item.tokens : rest, depth + 1);
				}
			} else if (t.type === "table") {
				const table = t as Tokens.Table;
				for (const row of [table.header, ...table.rows])
					units.push({ kind: "row", depth, runs: row.flatMap((c, i) => [...(i ? [{ text: "  ·  " }] : []), ...runsOf(c.tokens)]) });
			} else if (t.type === "blockquote") walk(t.tokens ?? [], depth + 1);
			else if (t.type === "code")
				for (const text of (t as Tokens.Code).text.split("\n")) units.push({ kind: "code", depth, runs: [{ text }] });
			else if (t.type === "hr") units.push({ kind: "rule", depth, runs: [] });
			else if (t.type !== "space") units.push({ kind: "paragraph", depth, runs: [{ text: t.raw.trim() }] });
		}
	};
	walk(lexer(markdown), 0);
	return units;
}

function runsOf(tokens: readonly Token[], look: Omit<Run, "text"> = {}): Run[] {
	return tokens.flatMap((t): Run[] => {
		if (t.type === "strong") return runsOf(t.tokens ?? [], { ...look, strong: true });
		if (t.type === "em") return runsOf(t.tokens ?? [], { ...look, em: true });
		if (t.type === "codespan") return [{ ...look, code: true, text: (t as Tokens.Codespan).text }];
		if (t.type === "br") return [{ ...look, text: "\n" }];
		if (t.type === "image") return [{ ...look, text: `[picture: ${(t as Tokens.Image).text}]` }];
		if ("tokens" in t && t.tokens) return runsOf(t.tokens, look);
		return [{ ...look, text: "text" in t ? String(t.text) : t.raw }];
	});
}

/** Compares two versions, given as Markdown. */
export function compare(before: string, after: string): Changed[] {
	const key = (u: Unit) => JSON.stringify(u);
	const out: Changed[] = [];
	let removed: Unit[] = [];
	let added: Unit[] = [];
	/** Lines that were replaced by lines of the same kind are compared word by word. */
	const flush = () => {
		for (let i = 0; i < Math.max(removed.length, added.length); i++) {
			const [a, b] = [removed[i], added[i]];
			const words = a && b && a.kind === b.kind && a.depth === b.depth ? wordsOf(a, b) : undefined;
			if (b && words) out.push({ unit: b, change: "within", words });
			else {
				if (a) out.push({ unit: a, change: "removed", words: [] });
				if (b) out.push({ unit: b, change: "added", words: [] });
			}
		}
		removed = [];
		added = [];
	};
	for (const [change, unit] of diff(unitsOf(before), unitsOf(after), key)) {
		if (change === "removed") removed.push(unit);
		else if (change === "added") added.push(unit);
		else {
			flush();
			out.push({ unit, change, words: [] });
		}
	}
	flush();
	return out;
}

/** The words of two lines, or nothing if they have too little in common. */
function wordsOf(a: Unit, b: Unit): Changed["words"] | undefined {
	const split = (u: Unit) => u.runs.flatMap((r) => r.text.split(/(?<=\s)(?=\S)/).map((text) => ({ ...r, text })));
	const words = diff(split(a), split(b), (r) => JSON.stringify({ ...r, text: r.text.trim() })).map(([change, r]) => ({ ...r, change }));
	const same = words.filter((w) => w.change === "same").length;
	return same * 3 >= words.length ? words : undefined;
}

const most = 4_000_000;

/** The shortest way from one list to another, or a plain replacement of what differs if they are too long. */
function diff<T>(before: readonly T[], after: readonly T[], key: (t: T) => string): [Change, T][] {
	const a = before.map(key);
	const b = after.map(key);
	let start = 0;
	while (start < a.length && start < b.length && a[start] === b[start]) start++;
	let end = 0;
	while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
	const out: [Change, T][] = after.slice(0, start).map((t) => ["same", t]);
	const [n, m] = [a.length - start - end, b.length - start - end];
	const width = m + 1;
	// common[i][j] is the length of what the rest of both, from i and j, have in common.
	const common = n * m > most ? undefined : new Uint32Array((n + 1) * width);
	if (common)
		for (let i = n - 1; i >= 0; i--)
			for (let j = m - 1; j >= 0; j--)
				common[i * width + j] =
					a[start + i] === b[start + j]
						? (common[(i + 1) * width + j + 1] ?? 0) + 1
						: Math.max(common[(i + 1) * width + j] ?? 0, common[i * width + j + 1] ?? 0);
	let [i, j] = [0, 0];
	while (i < n || j < m) {
		if (common && i < n && j < m && a[start + i] === b[start + j]) {
			out.push(["same", after[start + j] as T]);
			i++;
			j++;
		} else if (i < n && (j >= m || !common || (common[(i + 1) * width + j] ?? 0) >= (common[i * width + j + 1] ?? 0))) {
			out.push(["removed", before[start + i] as T]);
			i++;
		} else {
			out.push(["added", after[start + j] as T]);
			j++;
		}
	}
	for (const t of after.slice(after.length - end)) out.push(["same", t]);
	return out;
}
