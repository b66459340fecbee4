import { useMutation } from "@tanstack/react-query";
import { Ellipsis, Plus, Shield } from "lucide-react";
import { type ReactNode, useState } from "react";
import { type Account, canAnswer, nowOf, type Pool, useAccounts, useRefreshAccounts } from "../accounts.ts";
import { unwrap, useWorkspace } from "../client.ts";
import { AddAccount } from "../parts/AddAccount.tsx";
import { Countdown, Ring, useNow } from "../parts/Clock.tsx";
import { Blank, Button, Icon, IconButton, Segments, Tag } from "../parts/controls.tsx";
import { Confirm, Dialog } from "../parts/Dialog.tsx";
import { Bar, Loaded, Page, pageCss, Refused, Table } from "../parts/page.tsx";
import { Signal } from "../parts/Signal.tsx";
import { ago, count, money, providerName, sentence, until } from "../words.ts";
import css from "./accounts.module.css";

type Data = NonNullable<ReturnType<typeof useAccounts>["data"]>;

/** Which credentials the workspace's agents spend. */
export function AccountsPage() {
	const accounts = useAccounts();
	const [adding, setAdding] = useState<{ again?: Account } | undefined>();
	return (
		<Page
			title="Accounts"
			access="owner"
			about="Which credentials this workspace’s agents spend, and how the next one is chosen. Secrets are sealed and never shown again."
			actions={
				<Button look="primary" icon={Plus} onClick={() => setAdding({})}>
					Add account
				</Button>
			}
		>
			<Loaded query={accounts}>
				{(data) => {
					const providers = [...new Set([...data.accounts.map((a) => a.provider)])];
					return (
						<div className="grid grid-cols-1 gap-5">
							{data.accounts.length === 0 && (
								<Blank line="open" title="No account yet">
									Add a key or a sign-in of a model provider. Until then the operator’s shared pool answers, or the simulated model.
								</Blank>
							)}
							{providers.map((p) => (
								<PoolCard
									key={p}
									provider={p}
									pool={data.pools.find((x) => x.provider === p)}
									data={data}
									onSignIn={(again) => setAdding({ again })}
								/>
							))}
							{data.accounts.length > 0 && (
								<p className="flex items-start gap-2 text-small text-ink-3">
									<Icon of={Shield} />
									{data.more
										? "Only the first hundred accounts are shown."
										: "Runs that ask for a provider without an account here use the operator’s shared pool, if there is one."}
								</p>
							)}
						</div>
					);
				}}
			</Loaded>
			{adding && <AddAccount {...adding} onClose={() => setAdding(undefined)} />}
		</Page>
	);
}

type Strategy = "sticky" | "round-robin" | "hybrid";

const strategies: Record<Strategy, [name: string, about: (p: Pool) => string]> = {
	sticky: ["Sticky", () => "stays with one account until it cannot be used, so that the provider’s prompt cache is kept."],
	"round-robin": ["Round robin", () => "takes the accounts in turn."],
	hybrid: [
		"Hybrid",
		(p) =>
			`scores health, bucket and rest, stays with the current account unless another one is clearly better, and leaves accounts under ${p.settings.min_usable ?? 50} alone.`,
	],
};

function PoolCard({
	provider,
	pool,
	data,
	onSignIn,
}: {
	provider: string;
	pool: Pool | undefined;
	data: Data;
	onSignIn: (a: Account) => void;
}) {
	const { client } = useWorkspace();
	const refresh = useRefreshAccounts();
	const now = useNow();
	const [open, setOpen] = useState<string>();
	const accounts = data.accounts.filter((a) => a.provider === provider);
	const able = accounts.filter((a) => canAnswer(a, now)).length;
	const next = accounts
		.map((a) => nowOf(a, now))
		.filter((n) => n.is === "waiting" && n.family === null)
		.map((n) => (n.is === "waiting" ? n.until : ""))
		.sort()[0];
	const choose = useMutation({
		mutationFn: (strategy: Strategy) =>
			unwrap(client.api.PATCH("/api/pools/{provider}", { params: { path: { provider } }, body: { settings: { strategy } } })),
		onSuccess: refresh,
	});
	const strategy = (choose.isPending ? choose.variables : pool?.settings.strategy) as Strategy | undefined;
	const name = providerName(provider);
	const shown = accounts.find((a) => a.id === open);
	return (
		<section className={pageCss.card} aria-label={name}>
			<header className={css.pool}>
				<div className="flex-1">
					<h2 className="text-h3 font-bold">{name}</h2>
					<p className="text-small text-ink-2">
						<span className="n">
							{able} of {accounts.length}
						</span>{" "}
						can answer now.
						{next && (
							<>
								{" "}
								Next free account in <Countdown until={next} />.
							</>
						)}
					</p>
				</div>
				{pool && strategy && (
					<div className="flex flex-wrap items-center gap-2">
						<span className="text-small text-ink-2" aria-hidden="true">
							Strategy
						</span>
						<Segments
							label={`Strategy of ${name}`}
							value={strategy}
							options={(Object.keys(strategies) as Strategy[]).map((value) => ({ value, text: strategies[value][0] }))}
							onChange={(s) => choose.mutate(s)}
						/>
					</div>
				)}
			</header>
			<div className="px-4">
				<Refused error={choose.error} />
			</div>
			<div className={css.rows}>
				<Table label={`${name} accounts`} head={["Account", "Now", "Health", ["Own bucket", "wide"], ["So far", "right"], ["More", "sr"]]}>
					{accounts.map((a) => (
						<Row key={a.id} account={a} pool={pool} stats={data.stats} onMore={() => setOpen(a.id)} onSignIn={() => onSignIn(a)} />
					))}
				</Table>
			</div>
			{pool && strategy && (
				<p className={css.about}>
					<b className="font-mid text-ink">{strategies[strategy][0]}</b> {strategies[strategy][1](pool)}
				</p>
			)}
			{shown && (
				<More
					account={shown}
					onClose={() => setOpen(undefined)}
					onSignIn={() => {
						setOpen(undefined);
						onSignIn(shown);
					}}
				/>
			)}
		</section>
	);
}

const nameOf = (a: Account) => a.label || (a.grant ? "Sign-in" : "API key");

function kindOf(a: Account): string {
	if (a.origin === "shared") return "Of the operator, for all workspaces";
	if (a.grant)
		return a.grant.expires_at && a.grant.renewable && Date.parse(a.grant.expires_at) > Date.now()
			? `Sign-in · renews in ${until(a.grant.refresh_at ?? a.grant.expires_at)}`
			: "Sign-in";
	return a.hint ? `API key · ends in ${a.hint}` : "API key";
}

function Row({
	account: a,
	pool,
	stats,
	onMore,
	onSignIn,
}: {
	account: Account;
	pool: Pool | undefined;
	stats: Data["stats"];
	onMore: () => void;
	onSignIn: () => void;
}) {
	const mine = stats.filter((s) => s.account_id === a.id);
	const sum = (of: "requests" | "cost_micros") => mine.reduce((n, s) => n + s[of], 0);
	const n = nowOf(a, useNow());
	const least = pool?.settings.min_usable ?? 50;
	const broken = n.is === "withdrawn" || n.is === "unusable";
	return (
		<tr>
			<td>
				<span className={pageCss.pair}>
					<span className="font-mid">{nameOf(a)}</span>
					<span>{kindOf(a)}</span>
				</span>
			</td>
			{broken ? (
				<td colSpan={3}>
					<span className="flex flex-wrap items-center gap-2">
						<Signal name="failed" label="" />
						<span>{sentence(n.why)}</span>
						{n.is === "withdrawn" && (
							<Button small onClick={onSignIn}>
								Sign in again
							</Button>
						)}
					</span>
				</td>
			) : (
				<>
					<td>
						<State now={n} />
					</td>
					<td>
						{a.health === null ? (
							<span className="text-small text-ink-3">not counted</span>
						) : (
							<span className={css.health}>
								<Bar
									share={a.health}
									mark={least}
									label={`Health ${Math.round(a.health)} of 100, usable from ${least}`}
									tone={a.health < least ? "stop" : undefined}
								/>
								<span className="n text-small">{Math.round(a.health)}</span>
							</span>
						)}
					</td>
					<td className={`${pageCss.wide} n text-small`}>
						{a.tokens === null ? (
							<span className="text-ink-3">not counted</span>
						) : (
							`${Math.floor(a.tokens)} of ${pool?.settings.max_tokens ?? 50}`
						)}
					</td>
				</>
			)}
			<td className="n" data-right>
				<span className={pageCss.pair}>
					<span>{a.flat_rate ? "flat rate" : money(sum("cost_micros"))}</span>
					<span>{count(sum("requests"))} requests</span>
				</span>
			</td>
			<td data-right>{a.origin === "workspace" && <IconButton icon={Ellipsis} label={`More for ${nameOf(a)}`} onClick={onMore} />}</td>
		</tr>
	);
}

function State({ now }: { now: ReturnType<typeof nowOf> }): ReactNode {
	switch (now.is) {
		case "in use":
			return (
				<Tag tone="live" signal="running">
					In use
				</Tag>
			);
		case "ready":
			return <Tag signal="done">Ready</Tag>;
		case "resting":
			return (
				<Tag tone="wait" signal="parked">
					Rests, last choice
				</Tag>
			);
		case "off":
			return <Tag>Off</Tag>;
		case "shared":
			return <Tag>Shared</Tag>;
		case "waiting":
			return now.quota ? (
				<span className={pageCss.pair}>
					<span className="text-small font-mid text-stop">Quota used up</span>
					<span className="n">
						next try in {until(now.until)}
						{now.family && `, ${now.family}`}
					</span>
				</span>
			) : (
				<span className={pageCss.pair}>
					<Ring begun={now.begun} until={now.until} />
					{now.family && <span>for {now.family} only</span>}
				</span>
			);
		default:
			return null;
	}
}

/** What else is known about an account, and what can be done with it. */
function More({ account: a, onClose, onSignIn }: { account: Account; onClose: () => void; onSignIn: () => void }) {
	const { client } = useWorkspace();
	const refresh = useRefreshAccounts();
	const [removing, setRemoving] = useState(false);
	const params = { params: { path: { id: a.id } } };
	const act = useMutation({
		mutationFn: async (what: "switch" | "reset" | "refresh" | "logout" | "enable" | "disable" | "flat" | "paid"): Promise<void> => {
			if (what === "switch") await unwrap(client.api.POST("/api/accounts/{id}/switch", params));
			else if (what === "reset") await unwrap(client.api.POST("/api/accounts/{id}/reset", params));
			else if (what === "refresh") await unwrap(client.api.POST("/api/accounts/{id}/refresh", params));
			else if (what === "logout") await unwrap(client.api.POST("/api/accounts/{id}/logout", params));
			else
				await unwrap(
					client.api.PATCH("/api/accounts/{id}", {
						...params,
						body: what === "enable" || what === "disable" ? { enabled: what === "enable" } : { flat_rate: what === "flat" },
					}),
				);
		},
		onSettled: refresh,
	});
	const does = (what: Parameters<typeof act.mutate>[0]) => ({
		small: true,
		busy: act.isPending && act.variables === what,
		onClick: () => act.mutate(what),
	});
	if (removing)
		return (
			<Confirm
				title={`Remove “${nameOf(a)}”?`}
				action="Remove"
				onClose={() => setRemoving(false)}
				onConfirm={async () => {
					await unwrap(client.api.DELETE("/api/accounts/{id}", params));
					onClose();
					await refresh();
				}}
			>
				Its credential is destroyed{a.grant ? ", and withdrawn at the provider if that is possible" : ""}. Runs go on with another account,
				if there is one. What it spent stays in the audit and in usage.
			</Confirm>
		);
	const facts: [string, string][] = [
		["Provider", providerName(a.provider)],
		["Profile", a.profile],
		["Address", a.base_url ?? "the provider’s own"],
		["Added", ago(a.created_at)],
		["Last used", a.last_used_at ? ago(a.last_used_at) : "never"],
	];
	if (a.grant) facts.push(["Signed in", ago(a.grant.issued_at)], ["Scope", a.grant.scope ?? "not told"]);
	if (a.grant?.last_error) facts.push(["Last failure", a.grant.last_error]);
	return (
		<Dialog title={nameOf(a)} width={520} onClose={onClose}>
			<dl className={css.facts}>
				{facts.map(([k, v]) => (
					<div key={k}>
						<dt>{k}</dt>
						<dd>{v}</dd>
					</div>
				))}
			</dl>
			{a.cooldowns.length > 0 && (
				<ul className="grid gap-1 text-small text-ink-2">
					{a.cooldowns.map((c) => (
						<li key={`${c.family} ${c.reason}`}>
							{c.family ?? "All models"}: {c.passed_over ? "last choice" : "no requests"} for {until(c.until)},{" "}
							<span className="n">
								{c.reason}
								{c.http_status ? `, status ${c.http_status}` : ""}
							</span>
						</li>
					))}
				</ul>
			)}
			<Refused error={act.error} />
			<div className="flex flex-wrap gap-2">
				{a.enabled && <Button {...does("switch")}>Use this one now</Button>}
				<Button {...does("reset")}>Try again now</Button>
				{a.grant?.renewable && <Button {...does("refresh")}>Renew the sign-in</Button>}
				{a.grant && (
					<Button small onClick={onSignIn}>
						Sign in again
					</Button>
				)}
				<Button {...does(a.flat_rate ? "paid" : "flat")}>{a.flat_rate ? "Count its cost" : "It has a flat rate"}</Button>
				<Button {...does(a.enabled ? "disable" : "enable")}>{a.enabled ? "Turn off" : "Turn on"}</Button>
				{a.grant && a.grant.state === "active" && <Button {...does("logout")}>Sign out</Button>}
				<Button small look="danger" onClick={() => setRemoving(true)}>
					Remove
				</Button>
			</div>
		</Dialog>
	);
}
