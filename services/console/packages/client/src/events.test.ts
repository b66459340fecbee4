import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, test } from "vitest";
import { createClient, SignalboxError } from "./index.ts";

const servers: Server[] = [];
afterEach(() => {
	for (const s of servers.splice(0)) {
		s.closeAllConnections();
		s.close();
	}
});

/** Serves each stream by the next of the given functions; the last one serves the rest. The session is at event 1-0. */
async function serve(...answers: ((res: ServerResponse, after: string | undefined) => void)[]) {
	const seen: (string | undefined)[] = [];
	const server = createServer((req, res) => {
		if (!req.url?.endsWith("/events")) return res.writeHead(200, { "Content-Type": "application/json" }).end('{"last_event_id":"1-0"}');
		const after = req.headers["last-event-id"]?.toString();
		seen.push(after);
		(answers[seen.length - 1] ?? answers.at(-1))?.(res, after);
	});
	servers.push(server);
	await new Promise<void>((r) => server.listen(0, "127.0.0.1", r));
	return { client: createClient({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, token: "t" }), seen };
}

const head = (res: ServerResponse) => res.writeHead(200, { "Content-Type": "text/event-stream" });
const event = (n: number, type = "text-delta") => `event: ${type}\ndata: {"type":"${type}","delta":"${n}"}\nid: 1-${n}\n\n`;

test("a stream that is cut goes on after its last event, wherever it was cut", async () => {
	const whole = [1, 2, 3].map((n) => event(n)).join("") + event(4, "done");
	const cuts = Array.from({ length: Math.ceil(whole.length / 7) }, (_, i) => i * 7);
	const read = async (cut: number) => {
		const { client } = await serve(
			(res) => {
				head(res).write(whole.slice(0, cut), () => res.destroy());
			},
			(res, after) => {
				const seen = Number(after?.split("-")[1] ?? 0);
				const rest = [1, 2, 3].filter((n) => n > seen).map((n) => event(n));
				head(res).end(rest.join("") + event(4, "done"));
			},
		);
		const ids: string[] = [];
		for await (const e of client.runEvents("r")) ids.push(e.id);
		return ids;
	};
	const all = await Promise.all(cuts.map(read));
	for (const [i, ids] of all.entries()) expect(ids, `cut at ${cuts[i]}`).toEqual(["1-1", "1-2", "1-3", "1-4"]);
});

test("a run's stream ends if there is nothing after the last event", async () => {
	const { client, seen } = await serve((res) => res.writeHead(204).end());
	for await (const _ of client.runEvents("r", { after: "1-4" }));
	expect(seen).toEqual(["1-4"]);
});

test("a session's stream that is cut before its first event loses none", async () => {
	const { client, seen } = await serve(
		(res) => {
			head(res).write(":\n\n", () => res.destroy());
		},
		(res, after) => head(res).write(after ? event(1) + event(2) : event(2)),
	);
	const ids: string[] = [];
	for await (const e of client.sessionEvents("s")) if (ids.push(e.id) === 1) break;
	expect(ids).toEqual(["1-1"]);
	expect(seen).toEqual(["1-0", "1-0"]);
});

test("an answer that another try would not change is thrown", async () => {
	const { client, seen } = await serve((res) =>
		res.writeHead(403, { "Content-Type": "application/json" }).end('{"error":"not yours","code":"NOT_A_MEMBER"}'),
	);
	const read = async () => {
		for await (const _ of client.sessionEvents("s")) break;
	};
	await expect(read()).rejects.toMatchObject({ name: "SignalboxError", status: 403, code: "NOT_A_MEMBER", message: "not yours" });
	expect(seen).toHaveLength(1);
});

test("a busy server is asked again when it said, and the page is told", async () => {
	const { client } = await serve(
		(res) => res.writeHead(429, { "Retry-After": "0.05" }).end('{"error":"wait"}'),
		(res) => head(res).end(event(1, "done")),
	);
	const told: string[] = [];
	for await (const _ of client.runEvents("r", { onConnection: (c) => told.push(c.state) }));
	expect(told).toEqual(["lost", "open"]);
});

test("a page is told how much it missed, if that is known", async () => {
	const { client } = await serve(
		(res) => head(res).end(event(1)),
		(res) => {
			res.setHeader("X-Missed-Events", "2");
			head(res).end(event(2) + event(3));
		},
		(res) => {
			res.setHeader("X-Missed-Events", "0");
			head(res).end(event(4, "done"));
		},
	);
	const told: unknown[] = [];
	for await (const _ of client.runEvents("r", { onConnection: (c) => c.state === "open" && told.push(c) }));
	expect(told).toEqual([{ state: "open" }, { state: "open", missed: 2 }, { state: "open", missed: 0 }]);
});

test("aborting ends the stream without an error", async () => {
	const { client } = await serve((res) => head(res).write(event(1)));
	const stop = new AbortController();
	const ids: string[] = [];
	for await (const e of client.sessionEvents("s", { signal: stop.signal })) {
		ids.push(e.id);
		stop.abort();
	}
	expect(ids).toEqual(["1-1"]);
});

test("errors tell what was wrong", () => {
	const e = SignalboxError.of({ error: "no", code: "X" }, new Response("", { status: 400 }));
	expect(e).toMatchObject({ message: "no", code: "X", status: 400 });
	expect(SignalboxError.of(undefined, new Response("", { status: 502 })).message).toBe("The server answered 502.");
});
