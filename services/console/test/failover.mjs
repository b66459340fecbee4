// A person uses the console at an address behind which gateways are, and a second one at another
// gateway, whose address is the second argument. The first two lines of input are their tokens. It
// says "kill" in the middle of an answer, and goes on when the next line has come. Then the line is the
// session of a model that calls a tool after 15 s: it says "stop" before that, and "start" once it has seen
// that the run is paused.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { stopClock } from "./people.mjs";
import { startBrowser } from "./signalbox.mjs";

const [url, otherURL] = process.argv.slice(2);
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const token = (await input.next()).value;
const otherToken = (await input.next()).value;
const browser = await startBrowser();
const signIn = async (url, token) => {
	const page = await (await browser.newContext({ viewport: { width: 1440, height: 900 } })).newPage();
	page.setDefaultTimeout(60_000);
	await page.goto(`${url}/sign-in`);
	await page.getByLabel("Token").fill(token);
	await page.getByRole("button", { name: "Sign in" }).click();
	await page.waitForURL(/\/w\/[^/]+(\/welcome)?$/);
	if (page.url().endsWith("/welcome")) await page.goto(page.url().replace(/\/welcome$/, ""));
	return page;
};
try {
	const page = await signIn(url, token);
	const say = async (text) => {
		await page.getByLabel("Message", { exact: true }).fill(text);
		await page.keyboard.press("Enter");
	};
	const idle = () => page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	const sheet = page.getByRole("textbox", { name: "Document" }).and(page.locator("[contenteditable=true]"));
	const write = async (text) => {
		await sheet.getByText("What would make us stop?").click();
		await page.keyboard.press("End");
		await page.keyboard.type(text);
	};
	await say("create a document about maps");
	await sheet.getByText("What would make us stop?").waitFor();
	await page.getByText("Done. I wrote Maps").waitFor();
	await idle();
	// What waits is answered in the inbox of another gateway than the one that streams the conversation.
	await say("delete it");
	await page.getByRole("region", { name: "Approval wanted: Delete document" }).waitFor();
	const other = await signIn(otherURL, otherToken);
	await other.getByRole("link", { name: /Inbox/ }).first().click();
	await other.getByRole("button", { name: "Refuse and say why" }).click();
	await other.keyboard.type("keep it");
	await stopClock(other);
	await other.keyboard.press("Enter");
	await other.getByText("Refused. Sent in 5 s.").waitFor();
	await other.getByRole("link", { name: "Sessions" }).first().click(); // sends it at once
	await other.clock.resume();
	await page.getByText(/^Refused by Member [0-9a-f]{4}, \d.*: keep it$/).waitFor();
	await idle();
	await write(" Before.");
	await say("count to 200");
	await page.getByText(/\b18 19\b/).waitFor();
	console.log("kill");
	await write(" While.");
	await input.next();
	await write(" After.");
	const check = async () => {
		const said = await page
			.getByRole("log")
			.getByText(/\b198 199 200\b/)
			.innerText();
		assert.equal(said.match(/\d+( \d+)+/)?.[0], Array.from({ length: 200 }, (_, i) => i + 1).join(" "));
		await sheet.getByText("What would make us stop? Before. While. After.", { exact: true }).waitFor();
		assert.equal(await page.getByRole("log").getByText("count to 200").count(), 1);
	};
	await page.getByText(/\b198 199 200\b/).waitFor();
	await idle();
	await page.locator("[role=toolbar]").getByText("Live", { exact: true }).waitFor();
	await check();
	await page.reload();
	await check();
	console.log("deploy");
	const session = (await input.next()).value;
	await page.goto(`${page.url().replace(/\/s\/.*/, "")}/s/${session}`);
	await say("deploy");
	await page.getByText("Let me see.").waitFor();
	console.log("stop");
	const paused = page.getByText("Paused between steps: a deploy is going on. Goes on by itself.");
	await paused.waitFor();
	console.log("start");
	await page.getByText("Two minutes to three.").waitFor();
	await idle();
	assert.equal(await paused.count(), 0);
	assert.equal(await page.getByText(/took over/).count(), 0, "a deploy loses nothing");
} finally {
	await browser.close();
	process.stdin.destroy();
}
