// People use the console, in a real browser, with a real Signalbox behind it.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { freePort, startCompany } from "./company.mjs";
import { checkTypes, installClient, servePage } from "./examples.mjs";
import { pauseClock, people, say, stopClock, violations } from "./people.mjs";
import { startProvider } from "./provider.mjs";
import { startBrowser, startSignalbox } from "./signalbox.mjs";

/** The origin of the pages of examples/. */
let elsewhere;
let provider;
let signalbox;
let browser;
let company;
let person;
before(async () => {
	provider = await startProvider();
	elsewhere = `http://127.0.0.1:${await freePort()}`;
	const port = await freePort();
	company = await startCompany(`http://127.0.0.1:${port}`);
	signalbox = await startSignalbox(port, { ...provider.environment, ...company.environment, GATEWAY_CORS_ORIGINS: elsewhere });
	browser = await startBrowser();
	person = people(browser, signalbox);
});
after(async () => {
	await browser?.close();
	await signalbox?.stop();
	provider?.stop();
	company?.stop();
});

/** Has a page take its person for one with another role. */
const makeRole = (page, role) =>
	page.route(/\/api\/workspaces(\?|$)/, async (route) => {
		const answer = await route.fetch();
		const body = await answer.json();
		for (const w of body.workspaces) w.role = role;
		await route.fulfill({ response: answer, json: body });
	});

/** The text of a document, once one can write in it: what is typed before is lost. */
const sheetOf = (page) => page.getByRole("textbox", { name: "Document" }).and(page.locator("[contenteditable=true]"));

test("a link signs in once", async () => {
	const page = await (await browser.newContext()).newPage();
	await page.goto(signalbox.link);
	await page.getByRole("heading", { name: "The lines are clear" }).waitFor();
	await page.getByText(/You are its owner\..*the database.* are up\./).waitFor();
	assert.ok(!page.url().includes("#"), "the key is still in the address");
	const cookies = await page.context().cookies();
	assert.deepEqual(
		cookies.map((c) => [c.name, c.httpOnly, c.sameSite]),
		[["signalbox_session", true, "Strict"]],
	);
	const other = await (await browser.newContext()).newPage();
	await other.goto(signalbox.link);
	await other.getByText("This link was used before").waitFor();
	await page.context().close();
	await other.context().close();
});

test("who is invited signs in with the company's account", async (t) => {
	const owner = await person(t);
	const context = await browser.newContext();
	t.after(() => context.close());
	const page = await context.newPage();
	page.setDefaultTimeout(60_000);
	const signIn = async () => {
		await page.goto(`${signalbox.url}/sign-in`);
		await page.getByRole("link", { name: "Continue with Acme" }).click();
	};
	await signIn();
	await page.locator("[name=login]").fill("otto");
	await page.locator("[name=password]").fill("any");
	await page.getByRole("button", { name: "Sign-in" }).click();
	await page.getByRole("button", { name: "Continue" }).click();
	await page.getByText("Nobody has invited otto@example.com").waitFor();

	await owner.goto(`${owner.url().split("/").slice(0, 5).join("/")}/members`);
	await owner.getByRole("button", { name: "Add member" }).click();
	await owner.getByLabel("E-mail address, or id of the person").fill("Ines@example.com");
	await owner.getByRole("button", { name: "Invite", exact: true }).click();
	await owner.getByRole("region", { name: "Invited" }).getByText("ines@example.com").waitFor();

	// Acme remembers otto, and is asked for another account.
	await signIn();
	await page.getByLabel("Which account?").fill("ines");
	await page.keyboard.press("Enter");
	await page.getByRole("button", { name: "Continue" }).click();
	await page.waitForURL(/\/w\/[^/]+(\/welcome)?$/);
	await signIn(); // who is let in is not asked
	await page.waitForURL(/\/w\/[^/]+(\/welcome)?$/);
	const cookies = await context.cookies(signalbox.url);
	assert.deepEqual(
		cookies.filter((c) => c.name.startsWith("signalbox")).map((c) => [c.name, c.httpOnly, c.sameSite]), // Acme's are of the same host
		[["signalbox_session", true, "Strict"]],
	);
	await owner.reload();
	await owner.getByRole("row", { name: /Ines ines@example.com/ }).waitFor();
	await owner.getByRole("button", { name: "Add member" }).click();
	await owner.getByLabel("E-mail address, or id of the person").fill("ines@example.com");
	await owner.getByRole("button", { name: "Invite", exact: true }).click();
	await owner.getByRole("dialog").getByText("This address belongs to a member already, with the role editor").waitFor();
});

test("an agent answers, calls a tool, and the page survives a reload", async (t) => {
	const page = await person(t);
	await say(page, "create a document about tea");
	await page.waitForURL(/\/s\//);
	await page.getByRole("button", { name: /Done Create document Tea/ }).waitFor();
	await page.getByText("Done. I wrote Tea").waitFor();
	assert.match(await page.title(), /create a document about tea · Signalbox/);
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	const foot = page.getByText(/^Simulated · .* out · /); // comes after the end
	await foot.waitFor();
	const text = await page.getByRole("log").innerText();
	const announced = page.locator("[aria-live=polite]");
	await announced.getByText(/^Answer finished, \d+ words$/).waitFor();
	await page.reload();
	await page.getByText("Done. I wrote Tea").waitFor();
	await foot.waitFor();
	assert.equal(await announced.innerText(), "", "what was there before is announced");
	const again = await page.getByRole("log").innerText();
	assert.equal(again.replaceAll(/Thought( for \d+ s)?/g, "Thought"), text.replaceAll(/Thought( for \d+ s)?/g, "Thought"));
});

/** Has a page show other messages and figures in its session than those that the server has. */
const showTurns = (page, turns) =>
	page.route(/\/api\/sessions\/[^/?]+(\?|$)/, async (route) => {
		const response = await route.fetch();
		const body = await response.json();
		const message = (role, step, content, i) => ({ ...body.messages.at(-1), id: `m${i}`, role, step_index: step, content });
		const { messages, calls = [] } = turns;
		const runs = body.runs.map((r) => ({ ...r, tool_calls: calls }));
		await route.fulfill({ response, json: { ...body, messages: messages.map((m, i) => message(...m, i)), runs } });
	});

test("a turn shows its code in colours, and of a call how long it took, why it failed and what to do, and its result as a table", async (t) => {
	const page = await person(t);
	await say(page, "hello");
	await page.getByText("Hello!").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	const call = (toolCallId, toolName, input = {}) => ({ type: "tool-call", toolCallId, toolName, input });
	const result = (toolCallId, value, type = "json") => ({ type: "tool-result", toolCallId, output: { type, value } });
	const more = Array.from({ length: 6 }, (_, i) => `c${i}`);
	const withdrawn = {
		error: "Notion no longer accepts the connection: API token is invalid.; a person connects it again at /api/connections",
		code: "CONNECTION_REFUSED",
		service: "notion",
		reason: "API token is invalid.",
	};
	const notion = {
		provider: "notion",
		title: "Notion",
		state: "reauthorize",
		reason: "API token is invalid.",
		connect_url: "/api/connections",
	};
	await page.route(/\/api\/connections$/, (route) =>
		route.request().method() === "GET" ? route.fulfill({ json: { connections: [notion] } }) : route.continue(),
	);
	await showTurns(page, {
		messages: [
			["user", 0, "Look them up"],
			[
				"assistant",
				0,
				[
					{ type: "text", text: "```ts\nconst a = 1;\n```" },
					call("list", "doc_list"),
					...more.map((id) => call(id, "doc_read")),
					call("notion", "notion_read_page"),
				],
			],
			[
				"tool",
				0,
				[
					result("list", {
						documents: [
							{ id: "d1", name: "Harbour Street" },
							{ id: "d2", name: "Old Mill" },
						],
					}),
					...more.map((id) => result(id, "read")),
					result("notion", withdrawn, "error-json"),
				],
			],
		],
		calls: [{ step_index: 0, tool_call_id: "list", duration_ms: 84 }],
	});
	await page.reload();
	const row = page.getByRole("button", { name: "Done List documents 84 ms" });
	await row.waitFor();
	await page.getByRole("group", { name: "Code, ts" }).locator("span").getByText("const").waitFor(); // in its colour
	// What failed is not folded, and open.
	assert.equal(await page.getByRole("button", { name: "Done Read document" }).count(), 5);
	await page.getByText("Notion no longer accepts our sign-in. API token is invalid. The agent went on without it.").waitFor();
	await page.getByRole("button", { name: "1 more" }).click();
	assert.equal(await page.getByRole("button", { name: "Done Read document" }).count(), 6);
	await row.click();
	await page.getByRole("group", { name: "Result" }).getByRole("button", { name: "As table" }).click();
	await page.getByRole("cell", { name: "Harbour Street" }).waitFor();
	assert.deepEqual(await violations(page), []);
	// It is connected where one is.
	await page.getByRole("button", { name: "Connect Notion again" }).click();
	const dialog = page.getByRole("dialog", { name: "Connect Notion" });
	await dialog.getByRole("button", { name: "Cancel" }).click();
	await dialog.waitFor({ state: "detached" });
	// The page notices that it was connected meanwhile, and opens nothing by itself when that is withdrawn.
	const withdrawnState = { ...notion };
	const again = page.getByRole("button", { name: "Connect Notion again" });
	const expires_at = new Date(Date.now() + 600_000).toISOString();
	await page.route(/\/api\/connections$/, (route) => {
		if (route.request().method() !== "POST") return route.fallback();
		Object.assign(notion, { state: "connected", origin: "member", connected_at: new Date(Date.now() + 1000).toISOString() });
		return route.fulfill({ status: 201, json: { url: "https://notion.example/authorize", expires_at } });
	});
	await again.click();
	await dialog.getByRole("button", { name: "Connect", exact: true }).click();
	await dialog.waitFor({ state: "detached" });
	const connected = page.getByText("Notion is connected now.");
	await connected.waitFor();
	assert.ok(await connected.evaluate((p) => p === document.activeElement), "the focus is lost");
	// It is offered again for a later call only, also after a reload.
	await page.reload();
	await connected.waitFor();
	assert.equal(await again.count(), 0);
	notion.connected_at = "2020-01-01T00:00:00Z";
	await page.reload();
	await again.click();
	await dialog.getByRole("button", { name: "Connect", exact: true }).click();
	await connected.waitFor();
	await dialog.waitFor({ state: "detached" });
	for (const k of Object.keys(notion)) delete notion[k];
	Object.assign(notion, withdrawnState);
	await page.clock.install({ time: Date.now() + 60_000 }); // what was read is stale
	await page.evaluate(() => dispatchEvent(new Event("visibilitychange")));
	await again.waitFor();
	assert.equal(await dialog.count(), 0);
	// Nobody can who only reads.
	await makeRole(page, "viewer");
	await page.reload();
	await page.getByText("Notion no longer accepts our sign-in.").waitFor();
	await row.waitFor();
	assert.equal(await page.getByRole("button", { name: /Connect/ }).count(), 0);
});

test("an answer's sources are numbers in its text and links below, with what they say, also after a reload", async (t) => {
	const page = await person(t);
	// A preset that has the provider's search.
	await page.route(/\/api\/sessions$/, (route) =>
		route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), preset: "explorer" }) }),
	);
	await say(page, "search for tea");
	await page.getByText("Most people ask where to start.").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	const said = page.getByText("is best understood from its beginnings.");
	const numbers = () => said.getByRole("link").evaluateAll((links) => links.map((l) => [l.innerText, l.href]));
	const text = await said.innerText();
	assert.match(text, /beginnings\.1 To try .* start\.2\s?3 \(/);
	const pages = ["https://example.com/overview", "https://example.org/guide", "https://example.net/questions"];
	assert.deepEqual(
		await numbers(),
		pages.map((p, i) => [`${i + 1}`, p]),
	);
	const card = page.getByRole("tooltip");
	const number = page.getByRole("link", { name: "Source 1: An overview of tea" });
	await number.focus();
	await card.getByText("example.com").waitFor();
	await card.getByText("Tea is best understood from its beginnings.").waitFor();
	assert.equal(await number.getAttribute("aria-description"), "example.com. Tea is best understood from its beginnings.");
	assert.deepEqual(await violations(page), []);
	await page.keyboard.press("Escape");
	await card.waitFor({ state: "detached" });
	const chips = page.getByRole("list", { name: "Sources" }).getByRole("link");
	await chips.nth(2).hover();
	await card.getByText("The most common question about tea is where to start.").waitFor();
	await card.hover(); // it stays under the pointer
	await card.getByText("example.net").waitFor();
	await page.mouse.move(0, 0);
	await card.waitFor({ state: "detached" });
	await page.reload();
	await said.waitFor();
	assert.equal(await said.innerText(), text);
	assert.equal(await chips.count(), 3);
});

test("pictures open from a message, also two with the same bytes", async (t) => {
	const page = await person(t);
	const buffer = Buffer.from(
		"iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAYAAAD0In+KAAAAEUlEQVR4nGNgYPj/n4GBgQEADQEBAdLhz6oAAAAASUVORK5CYII=",
		"base64",
	);
	const files = ["a.png", "b.png", "c.png"].map((name) => ({ name, mimeType: "image/png", buffer }));
	await page.locator("input[type=file]").setInputFiles(files);
	await page.getByRole("button", { name: "Remove b.png" }).click();
	const attached = page.getByRole("list", { name: "Files of the message" }).getByRole("listitem");
	assert.deepEqual(await attached.allInnerTexts(), ["a.png", "c.png"]);
	await say(page, "hello");
	const thumbnails = page.getByRole("log").getByRole("button", { name: /^Open [ac]\.png$/ });
	await thumbnails.nth(1).waitFor();
	for (let i = 0; i < 2; i++) {
		const { width, height } = await thumbnails.nth(i).boundingBox();
		assert.deepEqual([Math.round(width), Math.round(height)], [146, 110]);
	}
	await thumbnails.nth(1).press("Enter");
	const dialog = page.getByRole("dialog", { name: "c.png" });
	await dialog.getByRole("img", { name: "c.png" }).waitFor();
	const close = await dialog.getByRole("button", { name: "Close" }).boundingBox();
	assert.ok(close.height < 40, `the button that closes it is ${close.height} px high`);
	await page.keyboard.press("Escape");
	await dialog.waitFor({ state: "detached" });
	assert.ok(await thumbnails.nth(1).evaluate((b) => b === document.activeElement), "the focus is not where it was");
});

test("a page that was reloaded in the middle of an answer shows all of it, and a stop keeps what was said", async (t) => {
	const page = await person(t);
	await say(page, "count to 9000");
	await page.getByText(/\b28 29\b/).waitFor();
	await page.reload();
	await page.getByText(/\b1 2 3 4 5\b/).waitFor();
	await page.getByText(/\b48 49\b/).waitFor();
	await page.route("**/cancel", (route) => route.fulfill({ status: 500, json: { error: "The server erred.", code: "INTERNAL" } }), {
		times: 1,
	});
	await page.getByRole("button", { name: "Stop", exact: true }).click();
	await page.getByText("The run was not stopped. The server erred.").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).click();
	await page.getByRole("log").getByText("Stopped. What was said is kept.").waitFor();
	await page.reload();
	await page.getByText(/\b48 49\b/).waitFor();
	await page.getByRole("log").getByText("Stopped. What was said is kept.").waitFor();
});

test("two pages see the same, and a message that is sent meanwhile waits in the queue", async (t) => {
	const page = await person(t);
	await say(page, "count to 9000");
	await page.waitForURL(/\/s\//);
	await say(page, "hello"); // before the other page asks: it asks rarely while nothing waits
	const other = await person(t);
	await other.goto(page.url());
	await other.getByText(/\b18 19\b/).waitFor();
	for (const p of [page, other]) await p.getByRole("list", { name: "Waiting messages" }).getByText("hello").waitFor();
	await say(other, "good day");
	await page.getByRole("list", { name: "Waiting messages" }).getByText("good day").waitFor();
	await other.getByRole("listitem").filter({ hasText: "good day" }).getByRole("button", { name: "Remove from the queue" }).click();
	await page.getByRole("list", { name: "Waiting messages" }).getByText("good day").waitFor({ state: "detached" });
	await say(other, "well done");
	await other.getByRole("listitem").filter({ hasText: "well done" }).getByRole("button", { name: "Steer now" }).click();
	await page.getByRole("listitem").filter({ hasText: "well done" }).getByText("joins before the next step").waitFor();
	await other.getByRole("button", { name: "Stop", exact: true }).click();
	for (const p of [page, other]) {
		await p.getByText("Hello!").waitFor();
		await p.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
		await p
			.getByText(/^Simulated · .* out · /)
			.nth(1)
			.waitFor(); // comes after the end
	}
	const [a, b] = await Promise.all([page, other].map((p) => p.getByRole("log").innerText()));
	assert.equal(b.replaceAll(/\d\d:\d\d( [AP]M)?/g, ""), a.replaceAll(/\d\d:\d\d( [AP]M)?/g, ""));
});

test("a message that waits is moved, edited and removed", async (t) => {
	const page = await person(t);
	await say(page, "count to 9000");
	await page.getByText(/\b8 9\b/).waitFor();
	const queue = page.getByRole("list", { name: "Waiting messages" }).getByRole("listitem");
	await say(page, "hello");
	await queue.filter({ hasText: "hello" }).getByRole("button", { name: "Steer now" }).waitFor();
	await say(page, "good day");
	await queue.nth(1).getByRole("button", { name: "Remove from the queue" }).waitFor();
	await queue.nth(0).getByRole("button", { name: "Move to the end" }).click();
	await queue.nth(0).getByText("good day").waitFor();
	await queue.nth(1).filter({ hasText: "hello" }).getByRole("button", { name: "Remove from the queue" }).waitFor();
	await page.getByLabel("Message", { exact: true }).press("ArrowUp");
	await queue.filter({ hasText: "hello" }).waitFor({ state: "detached" });
	assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "hello");
	await say(page, "hello, all of you");
	await queue.nth(1).filter({ hasText: "hello, all" }).getByRole("button", { name: "Steer now" }).waitFor();
	await queue.nth(0).getByRole("button", { name: "Remove from the queue" }).click();
	await queue.filter({ hasText: "good day" }).waitFor({ state: "detached" });
	// A message that steers stays on its sender's page, also before the session is read again.
	await page.route(/\/api\/sessions\/[^/?]+\?limit=1$/, (route) => route.abort());
	await page.getByLabel("Message", { exact: true }).fill("faster");
	await page.keyboard.press("Control+Enter");
	await queue.filter({ hasText: "faster" }).getByText("joins before the next step").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).click();
	await page.getByText("Hello!").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	await page.getByText(/\d running/).waitFor({ state: "detached" });
	const questions = await page.getByRole("log").locator("[id^=m-] p, [id^=m-] span").allInnerTexts();
	assert.ok(!questions.includes("good day") && !questions.includes("hello"), "what was taken back is in the conversation");
});

test("answers and messages have versions, and a session begins from one", async (t) => {
	const page = await person(t);
	const idle = () => page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	const version = (n) => page.getByRole("group", { name: `Version ${n} of 2` });
	// The answer begins with a call of a tool.
	await say(page, "create a document about jam");
	await page.getByText("Done. I wrote Jam").waitFor();
	await page.getByRole("button", { name: "Answer again" }).click();
	const answer = page.getByRole("listitem").filter({ hasText: "Done. I wrote Jam" });
	await answer.getByRole("group", { name: "Version 2 of 2" }).getByText("2/2").waitFor();
	await idle();
	await version(2).getByRole("button", { name: "Previous version" }).click();
	await answer.getByRole("group", { name: "Version 1 of 2" }).waitFor();
	await page.getByLabel("Message", { exact: true }).press("ArrowUp");
	await page.getByText("You edit a message.").waitFor();
	assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "create a document about jam");
	await page.keyboard.press("Escape");
	await page.getByText("You edit a message.").waitFor({ state: "detached" });
	const run = await answer.getByTitle("Open the run").getAttribute("href");
	await page.getByRole("button", { name: "Edit this message" }).click();
	await say(page, "hello");
	await page.getByText("Hello!").waitFor();
	await idle();
	await version(2).waitFor();
	await page.getByText("Done. I wrote Jam").waitFor({ state: "detached" });
	const before = page.url();
	await page.getByRole("button", { name: "New session from here" }).click();
	await page.waitForURL((to) => to.pathname !== new URL(before).pathname);
	await page.getByText("Hello!").waitFor();
	assert.equal(await version(2).count(), 0);
	// The run of an answer that was replaced still has what it said.
	await page.goto(new URL(run, before).href);
	await page.getByRole("button", { name: "Conversation" }).click();
	await page.getByText("Done. I wrote Jam").waitFor();
	await page.goto(before);
	await version(2).getByRole("button", { name: "Previous version" }).click();
	await page.getByText("Done. I wrote Jam").waitFor();
	// The session that changed last is first, and others come when they are asked for.
	await page.route(/\/api\/sessions\?.*limit=50/, (route) => route.continue({ url: route.request().url().replace("limit=50", "limit=1") }));
	await page.reload();
	await page.getByRole("link", { name: "Sessions", exact: true }).click();
	const rows = page.getByRole("main").locator("[data-row]");
	await rows.first().waitFor();
	assert.deepEqual(await rows.evaluateAll((all) => all.map((a) => a.href)), [before]);
	await page.getByRole("main").getByRole("button", { name: "Older sessions" }).click();
	await rows.nth(1).waitFor();
});

test("a person approves in the inbox", async (t) => {
	const page = await person(t);
	await say(page, "create a document about ink");
	await page.getByText("Done. I wrote Ink").waitFor();
	// As if a model with a price answered.
	await page.route(/\/api\/runs\?session_id=.*state=/, async (route) => {
		const answer = await route.fetch();
		const { runs } = await answer.json();
		await route.fulfill({ response: answer, json: { runs: runs.map((r) => ({ ...r, simulated: false, cost_micros: 43_210 })) } });
	});
	await say(page, "delete it");
	await page.getByPlaceholder("this refuses the call").waitFor();
	await stopClock(page);
	await say(page, "keep it until Friday");
	await page.getByText("Refused. Sent in 5 s.").waitFor();
	await page.clock.resume();
	await page.getByText(/^Refused by you, \d.*: keep it until Friday$/).waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	await say(page, "delete it");
	await page.getByRole("region", { name: "Approval wanted: Delete document" }).waitFor();
	const cost = page.getByRole("link", { name: "$0.043" });
	await cost.waitFor();
	assert.match(await cost.getAttribute("href"), /\/runs\/[0-9a-f-]{36}$/);
	await page.getByText("You", { exact: true }).first().waitFor();
	const remembered = (p) => p.getByRole("combobox", { name: "Don’t ask again" }).locator("option").allInnerTexts();
	assert.ok((await remembered(page)).includes("in the workspace"));
	await makeRole(page, "viewer");
	// To anybody else the sender is not "You", also if the members do not come.
	await page.route("**/api/me", async (route) => {
		const answer = await route.fetch();
		await route.fulfill({ response: answer, json: { ...(await answer.json()), member_id: crypto.randomUUID() } });
	});
	await page.route("**/members?*", (route) => route.abort());
	await page.reload(); // the question is a row, and its event over
	await page
		.getByText(/^Member [0-9a-f]{4}$/)
		.first()
		.waitFor();
	assert.equal(await page.getByText("You", { exact: true }).count(), 0);
	await page.getByRole("region", { name: "Approval wanted: Delete document" }).getByText("An editor or an owner answers.").waitFor();
	assert.equal(await page.getByRole("button", { name: "Approve" }).count(), 0);
	await page.getByText(/^Step \d/).waitFor();
	assert.equal(await page.getByRole("button", { name: "Stop", exact: true }).count(), 0);
	await page.keyboard.press("ControlOrMeta+."); // would stop the run
	const other = await person(t);
	await makeRole(other, "editor");
	await other.reload();
	// As if more waited than one page has.
	await other.route(/\/api\/approvals\?/, async (route) => {
		if (route.request().url().includes("cursor=")) return route.fulfill({ json: { approvals: [], next_cursor: null } });
		const answer = await route.fetch();
		await route.fulfill({ response: answer, json: { ...(await answer.json()), next_cursor: "more" } });
	});
	await other.getByRole("link", { name: /Inbox/ }).first().click();
	await other.waitForFunction(() => document.title === "(1+) Inbox · Signalbox");
	await other.getByRole("button", { name: "Newer questions" }).click();
	await other.waitForFunction(() => document.title === "(1) Inbox · Signalbox");
	await other.unroute(/\/api\/approvals\?/);
	await other.getByRole("button", { name: "Approve" }).waitFor();
	await other
		.getByRole("listitem")
		.getByRole("img", { name: /^Step \d$/ })
		.waitFor();
	await other.getByText("Runs again, and takes effect once.").waitFor();
	assert.ok(!(await remembered(other)).includes("in the workspace"));
	await stopClock(other);
	await other.keyboard.press("a");
	await other.getByText("Approved. Sent in 5 s.").waitFor();
	await other.keyboard.press("ControlOrMeta+z");
	await other.getByRole("button", { name: "Approve" }).click();
	await other.clock.resume();
	await other.getByText("Nothing waits for you").waitFor();
	assert.equal(await other.title(), "Inbox · Signalbox");
	await page.getByRole("button", { name: /Done Delete document/ }).waitFor();
	const approved = page.getByText(/^Approved by Member [0-9a-f]{4}, \d/);
	await approved.waitFor();
	await page.getByText(/^Step \d/).waitFor({ state: "detached" });
	await page.reload(); // the run has ended: who answered stands beside the messages
	await approved.waitFor();
	await page.getByText(/^Refused by Member [0-9a-f]{4}, \d.*: keep it until Friday$/).waitFor();
});

test("code that cannot be fetched is missing by itself, and the conversation stays", async (t) => {
	const page = await person(t);
	await say(page, "create a document about locks");
	await page.getByText("Done. I wrote Locks").waitFor();
	await page.route(/\/assets\/(Announcer|CallDetails|Foot)-/, (route) => route.abort());
	await page.reload();
	await page.getByRole("button", { name: /Done Create document/ }).click();
	await page.getByText("This part of the page could not be fetched.").waitFor();
	await page.getByLabel("Message", { exact: true }).fill("a draft");
	await page.getByText("Done. I wrote Locks").waitFor();
	assert.equal(await page.getByRole("contentinfo").innerText(), "");
	await page.unroute(/\/assets\/(Announcer|CallDetails|Foot)-/);
	await page.getByRole("button", { name: "Reload" }).click();
	await page.getByText(/^Line clear/).waitFor();
	// The code of rows is there before one is opened.
	await page.waitForFunction(() => performance.getEntriesByType("resource").some((r) => r.name.includes("/CallDetails-")));
	assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "a draft");
	// So it is with what opens over a page, and beside a document.
	await page.route(/\/assets\/(overlays|History|Share)-/, (route) => route.abort());
	await page.reload();
	const missing = page.getByText("This part of the page could not be fetched.");
	await page.getByText("Done. I wrote Locks").waitFor();
	await page.getByRole("button", { name: "Search" }).click();
	await missing.waitFor();
	await page.getByText("Done. I wrote Locks").waitFor();
	await page.getByRole("link", { name: "Documents" }).click();
	await page.getByRole("link", { name: /Locks/ }).click();
	await page.getByRole("textbox", { name: "Document" }).waitFor();
	await page.getByRole("button", { name: "History" }).click();
	await missing.nth(1).waitFor();
	await page.getByRole("button", { name: "Share" }).click();
	await missing.nth(2).waitFor();
	await page.getByRole("textbox", { name: "Document" }).waitFor();
});

test("another model goes on once, and what a failed call said keeps its lines", async (t) => {
	const page = await person(t);
	await say(page, "hello");
	await page.getByText("Hello!").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	await page.route(/\/api\/models(\?|$)/, async (route) => {
		const response = await route.fetch();
		const body = await response.json();
		const other = { ...body.models[0], id: "house/large", name: "Large", provider: "house", simulated: false, default: false };
		await route.fulfill({ response, json: { ...body, models: [...body.models, other], problems: [] } });
	});
	const said = "no such file:\n  a.txt\n  b.txt";
	await page.route(/\/api\/sessions\/[^/?]+(\?|$)/, async (route) => {
		if (route.request().method() === "PATCH") {
			await new Promise((resolve) => setTimeout(resolve, 500));
			const { session } = await (await route.fetch({ method: "GET", postData: "" })).json();
			return route.fulfill({ json: { session } });
		}
		const response = await route.fetch();
		const body = await response.json();
		const last = body.messages.at(-1);
		const failed = { type: "tool-result", toolCallId: "f", output: { type: "error-json", value: { error: said } } };
		last.content = [{ type: "tool-call", toolCallId: "f", toolName: "read_files", input: {} }, failed];
		const error = { code: "MODEL_RATE_LIMIT", message: "Too many requests." };
		const stopped = { run_id: last.run_id, state: "failed", error, finish_reason: "error", finish_detail: "", steps: 1 };
		await route.fulfill({ response, json: { ...body, stopped_runs: [stopped] } });
	});
	await page.reload();
	const result = page.getByRole("group", { name: "Result" });
	assert.match(await result.innerText(), /no such file:\n {2}a\.txt\n {2}b\.txt/);
	await result.getByRole("button", { name: "Copy" }).waitFor();
	let sent = 0;
	page.on("request", (r) => r.method() === "POST" && r.url().endsWith("/messages") && sent++);
	await page.getByRole("button", { name: "Go on with Large" }).dblclick();
	await page.getByRole("button", { name: "Go on with Large" }).waitFor({ state: "detached" });
	await page.getByText("Go on.", { exact: true }).waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	assert.equal(sent, 1);
});

test("a refusal from the composer is taken back as one, comes back if it does not arrive, and is sent when the page closes", async (t) => {
	const page = await person(t);
	await say(page, "create a document about lamps");
	await page.getByText("Done. I wrote Lamps").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	// As if the step had two questions at its end, with calls before them; and the browser's clock is an hour fast.
	const call = (toolCallId, toolName) => ({ type: "tool-call", toolCallId, toolName, input: {} });
	const moreCalls = async (route) => {
		const response = await route.fetch();
		const body = await response.json();
		const content = body.messages.at(-1).content;
		const at = content.findIndex?.((p) => p.toolName === "doc_delete");
		if (at >= 0) content.splice(at, 0, ...Array.from({ length: 6 }, (_, i) => call(`c${i}`, "doc_read")), call("other", "doc_delete"));
		await route.fulfill({ response, json: body });
	};
	await page.route(/\/api\/sessions\/[^/?]+(\?|$)/, moreCalls);
	await page.route(/\/api\/runs\/[^/?]+$/, async (route) => {
		const response = await route.fetch();
		const body = await response.json();
		const real = body.tool_calls.find((c) => c.tool_name === "doc_delete");
		if (real && !real.approval.decision) body.tool_calls.push({ ...real, tool_call_id: "other" });
		await route.fulfill({ response, json: body });
	});
	await say(page, "delete it");
	const cards = page.getByRole("region", { name: "Approval wanted: Delete document" });
	await cards.waitFor();
	await page.clock.install({ time: Date.now() + 3_600_000 });
	await page.reload();
	await page.getByPlaceholder("this refuses all 2 calls").waitFor();
	await page.getByText(/^0?\d:\d\d$/).waitFor(); // the strip's clock
	await pauseClock(page);
	const field = page.getByLabel("Message", { exact: true });
	const told = (id) =>
		page.evaluate((id) => document.getElementById(document.getElementById(id).getAttribute("aria-describedby")).textContent, id);
	assert.match(await told("say"), /^This text refuses\./);
	const refusals = page.getByText("Refused. Sent in 5 s.");
	const refuse = async () => {
		await page.keyboard.press("Enter");
		await refusals.nth(1).waitFor();
		assert.equal(await field.inputValue(), "");
	};
	await field.fill("keep both");
	await refuse();
	await page.keyboard.press("ControlOrMeta+z");
	await refusals.first().waitFor({ state: "detached" });
	assert.equal(await field.inputValue(), "keep both");
	await page.route(/\/approvals\/[^/]+$/, (route) => route.abort());
	await refuse();
	await page.clock.runFor(5_000);
	await cards.getByRole("alert").nth(1).waitFor();
	assert.equal(await field.inputValue(), "keep both");
	// What was begun meanwhile stays: a text, and then the reason is in the cards; or a picture.
	await refuse();
	await field.fill("next");
	await page.clock.runFor(5_000);
	await cards.getByRole("alert").nth(1).waitFor();
	assert.equal(await cards.getByLabel("Why not").nth(1).inputValue(), "keep both");
	assert.equal(await field.inputValue(), "next");
	assert.ok(await field.evaluate((f) => f === document.activeElement), "the focus was taken");
	await field.fill("");
	await field.fill("keep both");
	await refuse();
	const picture = { name: "a.png", mimeType: "image/png", buffer: Buffer.from("png") };
	await page.locator("input[type=file]").first().setInputFiles(picture);
	const attached = page.getByRole("list", { name: "Files of the message" }).getByRole("listitem");
	await attached.waitFor();
	await field.press("ControlOrMeta+z");
	await refusals.first().waitFor({ state: "detached" });
	assert.equal(await field.inputValue(), "keep both");
	assert.deepEqual(await attached.allInnerTexts(), ["a.png"]);
	await page.getByRole("button", { name: "Remove a.png" }).click();
	await field.focus();
	await page.unrouteAll(); // a request that outlives its page is not to wait for this test
	await refuse();
	await page.reload();
	await page.clock.resume();
	await page.getByText("That did not work.").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	assert.equal(await field.inputValue(), "");
	// What was answered stays where its card was, also among many calls.
	await say(page, "delete it");
	await cards.waitFor();
	await page.route(/\/api\/sessions\/[^/?]+(\?|$)/, moreCalls);
	await page.reload();
	await cards.getByRole("button", { name: "Approve" }).click();
	await page.getByText(/^Approved by you/).waitFor();
	await page.getByRole("button", { name: "1 more" }).waitFor();
});

test("a person gives the result of a client's tool, also after a reload", async (t) => {
	const page = await person(t);
	const { token, workspace_id } = await signalbox.newToken();
	const post = async (path, body) => {
		const headers = {
			Authorization: `Bearer ${token}`,
			"X-Workspace-Id": workspace_id,
			"Content-Type": "application/json",
			Prefer: "respond-async",
		};
		return (await fetch(signalbox.url + path, { method: "POST", headers, body: JSON.stringify(body) })).json();
	};
	const schema = { type: "object", properties: { exact: { type: "boolean" } } };
	const { session } = await post("/api/sessions", { client_tools: [{ name: "get_location", input_schema: schema }], max_steps: 1 });
	await post(`/api/sessions/${session.id}/messages`, { content: 'call the tool get_location with {"exact":true}' });
	await page.goto(`${page.url()}/s/${session.id}`);
	const card = page.getByRole("region", { name: "Result wanted: Get location" });
	await card.getByText("counts as failed in").waitFor();
	await page.reload();
	await card.getByText("counts as failed in").waitFor();
	await card.getByText("exact", { exact: true }).waitFor();
	await card.getByRole("button", { name: "Give the result" }).click();
	await page.keyboard.type('{"city":"Paris"}');
	await card.getByRole("button", { name: "Send the result" }).click();
	await page.getByRole("button", { name: /Done Get location/ }).click();
	await page.getByRole("group", { name: "Result", exact: true }).getByText("Paris").waitFor();
	// The step that would tell of it is over the session's limit.
	await page.getByRole("log").getByText("Stopped after 1 step.").waitFor();
	await page.getByRole("button", { name: "Go on for 1 more" }).click();
	await page.getByText("Go on.", { exact: true }).waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	// No account could answer: another model can, and owners see the accounts.
	await page.route(/\/api\/sessions\/[^/?]+\?limit=200$/, async (route) => {
		const answer = await route.fetch();
		const body = await answer.json();
		const error = { message: "All 2 accounts for the provider anthropic are at their rate limit.", code: "MODEL_RATE_LIMIT" };
		body.stopped_runs = [{ run_id: body.messages.at(-1).run_id, finish_reason: "error", error, steps: 1 }];
		await route.fulfill({ response: answer, json: body });
	});
	await page.route("**/api/models", async (route) => {
		const answer = await route.fetch();
		const body = await answer.json();
		body.models.push({ ...body.models[0], id: "other", provider: "other", name: "The other", simulated: false, default: false });
		await route.fulfill({ response: answer, json: body });
	});
	await page.reload();
	await page.getByRole("log").getByText("No account could answer.").waitFor();
	await page.getByRole("button", { name: "Go on with The other" }).waitFor();
	await page.getByRole("link", { name: "See accounts" }).waitFor();
	await makeRole(page, "editor");
	await page.reload();
	await page.getByRole("button", { name: "Go on with The other" }).waitFor();
	assert.equal(await page.getByRole("link", { name: "See accounts" }).count(), 0);
});

test("two people and the agent write in one document", async (t) => {
	const page = await person(t);
	await say(page, "create a document about maps");
	const sheet = sheetOf(page);
	await sheet.getByRole("heading", { name: "Maps", exact: true }).waitFor();
	const other = await person(t);
	await other.getByRole("link", { name: "Documents" }).first().click();
	await other.getByRole("link", { name: /Maps/ }).click();
	const theirs = sheetOf(other);
	await theirs.getByRole("heading", { name: "Maps", exact: true }).waitFor();

	await theirs.getByText("What would make us stop?").click();
	await other.keyboard.press("End");
	await other.keyboard.type(" Typed by the other.");
	await sheet.getByText("What would make us stop? Typed by the other.").waitFor();
	await sheet.getByRole("heading", { name: "Summary" }).click();
	await page.keyboard.press("Home");
	await page.keyboard.type("Typed by one. ");
	// Where the agent writes is out of this person's sight.
	await other.setViewportSize({ width: 1440, height: 420 });
	await theirs.getByRole("heading", { name: "Maps", exact: true }).scrollIntoViewIfNeeded();
	await say(page, "append a closing thought to it");
	await page.getByRole("button", { name: /Done Append to document/ }).waitFor();
	const below = other.getByRole("button", { name: "Signalbox writes below" });
	await below.click();
	await below.waitFor({ state: "detached" });
	const caret = await theirs.locator("[data-name=Signalbox]").boundingBox();
	assert.ok(caret.y > 0 && caret.y < 420, `the agent's caret is at ${caret.y}`);
	for (const s of [sheet, theirs]) {
		await s.getByText("Typed by one. Summary").waitFor();
		await s.getByText("Typed by the other.").waitFor();
		// What the agent wrote is tinted, what people wrote is not.
		await s.locator("[class*=fresh]").filter({ hasText: "closing thought" }).first().waitFor();
		assert.equal(await s.locator("[class*=fresh]").filter({ hasText: "Typed by" }).count(), 0);
	}
	await other
		.getByRole("img", { name: /writes here/ })
		.first()
		.waitFor();
	const undo = page.getByRole("button", { name: "Undo its edits" });
	await undo.waitFor();
	const divider = page.getByRole("separator", { name: "Width of the conversation" });
	const width = async () => (await page.getByRole("region", { name: "Conversation" }).boundingBox()).width;
	const before = await width();
	await divider.press("ArrowRight");
	assert.ok((await width()) > before, "the conversation is not wider");
	await divider.dblclick();
	assert.equal(await width(), before);
	// The history tells who did what; undoing the agent's edits keeps what people wrote.
	await other.getByRole("button", { name: "History" }).click();
	const versions = other.getByRole("region", { name: "Versions" });
	await versions.getByRole("link", { name: /Signalbox added to it/ }).click();
	const version = other.getByRole("region", { name: "The version" });
	await version.locator("ins").first().waitFor();
	await other.getByRole("button", { name: "Undo its edits" }).click();
	await other.getByText(/Undone: one change of this run/).waitFor();
	await sheet.getByText("closing thought").waitFor({ state: "detached" });
	await undo.click();
	await page.getByText("Nothing of this run was left to undo.").waitFor();
	await sheet.getByText("Typed by one. Summary").waitFor();
	await versions.getByRole("link", { name: /created it/ }).click();
	await other.getByRole("button", { name: "Restore this version" }).click();
	await versions.getByRole("link", { name: /restored a version/ }).waitFor();
	await sheet.getByText("Typed by one.").waitFor({ state: "detached" });
	await versions.getByRole("link", { name: /restored a version/ }).click();
	await other.getByRole("button", { name: "Name", exact: true }).click();
	await other.getByLabel("Name of this version").fill("Before the meeting");
	await other.keyboard.press("Enter");
	await versions.getByRole("link", { name: /Before the meeting/ }).waitFor();
	await other.getByRole("button", { name: "Back to the document" }).click();
	await theirs.getByRole("heading", { name: "Maps", exact: true }).waitFor();
	const text = async (s) =>
		(await s.evaluate((e) => [...e.children].map((c) => c.textContent).join("\n"))).replaceAll(/Member [0-9a-f]{4}/g, "");
	assert.equal(await text(theirs), await text(sheet));
	// Deleted under an editor, the text stays and can be copied.
	await other.getByRole("link", { name: "All documents" }).click();
	await other.getByRole("button", { name: "Delete Maps" }).click();
	await other.getByRole("button", { name: "Delete", exact: true }).click();
	await page.getByText("This document was deleted.").waitFor();
	await page.getByRole("button", { name: "Copy all" }).waitFor();
	await page.getByRole("textbox", { name: "Document" }).getByRole("heading", { name: "Maps", exact: true }).waitFor();
});

test("the keyboard is enough: find, go, send, and turn the letters off", async (t) => {
	const page = await person(t);
	await page.keyboard.type("create a document about tides");
	await page.keyboard.press("Enter");
	await page.getByText("Done. I wrote Tides").waitFor();
	await page.keyboard.press("ControlOrMeta+k");
	await page.getByRole("combobox", { name: "Search and commands" }).fill("about tides");
	await page
		.getByRole("option", { name: /create a document about tides/ })
		.first()
		.waitFor();
	await page.keyboard.press("Escape");
	assert.equal(await page.evaluate(() => document.activeElement.id), "say", "focus returns to what had it");
	await page.keyboard.press("ControlOrMeta+k");
	await page.keyboard.type("inbox");
	await page.getByRole("option", { name: /Go to Inbox/, selected: true }).waitFor();
	await page.keyboard.press("Enter");
	await page.getByRole("heading", { name: "Inbox" }).waitFor();
	// What is chosen stays chosen when another session has changed since.
	let titles = ["The first", "The second"];
	await page.route(/\/api\/sessions\?/, async (route) => {
		if (route.request().url().includes("state=")) return route.continue();
		const [one] = (await (await route.fetch()).json()).sessions;
		const sessions = titles.map((title) => ({ ...one, id: one.id.slice(0, -10) + title.slice(-5).padEnd(10), title }));
		await route.fulfill({ json: { sessions, next_cursor: null } });
	});
	await page.clock.install();
	await page.keyboard.press("ControlOrMeta+k");
	const found = page.getByRole("dialog").getByRole("option");
	await found.first().waitFor();
	await page.clock.fastForward(16_000); // the list is read again
	await page.getByRole("option", { name: "The first", selected: true }).waitFor();
	titles = titles.reverse();
	await page.clock.fastForward(16_000);
	await found.first().getByText("The second").waitFor();
	await page.getByRole("option", { name: "The first", selected: true }).waitFor();
	await page.keyboard.press("Escape");
	await page.unroute(/\/api\/sessions\?/);
	await page.keyboard.press("g");
	await page.keyboard.press("s");
	await page.getByRole("heading", { name: "Sessions" }).waitFor();
	await page.keyboard.press("/");
	await page.keyboard.type("wrote tides");
	const row = page.locator("[data-row]").filter({ hasText: "create a document about tides" });
	await row.filter({ hasText: "I wrote" }).locator("mark").first().waitFor();
	await page.keyboard.press("Escape");
	await page.keyboard.press("j");
	await page.keyboard.press("x");
	await page.keyboard.press("e");
	await page.getByText("Session archived.").waitFor();
	await row.waitFor({ state: "detached" });
	await page.keyboard.press("ControlOrMeta+z");
	await row.waitFor();
	await page.keyboard.press("g");
	await page.keyboard.press("d");
	await page.getByRole("heading", { name: "Documents" }).waitFor();
	await page.keyboard.press("?");
	await page.getByRole("checkbox").press("Space");
	await page.keyboard.press("Escape");
	await page.keyboard.press("c");
	await page.keyboard.press("?");
	await page.waitForTimeout(100);
	assert.equal(await page.getByRole("dialog").count(), 0);
	assert.match(page.url(), /documents$/);
	await page.getByRole("button", { name: "Keys ?" }).click();
	await page.getByRole("checkbox").check();
	await page.keyboard.press("Escape");
	await page.keyboard.press("c");
	await page.getByRole("heading", { name: "What should be on the page?" }).waitFor();
});

test("a session of 10,000 messages scrolls, and a link leads into it", async (t) => {
	const page = await person(t);
	await say(page, "hello");
	await page.getByText("Hello!").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	let all;
	let requests = 0;
	let gate;
	/** Answers with the messages before one of them. */
	const pageBefore = (end, limit) => {
		const start = Math.max(0, end - limit);
		return { messages: all.slice(start, end), cursor: start === 0 ? null : String(start) };
	};
	await page.route(/\/api\/sessions\/[^/]+$/, async (route) => {
		const response = await route.fetch();
		const body = await response.json();
		const [asked, answered] = body.messages;
		all = Array.from({ length: 5000 }, (_, i) => [
			{ ...asked, id: `q${i}`, run_id: `r${i}`, content: `Question ${i}` },
			{ ...answered, id: `a${i}`, run_id: `r${i}`, content: `Answer ${i}. ${"It has **some** text. ".repeat(i % 20)}` },
		]).flat();
		const points = Array.from({ length: 300 }, (_, i) => `Point ${i}. ${"It is weighed. ".repeat(20)}`);
		all[201].content = [
			{ type: "reasoning", text: points.join("\n") },
			{ type: "text", text: "Answer 100." },
		];
		const { messages, cursor } = pageBefore(all.length, Number(new URL(route.request().url()).searchParams.get("limit")));
		await route.fulfill({ response, json: { ...body, messages, messages_cursor: cursor } });
	});
	await page.route(/\/api\/sessions\/[^/]+\/messages\?/, async (route) => {
		requests++;
		await gate;
		const query = new URL(route.request().url()).searchParams;
		const { messages, cursor } = pageBefore(Number(query.get("cursor")), Number(query.get("limit")));
		await route.fulfill({ json: { messages, runs: [], stopped_runs: [], next_cursor: cursor } });
	});
	await page.reload();
	await page.getByText("Answer 4999.").waitFor();
	const log = page.getByRole("log");
	const state = () =>
		log.evaluate((b) => ({ lines: b.querySelectorAll("li").length, fromEnd: Math.round(b.scrollHeight - b.scrollTop - b.clientHeight) }));
	const { lines } = await state();
	assert.ok(lines <= 200, `${lines} lines are in the page`);
	// It opens at the end, and stays there while lines get their heights.
	await page.waitForFunction(() => {
		const b = document.querySelector("[role=log]");
		return Math.round(b.scrollHeight - b.scrollTop - b.clientHeight) === 0;
	});
	// Who goes up a little stays there, also once the scrolling has ended.
	await log.press("ArrowUp");
	await page.waitForTimeout(500);
	const up = (await state()).fromEnd;
	assert.ok(up > 20 && up < 64, `the page is ${up} px above its end`);
	const height = await log.evaluate((b) => b.scrollHeight);
	await log.hover();
	for (let i = 0; i < 20; i++) await page.mouse.wheel(0, -2000);
	await page.getByRole("button", { name: "To the end" }).waitFor();
	await page.keyboard.press("Alt+ArrowUp");
	assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "");
	// Earlier messages come as the reader goes up, and what is read stays where it is.
	await page.waitForFunction((before) => document.querySelector("[role=log]").scrollHeight > before, height);
	assert.ok(requests > 0 && requests < 20, `${requests} pages were loaded`);
	const first = () =>
		log.evaluate((b) => {
			const top = b.getBoundingClientRect().top;
			const line = [...b.querySelectorAll("li")].find((l) => l.getBoundingClientRect().bottom > top + 60);
			return { id: line.id, at: Math.round(line.getBoundingClientRect().top - top) };
		});
	const settled = async () => {
		for (let before = ""; ; await page.waitForTimeout(300)) {
			const now = JSON.stringify([requests, await first()]);
			if (now === before) return JSON.parse(now)[1];
			before = now;
		}
	};
	await settled();
	const loaded = requests;
	let release;
	gate = new Promise((resolve) => {
		release = resolve;
	});
	await log.evaluate((b) => {
		b.scrollTop = 900;
	});
	for (let i = 0; requests === loaded; i++) {
		assert.ok(i < 600, "nothing is loaded near the first line");
		await page.waitForTimeout(100);
	}
	const reads = await settled();
	const before = await log.evaluate((b) => b.scrollHeight);
	release();
	await page.waitForFunction((was) => document.querySelector("[role=log]").scrollHeight > was + 2000, before);
	const after = await settled();
	assert.equal(after.id, reads.id);
	assert.ok(Math.abs(after.at - reads.at) < 40, `what is read moved from ${reads.at} to ${after.at}`);
	await page.evaluate(() => {
		location.hash = "#m-a1234";
	});
	await page.getByText("Answer 1234.").waitFor();
	await page.getByRole("button", { name: "To the end" }).click();
	await page.getByText("Answer 4999.").waitFor();
	assert.ok((await state()).lines < 100);
	// When a tall part is closed, the lines that take its room are in the page.
	await page.evaluate(() => {
		location.hash = "#m-a100";
	});
	await page.setViewportSize({ width: 1440, height: 2000 });
	const thought = page.getByRole("button", { name: "Thought" });
	await thought.evaluate((b) => b.scrollIntoView());
	await thought.click();
	await page.getByText("Point 299").waitFor({ state: "attached" });
	await settled();
	await thought.click();
	await page.getByText("Point 299").waitFor({ state: "detached" });
	await page.waitForFunction(() => {
		const b = document.querySelector("[role=log]");
		return [...b.querySelectorAll("li")].at(-1).getBoundingClientRect().bottom >= b.getBoundingClientRect().bottom;
	});
});

test("documents are made, shared by a link, found, renamed and deleted", async (t) => {
	const page = await person(t);
	let socket;
	await page.routeWebSocket(/\/ws\/documents\//, (ws) => {
		ws.connectToServer();
		socket = ws;
	});
	await page.getByRole("link", { name: "Documents" }).first().click();
	await page.getByRole("button", { name: "New document" }).click();
	await page.keyboard.type("Timetable of ferries");
	await page.keyboard.press("Enter");
	const sheet = sheetOf(page);
	await sheet.click();
	await page.keyboard.type("The first leaves at six.");
	await page.getByRole("button", { name: "Share" }).click();
	const dialog = page.getByRole("dialog", { name: "Share by link" });
	await dialog.getByRole("button", { name: "Create link" }).click();
	const address = await dialog.locator("code").innerText();
	// A stranger, who is not signed in, reads along until the link is revoked.
	const stranger = await (await browser.newContext()).newPage();
	t.after(() => stranger.context().close());
	await stranger.goto(address);
	await stranger.getByRole("heading", { name: "Timetable of ferries", level: 1 }).waitFor();
	await stranger.getByText("The first leaves at six.").waitFor();
	for (const p of [page, stranger]) assert.deepEqual(await violations(p), []);
	await page.keyboard.press("Escape");
	await sheet.click();
	await page.keyboard.press("End");
	await page.keyboard.type(" <b>The last</b> at ten.");
	await stranger.getByText("The first leaves at six. <b>The last</b> at ten.").waitFor();
	// A change that the server refuses is not lost.
	await socket.close({ code: 4413, reason: "too large" });
	await page.getByText("The last change is too large.").waitFor();
	await page.getByRole("region", { name: "The change that was not stored" }).getByText("<b>The last</b> at ten.").waitFor();
	await page.getByRole("button", { name: "Share" }).click();
	await dialog.getByRole("button", { name: "Revoke: pages that show it end" }).click();
	await dialog.getByRole("list", { name: "Links" }).waitFor({ state: "detached" });
	await stranger.getByText("This link does not work").waitFor();
	await page.keyboard.press("Escape");
	await page.getByRole("link", { name: "All documents" }).click();
	await page.getByLabel("Search documents").fill("ferries");
	await page.waitForURL(/q=ferries/);
	await page.getByRole("button", { name: "Rename Timetable of ferries" }).click();
	await page.getByLabel("Name", { exact: true }).fill("Ferries in winter");
	await page.keyboard.press("Enter");
	const link = page.getByRole("list", { name: "Documents" }).getByRole("link", { name: /Ferries in winter/ });
	await link.waitFor();
	await page.getByRole("button", { name: "Delete Ferries in winter" }).click();
	await page.getByRole("button", { name: "Delete", exact: true }).click();
	await link.waitFor({ state: "detached" });
	await page.getByText("Nothing with “ferries”").waitFor();
});

test("a run is inspected by keyboard", async (t) => {
	const page = await person(t);
	await say(page, "create a document about keys");
	await page.getByText("Done. I wrote Keys").waitFor();
	const main = page.getByRole("main");
	for (const place of ["Sessions", "Runs"]) {
		await page.getByRole("link", { name: place, exact: true }).first().click();
		const listed = place === "Runs" ? main.getByRole("row") : main.getByRole("link");
		await listed.filter({ hasText: "create a document about keys" }).getByRole("img", { name: "2 steps" }).waitFor();
	}
	await main.getByRole("link", { name: "create a document about keys" }).click();
	const grid = page.getByRole("grid", { name: "Steps, attempts and calls" });
	await grid
		.getByText(/first token/)
		.first()
		.waitFor(); // the trace is a moment behind
	await grid.focus();
	for (const key of ["j", "j", "j"]) await page.keyboard.press(key);
	assert.match(await grid.getByRole("row", { selected: true }).innerText(), /doc_create/);
	const details = page.getByRole("complementary", { name: "Details" });
	await details.getByRole("heading", { name: "Create document" }).waitFor();
	await page.keyboard.press("ArrowLeft");
	assert.match(await grid.getByRole("row", { selected: true }).innerText(), /Step 1/);
	await page.keyboard.press("z");
	await page.getByRole("img", { name: /The rows show 0 ms to / }).waitFor();
	await details.getByRole("tab", { name: "Facts" }).focus();
	await page.keyboard.press("ArrowRight");
	await page.keyboard.press("ArrowRight");
	await details.getByText('"tool": "doc_create"').waitFor();
	await page.reload(); // the chosen step is in the address
	await details.getByText("Step", { exact: true }).waitFor();
	await page.getByRole("button", { name: "Log" }).click();
	await page.getByRole("cell", { name: "tool call complete doc_create" }).waitFor();
	await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
	await page.getByRole("button", { name: "Copy as OpenTelemetry" }).click();
	await page.getByTitle("Copied").waitFor();
	const { resourceSpans } = JSON.parse(await page.evaluate(() => navigator.clipboard.readText()));
	assert.ok(resourceSpans[0].scopeSpans[0].spans.some((s) => s.name === "execute_tool doc_create"));
	await page.getByRole("button", { name: "Conversation" }).click();
	await main.getByText("Done. I wrote Keys").waitFor();
});

test("a page that could not be loaded says so also while it is tried again", async (t) => {
	const page = await person(t);
	const start = page.url();
	let tries = 0;
	await page.route(/\/api\/runs\/[^/]*$/, (route) => (tries++ === 0 ? route.fulfill({ status: 404, json: {} }) : undefined));
	await page.goto(`${page.url()}/runs/${crypto.randomUUID()}`);
	await page.getByRole("heading", { name: "Not here" }).waitFor();
	const again = page.waitForRequest(/\/api\/runs\/[^/]*$/);
	await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange"))); // as if the person came back to the page
	await again;
	await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
	assert.equal(await page.getByRole("heading", { name: "Not here" }).count(), 1);
	// A document that is not there shows no editor meanwhile.
	const gone = crypto.randomUUID();
	await page.goto(`${start}/d/${gone}`);
	await page.getByRole("heading", { name: "Not here" }).waitFor();
	let release;
	const held = new Promise((resolve) => {
		release = resolve;
	});
	const asked = page.waitForRequest(`**/api/documents/${gone}*`);
	await page.route(`**/api/documents/${gone}*`, async (route) => {
		await held;
		await route.continue();
	});
	await page.evaluate(() => dispatchEvent(new Event("visibilitychange")));
	await asked;
	await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
	assert.equal(await page.getByRole("heading", { name: "Not here" }).count(), 1);
	release();
});

test("what is written without a connection is kept over a reload, and sent when the line is back", async (t) => {
	const page = await person(t);
	const field = page.getByLabel("Message", { exact: true });
	await page.setInputFiles("input[type=file]", [
		{ name: "note.txt", mimeType: "text/plain", buffer: Buffer.from("a note") },
		{ name: "big.bin", mimeType: "application/octet-stream", buffer: Buffer.alloc(15e6) },
	]);
	await page.getByText("big.bin has 15.0 MB. The files of one message have at most 14 MB together.").waitFor();
	await say(page, "create a document about notes");
	await page.getByText("Done. I wrote Notes").waitFor();
	await page.getByRole("log").getByText("note.txt").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	let cut = true;
	await page.route("**/messages", (route) => (cut ? route.abort() : route.continue()));
	await field.fill("create a document about lines");
	await field.press("Enter");
	await page.getByText("Not sent yet. It is kept here and sent when the line is back.").waitFor();
	await page.reload();
	await page.getByText("Not sent yet.").waitFor();
	cut = false;
	await page.evaluate(() => dispatchEvent(new Event("online")));
	await page.getByText("Done. I wrote Lines").waitFor();
	assert.equal(await page.getByRole("log").getByText("create a document about lines").count(), 1);
	await field.pressSequentially("read @lin");
	await page.getByRole("option", { name: /Lines/ }).waitFor();
	await field.press("Enter");
	assert.match(await field.inputValue(), /^read “Lines” \(document [0-9a-f-]+\) $/);
	await field.fill("");
});

test("a browser whose storage is full sends all the same, and a sign-out without a connection says what to do", async (t) => {
	const page = await person(t);
	await page.evaluate(() => {
		localStorage.clear();
		for (let size = 2 ** 22; size >= 1; size /= 2)
			try {
				for (let i = 0; ; i++) localStorage.setItem(`${size}-${i}`, "x".repeat(size));
			} catch {
				// The next ones are smaller.
			}
	});
	await page.reload();
	const full = page.getByText("This browser's storage is full, so drafts cannot be kept.");
	const field = page.getByLabel("Message", { exact: true });
	await field.fill("hello");
	await full.waitFor();
	await field.press("Enter");
	await page.getByText("Hello!").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	await full.waitFor({ state: "detached" });
	await page.route("**/messages", (route) => route.abort());
	await say(page, "count to 3");
	await page.getByText("Not sent yet. Keep this page open: it is sent when the line is back.").waitFor();
	await page.getByRole("link", { name: "Documents" }).first().click(); // and back: it is still there
	await page.goBack();
	await page.getByText("Not sent yet.").waitFor();
	await page.unroute("**/messages");
	await page.evaluate(() => dispatchEvent(new Event("online")));
	await page.getByText("1 2 3").waitFor();
	assert.equal(await page.getByRole("log").getByText("count to 3").count(), 1);
	await page.goto(`${page.url().split("/").slice(0, 5).join("/")}/more`);
	await page.route("**/api/sign-out", (route) => route.abort());
	await page.getByRole("button", { name: "Sign out" }).click();
	await page.getByText("The server could not be reached. You are still signed in here. Sign out again when the line is back").waitFor();
	await page.unroute("**/api/sign-out");
	await page.getByRole("button", { name: "Sign out" }).click();
	await page.getByRole("heading", { name: "Sign in" }).waitFor();
});

test("what is written in a document without a connection is there when the person comes back", async (t) => {
	const page = await person(t);
	await page.routeWebSocket(/\/ws\/documents\//, () => undefined); // a connection on which nothing comes
	await page.goto(`${page.url()}/documents`);
	await page.getByRole("button", { name: "New document" }).click();
	await page.getByLabel("Name", { exact: true }).fill("Far away");
	await page.keyboard.press("Enter");
	// The network is cut before the text has come.
	const sheet = sheetOf(page);
	const opened = (p) => p.getByRole("textbox", { name: "Document" }).waitFor(); // one cannot write in it yet
	await opened(page);
	await page.context().setOffline(true);
	await page.getByText("The text has not come yet. What you write is kept in this browser").waitFor();
	await page.getByRole("contentinfo").getByText("No connection").waitFor();
	await sheet.click();
	await page.keyboard.type("Written far away.");
	const kept = (p) => p.evaluate(() => Object.keys(localStorage).filter((k) => k.startsWith("document:")).length);
	await page.waitForFunction(() => Object.keys(localStorage).some((k) => k.startsWith("document:")));
	const address = page.url();
	const back = await page.context().newPage();
	back.setDefaultTimeout(60_000);
	await page.close();
	await back.context().setOffline(false);
	await back.goto(address);
	await sheetOf(back).getByText("Written far away.").waitFor();
	const other = await person(t);
	await other.goto(address);
	await sheetOf(other).getByText("Written far away.").waitFor();
	await back.waitForFunction(() => !Object.keys(localStorage).some((k) => k.startsWith("document:")));
	// A page that was open while its person signed out and in again in another tab keeps what is written there later.
	await back.evaluate(() => localStorage.setItem("sign-out", "in another tab"));
	const asked = Promise.all(["me", "workspaces"].map((what) => back.waitForResponse(`**/api/${what}`)));
	await back.getByRole("link", { name: "Documents" }).first().click();
	await asked;
	await back
		.getByRole("list", { name: "Documents" })
		.getByRole("link", { name: /Far away/ })
		.click();
	await back.getByText("Live", { exact: true }).waitFor();
	// A sign-out leaves nothing of a document in the browser, also of another tab that has more to keep.
	const tab = await back.context().newPage();
	tab.setDefaultTimeout(60_000);
	await tab.routeWebSocket(/\/ws\/documents\//, () => undefined);
	await tab.goto(address);
	await opened(tab);
	await back.context().setOffline(true);
	await back.getByText("What you write is kept in this browser").waitFor();
	await sheetOf(back).click();
	await back.keyboard.type("Not for others. ");
	await back.waitForFunction(() => Object.keys(localStorage).some((k) => k.startsWith("document:")));
	await tab.getByText("The text has not come yet.").waitFor();
	await sheetOf(tab).click();
	await tab.keyboard.type("Nor this. ");
	await tab.waitForFunction(() => Object.keys(localStorage).filter((k) => k.startsWith("document:")).length === 2);
	// Where the storage takes no more, the page says so, until it does again.
	await tab.evaluate(() => {
		const { setItem } = Storage.prototype;
		Storage.prototype.setItem = () => {
			Storage.prototype.setItem = setItem;
			throw new Error("the storage is full");
		};
	});
	await tab.keyboard.type("N");
	await tab.getByText("cannot be kept in this browser").waitFor();
	await tab.keyboard.type("or that. ");
	await tab.getByText("What you write is kept in this browser").waitFor();
	await back.routeWebSocket("**/ws/**", (ws) => ws.close({ code: 1013 }));
	await back.context().setOffline(false);
	await back.goto(`${address.split("/").slice(0, 5).join("/")}/more`);
	assert.equal(await kept(back), 2);
	await back.getByRole("button", { name: "Sign out" }).click();
	await back.getByRole("heading", { name: "Sign in" }).waitFor();
	await tab.getByText("You were signed out.").waitFor();
	assert.equal(await kept(tab), 0);
});

test("a draft survives a reload", async (t) => {
	const page = await person(t);
	await page.getByLabel("Message", { exact: true }).fill("half a thought");
	await page.waitForFunction(() => Object.entries(localStorage).some(([k, v]) => k.startsWith("draft:") && v === "half a thought"));
	await page.reload();
	await page.getByText("half a thought").waitFor();
	// It is not for whoever signs in next.
	await page.evaluate(() => localStorage.setItem("person", "another"));
	await page.reload();
	assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "");
});

test("a page whose session ends asks to sign in again, and goes on where it was", async (t) => {
	const page = await person(t);
	await say(page, "hello");
	await page.getByText("Hello!").waitFor();
	const address = page.url();
	await page.getByLabel("Message", { exact: true }).fill("half a thought");
	assert.equal(await page.evaluate(async () => (await fetch("/api/sign-out", { method: "POST" })).status), 200);
	await page.getByText("You were signed out.").waitFor();
	assert.match(page.url(), /\/sign-in\?ended=true$/);
	await page.getByLabel("Token").fill((await signalbox.newToken()).token);
	await page.getByRole("button", { name: "Sign in" }).click();
	await page.getByText("Hello!").waitFor();
	assert.equal(page.url(), address);
	assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "half a thought");
	// What is sent at that moment is not lost either, and whoever signs in in another tab goes on in this one.
	const tab = await page.context().newPage();
	await tab.goto(`${signalbox.url}/sign-in`);
	await tab.evaluate(() => fetch("/api/sign-out", { method: "POST" }));
	await page.keyboard.press("Enter");
	await page.getByText("You were signed out.").waitFor();
	await tab.goto(await signalbox.newLink());
	await tab.waitForURL(/\/w\//);
	await page.evaluate(() => dispatchEvent(new Event("visibilitychange")));
	await page.getByText("Hello!").waitFor();
	assert.equal(page.url(), address);
	assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "half a thought");
	// In a document the socket says it, and what was not stored by then is there after the sign-in.
	let deaf = false;
	await page.routeWebSocket(/\/ws\/documents\//, (ws) => {
		const server = ws.connectToServer();
		ws.onMessage((m) => deaf || server.send(m));
	});
	await tab.close();
	await page.goto(`${address.split("/").slice(0, 5).join("/")}/documents`);
	await page.getByRole("button", { name: "New document" }).click();
	await page.getByLabel("Name", { exact: true }).fill("Interrupted");
	await page.keyboard.press("Enter");
	await page.getByText("Live", { exact: true }).waitFor();
	deaf = true;
	await sheetOf(page).click();
	await page.keyboard.type("Half a sentence");
	const written = page.url();
	await page.request.post(`${signalbox.url}/api/sign-out`, { headers: { Origin: signalbox.url } });
	await page.getByText("You were signed out.").waitFor();
	deaf = false;
	await page.getByLabel("Token").fill((await signalbox.newToken()).token);
	await page.getByRole("button", { name: "Sign in" }).click();
	await page.getByText("Live", { exact: true }).waitFor();
	assert.equal(page.url(), written);
	await sheetOf(page).getByText("Half a sentence").waitFor();
	const { token, workspace_id } = await signalbox.newToken();
	const stored = `${signalbox.url}/api/documents/${written.split("/").pop()}?workspace_id=${workspace_id}`;
	while (!(await (await fetch(stored, { headers: { Authorization: `Bearer ${token}` } })).text()).includes("Half a sentence"));
});

test("a key is shown once, and revoked after a question, over plain http too", async (t) => {
	const page = await person(t, { host: "signalbox.test" });
	assert.equal(await page.evaluate(() => isSecureContext), false);
	await page.getByRole("link", { name: "Workspace", exact: true }).click();
	await page.getByRole("link", { name: "Keys and browsers" }).click();
	const open = page.getByRole("button", { name: "New key" });
	await open.focus();
	await page.keyboard.press("Enter");
	const dialog = page.getByRole("dialog", { name: "New API key" });
	await page.keyboard.press("Enter");
	await dialog.getByText("Name the program that will use it").waitFor();
	await page.keyboard.press("Escape");
	await dialog.waitFor({ state: "detached" });
	assert.ok(await open.evaluate((b) => b === document.activeElement), "focus did not return to what opened the dialog");
	await page.keyboard.press("Enter");
	await page.keyboard.type("reporting job");
	await page.keyboard.press("Tab");
	await page.keyboard.press("ArrowDown");
	await page.keyboard.press("Enter");
	await dialog.getByRole("button", { name: "Make key" }).click();
	await page.getByText("Copy this key now.").waitFor();
	const secret = await page.locator("main code").filter({ hasText: /^sb_/ }).first().innerText();
	const read = () => fetch(`${signalbox.url}/api/sessions`, { headers: { Authorization: `Bearer ${secret}` } });
	assert.equal((await read()).status, 200);
	await page.getByRole("button", { name: "Copy", exact: true }).click();
	await page.getByRole("button", { name: "Copied" }).waitFor();
	await page.reload();
	await page.getByRole("cell", { name: /^reporting job/ }).waitFor();
	assert.ok(!(await page.content()).includes(secret), "the key is shown a second time");
	await page.getByRole("button", { name: "Revoke reporting job" }).click();
	await page.getByRole("dialog").getByRole("button", { name: "Keep" }).click();
	assert.equal((await read()).status, 200);
	await page.getByRole("button", { name: "Revoke reporting job" }).click();
	await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
	await page.getByRole("cell", { name: /^reporting job/ }).waitFor({ state: "detached" });
	assert.equal((await read()).status, 401);
});

test("an owner sees what is spent and limits it, adds a server that is down, and an account", async (t) => {
	const page = await person(t);
	const id = await page.evaluate(async () => {
		const made = await fetch("/api/workspaces", {
			method: "POST",
			headers: { "Content-Type": "application/json" },
			body: JSON.stringify({ name: "Operated" }),
		});
		return (await made.json()).workspace.id;
	});
	await page.goto(`${signalbox.url}/w/operated-${id.slice(-8)}`);
	await say(page, "hello");
	await page.getByText("Hello!").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });

	await page.getByRole("link", { name: "Usage", exact: true }).click();
	await page.getByRole("img", { name: /Cost per day by model, of 30 days/ }).waitFor();
	await page.getByRole("button", { name: "Set a budget" }).click();
	const dialog = page.getByRole("dialog");
	await dialog.getByRole("button", { name: "Set budget" }).click();
	await dialog.getByText("Set at least one limit.").waitFor();
	await dialog.getByLabel("Cost, in dollars").fill("8");
	await dialog.getByRole("button", { name: "Set budget" }).click();
	await page.getByText("Daily budget $8.00").waitFor();
	const foot = page.getByRole("contentinfo");
	await foot.getByRole("link", { name: "$0.00 of $8.00 today" }).waitFor();
	await foot.getByText(/^Line clear, \d+ ms$/).waitFor();
	await foot.getByRole("button", { name: /^You: / }).click();
	await page.getByRole("dialog", { name: "You" }).getByText("owner of Operated").waitFor();
	await page.getByRole("dialog", { name: "You" }).getByRole("button", { name: "Operated", exact: true, pressed: true }).waitFor();
	await page.keyboard.press("Escape");
	await page.getByRole("button", { name: "Table", exact: true }).click();
	await page.getByRole("row", { name: /so far/ }).waitFor();
	assert.match(page.url(), /view=table/);

	await page.getByRole("link", { name: "Connections", exact: true }).click();
	await page.getByRole("button", { name: "Add server" }).click();
	await dialog.getByLabel("Address").fill("https://mcp.tracker.invalid/");
	await dialog.getByLabel("Name", { exact: true }).fill("Tracker!");
	await page.keyboard.press("Enter");
	await dialog.getByText("At most 28 lower-case letters").waitFor();
	await dialog.getByLabel("Name", { exact: true }).fill("tracker");
	await page.keyboard.press("Enter");
	await page.getByRole("dialog", { name: "tracker" }).getByText("Down just now").waitFor();
	await page.keyboard.press("Escape");
	await page
		.getByRole("row", { name: /tracker/ })
		.getByText("Down")
		.waitFor();
	await page.getByRole("link", { name: "Workspace", exact: true }).click();
	await page.getByRole("link", { name: "Audit log" }).click();
	await page.getByRole("button", { name: "MCP servers" }).click();
	await page.getByRole("row", { name: /added tracker · https:\/\/mcp\.tracker\.invalid/ }).waitFor();
	await page.getByLabel("Search MCP servers").fill("nowhere");
	await page.getByText("0 rows, all there are").waitFor();
	await page.getByLabel("Search MCP servers").fill("Tracker");
	await page.getByRole("row", { name: /added tracker/ }).waitFor();
	await page.getByRole("button", { name: "Decisions" }).click();
	await page.getByRole("row", { name: /set a budget/ }).waitFor();
	await page.getByLabel("Search Decisions").fill("nowhere");
	await page.getByText("0 rows, all there are").waitFor();
	await page.getByLabel("Search Decisions").fill("Budget");
	await page.getByRole("row", { name: /set a budget/ }).waitFor();

	await page.getByRole("link", { name: "Accounts", exact: true }).click();
	await page.getByText("No account yet").waitFor();
	await page.getByRole("button", { name: "Add account" }).click();
	await dialog.getByLabel("API key", { exact: true }).fill("sk-or-v1-example");
	await dialog.getByRole("button", { name: "Add Anthropic" }).click();
	await dialog.getByText("This looks like a key of OpenRouter, not of Anthropic.").waitFor();
	await dialog.getByLabel("Provider").selectOption("house");
	await dialog.getByLabel("API key", { exact: true }).fill("house-key-of-before");
	await dialog.getByRole("button", { name: "Add house" }).click();
	await dialog.getByText("The provider house rejected the key: 401 Unauthorized.").waitFor();
	await dialog.getByRole("button", { name: "Add it anyway" }).waitFor();
	await dialog.getByLabel("API key", { exact: true }).fill("house-key-4Qx7");
	await dialog.getByLabel("Label").fill("team key");
	await dialog.getByRole("button", { name: "Add house" }).click();
	await page.getByRole("row", { name: /team key API key · ends in 4Qx7 Ready/ }).waitFor();
	const stored = page.waitForResponse(/\/api\/pools\//);
	await page.getByRole("button", { name: "Hybrid" }).click();
	await stored;
	await page.getByText(/scores health, bucket and rest/).waitFor();
	await page.reload();
	await page.getByText(/scores health, bucket and rest/).waitFor();
	await page.getByRole("button", { name: "More for team key" }).click();
	await dialog.getByRole("button", { name: "Turn off" }).click();
	await dialog.getByRole("button", { name: "Turn on" }).waitFor();
	await dialog.getByRole("button", { name: "Remove" }).click();
	await page.getByRole("dialog", { name: "Remove “team key”?" }).getByRole("button", { name: "Remove" }).click();
	await page.getByText("No account yet").waitFor();

	await page.getByRole("button", { name: "Add account" }).click();
	await dialog.getByLabel("Provider").selectOption("house");
	await dialog.getByRole("button", { name: "Code on another device" }).click();
	await dialog.getByRole("button", { name: "Get a code" }).click();
	await dialog.getByText("KTRX-4M9P").waitFor();
	await dialog.getByText("Waiting for you there.").waitFor();
	provider.approve();
	await dialog.waitFor({ state: "detached" });
	await page.getByRole("row", { name: /Sign-in · renews in \d+ min Ready/ }).waitFor();

	// Members have no end at the first hundred.
	const last = await page.evaluate(async (workspace) => {
		let added;
		for (let i = 0; i < 101; i++)
			added = await fetch(`/api/workspaces/${workspace}/members`, {
				method: "POST",
				headers: { "Content-Type": "application/json" },
				body: JSON.stringify({ member_id: crypto.randomUUID(), role: "viewer" }),
			});
		return (await added.json()).member.member_id;
	}, id);
	await page.goto(`${signalbox.url}/w/operated-${id.slice(-8)}/members`);
	await page.getByRole("row", { name: last }).waitFor();
});

test("what a viewer may not do is absent", async (t) => {
	const page = await person(t);
	await makeRole(page, "viewer");
	const start = page.url();
	await page.goto(`${start}/members`);
	await page.getByRole("region", { name: "Members" }).waitFor();
	const places = await page.getByRole("navigation", { name: "Main" }).getByRole("link").allInnerTexts();
	assert.deepEqual(
		places.filter((p) => /Accounts|Connections|Usage|Workspace/.test(p)),
		["Usage", "Workspace"],
	);
	assert.equal(await page.getByRole("button", { name: "Add member" }).count(), 0);
	for (const place of ["accounts", "connections", "audit"]) {
		await page.goto(`${start}/${place}`);
		await page.getByText("Not for your role").waitFor();
	}
});

test("a page whose network is cut in the middle of an answer shows all of it when the line is back", async (t) => {
	const page = await person(t);
	await say(page, "count to 120");
	await page.getByText(/\b8 9\b/).waitFor();
	await page.context().setOffline(true);
	await page
		.getByText(/^No connection/)
		.first()
		.waitFor();
	await page.waitForTimeout(2100); // shorter losses are not worth a word
	await page.context().setOffline(false);
	const back = page.getByText(/^Back on the line\. You missed (\d+) events in \d+ s; all of them are here\.$/);
	await back.waitFor();
	assert.ok(Number(/\d+/.exec(await back.innerText())) > 1, "it missed some numbers");
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	const said = await page
		.getByRole("log")
		.getByText(/\b118 119 120\b/)
		.innerText();
	assert.equal(said.match(/\d+( \d+)+/)?.[0], Array.from({ length: 120 }, (_, i) => i + 1).join(" "));
});

test("a chat and an editor of another origin: the pages of examples/", async (t) => {
	const { token, workspace_id: workspace } = await signalbox.newToken();
	const context = await browser.newContext();
	t.after(() => context.close());
	const open = async (name) => {
		const server = await servePage(name, new URL(elsewhere).port);
		t.after(server.stop);
		const page = await context.newPage();
		page.setDefaultTimeout(60_000);
		page.on("console", (m) => t.diagnostic(m.text())).on("pageerror", (e) => t.diagnostic(e.message));
		await page.goto(`${elsewhere}/#${new URLSearchParams({ url: signalbox.url, token, workspace })}`);
		return { page, server };
	};
	const { page: chat, server } = await open("use-chat");
	await chat.getByLabel("Message").fill("what time is it?");
	await chat.keyboard.press("Enter");
	const answer = chat.locator("[data-role=assistant]").getByText(/UTC offset/);
	await answer.waitFor();
	await chat.reload();
	await answer.waitFor();
	assert.equal(await chat.locator("[data-role=user]").count(), 1);

	await server.stop();
	const { page: editor } = await open("tiptap");
	await editor.locator("output", { hasText: /^live$/ }).waitFor();
	await editor.locator("[contenteditable=true]").click();
	await editor.keyboard.type("# From an editor");
	await editor.getByRole("heading", { name: "From an editor" }).waitFor();
	const id = await editor.locator("#id").innerText();
	const headers = { Authorization: `Bearer ${token}`, "X-Workspace-Id": workspace };
	let stored;
	do stored = await (await fetch(`${signalbox.url}/api/documents/${id}`, { headers })).text();
	while (!stored.includes("# From an editor"));
});

test("the client is packed, its types are checked, and the example of its README runs in Node", async (t) => {
	const readme = readFileSync(new URL("../packages/client/README.md", import.meta.url), "utf8");
	const dir = mkdtempSync(path.join(tmpdir(), "signalbox-client-"));
	t.after(() => rmSync(dir, { recursive: true, force: true }));
	installClient(dir);
	const typed = path.join(dir, "typed.mts");
	writeFileSync(
		typed,
		`import { createClient, type SignalboxEvent } from "@signalbox/client";
		import { connectDocument } from "@signalbox/client/document";
		const client = createClient({ url: "http://localhost", token: async () => "" });
		const title: string = (await client.api.GET("/api/sessions/{id}", { params: { path: { id: "1" } } })).data?.session.title ?? "";
		// @ts-expect-error: the API has no such path
		client.api.GET("/api/nowhere");
		for await (const { event } of client.runEvents("1")) event satisfies SignalboxEvent;
		connectDocument("1").doc.getText(title).insert(0, "");`,
	);
	checkTypes(typed);
	const file = path.join(dir, "example.mjs");
	writeFileSync(file, /```js\n(.*?)```/s.exec(readme)[1]);
	const { token, workspace_id } = await signalbox.newToken();
	const env = { ...process.env, SIGNALBOX_URL: signalbox.url, SIGNALBOX_TOKEN: token, SIGNALBOX_WORKSPACE: workspace_id };
	assert.match(execFileSync(process.execPath, [file], { env, encoding: "utf8", timeout: 30_000 }), /UTC offset/);
	// A document goes on with a new token, also if the function that returns it fails at first, and ends with a second one that is refused.
	writeFileSync(
		file,
		`import { createClient } from "@signalbox/client";
		import { connectDocument } from "@signalbox/client/document";
		const { SIGNALBOX_URL: url, SIGNALBOX_TOKEN: token, SIGNALBOX_WORKSPACE: workspace } = process.env;
		const made = await createClient({ url, token, workspace }).api.POST("/api/documents", { body: { name: "Long" } });
		const tokens = ["unknown", undefined, token, token, "unknown"];
		const next = async () => tokens.shift() ?? Promise.reject(new Error("no network"));
		const states = [];
		const expires = () => provider.ws.onclose({ code: 4401 });
		const onState = (state) => {
			states.push(state);
			if (state === "live") setTimeout(expires);
			if (state !== "signed-out") return;
			console.log(states.join(" "));
			close();
		};
		const { provider, close } = connectDocument(made.data.document.id, { url, workspace, token: next, onState });`,
	);
	const states = execFileSync(process.execPath, ["--experimental-websocket", file], { env, encoding: "utf8", timeout: 60_000 });
	assert.equal(states.trim(), "lost lost live lost live lost signed-out");
});

test("a person ends another of their browsers", async (t) => {
	const page = await person(t);
	const other = await person(t);
	await page.goto(`${page.url()}/keys`);
	const browsers = page.getByRole("region", { name: "Your browsers" }).getByRole("row");
	await browsers.filter({ hasText: "This one" }).waitFor();
	const before = await browsers.count();
	await browsers.filter({ hasNotText: "This one" }).nth(1).getByRole("button").click();
	await page.getByRole("dialog").getByRole("button", { name: "End" }).click();
	await page.getByRole("dialog").waitFor({ state: "detached" });
	await page.waitForFunction((n) => document.querySelectorAll("[aria-label='Your browsers'] tr").length < n, before);
	// Who signs out then leaves nothing behind, although the server knows nobody any more.
	await page.goto(page.url().replace(/keys$/, "more"));
	await page.getByRole("button", { name: "Sign out" }).waitFor();
	await page.evaluate(() => localStorage.setItem("document:left", "{}"));
	await page.route("**/api/sign-out", (route) => route.fulfill({ status: 401, json: { error: "Sign in.", code: "UNAUTHENTICATED" } }));
	await page.getByRole("button", { name: "Sign out" }).click();
	await page.waitForFunction(() => localStorage.getItem("document:left") === null);
	await other.reload();
	await other.getByRole("heading", { name: "Sign in" }).waitFor();
});
