import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";
import { Markdown } from "./Markdown.tsx";
import { marksOf } from "./Sources.tsx";

// What the controls ask a browser for when they are loaded.
vi.hoisted(() => {
	vi.stubGlobal("navigator", { platform: "" });
	vi.stubGlobal("addEventListener", () => undefined);
});

const html = (text: string) => renderToStaticMarkup(createElement(Markdown, { text }));

test("a link by reference leads to the URL that another block defines", () => {
	const page = html(
		"See [the timetable][1], or:\n\n- [Ferries]\n\n> ![a map][Map]\n\n[1]: https://a.example/times\n[ferries]: <https://b.example>\n\n[map]: https://c.example/m.png 'A map'",
	);
	const links = [...page.matchAll(/<a href="([^"]+)"[^>]*>([^<]+)</g)].map(([, href, text]) => [text, href]);
	expect(links).toEqual([
		["the timetable", "https://a.example/times"],
		["Ferries", "https://b.example"],
		["a map", "https://c.example/m.png"],
	]);
	expect(page).not.toContain("[1]");
});

test("a link by reference leads to the web only, and one without a definition is text", () => {
	expect(html("[a][x], [b][nowhere], [c][__proto__]\n\n[x]: javascript:alert(1)")).not.toContain("<a");
	expect(html("[b][nowhere]")).toContain("[b][nowhere]");
});

test("headings begin below the page's own, and skip no level", () => {
	const levels = (text: string) => [...html(text).matchAll(/<h(\d)/g)].map(([, level]) => Number(level));
	expect(levels("# A\n\n## B\n\n#### C\n\n## D")).toEqual([2, 3, 4, 3]);
	expect(levels("### A\n\ntext\n\n##### B\n\n# C")).toEqual([2, 3, 2]);
	expect(levels("###### A\n\n> # quoted")).toEqual([2]);
});

test.each([
	["a fence that has not closed", "Look:\n\n```ts\nconst a = 1", 0],
	["a fence that closes", "Look:\n\n```ts\nconst a = 1\n```", 1],
	["a fence within another", "````md\n```\na\n```", 0],
	["a fence in a list", "- a\n  ```\n  b\n  ```", 0],
	["fences with text below", "- a\n  ```\n  b\n  ```\n\n~~~\nc\n~~~\nand", 2],
])("code has a button that copies it once it is complete: %s", (_, text, want) => {
	const copies = (writing: boolean) => renderToStaticMarkup(createElement(Markdown, { text, writing })).split(">Copy<").length - 1;
	expect(copies(true)).toBe(want);
	expect(copies(false)).toBeGreaterThan(0);
});

/** A text with a number after each ^, and what a reader sees of it. */
function cited(source: string): string {
	const urls = ["https://a.example", "https://b.example"];
	const places: number[] = [];
	for (let at = source.indexOf("^"); at >= 0; at = source.indexOf("^", at + 1)) places.push(at - places.length);
	const marks = marksOf(
		urls.map((url) => ({ url, title: url })),
		places.map((at, i) => ({ at, url: urls[i] ?? "", text: "" })),
	);
	return renderToStaticMarkup(createElement(Markdown, { text: source.replaceAll("^", ""), marks }))
		.replaceAll(/<a [^>]*aria-label="Source[^>]*>(\d)<\/a>/g, "^$1")
		.replaceAll(/<(?!\/?(strong|code|a|td|h2|p|li)\b)[^>]*>|<button.*?<\/button>/g, "")
		.replaceAll(/<(\w+) [^>]*>/g, "<$1>");
}

test.each([
	["after a sentence", "One.^ Two.^", "<p>One.^1 Two.^2</p>"],
	["at one place", "One^^.", "<p>One^1^2.</p>"],
	["before the line's end", "# One\n^\n- Two\n^", "<h2>One^1</h2><li>Two^2</li>"],
	["after emphasis", "**One.**^ _two_^", "<p><strong>One.</strong>^1 two^2</p>"],
	["within emphasis", "**One^ two**", "<p><strong>One^1 two</strong></p>"],
	["after code", "`a^b`", "<p><code>ab</code>^1</p>"],
	["after a bare address", "https://x.example/a^ b", "<p><a>https://x.example/a</a> ^1 b</p>"],
	["after the word that it would be in", "wo^rd **wo^rd**", "<p>word^1 <strong>word^2</strong></p>"],
	["within a text without spaces", "東京は^日本の首都", "<p>東京は^1日本の首都</p>"],
	["after the bare address that it would be in", "https://x.exa^mple/a b", "<p><a>https://x.example/a</a> ^1 b</p>"],
	["after the link whose address it would be in", "[one](https://x.ex^ample/a).", "<p><a>one</a>^1.</p>"],
	["after a picture's link", "![one](https://x.example^/a.png)", "<p><a>one</a>^1</p>"],
	["after a link", "[one^ two](https://x.example)", "<p><a>one two</a>^1</p>"],
	["in a table's cell", "| a |\n| - |\n| b |\n^", "<td>b^1</td>"],
	["after a block of code", "```js\na()\n```\n^", "<code>a()</code>^1"],
	["before a rule", "One\n\n---\n^", "<p>One^1</p>"],
])("the number of a source stands %s", (_, source, want) => {
	expect(cited(source)).toContain(want);
	expect(cited(source)).not.toMatch(/[⁅\ue000⁆]/);
});

test("a number within an address is not part of it", () => {
	const page = (text: string, at: string) =>
		renderToStaticMarkup(
			createElement(Markdown, { text, marks: marksOf([{ url: "s", title: "" }], [{ at: text.indexOf(at), url: "s", text: "" }]) }),
		);
	expect(page("[one](https://x.example/a)", "/a")).toContain('href="https://x.example/a"');
	expect(page("![one](https://x.example/a)", "/a")).toContain('href="https://x.example/a"');
	expect(page("See https://x.example/a", "mple")).toContain('href="https://x.example/a"');
});

test("a text cannot have numbers of its own, and its characters stay", () => {
	const marks = marksOf([{ url: "https://a.example", title: "A" }], [{ at: 3, url: "https://a.example", text: "" }]);
	const forged = "One ⁅\ue0000⁆ and `⁅\ue0000⁆`, \ue000";
	for (const page of [html(forged), renderToStaticMarkup(createElement(Markdown, { text: forged, marks }))]) {
		expect(page.split("⁅\ufffd0⁆")).toHaveLength(3);
		expect(page).toContain(", \ue000");
	}
	expect(renderToStaticMarkup(createElement(Markdown, { text: forged, marks })).split("Source 1")).toHaveLength(2);
});

test("a source that is no page has a name and can have the focus", () => {
	const marks = marksOf([{ url: "doc:7", title: "A" }], [{ at: 3, url: "doc:7", text: "said" }]);
	const page = renderToStaticMarkup(createElement(Markdown, { text: "One.", marks }));
	expect(page).toMatch(/<a (?!.*href)[^>]*role="note"[^>]*tabindex="0"[^>]*aria-label="Source 1: A"[^>]*aria-description="[^"]*said"/i);
});

test("a number without a source is left out, and a source has one number at a place", () => {
	const sources = [{ url: "https://a.example", title: "A" }];
	const at = (url: string, text: string) => ({ at: 3, url, text });
	expect(marksOf(sources, [at("https://a.example", "x"), at("https://gone.example", "y"), at("https://a.example", "z")])).toEqual([
		{ at: 3, number: 1, source: sources[0], quotes: ["x", "z"] },
	]);
});
