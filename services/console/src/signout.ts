import { everywhere, unwrap } from "./client.ts";

/** Ends this browser's session, and shows the sign-in with nothing of it in memory. */
export async function signOut(): Promise<void> {
	await unwrap(everywhere.api.POST("/api/sign-out"));
	location.assign("/sign-in");
}
