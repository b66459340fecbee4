import { createContext, type PointerEvent, type ReactNode, Suspense, use, useEffect, useRef, useState } from "react";
import type { Citation, Source } from "../live/citations.ts";
import { later } from "./later.tsx";
import css from "./Sources.module.css";

/** Fetched when one is wanted. */
const Card = later(
	() => import("./Card.tsx").then((m) => m.Card),
	() => null,
);

/** A number in a text: the source that the text before it relies on, and what it says. */
export interface Mark {
	at: number;
	number: number;
	source: Source;
	quotes: readonly string[];
}

/** The numbers in a text, in its order. A source has one at a place, also if it is quoted twice. */
export function marksOf(sources: readonly Source[], citations: readonly Citation[]): readonly Mark[] {
	const marks: (Mark & { quotes: string[] })[] = [];
	for (const { at, url, text } of [...citations].sort((a, b) => a.at - b.at)) {
		const i = sources.findIndex((s) => s.url === url);
		const source = sources[i];
		if (!source) continue;
		const same = marks.findLast((m) => m.at === at && m.source === source);
		if (!same) marks.push({ at, number: i + 1, source, quotes: text ? [text] : [] });
		else if (text && !same.quotes.includes(text)) same.quotes.push(text);
	}
	return marks;
}

/** In Markdown: brackets, which end words and emphasis as punctuation does, around what a text with signs has nowhere else. */
const sign = /⁅\ue000(\d+)⁆/;

/** Puts signs into Markdown where its marks are, and spoils what only looks like one. */
export function withMarks(source: string, marks: readonly Mark[]): string {
	const text = source.replaceAll("⁅\ue000", "⁅\ufffd");
	let out = "";
	let from = 0;
	marks.forEach((m, i) => {
		let at = Math.max(from, placeFor(text, m.at));
		// A bare address goes on to the next space.
		const bare = endsInAddress(text.slice(0, at));
		if (bare) at += /^\S*/.exec(text.slice(at))?.[0].length ?? 0;
		out += `${text.slice(from, at)}${bare && at > from ? " " : ""}⁅\ue000${i}⁆`;
		from = at;
	});
	return out + text.slice(from);
}

/** Where the sign of a place can stand: at the end of words, in a table within the cell, and on no line that only draws something. */
function placeFor(text: string, at: number): number {
	for (let end = at; end > 0; ) {
		const before = text.slice(0, end).trimEnd();
		const line = before.slice(before.lastIndexOf("\n") + 1);
		if (/[\p{L}\p{N}]/u.test(line) && !/^ {0,3}(\[[^\]]+\]:|`{3}|~{3})/.test(line)) {
			if (/^\s*\|.*\|$/.test(line)) return before.slice(0, -1).trimEnd().length;
			const within = before.length === at && cased.test(before.slice(-1));
			return before.length + (within ? (casedFirst.exec(text.slice(at))?.[0].length ?? 0) : 0);
		}
		end = before.length - line.length;
	}
	return at;
}

/** The letters of scripts that put spaces between words, and digits. */
const cased = /[\p{Lu}\p{Ll}\p{M}\p{N}]$/u;
const casedFirst = /^[\p{Lu}\p{Ll}\p{M}\p{N}]*/u;

/** Reports whether a text ends in an address that stands for itself, not in one where a link leads. */
function endsInAddress(text: string): boolean {
	const word = text.slice(Math.max(text.lastIndexOf(" "), text.lastIndexOf("\n")) + 1);
	const target = word.lastIndexOf("](");
	if (target < 0) return /https?:\/\/|www\./.test(word);
	const end = word.indexOf(")", target);
	return end >= 0 && /https?:\/\/|www\./.test(word.slice(end));
}

/** Splits a text at its signs: every second item is the index of a mark. */
export const splitMarks = (text: string): string[] => text.split(sign);

/** A text without its signs. */
export const withoutMarks = (text: string): string =>
	splitMarks(text)
		.filter((_, i) => i % 2 === 0)
		.join("");

/** The marks of a text whose signs are rendered. */
export const MarksContext = createContext<readonly Mark[]>([]);

/** The number of a mark. */
export function Cite({ mark }: { mark: number }) {
	const m = use(MarksContext)[mark];
	if (!m) return null;
	return (
		<SourceLink source={m.source} quotes={m.quotes} className={css.cite} label={`Source ${m.number}: ${nameOf(m.source)}`}>
			{m.number}
		</SourceLink>
	);
}

/** The sources of a step, below its text. */
export function Sources({ sources, citations }: { sources: readonly Source[]; citations: readonly Citation[] }) {
	return (
		<ol className={css.sources} aria-label="Sources">
			{sources.map((s, i) => (
				<li key={s.url}>
					<SourceLink
						source={s}
						quotes={[...new Set(citations.flatMap((c) => (c.url === s.url && c.text ? [c.text] : [])))]}
						className={css.chip}
					>
						<b className="n">{i + 1}</b>
						<span className="cut">{nameOf(s)}</span>
					</SourceLink>
				</li>
			))}
		</ol>
	);
}

const nameOf = (s: Source) => s.title || s.url;

function hostOf(url: string): string {
	try {
		return new URL(url).host.replace(/^www\./, "");
	} catch {
		return url;
	}
}

/** The pointer may cross the gap between a link and its card. */
const patience = 150;

/** A link to a source. A card shows what it is while the pointer or the focus is on it, and by a first tap. */
function SourceLink({
	source,
	quotes,
	className,
	label,
	children,
}: {
	source: Source;
	quotes: readonly string[];
	className: string | undefined;
	label?: string;
	children: ReactNode;
}) {
	const href = /^https?:/i.test(source.url) ? source.url : undefined;
	const said = quotes.slice(0, 3);
	const link = useRef<HTMLAnchorElement>(null);
	const [open, setOpen] = useState(false);
	const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
	useEffect(() => () => clearTimeout(timer.current), []);
	const soon = (open: boolean) => {
		clearTimeout(timer.current);
		timer.current = setTimeout(() => setOpen(open), patience);
	};
	const at = (open: boolean) => {
		clearTimeout(timer.current);
		setOpen(open);
	};
	const hover = {
		onPointerEnter: (e: PointerEvent) => e.pointerType !== "touch" && soon(true),
		onPointerLeave: (e: PointerEvent) => e.pointerType !== "touch" && soon(false),
	};
	return (
		<>
			<a
				ref={link}
				className={className}
				href={href}
				{...(href ? {} : { role: "note", tabIndex: 0 })}
				target="_blank"
				rel="noreferrer noopener"
				aria-label={label}
				aria-description={[hostOf(source.url), ...said].join(". ")} // what the card shows, which comes later
				{...hover}
				onFocus={(e) => e.currentTarget.matches(":focus-visible") && at(true)}
				onBlur={() => at(false)}
				onClick={(e) => {
					if (open || (e.nativeEvent as globalThis.PointerEvent).pointerType !== "touch") return;
					e.preventDefault();
					at(true);
				}}
			>
				{children}
			</a>
			{open && (
				<Suspense>
					<Card of={link} onClose={() => at(false)} {...hover}>
						<b>{nameOf(source)}</b>
						<span className={css.host}>{hostOf(source.url)}</span>
						{said.map((q) => (
							<q key={q} className={css.quote}>
								{q}
							</q>
						))}
					</Card>
				</Suspense>
			)}
		</>
	);
}
