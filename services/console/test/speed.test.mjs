// The console stays quick with long sessions and runs. What decides is counted, or is the ratio of what a long
// one costs to what a short one does in the same run of the test; times by themselves are only printed.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { people, say } from "./people.mjs";
import { startBrowser, startSignalbox } from "./signalbox.mjs";

let signalbox;
let browser;
let person;
before(async () => {
	signalbox = await startSignalbox();
	browser = await startBrowser();
	person = people(browser, signalbox);
});
after(async () => {
	await browser?.close();
	await signalbox?.stop();
});

/** In the page: counts React's commits, the frames and the requests, and has session events come from the test. */
const instrument = () => {
	globalThis.counted = { commits: 0, frames: 0, requests: 0 };
	globalThis.__REACT_DEVTOOLS_GLOBAL_HOOK__ = {
		supportsFiber: true,
		inject: () => 1,
		onCommitFiberRoot: () => globalThis.counted.commits++,
		onPostCommitFiberRoot() {},
		onCommitFiberUnmount() {},
	};
	const frame = () => {
		globalThis.counted.frames++;
		requestAnimationFrame(frame);
	};
	requestAnimationFrame(frame);
	const real = globalThis.fetch;
	let n = 0;
	globalThis.fetch = (request, init) => {
		if (!/\/api\/sessions\/[^/]+\/events/.test(request.url ?? request)) {
			globalThis.counted.requests++;
			return real(request, init);
		}
		const bytes = new TextEncoder();
		const start = (stream) => {
			globalThis.feed = (e) => stream.enqueue(bytes.encode(`event: ${e.type}\ndata: ${JSON.stringify(e)}\nid: 1-${++n}\n\n`));
		};
		return Promise.resolve(new Response(new ReadableStream({ start }), { headers: { "Content-Type": "text/event-stream" } }));
	};
	/** Streams words at 200 a second, with a new paragraph after every 50. */
	globalThis.stream = (words) =>
		new Promise((done) => {
			const began = performance.now();
			let said = 0;
			const timer = setInterval(() => {
				for (; said < words && said * 5 < performance.now() - began; said++)
					globalThis.feed({ type: "text-delta", delta: said % 50 === 49 ? `**end** of it.\n\n` : `word${said} ` });
				if (said < words) return;
				clearInterval(timer);
				requestAnimationFrame(() => requestAnimationFrame(done));
			}, 5);
		});
};

/** Opens a session of so many messages, all but its first two made up, whose events come from the test. */
async function openSession(t, messages) {
	const page = await person(t);
	await say(page, "hello");
	await page.getByText("Hello!").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	let all;
	const pageBefore = (end, limit) => {
		const start = Math.max(0, end - limit);
		return { messages: all.slice(start, end), cursor: start === 0 ? null : String(start) };
	};
	const queryOf = (route) => new URL(route.request().url()).searchParams;
	await page.route(/\/api\/sessions\/[^/]+\?/, async (route) => {
		const response = await route.fetch();
		const body = await response.json();
		if (!all) {
			const [asked, answered] = body.messages;
			all = Array.from({ length: messages / 2 }, (_, i) => [
				{ ...asked, id: `q${i}`, run_id: `r${i}`, content: `Question ${i}` },
				{ ...answered, id: `a${i}`, run_id: `r${i}`, content: `Answer ${i}. ${"It has **some** text. ".repeat(i % 20)}` },
			]).flat();
		}
		const { messages: shown, cursor } = pageBefore(all.length, Number(queryOf(route).get("limit")));
		await route.fulfill({ response, json: { ...body, messages: shown, messages_cursor: cursor, active_run: null, last_event_id: "1-0" } });
	});
	await page.route(/\/api\/sessions\/[^/]+\/messages\?/, async (route) => {
		const { messages: shown, cursor } = pageBefore(Number(queryOf(route).get("cursor")), Number(queryOf(route).get("limit")));
		await route.fulfill({ json: { messages: shown, runs: [], stopped_runs: [], next_cursor: cursor } });
	});
	await page.addInitScript(instrument);
	await page.reload();
	await page.getByText(`Answer ${messages / 2 - 1}.`).waitFor();
	await page.waitForFunction(() => globalThis.feed);
	return page;
}

/** Returns a function that measures what an action costs the page's main thread, in ms of its CPU time. */
async function meter(page) {
	const devtools = await page.context().newCDPSession(page);
	await devtools.send("Performance.enable", { timeDomain: "threadTicks" });
	const read = async () => Object.fromEntries((await devtools.send("Performance.getMetrics")).metrics.map((m) => [m.name, m.value]));
	return {
		async of(action) {
			const began = performance.now();
			const before = { ...(await read()), ...(await page.evaluate(() => globalThis.counted)) };
			await action();
			const after = { ...(await read()), ...(await page.evaluate(() => globalThis.counted)) };
			const spent = (name) => 1000 * (after[name] - before[name]);
			return {
				script: spent("ScriptDuration"),
				task: spent("TaskDuration"),
				frames: after.frames - before.frames,
				commits: after.commits - before.commits,
				requests: after.requests - before.requests,
				seconds: Math.ceil((performance.now() - began) / 1000),
			};
		},
		/** The heap after a collection, in MB. */
		async heap() {
			await devtools.send("HeapProfiler.collectGarbage");
			return (await read()).JSHeapUsedSize / 1e6;
		},
	};
}

test("an answer streams and a message is typed as quickly in a session of 10,000 messages as in a new one", async (t) => {
	const costs = {};
	for (const messages of [2, 10_000]) {
		const page = await openSession(t, messages);
		const metrics = await meter(page);
		await page.evaluate(() => {
			globalThis.feed({ type: "run-start", runId: "streamed", model: "m", provider: "p", simulated: false });
			globalThis.feed({ type: "text-delta", delta: "The first paragraph.\n\nThe second paragraph.\n\n" });
		});
		const first = page.getByText("The first paragraph.");
		await first.waitFor();
		await page.evaluate(() => globalThis.stream(50)); // what is done once is not counted
		/** React gives an element other properties whenever it renders it. */
		const rendered = () =>
			first.evaluate((e) => {
				const props = e[Object.keys(e).find((k) => k.startsWith("__reactProps$"))];
				const same = props === globalThis.rendered;
				globalThis.rendered = props;
				return !same;
			});
		assert.ok(await rendered());
		const streamed = await metrics.of(() => page.evaluate(() => globalThis.stream(300)));
		assert.equal(await rendered(), false, "a finished block was rendered again");
		assert.ok(streamed.commits > 3, "nothing was streamed");
		// One a frame for the words: lines that get higher render nothing again. Besides, a request begins and ends, and in
		// a second a clock ticks, and scrolling begins and ends, which takes 150 ms.
		const besides = 8 + 2 * streamed.requests + 14 * streamed.seconds;
		assert.ok(streamed.commits <= streamed.frames + besides, `${streamed.commits} commits in ${streamed.frames} frames`);
		const field = page.getByLabel("Message", { exact: true });
		await field.pressSequentially("warm ");
		const typed = await metrics.of(() => field.pressSequentially("What one types in a long session. ".repeat(2)));
		costs[messages] = { streamed, typed };
		if (messages > 2) {
			await page.evaluate(() => {
				location.hash = "#m-q0";
			});
			await page.getByText("Question 0", { exact: true }).waitFor();
			costs.heap = await metrics.heap();
		}
		const frame = (m) => `${(m.script / m.frames).toFixed(1)} ms script and ${(m.task / m.frames).toFixed(1)} ms in all a frame`;
		t.diagnostic(`${messages} messages: streaming ${frame(streamed)}, ${streamed.commits} commits in ${streamed.frames} frames`);
		t.diagnostic(
			`${messages} messages: typing ${(typed.script / 68).toFixed(2)} ms script and ${(typed.task / 68).toFixed(2)} ms in all a key`,
		);
	}
	t.diagnostic(`10,000 messages, all loaded: ${costs.heap.toFixed(0)} MB`);
	assert.ok(costs.heap < 150, `10,000 messages take ${costs.heap} MB`);
	for (const what of ["streamed", "typed"]) {
		const ratio = costs[10_000][what].task / costs[2][what].task;
		t.diagnostic(`${what}: ${ratio.toFixed(2)} times as much as in a new session`);
		assert.ok(ratio < 4, `${what}: ${ratio} times as much as in a new session`);
	}
});

test("a run of 5,000 spans is panned and zoomed with few rows on the page", async (t) => {
	const page = await person(t);
	const start = page.url();
	await say(page, "create a document about spans");
	await page.getByText("Done. I wrote Spans").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	await page.addInitScript(instrument);
	let steps;
	await page.route(/\/api\/runs\/[^/?]+$/, async (route) => {
		const response = await route.fetch();
		const body = await response.json();
		const at = (s) => new Date(Date.UTC(2026, 0, 1) + s * 1000).toISOString();
		const [step] = body.steps;
		const [call] = body.tool_calls;
		const numbers = Array.from({ length: steps }, (_, i) => i);
		await route.fulfill({
			response,
			json: {
				...body,
				run: { ...body.run, created_at: at(0), started_at: at(0), ended_at: at(steps) },
				steps: numbers.map((i) => ({ ...step, index: i, committed_at: at(i + 0.5) })),
				tool_calls: numbers.flatMap((i) =>
					[0, 1].map((n) => ({
						...call,
						step_index: i,
						tool_call_id: `c${i}-${n}`,
						planned_at: at(i + 0.5),
						done_at: at(i + 0.9),
						duration_ms: 300,
					})),
				),
			},
		});
	});
	await page.route(/\/api\/runs\/[^/?]+\/trace$/, (route) => {
		const at = (s) => new Date(Date.UTC(2026, 0, 1) + s * 1000).toISOString();
		return route.fulfill({
			json: {
				attempts: Array.from({ length: steps }, (_, i) => ({
					step_index: i,
					claim: 1,
					started_at: at(i),
					first_output_at: at(i + 0.1),
					ended_at: at(i + 0.5),
					void_reason: null,
				})),
				moments: [{ kind: "done", claim: 1, time: at(steps), until: null, step_index: steps - 1 }],
				truncated: false,
			},
		});
	});
	await page.goto(`${start}/runs`);
	const link = page.getByRole("main").getByRole("link", { name: "create a document about spans" }).first();
	const address = await link.evaluate((a) => a.href);
	const costs = {};
	for (steps of [100, 1250]) {
		await page.goto(address);
		const grid = page.getByRole("grid", { name: "Steps, attempts and calls" });
		await grid.getByRole("row").nth(5).waitFor();
		const spans = steps * 4;
		assert.equal(Number(await grid.getAttribute("aria-rowcount")), spans + 1);
		const few = async () => {
			const rows = await grid.getByRole("row").count();
			assert.ok(rows > 5 && rows <= 80, `${rows} rows are on the page`);
		};
		await few();
		const box = await page.getByRole("img", { name: /^The whole run/ }).boundingBox();
		const x = (share) => box.x + box.width * share;
		const middle = box.y + box.height / 2;
		const metrics = await meter(page);
		const pan = async () => {
			await page.mouse.move(x(0.4), middle);
			await page.mouse.down();
			await page.mouse.move(x(0.5), middle, { steps: 5 });
			await page.mouse.up();
			await page.getByRole("img", { name: /The rows show .* to / }).waitFor();
			await page.mouse.move(x(0.45), middle);
			await page.mouse.down();
			for (const share of [0.8, 0.2, 0.7, 0.3, 0.5]) await page.mouse.move(x(share), middle, { steps: 6 });
			await page.mouse.up();
			await few();
			await grid.hover();
			for (let i = 0; i < 16; i++) {
				await page.mouse.wheel(0, i < 8 ? 300 : -300);
				await page.evaluate(() => new Promise(requestAnimationFrame));
			}
			await few();
		};
		const cost = await metrics.of(pan);
		costs[spans] = cost;
		t.diagnostic(
			`${spans} spans: ${(cost.script / cost.frames).toFixed(1)} ms script and ${(cost.task / cost.frames).toFixed(1)} ms in all a frame, in ${cost.frames} frames`,
		);
		// Every span is reached.
		await grid.focus();
		await page.keyboard.press("End");
		await grid.getByRole("row", { selected: true }).waitFor();
		await few();
		await page.keyboard.press("z");
		await page.getByRole("img", { name: /The rows show .* to / }).waitFor();
		await few();
	}
	const ratio = costs[5000].task / costs[400].task;
	t.diagnostic(`5,000 spans: ${ratio.toFixed(2)} times as much as 400`);
	assert.ok(ratio < 4, `5,000 spans cost ${ratio} times as much as 400`);
});
