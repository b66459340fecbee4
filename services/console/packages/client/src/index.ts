/**
 * Signalbox's API for browsers and Node.
 *
 * `createClient` returns typed requests for every operation of the gateway (`client.api`, made by
 * openapi-fetch from the gateway's OpenAPI document) and event streams that resume by themselves
 * (`client.sessionEvents`, `client.runEvents`).
 */
import createApi, { type Client as Api } from "openapi-fetch";
import { SignalboxError } from "./error.ts";
import { type FollowOptions, follow, type StreamedEvent } from "./events.ts";
import type { components, paths } from "./openapi.ts";

export { SignalboxError } from "./error.ts";
export type { Connection, FollowOptions, StreamedEvent } from "./events.ts";

/** The types of the API's bodies, by name: `Schemas["Session"]`. */
export type Schemas = components["schemas"];

/** One event of a session or a run; `type` tells which. */
export type SignalboxEvent = Schemas["Event"];

export interface ClientOptions {
	/** The gateway's address, such as https://signalbox.example. Default: the page's own origin. */
	url?: string;
	/** The workspace's id. An API key implies its workspace. */
	workspace?: string;
	/**
	 * An access token or an API key, or a function that returns one and is called for each request.
	 * Without it the browser's session cookie authenticates.
	 */
	token?: string | (() => string | Promise<string>);
	/** Default: the global fetch. */
	fetch?: typeof fetch;
}

export interface Client {
	/** Typed requests: `client.api.GET("/api/sessions/{id}", {params: {path: {id}}})`. */
	api: Api<paths>;
	/**
	 * Yields a session's events until `signal` aborts, across lost connections, after `after`: the
	 * `last_event_id` of the session that you have read. Without it the session is read for that.
	 */
	sessionEvents(session: string, options?: FollowOptions): AsyncGenerator<StreamedEvent>;
	/** Yields a run's events, from its beginning or after `after`, and ends with the run. */
	runEvents(run: string, options?: FollowOptions): AsyncGenerator<StreamedEvent>;
	/**
	 * Yields the document of a share link, now and at each change, until `signal` aborts. `token` of the
	 * client is the link's secret, the last part of its path. A link that does not work throws a 404.
	 */
	sharedDocument(options?: Omit<FollowOptions, "after">): AsyncGenerator<Schemas["SharedDocumentEvent"]>;
}

/** Returns a client. It makes no request by itself. */
export function createClient(options: ClientOptions = {}): Client {
	const baseUrl = (options.url ?? globalThis.location?.origin ?? "").replace(/\/$/, "");
	const send = options.fetch ?? globalThis.fetch;
	const authorized = async (request: Request): Promise<Response> => {
		if (options.workspace && !request.headers.has("X-Workspace-Id")) request.headers.set("X-Workspace-Id", options.workspace);
		const token = typeof options.token === "function" ? await options.token() : options.token;
		if (token) request.headers.set("Authorization", `Bearer ${token}`);
		return send(request);
	};
	const open = (path: string) => (after: string | undefined, signal: AbortSignal) => {
		const headers = new Headers({ Accept: "text/event-stream" });
		if (after) headers.set("Last-Event-ID", after);
		return authorized(new Request(baseUrl + path, { headers, signal, cache: "no-store" }));
	};
	const api = createApi<paths>({ baseUrl, fetch: authorized });
	return {
		api,
		sessionEvents: (session, o) => {
			const stream = open(`/api/sessions/${encodeURIComponent(session)}/events`);
			let start: string | undefined;
			return follow(async (after, signal) => {
				// A stream that is cut before its first event has no other id to go on after.
				if (!after) start ??= await lastEvent(api, session, signal);
				return stream(after ?? start, signal);
			}, o);
		},
		runEvents: (run, o) => follow(open(`/api/runs/${encodeURIComponent(run)}/events`), o, true),
		async *sharedDocument(o) {
			for await (const { event } of follow(open("/api/shared/events"), o)) yield event as unknown as Schemas["SharedDocumentEvent"];
		},
	};
}

async function lastEvent(api: Api<paths>, id: string, signal: AbortSignal): Promise<string> {
	const { data, error, response } = await api.GET("/api/sessions/{id}", { params: { path: { id }, query: { limit: 1 } }, signal });
	if (!data) throw SignalboxError.of(error, response);
	return data.last_event_id;
}
