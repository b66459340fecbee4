import { readFileSync } from "node:fs";
import { getSchema } from "@tiptap/core";
import { expect, test } from "vitest";
import { schema } from "./schema.ts";

/** The server's schema: a test of pkg/prosemirror compares the two. */
const servers: { nodes: Record<string, { attrs: unknown; marks: string[] }>; marks: { name: string; attrs: unknown }[] } = JSON.parse(
	readFileSync(new URL("../../../../pkg/prosemirror/testdata/tiptap.json", import.meta.url), "utf8"),
);

type Attributes = Record<string, { default?: unknown }> | null | undefined;
const attributes = (of: Attributes) => Object.fromEntries(Object.entries(of ?? {}).map(([name, a]) => [name, a.default ?? null]));

test("the editor's schema is the server's", () => {
	const { nodes, marks } = getSchema(schema);
	const named = (of: { name: string; attrs: unknown }[]) => Object.fromEntries(of.map((x) => [x.name, x]));
	const here = Object.values(nodes).map((n) => ({
		name: n.name,
		content: n.spec.content ?? "",
		group: n.spec.group ?? "",
		inline: n.isInline,
		leaf: n.isLeaf,
		code: Boolean(n.spec.code),
		marks: new Set(Object.values(marks).flatMap((m) => (n.inlineContent && n.allowsMarkType(m) ? [m.name] : []))),
		attrs: attributes(n.spec.attrs),
	}));
	const there = Object.entries(servers.nodes).map(([name, n]) => ({ ...n, name, marks: new Set(n.marks) }));
	expect(named(here)).toEqual(named(there));
	expect(named(Object.values(marks).map((m) => ({ name: m.name, attrs: attributes(m.spec.attrs) })))).toEqual(
		named(servers.marks.map(({ name, attrs }) => ({ name, attrs }))),
	);
});
