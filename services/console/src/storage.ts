/**
 * What the browser keeps for its person. What it refuses to take, because its storage is full, is
 * there until the page closes.
 */
const refused = new Map<string, string>();
const listeners = new Set<() => void>();

export const storage = {
	get: (key: string): string | null => refused.get(key) ?? localStorage.getItem(key),
	set(key: string, text: string): void {
		try {
			localStorage.setItem(key, text);
			refused.delete(key);
		} catch {
			refused.set(key, text);
		}
		tell();
	},
	remove(key: string): void {
		localStorage.removeItem(key);
		refused.delete(key);
		tell();
	},
	/** Removes all whose keys match. */
	clear(keys: RegExp): void {
		for (const key of [...Object.keys(localStorage), ...refused.keys()]) if (keys.test(key)) storage.remove(key);
	},
};

/** The keys of what a person wrote and has not sent. */
export const written = /^(draft|unsent):/;

/** Whether something that the person wrote is lost when the page closes. */
export const losesWords = (): boolean => [...refused.keys()].some((key) => written.test(key));

/** Calls f when losesWords may have changed, until the function that it returns is called. */
export function onLosesWords(f: () => void): () => void {
	listeners.add(f);
	return () => listeners.delete(f);
}

function tell(): void {
	for (const f of listeners) f();
}
