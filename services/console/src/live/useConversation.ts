import { type Connection, SignalboxError } from "@signalbox/client";
import { useEffect, useState, useSyncExternalStore } from "react";
import { unwrap, useClient } from "../client.ts";
import { Conversation, type View } from "./conversation.ts";
import { line } from "./line.ts";

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
				const details = await unwrap(client.api.GET("/api/sessions/{id}", { params: { path: { id } }, signal: stop.signal }));
				const conversation = new Conversation(details);
				if (stop.signal.aborted) return;
				setLoaded({ state: "ready", conversation });
				const onConnection = (c: Connection) => line.set(c);
				for await (const { id: event, event: e } of client.sessionEvents(id, {
					after: conversation.lastEvent,
					signal: stop.signal,
					onConnection,
				}))
					conversation.apply(event, e);
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

/** The conversation's view, at most once a frame. */
export const useView = (c: Conversation): View => useSyncExternalStore(c.subscribe, c.view);
