import { renderToStaticMarkup } from "react-dom/server";
import { expect, test } from "vitest";
import { highlight } from "./Highlighted.tsx";

const html = (text: string, language: string) => renderToStaticMarkup(highlight(text, language));

test("code has the colours of what it is made of, and keeps its text", () => {
	const code = 'const a = "<b>" + 42; // why\n';
	const shown = html(code, "ts");
	for (const colour of ["key", "str", "num", "aside"]) expect(shown).toMatch(new RegExp(`class="[^"]*${colour}[^"]*"`));
	expect(shown).not.toContain("<b>");
	expect(
		shown
			.replaceAll(/<[^>]*>/g, "")
			.replaceAll("&lt;", "<")
			.replaceAll("&gt;", ">")
			.replaceAll("&quot;", '"'),
	).toBe(code);
});

test.each(["ts", "tsx", "js", "py", "go", "rs", "sh", "yml", "toml", "html", "c++", "cs", "kt", "dockerfile", "json", "sql", "proto"])(
	"a fence may say %s",
	(language) => expect(html("1", language)).not.toBe(""),
);

test("code in an unknown language is shown as it is", () => {
	expect(html("<a> 1", "brainfuck")).toBe("&lt;a&gt; 1");
});
