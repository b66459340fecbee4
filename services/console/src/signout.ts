import { SignalboxError } from "@signalbox/client";
import { everywhere, unwrap } from "./client.ts";
import { begin, forgetAll } from "./document/kept.ts";

/** Ends this browser's session, and shows the sign-in with nothing of it in memory. */
export async function signOut(): Promise<void> {
	await unwrap(everywhere.api.POST("/api/sign-out")).catch((e: unknown) => {
		if (!(e instanceof SignalboxError && e.status === 401)) throw e; // otherwise the session has ended already
	});
	forgetAll();
	location.assign("/sign-in");
}

/** Keeps drafts from now on, and deletes those and the unsent messages that are not of the person who has signed in. */
export function keepFor(person: string): void {
	begin();
	const before = localStorage.getItem("person");
	if (before && before !== person)
		for (const key of Object.keys(localStorage)) if (/^(draft|unsent):/.test(key)) localStorage.removeItem(key);
	localStorage.setItem("person", person);
}

/** Where a person was who has to sign in, and to where they come back. */
export const place = {
	keep: (): void => sessionStorage.setItem("place", location.pathname + location.search + location.hash),
	/** Returns it once. */
	take(): string | undefined {
		const kept = sessionStorage.getItem("place");
		sessionStorage.removeItem("place");
		return kept?.startsWith("/w/") ? kept : undefined;
	},
};
