import { createParser } from "eventsource-parser";
import { SignalboxError } from "./error.ts";
import type { components } from "./openapi.ts";

/** An event, and the id after which a later stream goes on. */
export interface StreamedEvent {
	id: string;
	event: components["schemas"]["Event"];
}

/**
 * What the stream's connection does now. `missed` is how many events come at once that were there before, if it goes on
 * after an event and that is known.
 */
export type Connection = { state: "open"; missed?: number } | { state: "lost"; error: SignalboxError; retryAt: number };

export interface FollowOptions {
	/** The id of the last event that you have. */
	after?: string;
	/** Ends the stream. */
	signal?: AbortSignal;
	/** Called when the connection is made or lost. */
	onConnection?: (c: Connection) => void;
}

/** A gateway sends a heartbeat every 15 s; a connection without one is dead. */
const silence = 40_000;
const firstWait = 250;
const longestWait = 10_000;

/** Answers that another try would not change. */
const final = (status: number) => status >= 400 && status < 500 && status !== 408 && status !== 425 && status !== 429;

/**
 * Yields the events of a stream. A connection that is lost is made again after the last event that
 * was yielded, with growing waits; an answer that another try would not change is thrown.
 */
export async function* follow(
	open: (after: string | undefined, signal: AbortSignal) => Promise<Response>,
	options: FollowOptions = {},
	ends = false,
): AsyncGenerator<StreamedEvent> {
	const { signal, onConnection } = options;
	let after = options.after;
	let wait = firstWait;
	while (!signal?.aborted) {
		let failure: SignalboxError;
		try {
			for await (const e of connect(open, after, signal, onConnection)) {
				after = e.id || after;
				wait = firstWait;
				yield e;
				if (ends && (e.event.type === "done" || e.event.type === "error")) return;
			}
			failure = new SignalboxError("The server closed the stream.", 0);
		} catch (e) {
			if (signal?.aborted) return;
			failure = e instanceof SignalboxError ? e : new SignalboxError("The server could not be reached.", 0);
			if (final(failure.status)) throw failure;
			if (ends && failure.status === 204) return; // nothing is left
		}
		const pause = failure.retryAfter ?? wait * (0.5 + Math.random() / 2);
		wait = Math.min(wait * 2, longestWait);
		onConnection?.({ state: "lost", error: failure, retryAt: Date.now() + pause });
		await sleep(pause, signal);
	}
}

async function* connect(
	open: (after: string | undefined, signal: AbortSignal) => Promise<Response>,
	after: string | undefined,
	signal: AbortSignal | undefined,
	onConnection: FollowOptions["onConnection"],
): AsyncGenerator<StreamedEvent> {
	const watchdog = new AbortController();
	const cut = () => watchdog.abort();
	let timer = setTimeout(cut, silence);
	// A page learns of a lost network long before the silence tells it.
	globalThis.addEventListener?.("offline", cut);
	try {
		const response = await open(after, signal ? AbortSignal.any([signal, watchdog.signal]) : watchdog.signal);
		if (!response.ok || !response.body) throw await SignalboxError.from(response);
		const missed = response.headers.get("X-Missed-Events");
		onConnection?.({ state: "open", ...(missed ? { missed: Number(missed) } : {}) });
		const found: StreamedEvent[] = [];
		const parser = createParser({
			onEvent: (m) => found.push({ id: m.id ?? "", event: JSON.parse(m.data) as StreamedEvent["event"] }),
		});
		const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
		try {
			for (;;) {
				const { done, value } = await reader.read();
				if (done) return;
				clearTimeout(timer);
				timer = setTimeout(cut, silence);
				parser.feed(value);
				yield* found.splice(0);
			}
		} finally {
			void reader.cancel().catch(() => undefined);
		}
	} finally {
		clearTimeout(timer);
		globalThis.removeEventListener?.("offline", cut);
	}
}

/** Waits, or less: until the signal aborts, the page is shown again, or the network is back. */
function sleep(ms: number, signal?: AbortSignal): Promise<void> {
	return new Promise((resolve) => {
		const done = () => {
			clearTimeout(timer);
			signal?.removeEventListener("abort", done);
			globalThis.removeEventListener?.("online", done);
			resolve();
		};
		const timer = setTimeout(done, ms);
		signal?.addEventListener("abort", done, { once: true });
		globalThis.addEventListener?.("online", done, { once: true });
	});
}
