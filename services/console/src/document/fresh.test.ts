import { Schema } from "@tiptap/pm/model";
import { expect, test } from "vitest";
import { changesOf } from "./fresh.ts";

const schema = new Schema({
	nodes: { doc: { content: "p+" }, p: { content: "text*" }, text: {} },
});
const doc = (...lines: string[]) =>
	schema.node(
		"doc",
		null,
		lines.map((l) => schema.node("p", null, l ? [schema.text(l)] : [])),
	);
const found = (before: string[], after: string[]) => {
	const next = doc(...after);
	return changesOf(doc(...before), next).map((c) => next.textBetween(c.from, c.to));
};

test("only what changed within lines is found, however far apart", () => {
	expect(found(["the plan", "kept", "no plan yet"], ["the idea", "kept", "no idea yet"])).toEqual(["idea", "idea"]);
});

test("lines that came are found, and lines that went are nothing new", () => {
	expect(found(["a", "b"], ["a", "new", "b"])).toEqual(["new"]);
	expect(found(["a", "b", "c"], ["a", "c"])).toEqual([""]);
	expect(found(["aa"], ["aaa"])).toEqual(["a"]);
	expect(found(["a"], ["a"])).toEqual([]);
});
