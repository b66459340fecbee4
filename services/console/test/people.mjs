// People who use the console in a browser, and what axe finds in their pages.
import assert from "node:assert/strict";
import axe from "axe-core";

/**
 * Returns a function that opens a page as a person who is signed in. It fails the test if a script or
 * the policy complains.
 */
export const people =
	(browser, signalbox) =>
	async (t, { host = "127.0.0.1", ...options } = {}) => {
		const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
		const page = await context.newPage();
		page.setDefaultTimeout(60_000);
		const complaints = [];
		page.on("pageerror", (e) => complaints.push(e.message));
		page.on(
			"console",
			(m) =>
				m.type() === "error" &&
				!/Failed to load resource|ERR_|Cross-Origin-Opener-Policy header has been ignored/.test(m.text()) &&
				complaints.push(m.text()),
		);
		t.after(async () => {
			await context.close();
			assert.deepEqual(complaints, [], "what the browser complained about");
		});
		await page.goto((await signalbox.newLink()).replace("127.0.0.1", host));
		await page.waitForURL(/\/w\/[^/]+(\/welcome)?$/);
		if (page.url().endsWith("/welcome")) await page.goto(page.url().replace(/\/welcome$/, ""));
		await page.getByRole("heading", { name: "What should be on the page?" }).waitFor();
		return page;
	};

export const say = async (page, text) => {
	await page.getByLabel("Message", { exact: true }).fill(text);
	await page.keyboard.press("Enter");
};

/** Stops the page's clock, and with it the 5 s in which an answer can be taken back, until page.clock.resume() or runFor(). */
export async function stopClock(page) {
	await page.clock.install({ time: await page.evaluate(() => Date.now()) });
	await pauseClock(page);
}

/** Stops a clock that is installed. It goes ahead by 10 s: more than a slow machine needs to stop it. */
export const pauseClock = async (page) => page.clock.pauseAt((await page.evaluate(() => Date.now())) + 10_000);

/** What axe, with additional options, finds in a page without frames. It is loaded once a page, which takes a fraction of the time. */
export async function violations(page, options = {}) {
	if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(axe.source);
	return page.evaluate(
		async (o) =>
			(await globalThis.axe.run(document, o)).violations.map(({ id, nodes }) => ({ id, nodes: nodes.map(({ html }) => ({ html })) })),
		{ resultTypes: ["violations"], ...options },
	);
}
