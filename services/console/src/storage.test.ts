import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { unsent } from "./live/unsent.ts";
import { keepFor } from "./signout.ts";
import { losesWords, onLosesWords, storage } from "./storage.ts";

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

test("what the storage refuses is there until the page closes, and it is said", () => {
	const told = vi.fn();
	const stop = onLosesWords(told);
	storage.set("draft:s", "half a");
	full = true;
	storage.set("nav", "shut");
	expect([storage.get("nav"), losesWords()]).toEqual(["shut", false]);
	storage.set("draft:s", "half a thought");
	expect([storage.get("draft:s"), losesWords()]).toEqual(["half a thought", true]);
	const message = { key: "k", text: "hello", mode: "queue", at: "" } as const;
	unsent.keep("s", message);
	expect(unsent.read("s")).toEqual([message]);
	unsent.forget("s", "k");
	expect(unsent.read("s")).toEqual([]);
	full = false;
	storage.set("draft:s", "half a thought or");
	expect([storage.get("draft:s"), losesWords()]).toEqual(["half a thought or", false]);
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
