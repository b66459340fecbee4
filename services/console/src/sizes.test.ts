import { existsSync, readdirSync, readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";

const assets = new URL("../dist/assets/", import.meta.url);
const built = existsSync(assets);

/** The compressed size of files of the build, in kB. */
const size = (names: readonly string[]) =>
	names.reduce((sum, n) => sum + gzipSync(readFileSync(new URL(n, assets)), { level: 9 }).length / 1000, 0);

/** The files that index.html loads before anything is shown. */
const first = (kind: string) =>
	[...readFileSync(new URL("../dist/index.html", import.meta.url), "utf8").matchAll(/assets\/([^"]+)/g)]
		.map((m) => m[1] ?? "")
		.filter((n) => n.endsWith(kind));

const chunk = (name: string) => readdirSync(assets).filter((n) => n.startsWith(`${name}-`) && n.endsWith(".js"));

test.runIf(built)("the build keeps to its budgets", () => {
	expect(size(first(".js")), "script of the first load").toBeLessThan(180);
	expect(size(first(".css")), "styles of the first load").toBeLessThan(15);
	expect(size(chunk("overlays")), "palette and keys").toBeLessThan(75);
	expect(size(chunk("Document")), "the editor").toBeLessThan(180);
});
