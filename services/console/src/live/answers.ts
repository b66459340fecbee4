/**
 * Answers to questions about calls. An answer goes to the server 5 s after it was given, in which it
 * can be taken back. They are kept outside of the cards, because the composer refuses calls whose
 * cards may not be on the page.
 */
import type { Client } from "@signalbox/client";
import { useSyncExternalStore } from "react";
import { unwrap } from "../client.ts";
import type { Question } from "./conversation.ts";

export interface Answer {
	approved?: boolean;
	outcome?: "happened" | "repeat";
	reason?: string;
	/** Has later calls answered in the same way. */
	remember?: "arguments" | "session" | "workspace";
}

export interface Given {
	answer: Answer;
	/** waits: it can be taken back. sent: an event will confirm it. failed: it was not accepted, and another one can be given. */
	state: "waits" | "sending" | "sent" | "failed";
	error?: string;
}

/** How long an answer can be taken back, in ms. */
const grace = 5000;

/** A question's id of its own: models repeat the ids of calls, and a call is asked about twice if its outcome is unknown. */
export const questionId = ({ run, call, ask }: Question): string => `${run}/${call.id}/${Date.parse(ask.expiresAt ?? ask.askedAt ?? "")}`;

let given: ReadonlyMap<string, Given> = new Map();
const waiting = new Map<string, { timer: ReturnType<typeof setTimeout>; send: () => void }>();
const listeners = new Set<() => void>();

function put(id: string, g: Given | undefined): void {
	const next = new Map(given);
	if (g) next.set(id, g);
	else next.delete(id);
	given = next;
	for (const f of listeners) f();
}

/**
 * Gives an answer; `deliver` sends it, and `onFailed` is called once it is noted that this failed. Without
 * effect if the question has one already.
 */
export function giveAnswer(
	id: string,
	answer: Answer,
	deliver: (answer: Answer) => Promise<unknown>,
	onFailed?: (e: unknown) => void,
): void {
	if (isAnswered(given.get(id))) return;
	const send = () => {
		put(id, { answer, state: "sending" });
		deliver(answer).then(
			() => put(id, { answer, state: "sent" }),
			(e) => {
				put(id, { answer, state: "failed", error: e instanceof Error ? e.message : String(e) });
				onFailed?.(e);
			},
		);
	};
	waiting.set(id, { timer: setTimeout(() => sendAnswer(id), grace), send });
	put(id, { answer, state: "waits" });
}

/** Sends an answer that waits. */
export function sendAnswer(id: string): void {
	const w = stopWaiting(id);
	w?.send();
}

/** Takes back an answer that waits; false if none does. */
export function takeBackAnswer(id: string): boolean {
	if (!stopWaiting(id)) return false;
	put(id, undefined);
	return true;
}

/** Forgets an answer that was not accepted, once it was shown. */
export function forgetFailure(id: string): void {
	if (given.get(id)?.state === "failed") put(id, undefined);
}

// A page that closes sends what waits.
globalThis.addEventListener?.("pagehide", () => {
	for (const id of waiting.keys()) sendAnswer(id);
});

function stopWaiting(id: string) {
	const w = waiting.get(id);
	clearTimeout(w?.timer);
	waiting.delete(id);
	return w;
}

export const isAnswered = (g: Given | undefined): boolean => g !== undefined && g.state !== "failed";

export const answersGiven = (): ReadonlyMap<string, Given> => given;

const subscribe = (f: () => void) => {
	listeners.add(f);
	return () => listeners.delete(f);
};

/** The answers that were given on this page, by the ids of their questions. */
export const useAnswers = (): ReadonlyMap<string, Given> => useSyncExternalStore(subscribe, answersGiven);

/** Sends an answer to the server, also if the page closes meanwhile. */
export const decide = ({ api }: Client, session: string, { run, call, ask }: Question, answer: Answer) =>
	unwrap(
		api.POST("/api/sessions/{id}/approvals/{tool_call_id}", {
			params: { path: { id: session, tool_call_id: call.id } },
			keepalive: true,
			body: { ...answer, ...(run ? { run_id: run } : {}), ...(ask.askedAt ? { asked_at: ask.askedAt } : {}) },
		}),
	);
