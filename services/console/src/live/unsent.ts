import { storage } from "../storage.ts";

/** Messages that could not be sent, by session: they are sent when the line is back, also after a reload. */
export interface Unsent {
	/** Makes a repetition harmless: it is the request's Idempotency-Key. */
	key: string;
	text: string;
	mode: "queue" | "steer";
	at: string;
}

const name = (session: string) => `unsent:${session}`;

export const unsent = {
	read(session: string): Unsent[] {
		try {
			const kept: unknown = JSON.parse(storage.get(name(session)) ?? "[]");
			return Array.isArray(kept) ? (kept as Unsent[]).filter((u) => typeof u?.key === "string" && typeof u.text === "string") : [];
		} catch {
			return [];
		}
	},
	keep(session: string, u: Unsent): void {
		write(session, [...unsent.read(session).filter((x) => x.key !== u.key), u]);
	},
	forget(session: string, key: string): void {
		write(
			session,
			unsent.read(session).filter((x) => x.key !== key),
		);
	},
};

function write(session: string, all: readonly Unsent[]): void {
	if (all.length > 0) storage.set(name(session), JSON.stringify(all));
	else storage.remove(name(session));
}
