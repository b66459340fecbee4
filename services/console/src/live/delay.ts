import { useSyncExternalStore } from "react";

let current: number | undefined;
const listeners = new Set<() => void>();

/** Awaits a light request, and notes how long its answer took. One that fails says nothing of the line's delay. */
export async function timed<T>(request: Promise<T>): Promise<T> {
	const began = performance.now();
	const answer = await request;
	current = Math.max(1, Math.round(performance.now() - began));
	for (const f of listeners) f();
	return answer;
}

function subscribe(f: () => void): () => void {
	listeners.add(f);
	return () => listeners.delete(f);
}

/** How many ms the last light request and its answer took; undefined before the first one. */
export const useDelay = (): number | undefined => useSyncExternalStore(subscribe, () => current);
