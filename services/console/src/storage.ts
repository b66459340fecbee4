import { begin } from "./document/kept.ts";

/**
 * What the browser keeps for its person. What it refuses to take, because its storage is full, is kept
 * in memory until the page closes.
 */
const refused = new Map<string, string>();
/** For whom this page last kept something. */
let owner: string | undefined;
const listeners = new Set<() => void>();

export const storage = {
	get: (key: string): string | null => refused.get(key) ?? localStorage.getItem(key),
	set(key: string, text: string): void {
		try {
			localStorage.setItem(key, text);
			refused.delete(key);
		} catch {
			refused.set(key, text);
		}
		tell();
	},
	remove(key: string): void {
		localStorage.removeItem(key);
		refused.delete(key);
		tell();
	},
	/** Removes all whose keys match. */
	clear(keys: RegExp): void {
		for (const key of [...Object.keys(localStorage), ...refused.keys()]) if (keys.test(key)) storage.remove(key);
	},
};

/** The keys of what a person wrote and has not sent. */
export const written = /^(draft|unsent):/;

/**
 * Keeps drafts from now on, and deletes those and the unsent messages that are not of the person who has
 * signed in, also those in memory: another page may have signed in somebody else.
 */
export function keepFor(person: string): void {
	begin();
	const last = localStorage.getItem("person") ?? owner;
	if (owner !== person) refused.clear();
	owner = person;
	if (last !== person) {
		storage.clear(written);
		storage.remove("person"); // if there is no room for the next one
		storage.set("person", person);
	}
	tell();
}

/** Whether something that the person wrote is only in memory, and lost when the page closes. */
export const hasUnsaved = (): boolean => [...refused.keys()].some((key) => written.test(key));

/** Calls f when hasUnsaved may have changed, until the function that it returns is called. */
export function onUnsaved(f: () => void): () => void {
	listeners.add(f);
	return () => listeners.delete(f);
}

/** Warns before the page closes. A navigation within the page, which only asks whether it may, keeps the memory. */
function warn(e: Event): void {
	if (e.isTrusted) e.preventDefault();
}

function tell(): void {
	if (hasUnsaved()) globalThis.addEventListener?.("beforeunload", warn);
	else globalThis.removeEventListener?.("beforeunload", warn);
	for (const f of listeners) f();
}
