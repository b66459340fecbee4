import { type Connection, SignalboxError } from "@signalbox/client";
import { useCallback, useEffect, useState, useSyncExternalStore } from "react";
import { unwrap, useClient } from "../client.ts";
import { Conversation, type View } from "./conversation.ts";
import { line } from "./line.ts";

/** How many messages are loaded at first, and with each page of earlier ones. */
const pageSize = 200;

type Loaded = { state: "loading" } | { state: "failed"; error: SignalboxError } | { state: "ready"; conversation: Conversation };

/** Loads a session and keeps it current until the page leaves it. */
export function useConversation(id: string): Loaded {
	const client = useClient();
	const [loaded, setLoaded] = useState<Loaded>({ state: "loading" });
	useEffect(() => {
		const stop = new AbortController();
		setLoaded({ state: "loading" });
		void (async () => {
			try {
				const details = await unwrap(
					client.api.GET("/api/sessions/{id}", { params: { path: { id }, query: { limit: pageSize } }, signal: stop.signal }),
				);
				const conversation = new Conversation(details);
				if (stop.signal.aborted) return;
				setLoaded({ state: "ready", conversation });
				/** Reads what a run took that has ended; an answer without it is no loss. */
				const took = async (run: string) => {
					const read = await client.api
						.GET("/api/runs/{id}", { params: { path: { id: run } }, signal: stop.signal })
						.catch(() => undefined);
					if (read?.data) conversation.took(run, read.data.run);
				};
				const onConnection = (c: Connection) => line.set(c);
				for await (const { id: event, event: e } of client.sessionEvents(id, {
					after: conversation.lastEvent,
					signal: stop.signal,
					onConnection,
				})) {
					conversation.apply(event, e);
					if (e.type === "done" || e.type === "error") void took(e.runId);
				}
			} catch (e) {
				if (!stop.signal.aborted) setLoaded({ state: "failed", error: e instanceof SignalboxError ? e : new SignalboxError(String(e), 0) });
			}
		})();
		return () => {
			stop.abort();
			line.leave();
		};
	}, [client, id]);
	return loaded;
}

/** Returns a function that loads the messages before those that are there: a page, or so many. */
export function useEarlier(id: string, conversation: Conversation): (limit?: number) => Promise<void> {
	const { api } = useClient();
	return useCallback(
		async (limit = pageSize) => {
			const cursor = conversation.view().earlier;
			if (!cursor) return;
			const page = await unwrap(api.GET("/api/sessions/{id}/messages", { params: { path: { id }, query: { cursor, limit } } }));
			// Another branch was shown meanwhile.
			if (conversation.view().earlier === cursor) conversation.prepend(page);
		},
		[api, conversation, id],
	);
}

/** The conversation's view, at most once a frame. */
export const useView = (c: Conversation): View => useSyncExternalStore(c.subscribe, c.view);
