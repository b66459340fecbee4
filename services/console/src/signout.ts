import { SignalboxError } from "@signalbox/client";
import { everywhere, unwrap } from "./client.ts";
import { forgetAll } from "./document/kept.ts";

/**
 * Ends this browser's session, and shows the sign-in with nothing of it in memory. If it fails, the
 * error says what to do.
 */
export async function signOut(): Promise<void> {
	await unwrap(everywhere.api.POST("/api/sign-out")).catch((e: unknown) => {
		if (e instanceof SignalboxError && e.status === 401) return; // the session has ended already
		const why = e instanceof SignalboxError && e.status > 0 ? e.message : "The server could not be reached.";
		throw new Error(
			`${why} You are still signed in here. Sign out again when the line is back, or end this browser from another one: Workspace, Keys and browsers.`,
		);
	});
	forgetAll();
	location.assign("/sign-in");
}

/** Where a person was who has to sign in, and to where they come back. */
export const place = {
	keep(): void {
		try {
			sessionStorage.setItem("place", location.pathname + location.search + location.hash);
		} catch {
			// There is no room: they begin at the start.
		}
	},
	/** Returns it once. */
	take(): string | undefined {
		const kept = sessionStorage.getItem("place");
		sessionStorage.removeItem("place");
		return kept?.startsWith("/w/") ? kept : undefined;
	},
};
