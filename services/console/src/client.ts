import { type Client, createClient, type Schemas, SignalboxError } from "@signalbox/client";
import { createContext, use } from "react";
import { noteServerDate } from "./live/servertime.ts";

export type Workspace = Schemas["Workspace"];

/** The client of the workspace that the page shows, and the workspace. */
export const WorkspaceContext = createContext<{ client: Client; workspace: Workspace } | null>(null);

export function useWorkspace() {
	const c = use(WorkspaceContext);
	if (!c) throw new Error("a page outside of a workspace asked for it");
	return c;
}

export const useClient = (): Client => useWorkspace().client;

/** The client for what belongs to no workspace. */
export const everywhere = createClient();

/** Called when an answer says that nobody is signed in. */
export const signedOut = { tell: (): void => undefined };

/** Returns an answer's body, or throws its error. */
export async function unwrap<T>(request: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
	const { data, error, response } = await request.catch(() => {
		throw new SignalboxError("No connection: the server could not be reached.", 0);
	});
	noteServerDate(response.headers.get("Date"));
	if (response.status === 401) signedOut.tell();
	if (!response.ok) throw SignalboxError.of(error, response);
	return data as T;
}

/** A place in a list, as the API takes it. */
interface Place {
	limit: number;
	cursor?: string;
}

/** Reads all pages of a list that is short enough to be shown at once, until the signal is aborted. */
export async function allPages<P extends { next_cursor: string | null }>(
	signal: AbortSignal,
	read: (query: Place, signal: AbortSignal) => Promise<P>,
): Promise<P[]> {
	const pages: P[] = [];
	let cursor: string | null | undefined;
	do {
		signal.throwIfAborted();
		const page = await read(cursor ? { limit: 100, cursor } : { limit: 100 }, signal);
		pages.push(page);
		cursor = page.next_cursor;
	} while (cursor);
	return pages;
}

/**
 * The refetchInterval of a list that is read page by page: ms for its first page. All loaded pages are read
 * again at once, so that the interval grows with them.
 */
export const perPage =
	(ms: number) =>
	(query: { state: { data?: { pages: readonly unknown[] } | undefined } }): number =>
		ms * Math.max(1, query.state.data?.pages.length ?? 1);

/** The workspace's name in a path: readable, and unambiguous by the end of its id. */
export function slugOf(w: Workspace): string {
	const words = w.name
		.normalize("NFKD")
		.toLowerCase()
		.replaceAll(/[^a-z0-9]+/g, "-")
		.replaceAll(/^-|-$/g, "")
		.slice(0, 40);
	return `${words ? `${words}-` : ""}${w.id.slice(-8)}`;
}

/** Who is signed in. */
export const meQuery = {
	queryKey: ["me"],
	queryFn: () => unwrap(everywhere.api.GET("/api/me")),
	staleTime: Number.POSITIVE_INFINITY,
};
