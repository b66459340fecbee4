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

test.each([
	["ts", "const a = 1;"],
	["tsx", "const a = 1;"],
	["js", "const a = 1;"],
	["py", "def f(): pass"],
	["go", "func f() {}"],
	["rs", "fn f() {}"],
	["sh", "if true; then echo; fi"],
	["yml", "a: 1"],
	["toml", "a = 1"],
	["html", "<p>a</p>"],
	["c++", "int a = 1;"],
	["cs", "int a = 1;"],
	["kt", "val a = 1"],
	["dockerfile", "FROM a"],
	["json", '{"a": 1}'],
	["sql", "SELECT 1"],
	["proto", "message A {}"],
])("a fence may say %s", (language, code) => expect(html(code, language)).toContain("<span"));

test("code in an unknown language is shown as it is", () => {
	expect(html("<a> 1", "brainfuck")).toBe("&lt;a&gt; 1");
});
