// Every page and dialog can be used by everybody: what axe finds, small windows, large text, high contrast.
import assert from "node:assert/strict";
import path from "node:path";
import { after, before, test } from "node:test";
import { people, say, violations } from "./people.mjs";
import { startProvider } from "./provider.mjs";
import { startBrowser, startSignalbox } from "./signalbox.mjs";

let provider;
let signalbox;
let browser;
let person;
before(async () => {
	provider = await startProvider();
	signalbox = await startSignalbox(0, provider.environment);
	browser = await startBrowser();
	person = people(browser, signalbox);
});
after(async () => {
	await browser?.close();
	await signalbox?.stop();
	provider?.stop();
});

/** An answer with what is wider than a phone. */
const wide = `# Heading with averylongwordthatnobodybrokeandthatgoesonandonandonandonandon

https://example.com/${"a-long-path/".repeat(20)}

| ${"column of a table | ".repeat(8)}
| ${"--- | ".repeat(8)}
| ${"value of a cell | ".repeat(8)}

\`\`\`js
const line = "${"code that is longer than the window ".repeat(6)}";
\`\`\`

- A list with \`${"inline_code_without_a_space_".repeat(5)}\`
`;

const tracker = {
	id: "00000000-0000-7000-8000-000000000001",
	name: "tracker",
	url: "https://mcp.tracker.example/",
	created_at: "2026-01-01T00:00:00Z",
	created_by: null,
	checked_at: "2026-01-01T00:00:00Z",
	credential: true,
	down_since: null,
	failure: null,
	needs_sign_in: false,
	operator: false,
	sign_in_url: null,
	tools: ["search_issues", "create_issue", "close_issue"].map((name, i) => ({
		name: `mcp__tracker__${name}`,
		original_name: name,
		description: "Works with the issues of the tracker.",
		hash: name,
		changed: i === 1,
		unavailable_reason: i === 0 ? null : "its definition changed since it was approved",
	})),
};

/**
 * What makes a page scroll sideways, or is cut off at its side. Regions that scroll by themselves have to be
 * named and within reach of the keyboard.
 */
const sideways = () => {
	const found = [];
	const say = (e, why) => found.push(`${e.cloneNode().outerHTML.slice(0, 160)} ${why}`);
	const page = document.scrollingElement;
	if (page.scrollWidth > page.clientWidth) say(page, `is ${page.scrollWidth - page.clientWidth} px too wide`);
	const scrolls = (e) => /auto|scroll/.test(getComputedStyle(e).overflowX) && !e.matches("input, textarea, select");
	const named = (e) => e.matches("[aria-label], [aria-labelledby]") && e.matches("[role], nav, section, ul");
	for (const e of document.querySelectorAll("body *")) {
		if (!e.checkVisibility({ visibilityProperty: true })) continue;
		if (scrolls(e) && e.scrollWidth > e.clientWidth + 1 && !named(e)) say(e, `scrolls by ${e.scrollWidth - e.clientWidth} px`);
		const said =
			[...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim()) || e.matches("button, a, input, select, textarea");
		if (!said) continue;
		const { left, right, width } = e.getBoundingClientRect();
		if (width <= 1 || (left >= -1 && right <= innerWidth + 1)) continue;
		let within = e.parentElement;
		while (within && !(scrolls(within) && named(within)) && getComputedStyle(within).textOverflow !== "ellipsis")
			within = within.parentElement;
		if (!within) say(e, `is from ${Math.round(left)} to ${Math.round(right)} px: ${e.textContent.slice(0, 40)}`);
	}
	return found;
};

/** The size of every text that is seen, and what is wrong with text that was enlarged since they were taken. */
const textSizes = () => {
	globalThis.sizes = new Map();
	const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n = all.nextNode(); n; n = all.nextNode())
		if (n.data.trim()) globalThis.sizes.set(n.parentElement, parseFloat(getComputedStyle(n.parentElement).fontSize));
};
const crowded = () => {
	const found = [];
	const say = (text, why) =>
		found.push(`“${text.data.trim().slice(0, 40)}” in ${text.parentElement.cloneNode().outerHTML.slice(0, 120)} ${why}`);
	const style = (e) => getComputedStyle(e);
	const clear = (colour) => /^rgba\(.*, 0\)$|^transparent$/.test(colour);
	/** Whether something is painted behind the text of an element. */
	const painted = (e) => {
		const s = style(e);
		return !clear(s.backgroundColor) || s.boxShadow !== "none" || (parseFloat(s.borderTopWidth) > 0 && parseFloat(s.borderBottomWidth) > 0);
	};
	const texts = [];
	const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	const range = document.createRange();
	for (let n = all.nextNode(); n; n = all.nextNode()) {
		const e = n.parentElement;
		// Faces and drawings are pictures, of which the figures are in a table, too.
		if (
			!n.data.trim() ||
			!e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) ||
			e.closest("[role=img], svg, option, .sr")
		)
			continue;
		const before = globalThis.sizes.get(e);
		const now = parseFloat(style(e).fontSize);
		if (before && now < before * 1.9) say(n, `is ${before} px, and enlarged ${now}`);
		range.selectNodeContents(n);
		for (const r of range.getClientRects()) {
			if (r.width <= 1 || r.bottom < 0 || r.top > innerHeight) continue;
			texts.push([n, r]);
			const out = (of, by) => r.top < of.top - by || r.bottom > of.bottom + by || r.left < of.left - by || r.right > of.right + by;
			for (let box = e; box; box = box.parentElement) {
				const s = style(box);
				if (s.display === "inline" || s.display === "contents") continue;
				const of = box.getBoundingClientRect();
				if (s.overflow !== "visible" && (r.top >= of.bottom || r.bottom <= of.top || r.left >= of.right || r.right <= of.left)) break;
				if (/auto|scroll/.test(s.overflow) || s.textOverflow === "ellipsis") break;
				if (s.overflow !== "visible" && out(of, 3)) {
					say(n, `is cut off by ${box.cloneNode().outerHTML.slice(0, 100)}`);
					break;
				}
				if (!painted(box)) continue;
				if (out(of, 3)) say(n, `is larger than ${box.cloneNode().outerHTML.slice(0, 100)}`);
				break;
			}
		}
	}
	texts.sort(([, a], [, b]) => a.top - b.top);
	texts.forEach(([n, a], i) => {
		for (const [m, b] of texts.slice(i + 1)) {
			if (b.top >= a.bottom) break;
			const [left, right, top, bottom] = [Math.max(a.left, b.left), Math.min(a.right, b.right), b.top, Math.min(a.bottom, b.bottom)];
			if (n === m && b.top - a.top < 0.3 * a.height) continue; // one line of a text that ends with an ellipsis
			if (right - left < 3 || bottom - top < 0.3 * Math.min(a.height, b.height)) continue;
			// One of the two hides the other if it has a background.
			const stack = document.elementsFromPoint((left + right) / 2, (top + bottom) / 2);
			const at = [n, m].map((t) => stack.indexOf(t.parentElement)).sort((x, y) => x - y);
			if (at[0] < 0 || stack.slice(at[0], at[1]).some((e) => !clear(style(e).backgroundColor))) continue;
			say(n, `lies over “${m.data.trim().slice(0, 40)}”`);
		}
	});
	return found;
};

/** The windows in which each page is looked at, with what makes their text or window as hard as it gets. */
const windows = [
	{ width: 1440, hard: { name: "text of 200 %", width: 1280, fontSize: "200%" } },
	{ width: 390, hard: { name: "320 px", width: 320, fontSize: "" } },
];
// With SCREENSHOTS, which names a folder, each page is kept there as a picture.
test("every page is accessible in both themes, wide and narrow, and has no sideways scrolling with large text or in 320 px", async (t) => {
	const height = 844;
	// Without motion, so that nothing is looked at while it fades in.
	const page = await person(t, { colorScheme: "light", viewport: { width: 1440, height }, reducedMotion: "reduce" });
	const start = page.url();
	const problems = [];
	const shoot = async (name, options = {}) => {
		if (!process.env.SCREENSHOTS) return;
		await page.screenshot({ ...options, path: path.join(process.env.SCREENSHOTS, `${name.replaceAll(/[^a-z0-9]+/gi, "-")}.png`) });
	};
	const zoom = async (fontSize, width) => {
		if (page.viewportSize().width === width) return;
		await page.setViewportSize({ width, height });
		await page.evaluate((size) => {
			document.documentElement.style.fontSize = size;
			return new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
		}, fontSize);
	};
	const check = async (name) => {
		for (const { width, hard } of windows) {
			const report = (about, found) => problems.push(...found.map((f) => `${name}, ${about}: ${f}`));
			await zoom("", width);
			for (const scheme of ["light", "dark"]) {
				await page.emulateMedia({ colorScheme: scheme });
				// Of the other theme only the colours differ.
				const found = await violations(page, scheme === "dark" ? { runOnly: ["color-contrast", "link-in-text-block"] } : {});
				report(
					`${width} px, ${scheme}`,
					found.flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.html.slice(0, 200)}`)),
				);
				await shoot(`${name} ${width} ${scheme}`, { fullPage: true });
			}
			await page.emulateMedia({ colorScheme: "light" });
			report(`${width} px`, await page.evaluate(sideways));
			await page.evaluate(textSizes);
			await zoom(hard.fontSize, hard.width);
			report(hard.name, await page.evaluate(sideways));
			if (hard.fontSize) report(hard.name, await page.evaluate(crowded));
			await shoot(`${name} ${hard.name}`);
		}
		await zoom("", 1440);
	};
	const dialog = page.getByRole("dialog");
	const closed = async () => {
		await page.keyboard.press("Escape");
		await dialog.waitFor({ state: "detached" });
	};
	/** Goes to a place of the workspace without a reload, and waits for its heading and for what it loads. */
	const go = async (place) => {
		await page.evaluate((to) => {
			for (const h of document.querySelectorAll("h1")) h.dataset.before = "";
			history.pushState({}, "", to);
		}, `${start}/${place}`);
		await page.waitForFunction(() => {
			const headings = [...document.querySelectorAll("h1:not([data-before])")];
			return headings.some((h) => h.checkVisibility()) && !document.querySelector("[aria-label=Loading]");
		});
	};

	await check("new session");
	await say(page, "create a document about rivers");
	await page.getByText("Done. I wrote Rivers").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	await page.getByRole("button", { name: /Create document/ }).click();
	await check("session");
	await page.getByLabel("Message", { exact: true }).press("ControlOrMeta+k");
	await page.getByRole("listbox").getByRole("option").first().waitFor();
	await check("palette");
	await page.getByRole("option", { name: /^Keys/ }).last().click();
	await page.getByRole("dialog", { name: "Keys" }).waitFor();
	await check("keys overlay");
	await closed();
	for (const menu of ["Model", "Tools"]) {
		await page.getByRole("button", { name: new RegExp(`^${menu}`) }).click();
		await check(`menu ${menu}`);
		await page.keyboard.press("Escape");
	}
	await say(page, "delete it");
	await page.getByRole("region", { name: "Approval wanted: Delete document" }).waitFor();
	await check("approval");
	const session = page.url().slice(start.length + 1);
	await page.route(/\/api\/sessions\/[^/]+\?/, async (route) => {
		const response = await route.fetch();
		const body = await response.json();
		const answer = body.messages?.findLast((m) => m.role === "assistant" && JSON.stringify(m).includes("I wrote"));
		if (answer) answer.content = wide;
		await route.fulfill({ response, json: body });
	});
	await go("inbox");
	await page.getByRole("button", { name: "Refuse" }).first().waitFor();
	await check("inbox");
	await page.getByRole("button", { name: "Notifications" }).click();
	await check("notifications");
	await closed();
	await go(session);
	await page.getByRole("heading", { name: /^Heading with/ }).waitFor();
	await check("wide answer");

	await go("runs");
	await check("runs");
	await page.getByRole("main").getByRole("link", { name: "create a document about rivers" }).last().click();
	await page.getByRole("grid").getByText("doc_create").click();
	await check("run");
	for (const view of ["Conversation", "Log"]) {
		await page.getByRole("button", { name: view, exact: true }).click();
		await check(`run, ${view}`);
	}
	await go("documents");
	await check("documents");
	await page.getByRole("button", { name: "New document" }).click();
	await check("documents, new");
	await closed();
	await page.getByRole("button", { name: "Rename Rivers" }).first().click();
	await check("documents, rename");
	await closed();
	await page.getByRole("button", { name: "Delete Rivers" }).first().click();
	await check("documents, delete");
	await closed();
	await page.getByRole("list", { name: "Documents" }).getByRole("link", { name: "Rivers" }).first().click();
	await page.getByRole("textbox", { name: "Document" }).getByRole("heading", { name: "Rivers", exact: true }).waitFor();
	await check("document");
	await page.getByRole("button", { name: "Share" }).click();
	await dialog.getByRole("button", { name: "Create link" }).click();
	const address = await dialog.locator("code").innerText();
	await check("share");
	await closed();
	await page.getByRole("button", { name: "History" }).click();
	await page.getByRole("link", { name: /Signalbox created it/ }).click();
	await page.getByRole("region", { name: "The version" }).locator("ins").first().waitFor();
	await check("history");

	for (const place of ["sessions", "runs/00000000-0000-7000-8000-000000000000", "d/00000000-0000-7000-8000-000000000000", "nowhere"]) {
		await go(place);
		await check(place);
	}
	for (const [place, button] of Object.entries({
		more: undefined,
		welcome: undefined,
		usage: "Set a budget",
		members: "Add member",
		keys: "New key",
		rules: "New rule",
		audit: undefined,
	})) {
		await go(place);
		await check(place);
		if (!button) continue;
		await page.getByRole("button", { name: button }).click();
		await dialog.waitFor();
		await check(`${place}, dialog`);
		await closed();
	}
	await page.route(/\/api\/mcp-servers(\?|$)/, (route) => route.fulfill({ json: { mcp_servers: [tracker], next_cursor: null } }));
	await go("connections");
	await page.getByRole("button", { name: "Add server" }).click();
	await check("connections, add server");
	await closed();
	await page
		.getByRole("row", { name: /tracker/ })
		.getByRole("button")
		.click();
	await page.getByRole("dialog", { name: "tracker" }).waitFor();
	await check("connections, server");
	await dialog.getByRole("button", { name: "Remove" }).click();
	await page.getByRole("dialog", { name: "Remove tracker?" }).waitFor();
	await check("connections, remove");
	await page.keyboard.press("Escape");
	await closed();
	await check("connections");
	await page
		.getByRole("region")
		.getByRole("button", { name: /^Connect/ })
		.first()
		.click();
	await dialog.waitFor();
	await check("connections, connect");
	await closed();

	const added = await page.evaluate(
		(workspace) =>
			fetch("/api/accounts", {
				method: "POST",
				headers: { "Content-Type": "application/json", "X-Workspace-Id": workspace },
				body: JSON.stringify({ provider: "house", secret: "house-key-4Qx7", label: "team key" }),
			}).then((r) => r.status),
		(await signalbox.newToken()).workspace_id,
	);
	assert.ok(added < 300, `adding an account: ${added}`);
	await go("accounts");
	await page.getByText("team key").first().waitFor();
	await check("accounts");
	await page.getByRole("button", { name: "Add account" }).click();
	await check("accounts, add");
	await dialog.getByLabel("Provider").selectOption("house");
	await dialog.getByRole("button", { name: "Code on another device" }).click();
	await dialog.getByRole("button", { name: "Get a code" }).click();
	await dialog.getByText("KTRX-4M9P").waitFor();
	await check("accounts, code");
	await closed();
	await page.getByRole("button", { name: "More for team key" }).first().click();
	await dialog.waitFor();
	await check("accounts, account");
	await dialog.getByRole("button", { name: "Remove" }).click();
	await page.getByRole("dialog", { name: /^Remove/ }).waitFor();
	await check("accounts, remove");
	await page
		.getByRole("dialog", { name: /^Remove/ })
		.getByRole("button", { name: "Remove" })
		.click();
	await dialog.waitFor({ state: "detached" });

	await page.goto(address);
	await page.getByRole("heading", { name: "Rivers", level: 1 }).waitFor();
	await check("shared");
	await page.goto(`${signalbox.url}/sign-in`);
	await page.getByRole("heading", { name: "Sign in" }).waitFor();
	await check("sign-in");
	assert.deepEqual(problems, []);
});

/** What a page draws without text or pictures, such as lines and bars, when it is first called, and whether each is still seen. */
const shapes = () => {
	const see = (e, pseudo) => getComputedStyle(e, pseudo);
	const clear = (colour) => /^rgba\(.*, 0\)$|^transparent$/.test(colour);
	const behind = (e) => {
		for (let at = e; at; at = at.parentElement) if (!clear(see(at).backgroundColor)) return see(at).backgroundColor;
		return "";
	};
	/** Whether a thing without text is seen: by its background or its border. */
	const isSeen = (e, pseudo) => {
		const style = see(e, pseudo);
		const ground = behind(pseudo ? e : e.parentElement);
		if (style.display === "none" || style.visibility === "hidden" || style.opacity === "0") return false;
		if (!clear(style.backgroundColor) && style.backgroundColor !== ground) return true;
		return ["Top", "Left", "Bottom", "Right"].some(
			(side) =>
				style[`border${side}Style`] !== "none" &&
				parseFloat(style[`border${side}Width`]) > 0 &&
				!clear(style[`border${side}Color`]) &&
				style[`border${side}Color`] !== ground,
		);
	};
	const all = [...document.querySelectorAll("#app *")].filter((e) => e.checkVisibility() && e.getBoundingClientRect().width > 0);
	const drawn = [
		...all
			.filter((e) => e.namespaceURI.endsWith("xhtml") && e.childNodes.length === 0 && !e.matches("input, textarea, canvas, img"))
			.map((e) => [e]),
		...all.flatMap((e) => ["::before", "::after"].filter((p) => see(e, p).content === '""').map((p) => [e, p])),
	];
	globalThis.drawn ??= drawn.filter(([e, p]) => isSeen(e, p));
	return globalThis.drawn
		.filter(([e]) => e.isConnected)
		.map(([e, p]) => ({ what: `${e.cloneNode().outerHTML.slice(0, 120)}${p ?? ""}`, isSeen: isSeen(e, p) }));
};

test("lines and signals are there with forced colors and with more contrast, and nothing moves for who wants no motion", async (t) => {
	const page = await person(t, { reducedMotion: "no-preference" });
	const start = page.url();
	await say(page, "create a document about harbours");
	await page.getByText("Done. I wrote Harbours").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
	await say(page, "count to 9000");
	await page.getByText(/\b8 9\b/).waitFor();
	const lost = async (name) => {
		const before = await page.evaluate(shapes);
		assert.ok(before.length > 0, `${name}: nothing is drawn`);
		await page.emulateMedia({ forcedColors: "active" });
		const after = await page.evaluate(shapes);
		await page.emulateMedia({ forcedColors: "none" });
		await page.evaluate(() => delete globalThis.drawn);
		return [...new Set(after.filter((s) => !s.isSeen).map((s) => `${name}: ${s.what}`))];
	};
	const moving = () =>
		page.evaluate(
			() => document.getAnimations().filter((a) => a.playState === "running" && Number(a.effect.getComputedTiming().duration) > 0).length,
		);
	const missing = await lost("session");
	assert.ok((await moving()) > 0, "no lamp runs");
	await page.emulateMedia({ reducedMotion: "reduce" });
	assert.equal(await moving(), 0, "something moves although it is to stand still");
	// The hairlines become as strong as the borders of controls.
	const hairline = () => page.evaluate(() => getComputedStyle(document.querySelector("kbd")).borderTopColor);
	const usual = await hairline();
	await page.emulateMedia({ contrast: "more" });
	assert.notEqual(await hairline(), usual);
	await page.emulateMedia({ contrast: "no-preference" });
	await page.getByRole("button", { name: "Stop", exact: true }).click();
	for (const place of ["runs", "usage"]) {
		await page.goto(`${start}/${place}`);
		await page.locator("main h1").waitFor();
		if (place === "runs") await page.getByRole("main").getByRole("link", { name: "create a document about harbours" }).last().click();
		if (place === "runs") await page.getByRole("grid").getByText("doc_create").click();
		await page.waitForFunction(() => !document.querySelector("[aria-label=Loading]"));
		missing.push(...(await lost(place === "runs" ? "run" : place)));
	}
	assert.deepEqual(missing, []);
});

test("Return that ends a word of an input method sends nothing", async (t) => {
	const page = await person(t);
	const start = page.url();
	const field = page.getByLabel("Message", { exact: true });
	const ime = await page.context().newCDPSession(page);
	const compose = (text) => ime.send("Input.imeSetComposition", { text, selectionStart: text.length, selectionEnd: text.length });
	/** Return as a browser reports it while a word is composed, and as Safari does just after. */
	const endWord = async (into) => {
		for (const how of [{ isComposing: true }, { keyCode: 229 }])
			await into.evaluate(
				(e, more) => e.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true, ...more })),
				how,
			);
	};
	await field.focus();
	await compose("こんにち");
	await endWord(field);
	assert.equal(page.url(), start);
	assert.equal(await field.inputValue(), "こんにち");
	await ime.send("Input.insertText", { text: "hello" });
	await endWord(field);
	assert.equal(page.url(), start);
	await page.keyboard.press("ControlOrMeta+k");
	const search = page.getByRole("combobox", { name: "Search and commands" });
	await search.waitFor();
	await compose("inbox");
	await page.getByRole("option", { name: /Go to Inbox/, selected: true }).waitFor();
	await endWord(search);
	await search.waitFor();
	assert.equal(page.url(), start);
	await page.keyboard.press("Escape");
	await field.press("Enter");
	await page.waitForURL(/\/s\//);
	await page.getByText("Hello!").waitFor();
	await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
});
