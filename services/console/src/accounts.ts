import type { Schemas } from "@signalbox/client";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { unwrap, useWorkspace } from "./client.ts";
import { providerName } from "./words.ts";

export type Account = Schemas["Account"];
export type Pool = Schemas["Pool"];

/** What an account does now, as a row of the page says it. */
export type Now =
	| { is: "in use" | "ready" | "off" | "shared" | "resting" }
	/** It gets no requests until a time. `begun` is when that began; `family` limits it to some models. */
	| { is: "waiting"; begun: string; until: string; quota: boolean; family: string | null }
	/** A person has to do something. */
	| { is: "withdrawn" | "unusable"; why: string };

const justNow = 60_000;

/** Says what an account does now. */
export function nowOf(a: Account, now = Date.now()): Now {
	if (a.origin === "shared") return { is: "shared" };
	switch (a.status) {
		case "disabled":
			return { is: "off" };
		case "reauthorize":
		case "signed_out":
			return { is: "withdrawn", why: a.reason ?? "Sign in again." };
		case "unusable":
			return { is: "unusable", why: a.reason ?? "The stored credential cannot be opened." };
	}
	// The whole account counts first, then the one that is back last.
	const [parked] = a.cooldowns
		.filter((c) => !c.passed_over && Date.parse(c.until) > now)
		.sort((x, y) => Number(x.family !== null) - Number(y.family !== null) || Date.parse(y.until) - Date.parse(x.until));
	if (parked)
		return { is: "waiting", begun: parked.since, until: parked.until, quota: parked.reason === "QUOTA_EXHAUSTED", family: parked.family };
	if (a.status === "unhealthy") return { is: "resting" };
	return { is: a.last_used_at && now - Date.parse(a.last_used_at) < justNow ? "in use" : "ready" };
}

/** Reports whether an account could answer a request now. */
export function canAnswer(a: Account, now = Date.now()): boolean {
	const n = nowOf(a, now);
	return n.is === "in use" || n.is === "ready" || n.is === "resting" || n.is === "shared" || (n.is === "waiting" && n.family !== null);
}

/** What is wrong with an API key before anybody is asked, and what would be right; empty if nothing is. */
export function keyProblem(key: string, provider: string): string {
	const k = key.trim();
	if (!k) return "Paste the key.";
	if (/\s/.test(k)) return "A key has no spaces or line breaks. Copy it once more.";
	if (k.length > 8192) return "This is too long for a key: at most 8,192 characters.";
	const prefixes: [prefix: RegExp, of: string][] = [
		[/^sk-ant-/, "anthropic"],
		[/^sk-or-/, "openrouter"],
		[/^(gh[a-z]_|github_pat_)/, "github"],
		[/^ntn_/, "notion"],
		[/^sb_/, "signalbox"],
	];
	const of = prefixes.find(([p]) => p.test(k))?.[1];
	const known = prefixes.some(([, p]) => p === provider) || provider === "openai" || provider === "google";
	if (of === "signalbox") return "This is a key of Signalbox itself. Paste the provider’s key.";
	if (of && known && of !== provider) return `This looks like a key of ${providerName(of)}, not of ${providerName(provider)}.`;
	return "";
}

/** The workspace's accounts, its pools, and what the accounts have done. For owners. */
export function useAccounts() {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "accounts"],
		queryFn: async () => {
			const limit = { params: { query: { limit: 100 } } };
			const [accounts, pools, stats] = await Promise.all([
				unwrap(client.api.GET("/api/accounts", limit)),
				unwrap(client.api.GET("/api/pools", limit)),
				unwrap(client.api.GET("/api/accounts/stats", limit)),
			]);
			return {
				accounts: accounts.accounts as Account[],
				pools: pools.pools as Pool[],
				stats: stats.stats as Schemas["AccountStat"][],
				more: accounts.next_cursor !== null || stats.next_cursor !== null,
			};
		},
		refetchInterval: 10_000,
		enabled: workspace.role === "owner",
	});
}

/** Reads everything again that a change of accounts changes. */
export function useRefreshAccounts() {
	const { workspace } = useWorkspace();
	const queries = useQueryClient();
	return () =>
		Promise.all(["accounts", "models", "connections", "mcp"].map((key) => queries.invalidateQueries({ queryKey: [workspace.id, key] })));
}
