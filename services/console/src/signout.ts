import { everywhere, unwrap } from "./client.ts";
import { forgetAll } from "./document/kept.ts";

/** Ends this browser's session, and shows the sign-in with nothing of it in memory. */
export async function signOut(): Promise<void> {
	await unwrap(everywhere.api.POST("/api/sign-out"));
	forgetAll();
	location.assign("/sign-in");
}
