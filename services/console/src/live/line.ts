import type { Connection } from "@signalbox/client";
import { useSyncExternalStore } from "react";

/** The page's connection to the server, for the foot and the offline bar. */
let current: Connection = { state: "open" };
const listeners = new Set<() => void>();

export const line = {
	set(c: Connection): void {
		if (current.state === "open" && c.state === "open") return;
		current = c;
		for (const f of listeners) f();
	},
	get: (): Connection => current,
	subscribe(f: () => void): () => void {
		listeners.add(f);
		return () => listeners.delete(f);
	},
};

export const useLine = (): Connection => useSyncExternalStore(line.subscribe, line.get);
