/**
 * What a person writes in a document without a connection is kept in the browser until the server
 * has it, also when the page is closed meanwhile.
 *
 * An entry is a Yjs update with what this page's client has written since the server had all of it. Each
 * page has an entry of its own, so that two tabs do not overwrite each other's. The next page that
 * opens the document applies the entries of all pages: to apply one twice changes nothing. An entry
 * goes when its words have been on a connection for a while that did not break: a page that dies
 * before leaves it, and the server gets the words once more.
 */
import type { DocumentConnection, DocumentState } from "@signalbox/client/document";
import * as Y from "yjs";
import { forget as drop, entries, keeps, read, write } from "./kept.ts";

/** A connection that stays for so long after an update has delivered it, in ms. */
const settles = 5_000;
/** Typing is stored so often at most, in ms. */
const every = 300;

export interface Draft {
	/** The state of the connection has changed. */
	line(state: DocumentState): void;
	/** Whether the page alone has words that the server lacks. */
	lost(): boolean;
	close(): void;
}

/**
 * Keeps the draft of a connected document, and brings back what other pages have kept. `onKeeps` is told
 * whether the browser's storage takes what is written.
 */
export function keepDraft(place: string, { doc, provider }: DocumentConnection, onKeeps?: (keeps: boolean) => void): Draft {
	const key = place + doc.clientID;
	let state: DocumentState = "connecting";
	let restored: string[] | undefined;
	/** How much of this client's words the server has. */
	let delivered = 0;
	let written = false;
	let refused = false;
	let saving: ReturnType<typeof setTimeout> | undefined;
	let settling: ReturnType<typeof setTimeout> | undefined;

	const clock = () => Y.getState(doc.store, doc.clientID);
	const save = () => {
		clearTimeout(saving);
		saving = undefined;
		if (!written) return;
		const has = Y.decodeStateVector(Y.encodeStateVector(doc));
		has.set(doc.clientID, delivered);
		refused = !write(key, Y.encodeStateAsUpdate(doc, Y.encodeStateVector(has)));
		onKeeps?.(!refused);
	};
	/** Somebody may have signed out in another tab. */
	const onStorage = () => {
		if (keeps()) return;
		onKeeps?.(false);
		save();
	};
	const forget = () => {
		clearTimeout(saving);
		saving = undefined;
		written = refused = false;
		onKeeps?.(keeps());
		drop([key, ...(restored ?? [])]);
		restored = [];
	};
	const watch = () => {
		const sent = clock();
		clearTimeout(settling);
		settling = setTimeout(() => {
			if (state !== "live") return;
			if (provider.ws?.bufferedAmount !== 0) return watch();
			delivered = sent;
			forget();
		}, settles);
	};
	const onUpdate = (_: Uint8Array, origin: unknown) => {
		if (origin === provider) return;
		written = true;
		if (state === "live") watch();
		else saving ??= setTimeout(save, every);
	};
	doc.on("update", onUpdate);
	addEventListener("pagehide", save);
	addEventListener("storage", onStorage);
	return {
		line(next) {
			state = next;
			if (next === "live") {
				restored ??= entries(place).filter((k) => {
					const kept = read(k);
					if (kept) Y.applyUpdate(doc, kept, "draft");
					return kept;
				});
				if (written) watch();
			} else {
				clearTimeout(settling);
				// A document that is deleted, or has no room, never takes the words.
				if (next === "deleted" || next === "too-large") forget();
				else save();
			}
		},
		lost: () => refused,
		close() {
			if (written) save();
			clearTimeout(saving);
			clearTimeout(settling);
			doc.off("update", onUpdate);
			removeEventListener("pagehide", save);
			removeEventListener("storage", onStorage);
		},
	};
}
