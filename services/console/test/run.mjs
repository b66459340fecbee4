// Runs the browser tests. Up to two that failed are run once more, alone, because a browser on a
// busy machine can take longer than a test waits. One that passes then is unsteady: it is named
// here and in the file that $PHASES names.

import { appendFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { run } from "node:test";
import { tap } from "node:test/reporters";

const directory = import.meta.dirname ?? new URL(".", import.meta.url).pathname;
const files = readdirSync(directory)
	.filter((name) => name.endsWith(".test.mjs"))
	.map((name) => join(directory, name));

/** runs the tests that a pattern matches, or all, and returns the names of those that failed. */
async function failures(testNamePatterns) {
	const failed = new Set();
	const tests = run({ files, testNamePatterns });
	let passed = 0;
	tests.on("test:fail", (test) => test.nesting === 0 && failed.add(test.name));
	tests.on("test:pass", (test) => {
		if (!test.skip) passed++;
	});
	for await (const text of tests.compose(tap)) process.stdout.write(text);
	return passed + failed.size > 0 ? [...failed] : ["no test ran"];
}

const failed = await failures();
if (failed.length > 2) process.exit(1);
for (const name of failed) {
	console.log(`# once more, alone: ${name}`);
	const pattern = new RegExp(`^${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`);
	if ((await failures([pattern])).length > 0) process.exit(1);
}
for (const name of failed) {
	console.log(`# unsteady: ${name}`);
	if (process.env.PHASES) appendFileSync(process.env.PHASES, `unsteady         console: ${name} failed, and passed alone\n`);
}
process.exit(0);
