import { expect, test } from "vitest";
import { compare, unitsOf } from "./diff.ts";

const drawn = (before: string, after: string) =>
	compare(before, after).map(({ unit, change, words }) => {
		const text = unit.runs.map((r) => r.text).join("");
		if (change !== "within") return `${{ same: " ", added: "+", removed: "-" }[change]} ${unit.kind} ${text}`;
		const mark = { same: "", added: "+", removed: "-" };
		return `~ ${unit.kind} ${words.map((w) => (w.change === "same" ? w.text.trim() : `${mark[w.change]}${w.text.trim()}`)).join(" ")}`;
	});

test("words that changed are marked in their line, and the rest is left alone", () => {
	expect(
		drawn(
			"# Plan\n\nRaise it from 30 to 60 seconds now.\n\n- one\n- two\n",
			"# Plan\n\nRaise it from 30 to 90 seconds now.\n\n- one\n- three\n- two\n",
		),
	).toEqual(["  heading Plan", "~ paragraph Raise it from 30 to -60 +90 seconds now.", "  item one", "+ item three", "  item two"]);
});

test("lines with little in common are removed and added", () => {
	expect(drawn("One thing.\n", "Something else entirely here.\n")).toEqual([
		"- paragraph One thing.",
		"+ paragraph Something else entirely here.",
	]);
});

test("all kinds of lines are read, and marks are kept", () => {
	const all = "**a** `b`\n\n> q\n\n- [x] t\n  - u\n\n```\nc\nd\n```\n\n| h | i |\n|---|---|\n| j | k |\n\n---\n\n<b>x</b>\n";
	expect(unitsOf(all).map((u) => `${u.kind} ${u.depth} ${u.runs.map((r) => r.text).join("")}`)).toEqual([
		"paragraph 0 a b",
		"paragraph 1 q",
		"item 1 ☑ t",
		"item 2 u",
		"code 0 c",
		"code 0 d",
		"row 0 h  ·  i",
		"row 0 j  ·  k",
		"rule 0 ",
		"paragraph 0 <b>x</b>",
	]);
	expect(unitsOf(all)[0]?.runs).toEqual([{ text: "a", strong: true }, { text: " " }, { text: "b", code: true }]);
	expect(compare(all, all).every((c) => c.change === "same")).toBe(true);
});

test("texts too long to be compared line by line are still shown", () => {
	const lines = (word: string) => Array.from({ length: 2500 }, (_, i) => `${word} ${i}\n`).join("\n");
	expect(compare(lines("a"), lines("b")).length).toBeGreaterThanOrEqual(2500);
});
