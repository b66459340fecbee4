import { expect, test } from "vitest";
import { failureOf } from "./failure.ts";

test.each([
	[
		"notion_read cannot be used: Notion is not connected (a person can connect it at /api/connections)",
		{ title: "Notion is not connected.", remedy: { to: "connections", label: "Connect Notion", owners: false } },
	],
	["Notion is not connected: a person connects it at /api/connections", { title: "Notion is not connected." }],
	[
		"notion_read cannot be used: Notion has to be connected again: the sign-in was withdrawn (a person can connect it at /api/connections)",
		{
			title: "Notion has to be connected again.",
			text: "The sign-in was withdrawn. The agent went on without it.",
			remedy: { to: "connections", label: "Connect Notion again", owners: false },
		},
	],
	[
		"Notion no longer accepts the connection: API token is invalid.; a person connects it again at /api/connections",
		{
			title: "Notion no longer accepts our sign-in.",
			text: "API token is invalid. The agent went on without it.",
			remedy: { to: "connections", label: "Connect Notion again", owners: false },
		},
	],
	["Notion no longer accepts the connection; a person connects it again at /api/connections", { text: "The agent went on without it." }],
	[
		"calendar_list_events cannot be used: an owner has disabled the connection to Google Calendar",
		{
			title: "An owner has disabled the connection to Google Calendar.",
			remedy: { to: "accounts", label: "See accounts", owners: true },
		},
	],
	[
		"Notion takes no more requests for now: slow down; try again in 30s",
		{
			title: "Notion takes no more requests for now.",
			text: "Slow down; try again in 30s.",
			remedy: { to: "accounts", label: "See accounts", owners: true },
		},
	],
	[
		"the MCP server tracker refuses the call: an owner has to sign in to it; do without it",
		{
			title: "The MCP server tracker wants a sign-in.",
			text: "An owner has to sign in to it. The agent went on without it.",
			remedy: { to: "connections", label: "Sign in to tracker", owners: true },
		},
	],
	[
		"mcp__tracker__list cannot be used: the MCP server tracker cannot be used: it timed out",
		{
			title: "The MCP server tracker cannot be used: it timed out.",
			remedy: { to: "connections", label: "See MCP servers", owners: false },
		},
	],
	["the MCP server tracker refuses the call: no such issue", { title: "It failed." }],
	[
		"notion_read cannot be used: Notion is not set up: no client id",
		{ title: "It cannot be used.", text: "Notion is not set up: no client id. The agent went on without it." },
	],
	["notion_read did not end in time", { title: "It failed.", text: "notion_read did not end in time" }],
])("%s", (error, want) => {
	expect(failureOf({ error })).toMatchObject(want);
});

test("a result that is no error has no failure", () => {
	for (const result of ["Notion is not connected: a person", { ok: 1 }, null, undefined, [1]]) expect(failureOf(result)).toBeUndefined();
});
