/** The sources of an answer, and where its text relies on them, as stored messages have them. */

export interface Source {
	url: string;
	title: string;
}

/** Text relies on a source. */
export interface Citation {
	/** Where that text ends in its step's. */
	at: number;
	url: string;
	/** What the source says; empty if the provider does not quote it. */
	text: string;
}

type Fields = Record<string, unknown>;

/** As much as an event has of what a source says, in characters. */
const quoted = 500;

/** The sources that a part of an answer names: pages that its search has found, or that its text cites. */
export function sourcesOf(p: Fields): Source[] {
	const found = p.type === "tool-result" ? fieldsOf(p.output).value : p.type === "source" ? [p] : [...blockCites(p), ...rangeCites(p)];
	return listOf(found).flatMap(({ url, title }) => (isUrl(url) ? [{ url, title: typeof title === "string" ? title : "" }] : []));
}

/** Where a text part relies on sources, if it begins at an offset of its step's text. */
export function citationsOf(p: Fields, from: number): Citation[] {
	const text = String(p.text);
	const blocks = blockCites(p).flatMap(({ url, cited_text: said }) =>
		isUrl(url) ? [{ at: from + text.length, url, text: typeof said === "string" ? said.slice(0, endOf(said, quoted)) : "" }] : [],
	);
	const ranges = rangeCites(p).flatMap(({ url, end_index: end }) =>
		isUrl(url) && typeof end === "number" && end > 0 ? [{ at: from + endOf(text, end), url, text: "" }] : [],
	);
	return [...blocks, ...ranges];
}

/** Where so many characters of a text end. Strings count some of them twice. */
export function endOf(text: string, characters: number): number {
	let end = 0;
	let left = characters;
	for (const c of text) {
		if (left-- <= 0) break;
		end += c.length;
	}
	return end;
}

/** What all of a part's text relies on. */
const blockCites = (p: Fields): Fields[] => listOf(fieldsOf(fieldsOf(p.providerOptions).anthropic).citations);

/** What a part's text up to a place relies on. */
const rangeCites = (p: Fields): Fields[] =>
	listOf(fieldsOf(fieldsOf(p.providerOptions).openai).annotations).map((a) => fieldsOf(a.url_citation));

const isUrl = (v: unknown): v is string => typeof v === "string" && v !== "";
const fieldsOf = (v: unknown): Fields => (typeof v === "object" && v !== null ? (v as Fields) : {});
const listOf = (v: unknown): Fields[] => (Array.isArray(v) ? v.map(fieldsOf) : []);
