import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { unsent } from "./live/unsent.ts";
import { hasUnsaved, keepFor, onUnsaved, storage } from "./storage.ts";

let full = false;

beforeEach(() => {
	const kept: Record<string, string> = {};
	vi.stubGlobal(
		"localStorage",
		new Proxy(kept, {
			get: (_, method) =>
				({
					getItem: (key: string) => kept[key] ?? null,
					setItem(key: string, text: string) {
						if (full) throw new DOMException("full", "QuotaExceededError");
						kept[key] = text;
					},
					removeItem: (key: string) => delete kept[key],
				})[method as "getItem"],
		}),
	);
});
afterEach(() => {
	full = false;
	storage.clear(/./);
	vi.unstubAllGlobals();
});

test("what the storage refuses is kept in memory until the page closes, and it is said", () => {
	const told = vi.fn();
	const stop = onUnsaved(told);
	storage.set("draft:s", "half a");
	full = true;
	storage.set("nav", "shut");
	expect([storage.get("nav"), hasUnsaved()]).toEqual(["shut", false]);
	storage.set("draft:s", "half a thought");
	expect([storage.get("draft:s"), hasUnsaved()]).toEqual(["half a thought", true]);
	const message = { key: "k", text: "hello", mode: "queue", at: "" } as const;
	unsent.keep("s", message);
	expect(unsent.read("s")).toEqual([message]);
	unsent.forget("s", "k");
	expect(unsent.read("s")).toEqual([]);
	full = false;
	storage.set("draft:s", "half a thought or");
	expect([storage.get("draft:s"), hasUnsaved()]).toEqual(["half a thought or", false]);
	expect(told).toHaveBeenCalled();
	stop();
});

test("what a person wrote is not for the next one, also if the storage refused it", () => {
	keepFor("one");
	storage.set("draft:new", "kept");
	full = true;
	storage.set("draft:s", "refused");
	keepFor("one");
	expect(storage.get("draft:s")).toBe("refused");
	keepFor("two");
	expect([storage.get("draft:new"), storage.get("draft:s"), localStorage.getItem("person")]).toEqual([null, null, null]);
});

test("what is in memory does not reach a person who signed in with another page", () => {
	keepFor("one");
	full = true;
	storage.set("draft:s", "of one");
	full = false;
	localStorage.setItem("person", "two");
	storage.remove("width");
	expect(localStorage.getItem("draft:s")).toBeNull();
	localStorage.setItem("draft:new", "of two");
	keepFor("two");
	expect([storage.get("draft:s"), storage.get("draft:new"), hasUnsaved()]).toEqual([null, "of two", false]);
});

test("a page warns before it closes while it alone has what a person wrote", () => {
	const page = new Set<(e: unknown) => void>();
	vi.stubGlobal("addEventListener", (_: string, f: () => void) => page.add(f));
	vi.stubGlobal("removeEventListener", (_: string, f: () => void) => page.delete(f));
	const warns = (isTrusted: boolean) => {
		const preventDefault = vi.fn();
		for (const f of page) f({ isTrusted, preventDefault });
		return preventDefault.mock.calls.length > 0;
	};
	keepFor("one");
	full = true;
	storage.set("nav", "shut");
	expect(warns(true)).toBe(false);
	storage.set("draft:s", "half a thought");
	expect([warns(true), warns(false)]).toEqual([true, false]);
	storage.remove("draft:s");
	expect(warns(true)).toBe(false);
});
