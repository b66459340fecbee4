/** Updates of documents that the server lacks, in the storage of the browser. They are a member's own, and go at the sign-out. */

/** The most characters of one page, and of all. More is refused, and the page warns before it is left. */
const most = 1_000_000;
const mostInAll = 3_000_000;
/** Entries of documents that nobody has opened for so long are deleted, in ms. */
const oldest = 30 * 86_400_000;

const prefix = "document:";

interface Entry {
	at: number;
	update: string;
}

/** The names of the entries of a place. */
export const entries = (place: string): string[] => Object.keys(localStorage).filter((k) => k.startsWith(place));

function entry(key: string): Entry | undefined {
	try {
		const e = JSON.parse(localStorage.getItem(key) ?? "") as Entry;
		return typeof e.at === "number" && typeof e.update === "string" ? e : undefined;
	} catch {
		return undefined;
	}
}

/** Returns the update of an entry; undefined if it is no longer there. */
export function read(key: string): Uint8Array | undefined {
	const e = entry(key);
	return e && Uint8Array.from(atob(e.update), (c) => c.charCodeAt(0));
}

/** Stores an update; false if there is no room for it, or somebody has signed out since `begin`. */
export function write(key: string, update: Uint8Array): boolean {
	if (!keeps()) return false; // not for whoever signs in next
	own.add(key);
	const text = encode(update);
	let others = 0;
	for (const k of entries(prefix)) {
		const e = k === key ? undefined : entry(k);
		if (e && e.at < Date.now() - oldest) localStorage.removeItem(k);
		else others += e?.update.length ?? 0;
	}
	try {
		if (text.length > most || others + text.length > mostInAll) throw new Error("too much");
		localStorage.setItem(key, JSON.stringify({ at: Date.now(), update: text } satisfies Entry));
		return true;
	} catch {
		localStorage.removeItem(key); // half of what was written would look like all of it
		return false;
	}
}

/** Deletes entries. */
export function forget(keys: readonly string[]): void {
	for (const k of keys) localStorage.removeItem(k);
}

/** Begins to keep entries: somebody has signed in. */
export function begin(): void {
	lastSignOut = localStorage.getItem(signOut);
}

/** Whether entries are kept: nobody has signed out in this browser since `begin`. */
export const keeps = (): boolean => localStorage.getItem(signOut) === lastSignOut;

/** Deletes all entries, and has no page keep more until somebody has signed in there: the member signs out. */
export function forgetAll(): void {
	const told = tellOthers(); // first, so that no other page writes meanwhile
	forget(entries(prefix));
	if (!told) tellOthers(); // storage was full
}

function tellOthers(): boolean {
	try {
		localStorage.setItem(signOut, new Date().toISOString());
		return true;
	} catch {
		return false;
	}
}

/** Has another value after each sign-out in this browser. */
const signOut = "sign-out";
let lastSignOut: string | null = null;
/** The entries that this page has written: a page that learns late of a sign-out elsewhere deletes them. */
const own = new Set<string>();
globalThis.addEventListener?.("storage", (e) => e.key === signOut && forget([...own]));

/** Names the entries of a member's document. */
export const placeOf = (workspace: string, member: string, document: string) => `${prefix}${workspace}/${member}/${document}/`;

function encode(bytes: Uint8Array): string {
	let text = "";
	for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
	return btoa(text);
}
