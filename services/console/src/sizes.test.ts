import { readdirSync, readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";

// What `make console` has built. Without it these tests fail.
const dist = new URL("../dist/", import.meta.url);
const read = (name: string) => readFileSync(new URL(`assets/${name}`, dist), "utf8");
const page = () => readFileSync(new URL("index.html", dist), "utf8");

/** The compressed size of files of the build, in kB. */
const size = (names: Iterable<string>) =>
	[...names].reduce((sum, n) => sum + gzipSync(readFileSync(new URL(`assets/${n}`, dist)), { level: 9 }).length / 1000, 0);

/** The files that index.html loads before anything is shown. */
const first = (kind: string) => [...page().matchAll(/assets\/([^"]+)/g)].map((m) => m[1] ?? "").filter((n) => n.endsWith(kind));

/** A chunk and all that it cannot run without. */
function needed(name: string, found = new Set<string>()): Set<string> {
	if (found.has(name)) return found;
	found.add(name);
	for (const [, other = ""] of read(name).matchAll(/(?:from|import)\s*["'`]\.\/([^"'`]+\.js)["'`]/g)) needed(other, found);
	return found;
}

/** The chunks that are fetched later, each with the size of what comes with it beyond the first load. */
function later(): Map<string, number> {
	const entries = readdirSync(new URL("assets/", dist))
		.filter((n) => n.endsWith(".js"))
		.flatMap((n) => [...read(n).matchAll(/import\(\s*["'`]\.\/([^"'`]+\.js)["'`]\s*\)/g)].map((m) => m[1] ?? ""));
	const loaded = new Set(first(".js").flatMap((n) => [...needed(n)]));
	return new Map(
		[...new Set(entries)].map((n) => [n.replace(/-.{8}\.js$/, ""), size([...needed(n)].filter((other) => !loaded.has(other)))]),
	);
}

test("the first load keeps to its budgets", () => {
	expect(first(".js").sort(), "index.html names every script that the first one needs").toEqual(
		[...new Set(first(".js").flatMap((n) => [...needed(n)]))].sort(),
	);
	const [script, styles, font] = [size(first(".js")), size(first(".css")), size(first(".woff2"))];
	console.log(`first load, in kB: script ${script.toFixed(1)}, styles ${styles.toFixed(1)}, font ${font.toFixed(1)}`);
	expect(script, "script").toBeLessThan(180);
	expect(styles, "styles").toBeLessThan(15);
	expect(first(".woff2")).toHaveLength(1);
	expect(font, "the font").toBeLessThan(90.5);
});

test("what is fetched later keeps to its budgets", () => {
	const sizes = later();
	console.log(`fetched later, in kB: ${[...sizes].map(([n, kB]) => `${n} ${kB.toFixed(1)}`).join(", ")}`);
	for (const name of ["Document", "document", "overlays", "Highlighted", "run", "usage", "accounts", "connections", "inbox", "sessions"])
		expect([...sizes.keys()], "chunks").toContain(name);
	const budgets: Record<string, number> = { Document: 180, overlays: 75 };
	for (const [name, kB] of sizes) expect(kB, name).toBeLessThan(budgets[name] ?? 60);
});
