import { expect, test } from "vitest";
import { failureOf } from "./failure.ts";

const wentOn = "The agent went on without it.";

test.each([
	[
		{ code: "NOT_CONNECTED", service: "notion" },
		{
			title: "Notion is not connected.",
			text: wentOn,
			remedy: { does: "connect", provider: "notion", again: false, label: "Connect Notion" },
		},
	],
	[
		{ code: "CONNECTION_REFUSED", service: "notion", reason: "API token is invalid." },
		{
			title: "Notion no longer accepts our sign-in.",
			text: `API token is invalid. ${wentOn}`,
			remedy: { does: "connect", provider: "notion", again: true, label: "Connect Notion again" },
		},
	],
	[
		{ code: "CONNECTION_DISABLED", service: "google" },
		{
			title: "An owner has disabled the connection to Google.",
			text: wentOn,
			remedy: { does: "accounts", label: "See accounts" },
		},
	],
	[
		{ code: "RATE_LIMITED", service: "notion", reason: "slow down; try again in 30s" },
		{
			title: "Notion takes no more requests for now.",
			text: "Slow down; try again in 30s.",
			remedy: { does: "accounts", label: "See accounts" },
		},
	],
	[
		{ code: "NEEDS_SIGN_IN", server: "tracker", reason: "an owner has to sign in to it" },
		{
			title: "The MCP server tracker wants a sign-in.",
			text: `An owner has to sign in to it. ${wentOn}`,
			remedy: { does: "server", server: "tracker", label: "Sign in to tracker", owners: true },
		},
	],
	[
		{ code: "SERVER_UNAVAILABLE", server: "tracker", reason: "it does not answer in time" },
		{
			title: "The MCP server tracker cannot be used.",
			text: `It does not answer in time. ${wentOn}`,
			remedy: { does: "server", server: "tracker", label: "Open tracker", owners: false },
		},
	],
	[
		{ code: "DEFINITION_CHANGED", server: "tracker" },
		{
			title: "The MCP server tracker has changed this tool.",
			text: `It cannot be used until somebody has approved what it says now. ${wentOn}`,
			remedy: { does: "server", server: "tracker", label: "Open tracker", owners: false },
		},
	],
	[
		{ code: "UNAVAILABLE", reason: "Notion is not set up: no client id" },
		{ title: "It cannot be used.", text: `Notion is not set up: no client id. ${wentOn}` },
	],
	[{ code: "OF_A_LATER_VERSION" }, { title: "It failed.", text: "the sentence for the model" }],
])("%j", (cause, want) => {
	expect(failureOf({ error: "the sentence for the model", ...cause })).toEqual(want);
});

test("an error that was stored without a code is shown as it is", () => {
	const error = "Notion is not connected: a person connects it at /api/connections";
	expect(failureOf({ error })).toEqual({ title: "It failed.", text: error });
});

test("a result of another form with a code is understood", () => {
	const result = { ok: false, error_type: "api_error", message: "Failed to read file", code: "NOT_CONNECTED", service: "github" };
	expect(failureOf(result)?.title).toBe("GitHub is not connected.");
});

test("a result that is no error has no failure", () => {
	for (const result of ["Notion is not connected: a person", { ok: 1 }, null, undefined, [1]]) expect(failureOf(result)).toBeUndefined();
});
