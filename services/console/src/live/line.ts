import type { Connection } from "@signalbox/client";
import { useSyncExternalStore } from "react";

/**
 * The page's connection to the server. Once it is back, `away` says for a while how many ms it was lost, and `missed` how
 * many events came meanwhile, if that is known.
 */
export type Line = { state: "open"; away?: number; missed?: number } | Extract<Connection, { state: "lost" }>;

/** Shorter losses, such as when a server hands over to another one, are not worth a word. */
const worthSaying = 2_000;
/** How long it is said. */
const said = 8_000;

let current: Line = { state: "open" };
let lostAt = 0;
let silent: ReturnType<typeof setTimeout>;
const listeners = new Set<() => void>();

function put(l: Line): void {
	clearTimeout(silent);
	current = l;
	for (const f of listeners) f();
}

export const line = {
	set(c: Connection): void {
		if (c.state === "lost") {
			if (current.state === "open") lostAt = Date.now();
			put(c);
		} else if (current.state === "lost") {
			const away = Date.now() - lostAt;
			put(away < worthSaying ? { state: "open" } : { ...c, away });
			if (away >= worthSaying) silent = setTimeout(() => put({ state: "open" }), said);
		}
	},
	/** The page follows nothing any more. */
	leave: (): void => put({ state: "open" }),
	get: (): Line => current,
	subscribe(f: () => void): () => void {
		listeners.add(f);
		return () => listeners.delete(f);
	},
};

export const useLine = (): Line => useSyncExternalStore(line.subscribe, line.get);
