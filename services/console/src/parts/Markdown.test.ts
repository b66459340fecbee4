import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test } from "vitest";
import { Markdown } from "./Markdown.tsx";

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
