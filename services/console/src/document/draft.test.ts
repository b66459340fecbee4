import type { DocumentConnection } from "@signalbox/client/document";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import * as Y from "yjs";
import { keepDraft } from "./draft.ts";
import { begin, entries, forgetAll, placeOf, write } from "./kept.ts";

const place = placeOf("w", "me", "d");

/** Those of changes that other tabs make to the storage. */
const listeners: (() => void)[] = [];

beforeEach(() => {
	const all = new Map<string, string>();
	const storage = {
		getItem: (k: string) => all.get(k) ?? null,
		setItem: (k: string, v: string) => {
			Object.defineProperty(storage, k, { value: v, enumerable: true, configurable: true });
			all.set(k, v);
		},
		removeItem: (k: string) => {
			Reflect.deleteProperty(storage, k);
			all.delete(k);
		},
	};
	for (const name of ["getItem", "setItem", "removeItem"]) Object.defineProperty(storage, name, { enumerable: false });
	vi.stubGlobal("localStorage", storage);
	vi.stubGlobal("addEventListener", (type: string, told: () => void) => type === "storage" && listeners.push(told));
	vi.stubGlobal("removeEventListener", () => undefined);
	vi.useFakeTimers();
});
afterEach(() => {
	listeners.length = 0;
	vi.useRealTimers();
	vi.unstubAllGlobals();
});

/** A page that has the document open. */
function page() {
	const doc = new Y.Doc();
	const connection = { doc, provider: { ws: { bufferedAmount: 0 } } } as unknown as DocumentConnection;
	const keeps = vi.fn<(keeps: boolean) => void>();
	const draft = keepDraft(place, connection, keeps);
	const text = doc.getText("t");
	return { doc, draft, keeps, text, type: (s: string) => text.insert(text.length, s) };
}

test("what two pages wrote without a connection is there for the next one, until the server has it", () => {
	const server = new Y.Doc();
	for (const words of ["one ", "two "]) {
		const p = page();
		p.draft.line("live");
		p.draft.line("lost");
		p.type(words);
		vi.advanceTimersByTime(1_000);
		p.draft.close();
	}
	expect(entries(place)).toHaveLength(2);

	const next = page();
	next.doc.on("update", (u: Uint8Array) => Y.applyUpdate(server, u));
	next.draft.line("live");
	expect(server.getText("t").toString()).toMatch(/^(one two |two one )$/);
	expect(entries(place)).toHaveLength(2);
	vi.advanceTimersByTime(6_000);
	expect(entries(place)).toHaveLength(0);
});

test("words of the last seconds before a loss are kept, those before are not", () => {
	const p = page();
	p.draft.line("live");
	p.type("a".repeat(10_000));
	vi.advanceTimersByTime(6_000);
	p.type("last");
	p.draft.line("lost");
	expect(entries(place)).toHaveLength(1);
	expect(localStorage.getItem(entries(place)[0] ?? "")?.length).toBeLessThan(500);
	expect(p.draft.lost()).toBe(false);
});

test("what has no room is not kept, and the page says so", () => {
	const p = page();
	p.draft.line("live");
	p.draft.line("lost");
	p.type(Array.from({ length: 1_000_000 }, (_, i) => String.fromCharCode(33 + (i % 90))).join(""));
	vi.advanceTimersByTime(1_000);
	expect(p.draft.lost()).toBe(true);
	expect(p.keeps).toHaveBeenLastCalledWith(false);
	expect(entries(place)).toHaveLength(0);
	// It does again once the server has the words.
	p.draft.line("live");
	vi.advanceTimersByTime(6_000);
	expect(p.draft.lost()).toBe(false);
	expect(p.keeps).toHaveBeenLastCalledWith(true);
});

test("a sign-out deletes all of it, until the next sign-in", () => {
	write(`${placeOf("w", "me", "other")}1`, new Uint8Array(3));
	expect(entries("document:")).toHaveLength(1);
	forgetAll();
	write(`${place}1`, new Uint8Array(3));
	expect(entries("document:")).toHaveLength(0);
	begin(); // who signs in then has drafts again
	write(`${place}1`, new Uint8Array(3));
	expect(entries("document:")).toHaveLength(1);
	const p = page();
	p.draft.line("lost");
	localStorage.setItem("sign-out", "in another tab");
	p.type("only here");
	vi.advanceTimersByTime(1_000);
	expect(entries("document:")).toHaveLength(1);
	expect(p.draft.lost()).toBe(true);
	expect(p.keeps).toHaveBeenLastCalledWith(false);
	// Other pages are told first: they might write meanwhile.
	const steps: string[] = [];
	for (const step of ["setItem", "removeItem"] as const) {
		const real = localStorage[step].bind(localStorage) as (key: string, value: string) => void;
		vi.spyOn(localStorage, step).mockImplementation((key: string, value?: string) => {
			steps.push(step);
			real(key, value ?? "");
		});
	}
	forgetAll();
	expect(steps).toEqual(["setItem", "removeItem"]);
	vi.restoreAllMocks();
	begin();
	write(`${place}1`, new Uint8Array(3));
	const full = vi.spyOn(localStorage, "setItem").mockImplementation(() => {
		throw new Error("the storage is full");
	});
	forgetAll();
	full.mockRestore();
	expect(entries("document:")).toHaveLength(0);
});

test("what was kept before a sign-out in another tab is on the page alone", () => {
	begin();
	const p = page();
	p.draft.line("lost");
	p.type("mine");
	vi.advanceTimersByTime(1_000);
	expect(p.draft.lost()).toBe(false);
	for (const told of listeners) told(); // something else was stored
	expect(p.keeps).toHaveBeenLastCalledWith(true);
	localStorage.setItem("sign-out", "in another tab");
	for (const told of listeners) told();
	expect(p.keeps).toHaveBeenLastCalledWith(false);
	expect(p.draft.lost()).toBe(true);
});
