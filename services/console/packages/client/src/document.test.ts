import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { connectDocument, type TokenFailure } from "./document.ts";

/** The sockets that were opened, each with what the server can do to it. */
const sockets: { url: string; onclose?: (e: { code: number }) => void; close(): void }[] = [];
class Socket {
	onclose?: (e: { code: number }) => void;
	constructor(readonly url: string) {
		sockets.push(this);
	}
	send() {}
	close() {
		this.onclose?.({ code: 1006 });
	}
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
	sockets.length = 0;
	vi.useRealTimers();
});

const options = { url: "http://localhost", WebSocket: Socket as unknown as typeof WebSocket };

test("a token function that fails is called again after growing pauses", async () => {
	let works = false;
	const calls: number[] = [];
	const failures: TokenFailure[] = [];
	const connection = connectDocument("1", {
		...options,
		token: async () => {
			calls.push(Date.now());
			if (!works) throw new Error("no network");
			return "a token";
		},
		onState: (state, failure) => {
			if (failure) failures.push(failure);
			expect(state).toBe("lost");
		},
	});
	await vi.advanceTimersByTimeAsync(600_000);
	const pauses = calls.slice(1).map((at, i) => at - (calls[i] ?? 0));
	for (const [i, pause] of pauses.entries()) {
		const most = Math.min(1_000 * 2 ** i, 30_000);
		expect(pause).toBeGreaterThanOrEqual(most / 2 - 1);
		expect(pause).toBeLessThanOrEqual(most + 1);
	}
	expect(pauses.length).toBeGreaterThan(20); // it does not give up
	expect(failures.map((f) => String(f.error))).toEqual(calls.map(() => "Error: no network"));
	expect(failures[3]?.retryAt).toBeCloseTo(calls[4] ?? 0, -1);

	works = true;
	await vi.advanceTimersByTimeAsync(30_000);
	expect(sockets.map((s) => s.url)).toEqual(["ws://localhost/ws/documents/1?token=a%20token"]);
	// The first failure after a success has a short pause again, though the provider connects meanwhile.
	works = false;
	const before = calls.length;
	sockets[0]?.onclose?.({ code: 4401 });
	await vi.advanceTimersByTimeAsync(20_000);
	expect(calls.length - before).toBeGreaterThanOrEqual(5);
	expect(calls.length - before).toBeLessThanOrEqual(6);
	connection.close();
	const last = calls.length;
	await vi.advanceTimersByTimeAsync(60_000);
	expect(calls.length).toBe(last);
});

test("a failure is reported only if no connection is made without a new token", async () => {
	let fail = (_: Error) => {};
	const token = vi.fn(() => new Promise<string>((_, reject) => (fail = reject))).mockImplementationOnce(async () => "first");
	const states: [state: string, failure?: TokenFailure | undefined][] = [];
	const connection = connectDocument("1", { ...options, token, onState: (...state) => states.push(state) });
	await vi.advanceTimersByTimeAsync(0);
	for (let i = 0; i < 3; i++) {
		sockets.at(-1)?.close();
		await vi.advanceTimersByTimeAsync(2_500); // the provider connects with the first token
	}
	expect(token).toHaveBeenCalledTimes(2); // the second call has not ended
	connection.provider.emit("sync", [true]);
	fail(new Error("no network"));
	await vi.advanceTimersByTimeAsync(0);
	expect(states.at(-1)).toEqual(["live"]);

	await vi.advanceTimersByTimeAsync(1_000);
	sockets.at(-1)?.close();
	await vi.advanceTimersByTimeAsync(2_500);
	sockets.at(-1)?.onclose?.({ code: 4401 }); // now it takes a new token
	expect(token).toHaveBeenCalledTimes(3);
	fail(new Error("still none"));
	await vi.advanceTimersByTimeAsync(0);
	expect(states.at(-1)?.[0]).toBe("lost");
	const retryAt = states.at(-1)?.[1]?.retryAt ?? 0;
	await vi.advanceTimersByTimeAsync(retryAt - Date.now() - 2);
	expect(token).toHaveBeenCalledTimes(3);
	await vi.advanceTimersByTimeAsync(4);
	expect(token).toHaveBeenCalledTimes(4);
	connection.close();
});

test("connections that are lost do not call a failing token function more often", async () => {
	const token = vi.fn(async () => Promise.reject(new Error("no network"))).mockImplementationOnce(async () => "first" as never);
	const connection = connectDocument("1", { ...options, token });
	await vi.advanceTimersByTimeAsync(0);
	for (let i = 0; i < 120; i++) {
		sockets.at(-1)?.close();
		await vi.advanceTimersByTimeAsync(2_500); // the longest pause of the provider
	}
	expect(sockets.length).toBeGreaterThan(60);
	expect(token.mock.calls.length).toBeLessThan(30);
	connection.close();
});
