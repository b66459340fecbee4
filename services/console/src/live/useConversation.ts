import { type Connection, SignalboxError } from "@signalbox/client";
import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useState, useSyncExternalStore } from "react";
import { unwrap, useClient, useWorkspace } from "../client.ts";
import { takeovers } from "../run/takeovers.ts";
import { Conversation, type View } from "./conversation.ts";
import { line } from "./line.ts";
import { runnerLost } from "./notes.ts";

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
				/** Reads a run; what it adds to the page is no loss if it fails. */
				const read = async (run: string) =>
					(await client.api.GET("/api/runs/{id}", { params: { path: { id: run } }, signal: stop.signal }).catch(() => undefined))?.data;
				const readFigures = async (run: string) => {
					const found = await read(run);
					if (found) conversation.setFigures(run, found.run);
				};
				const readCalls = async (run: string | undefined) => {
					const found = run && (await read(run));
					if (found) conversation.mergeCalls(found.run.id, found.tool_calls);
				};
				/** Says who took the run over, and how long that took. The trace is a moment behind, and is read after the step that was repeated. */
				const readTakeovers = async (run: string) => {
					const params = { path: { id: run } };
					const trace = (await client.api.GET("/api/runs/{id}/trace", { params, signal: stop.signal }).catch(() => undefined))?.data;
					const repeated = takeovers(trace).filter((t) => t.again !== undefined);
					conversation.setTakeovers(
						run,
						repeated.map((t) => ({ claim: t.claim, from: t.from, ms: Date.parse(t.back) - Date.parse(t.lost) })),
					);
				};
				let lost: string | undefined;
				await readCalls(conversation.calling);
				const onConnection = (c: Connection) => line.set(c);
				for await (const { id: event, event: e } of client.sessionEvents(id, {
					after: conversation.lastEvent,
					signal: stop.signal,
					onConnection,
				})) {
					conversation.apply(event, e);
					if (e.type === "done" || e.type === "error") void readFigures(e.runId);
					if (e.type === "step-retry" && e.reason === runnerLost) lost = conversation.view().active?.run;
					else if (lost && (e.type === "step-complete" || e.type === "done" || e.type === "error")) {
						void readTakeovers(lost);
						lost = undefined;
					}
					if (e.type === "snapshot") void readCalls(conversation.calling);
					if (e.type === "tool-approval-response") void readCalls(conversation.view().active?.run);
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

/**
 * Shows the messages of others that wait for a run or for its next step, while a run is active. They are
 * rows and no events: the session is read for them, rarely while none is known. Reading it every three
 * seconds costs the servers several times what the stream does.
 */
export function useQueue(id: string, conversation: Conversation): void {
	const { client, workspace } = useWorkspace();
	const { active, queue } = useView(conversation);
	useQuery({
		queryKey: [workspace.id, "queue", id],
		enabled: active !== null || queue.some((q) => q.state === "sent"),
		refetchInterval: queue.length > 0 ? 3_000 : 15_000,
		queryFn: async ({ signal }) => {
			const before = conversation.view().queue;
			conversation.waits(
				await unwrap(client.api.GET("/api/sessions/{id}", { params: { path: { id }, query: { limit: 1 } }, signal })),
				before,
			);
			return null;
		},
	});
}

/** The conversation's view, at most once a frame. */
export const useView = (c: Conversation): View => useSyncExternalStore(c.subscribe, c.view);
