/**
 * A shared document for an editor: its Yjs document, kept in step with the server. It needs the
 * packages yjs and y-websocket, which the rest of the client does not.
 */
import { WebsocketProvider } from "y-websocket";
import * as Y from "yjs";
import type { ClientOptions } from "./index.ts";

/** What a person can be told about the document's connection. All but the first three are final. */
export type DocumentState = "connecting" | "live" | "lost" | "signed-out" | "no-member" | "deleted" | "too-large";

/** Why the token function gave no token, and when it is called again, in ms since 1970. */
export interface TokenFailure {
	error: unknown;
	retryAt: number;
}

/** The pauses before a token function that fails is called again, in ms: each is twice as long as the one before. */
const firstPause = 1_000;
const longestPause = 30_000;

/** Close codes that another try would not change (docs/editor.md). */
const ends: Record<number, DocumentState> = { 4401: "signed-out", 4403: "no-member", 4404: "deleted", 4413: "too-large" };

export interface DocumentOptions extends Omit<ClientOptions, "fetch"> {
	/** Default: a new one, which `close` destroys. */
	doc?: Y.Doc;
	/**
	 * Called when the state changes; it begins as "connecting". While there is no connection because the
	 * token function fails, each failure calls it with "lost" and the failure.
	 */
	onState?: (state: DocumentState, failure?: TokenFailure) => void;
	/** Default: the global WebSocket, which Node has since version 22. */
	WebSocket?: typeof WebSocket;
}

export interface DocumentConnection {
	doc: Y.Doc;
	/** For an editor's collaboration extension; `provider.awareness` has the people and agents who are there. */
	provider: WebsocketProvider;
	/** Disconnects. What was written and not stored yet is lost with the document. */
	close(): void;
}

/**
 * Connects to a document, and again whenever the connection is lost or its token has expired, with a new token
 * if `token` is a function. It stops when the server says that another try would not help, for instance when it
 * refuses a second token. When the function fails, the earlier token is used; if the server refuses that one,
 * the function is called again after pauses that double, up to 30 s.
 */
export function connectDocument(id: string, options: DocumentOptions = {}): DocumentConnection {
	const { token, workspace, onState } = options;
	const doc = options.doc ?? new Y.Doc();
	const address = (options.url ?? globalThis.location?.origin ?? "").replace(/\/$/, "").replace(/^http/, "ws");
	const provider = new WebsocketProvider(`${address}/ws/documents`, encodeURIComponent(id), doc, {
		connect: false,
		disableBc: true, // every page has a connection of its own, and sees what the server has stored
		params: workspace ? { workspace_id: workspace } : {},
		shouldReconnect: (e) => !ends[e.code],
		...(options.WebSocket ? { WebSocketPolyfill: options.WebSocket } : {}),
	});
	let closed = false;
	/** The server has refused a token since the document was live. */
	let refused = false;
	let pause = firstPause;
	/** When a token function that has failed may be called again. */
	let retryAt = 0;
	const ask = async (): Promise<TokenFailure | undefined> => {
		try {
			const text = typeof token === "function" ? await token() : token;
			if (text) provider.params = { ...provider.params, token: text };
			pause = firstPause;
			return undefined;
		} catch (error) {
			retryAt = Date.now() + pause * (0.5 + Math.random() / 2);
			pause = Math.min(pause * 2, longestPause);
			return { error, retryAt };
		}
	};
	let call: ReturnType<typeof ask> | undefined;
	/** Gets a new token, with one call of the function at a time; returns the failure if there is one. */
	const authorize = () => {
		call ??= ask().finally(() => (call = undefined));
		return call;
	};
	let retryTimer: ReturnType<typeof setTimeout> | undefined;
	/** Connects with a new token. */
	const connect = async () => {
		const failure = await authorize();
		if (closed) return;
		if (!failure) return provider.connect();
		retryTimer = setTimeout(connect, failure.retryAt - Date.now());
		onState?.("lost", failure);
	};
	provider.on("sync", (synced: boolean) => {
		if (!synced) return;
		refused = false;
		onState?.("live");
	});
	provider.on("connection-close", (e: CloseEvent | null) => {
		if (closed) return;
		let end = e && ends[e.code];
		if (end === "signed-out" && typeof token === "function" && !refused) {
			end = undefined; // the token has expired, and the function has another one
			refused = true;
			void connect();
		} else if (!end && Date.now() >= retryAt) void authorize(); // if it fails, the next connection tries with the last token
		onState?.(end ?? "lost");
	});
	// A page learns of a lost network long before the silence tells it.
	const cut = () => provider.ws?.close();
	globalThis.addEventListener?.("offline", cut);
	void connect();
	return {
		doc,
		provider,
		close() {
			closed = true;
			clearTimeout(retryTimer);
			globalThis.removeEventListener?.("offline", cut);
			provider.destroy();
			if (!options.doc) doc.destroy();
		},
	};
}
