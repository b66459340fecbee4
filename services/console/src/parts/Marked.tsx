import { Fragment } from "react";

/** Text in which the words that were searched for are marked. */
export function Marked({ text, words }: { text: string; words: string }) {
	const wanted = words.toLowerCase().split(/\s+/).filter(Boolean).slice(0, 16);
	if (wanted.length === 0) return text;
	const pattern = new RegExp(`(${wanted.map((w) => w.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "i");
	return text.split(pattern).map((part, i) =>
		// biome-ignore lint/suspicious/noArrayIndexKey: the parts have no other name
		i % 2 === 1 ? <mark key={i}>{part}</mark> : <Fragment key={i}>{part}</Fragment>,
	);
}
