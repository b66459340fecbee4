import { Lexer, lexer, type Token, type Tokens } from "marked";
import { Fragment, memo, type ReactNode } from "react";
import { Code } from "./Code.tsx";
import css from "./Markdown.module.css";
import { Cite, type Mark, MarksContext, splitMarks, withMarks, withoutMarks } from "./Sources.tsx";

/** Closes half-written marks. The code comes after the first load; until then they are shown as they are. */
let close = (text: string): string => text;
void import("remend").then(
	(m) => (close = m.default),
	() => undefined,
);

/**
 * Markdown as React elements, block by block. HTML in it is shown as text, never interpreted, and a
 * link goes to the web only. While it is being written, half-written marks are closed, and only the last block
 * renders again, and those with a bracket when the text defines another link. Marks in it are shown as numbers.
 */
export function Markdown({ text, marks = none, writing = false }: { text: string; marks?: readonly Mark[]; writing?: boolean }) {
	const signed = withMarks(text, marks);
	const all = lexer(writing ? close(signed) : signed);
	const blocks = all.filter((t) => t.type !== "space" && t.type !== "def");
	const levels = levelsOf(blocks);
	const links = JSON.stringify(all.links); // as text, which is equal from one render to the next
	return (
		<div className={css.prose}>
			<MarksContext value={marks}>
				{blocks.map((t, i) => (
					<Block
						key={i}
						source={t.raw}
						links={t.raw.includes("[") ? links : "{}"}
						level={levels[i] ?? 0}
						caret={writing && i === blocks.length - 1}
						open={writing && i === blocks.length - 1 && !isFence(t.raw)}
					/>
				))}
			</MarksContext>
			{writing && blocks.length === 0 && <span className={css.caret} />}
		</div>
	);
}

/**
 * The level of each block that is a heading. The text stands below a page's only h1, and a level that its
 * author skips is not skipped on the page.
 */
function levelsOf(blocks: readonly Token[]): number[] {
	const above: number[] = [];
	return blocks.map((t) => {
		if (t.type !== "heading") return 0;
		const { depth } = t as Tokens.Heading;
		while ((above.at(-1) ?? 0) >= depth) above.pop();
		above.push(depth);
		return Math.min(above.length + 1, 6);
	});
}

/** Reports whether a block is code between two fences: nothing is added to it any more. */
const isFence = (source: string) => /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))[^\n]*\n(?:.*\n)? {0,3}\1[`~]*\s*$/s.test(source);

/** A block of a text, and the URLs that the whole text defines for links by reference. What is open is still written. */
const Block = memo(function Block({
	source,
	links,
	caret,
	open,
	level,
}: {
	source: string;
	links: string;
	caret: boolean;
	open: boolean;
	level: number;
}) {
	const lexer = new Lexer();
	Object.assign(lexer.tokens.links, JSON.parse(links));
	return (
		<>
			{lexer.lex(source).map((t, i) => (
				<Fragment key={i}>{block(t, open, caret, level)}</Fragment>
			))}
		</>
	);
});

function block(t: Token, open: boolean, caret = false, level = 0): ReactNode {
	const tail = caret && <span className={css.caret} />;
	switch (t.type) {
		case "paragraph":
			return (
				<p>
					{inline(t.tokens)}
					{tail}
				</p>
			);
		case "text":
			return "tokens" in t && t.tokens ? inline(t.tokens) : words((t as Tokens.Text).text);
		case "heading": {
			// One within a list or a quotation is no part of the page's outline.
			const Heading = level === 0 ? "p" : (`h${level}` as "h2");
			return <Heading data-depth={(t as Tokens.Heading).depth}>{inline(t.tokens)}</Heading>;
		}
		case "list": {
			const list = t as Tokens.List;
			const items = list.items.map((item, i) => (
				<li key={i}>
					{item.task && <input type="checkbox" checked={item.checked ?? false} readOnly aria-label={item.checked ? "Done" : "To do"} />}
					{blocksOf(item.tokens, open && i === list.items.length - 1)}
				</li>
			));
			return list.ordered ? <ol start={Number(list.start) || 1}>{items}</ol> : <ul>{items}</ul>;
		}
		case "code":
			return (
				<>
					<Code
						text={withoutMarks((t as Tokens.Code).text)}
						language={withoutMarks((t as Tokens.Code).lang ?? "").split(/\s/)[0] ?? ""}
						open={open}
						caret={caret}
					/>
					{numbers(t.raw)}
				</>
			);
		case "blockquote":
			return <blockquote>{blocksOf(t.tokens ?? [], open)}</blockquote>;
		case "hr":
			return <hr />;
		case "table": {
			const table = t as Tokens.Table;
			return (
				<div className={css.table} tabIndex={0} role="region" aria-label="Table">
					<table>
						<thead>
							<tr>
								{table.header.map((c, i) => (
									<th key={i} data-align={c.align}>
										{inline(c.tokens)}
									</th>
								))}
							</tr>
						</thead>
						<tbody>
							{table.rows.map((row, r) => (
								<tr key={r}>
									{row.map((c, i) => (
										<td key={i} data-align={c.align}>
											{inline(c.tokens)}
										</td>
									))}
								</tr>
							))}
						</tbody>
					</table>
				</div>
			);
		}
		case "html":
			return <p>{words(t.raw, false)}</p>;
		case "space":
		case "def":
			return null;
		default:
			return words(t.raw, false);
	}
}

function blocksOf(tokens: Token[], open: boolean): ReactNode {
	return tokens.map((t, i) => <Fragment key={i}>{block(t, open && i === tokens.length - 1)}</Fragment>);
}

function inline(tokens: Token[] | undefined): ReactNode {
	return tokens?.map((t, i) => <Fragment key={i}>{span(t)}</Fragment>);
}

function span(t: Token): ReactNode {
	switch (t.type) {
		case "text":
		case "escape":
			return "tokens" in t && t.tokens ? inline(t.tokens) : words((t as Tokens.Text).text);
		case "strong":
			return <strong>{inline(t.tokens)}</strong>;
		case "em":
			return <em>{inline(t.tokens)}</em>;
		case "del":
			return <del>{inline(t.tokens)}</del>;
		case "codespan":
			return (
				<>
					<code>{withoutMarks((t as Tokens.Codespan).text)}</code>
					{numbers(t.raw)}
				</>
			);
		case "br":
			return <br />;
		case "link": {
			const link = t as Tokens.Link;
			const href = withoutMarks(link.href);
			return safe(href) ? (
				<>
					<a href={href} target="_blank" rel="noreferrer noopener">
						<MarksContext value={none}>{inline(link.tokens)}</MarksContext>
					</a>
					{numbers(t.raw)}
				</>
			) : (
				inline(link.tokens)
			);
		}
		case "image": {
			// A picture of another server would tell it who reads: it is a link.
			const image = t as Tokens.Image;
			const text = withoutMarks(image.text);
			const href = withoutMarks(image.href);
			return (
				<>
					{safe(href) ? (
						<a href={href} target="_blank" rel="noreferrer noopener">
							{text || href}
						</a>
					) : (
						text
					)}
					{numbers(t.raw)}
				</>
			);
		}
		default:
			return words(t.raw, false);
	}
}

/** The marks of what has no room for them in itself. */
const none: readonly Mark[] = [];

/** A text with its marks, and with HTML's entities read unless it is shown as it is. */
function words(text: string, read = true): ReactNode {
	const [first = "", ...rest] = splitMarks(text);
	const shown = read ? entities : (s: string) => s;
	if (rest.length === 0) return shown(first);
	return [first, ...rest].map((s, i) => (i % 2 === 0 ? shown(s) : <Cite key={i} mark={Number(s)} />));
}

/** The marks in a text, without it. */
function numbers(text: string): ReactNode {
	return splitMarks(text).map((s, i) => i % 2 === 1 && <Cite key={i} mark={Number(s)} />);
}

const named: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'" };

/** Markdown's text may have HTML's entities; those that are common in it are read. */
function entities(text: string): string {
	return text.replace(/&(#?\w+);/g, (whole, name: string) => named[name] ?? whole);
}

function safe(href: string): boolean {
	return /^(https?:|mailto:)/i.test(href);
}
