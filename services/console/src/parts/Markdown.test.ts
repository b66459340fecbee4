import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";
import { Markdown } from "./Markdown.tsx";

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
