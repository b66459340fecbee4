import type { Schemas } from "@signalbox/client";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { ChevronRight, Plus } from "lucide-react";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { newKey } from "../insecure.ts";
import { Button, Icon, Tag } from "../parts/controls.tsx";
import { Confirm, Dialog } from "../parts/Dialog.tsx";
import { Outside, Waiting } from "../parts/Elsewhere.tsx";
import { Field, Loaded, Page, pageCss, Refused, sentence, Table } from "../parts/page.tsx";
import { usePeople } from "../people.ts";
import { useTools } from "../tools.ts";
import { ago, providerName, since, toolWords } from "../words.ts";
import css from "./connections.module.css";

type Connection = Schemas["Connection"];
type Server = Schemas["McpServer"];

/** What tools may reach on the workspace's behalf. */
export function ConnectionsPage() {
	const { client, workspace } = useWorkspace();
	const connections = useConnections();
	const servers = useQuery({
		queryKey: [workspace.id, "mcp"],
		queryFn: () => unwrap(client.api.GET("/api/mcp-servers")).then((b) => b.mcp_servers as Server[]),
		refetchInterval: 15_000,
	});
	const [connecting, setConnecting] = useState<Connection>();
	const [leaving, setLeaving] = useState<Connection>();
	const [adding, setAdding] = useState(false);
	const [shown, setShown] = useState<string>();
	const queries = useQueryClient();
	const server = servers.data?.find((s) => s.id === shown);
	return (
		<Page
			title="Connections"
			access="editor"
			about="What tools may reach on your behalf. Disconnecting takes effect at once, also for runs that are going on."
		>
			<Loaded query={connections}>
				{(all) => (
					<div className={css.cards}>
						{all.map((c) => (
							<Card key={c.provider} connection={c} onConnect={() => setConnecting(c)} onLeave={() => setLeaving(c)} />
						))}
					</div>
				)}
			</Loaded>
			<header className="mt-8 mb-3 flex items-end gap-4">
				<h2 className="flex-1 text-h3 font-bold">MCP servers</h2>
				{workspace.role === "owner" && (
					<Button small icon={Plus} onClick={() => setAdding(true)}>
						Add server
					</Button>
				)}
			</header>
			<Loaded query={servers}>
				{(all) =>
					all.length === 0 ? (
						<p className="text-ink-2">No server yet. A server brings tools of its own; each is approved before an agent can use it.</p>
					) : (
						<>
							<div className={pageCss.card}>
								<Table label="MCP servers" head={["Server", "State", ["Tools", "right"], ["Asked", "wide"], ["More", "sr"]]}>
									{all.map((s) => (
										<ServerRow key={s.id} server={s} onOpen={() => setShown(s.id)} />
									))}
								</Table>
							</div>
							<p className="mt-2 text-small text-ink-3">A server that is down makes its tools unavailable. It does not fail a run.</p>
						</>
					)
				}
			</Loaded>
			<Tools />
			{connecting && <Connect connection={connecting} onClose={() => setConnecting(undefined)} />}
			{leaving && (
				<Confirm
					title={`Disconnect ${leaving.title}?`}
					action="Disconnect"
					onClose={() => setLeaving(undefined)}
					onConfirm={async () => {
						await unwrap(client.api.DELETE("/api/connections/{provider}", { params: { path: { provider: leaving.provider } } }));
						await queries.invalidateQueries({ queryKey: [workspace.id, "connections"] });
						await queries.invalidateQueries({ queryKey: [workspace.id, "tools"] });
					}}
				>
					Tools that need {leaving.title} are refused from now on, also in runs that are going on. What agents have read stays in their
					sessions.
				</Confirm>
			)}
			{adding && (
				<AddServer
					onClose={() => setAdding(false)}
					onAdded={(s) => {
						setAdding(false);
						setShown(s.id);
					}}
				/>
			)}
			{server && <ServerDialog server={server} onClose={() => setShown(undefined)} />}
		</Page>
	);
}

function useConnections() {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "connections"],
		queryFn: () => unwrap(client.api.GET("/api/connections")).then((b) => b.connections as Connection[]),
		refetchInterval: 15_000,
	});
}

const abouts: Record<string, string> = {
	google: "Calendar and tasks: agents read them, and change them after approval.",
	notion: "Pages: agents search and read them, and append to them after approval.",
	github: "One research repository, which agents look things up in. They only read.",
};

function Card({ connection: c, onConnect, onLeave }: { connection: Connection; onConnect: () => void; onLeave: () => void }) {
	const { workspace } = useWorkspace();
	const { me, nameOf } = usePeople();
	// A connection is changed by the member who made it, and by owners.
	const mine = workspace.role === "owner" || c.connected_by === me;
	const who =
		c.origin === "simulated"
			? "The simulator stands in"
			: c.origin === "shared"
				? "Shared by the operator"
				: c.origin === "account"
					? "An account of this workspace"
					: (c.subject ?? (c.connected_by ? `Connected by ${nameOf(c.connected_by)}` : "Nobody has connected it"));
	return (
		<section className={`${pageCss.card} ${css.connection}`} aria-label={c.title}>
			<header>
				<span className={css.mark} aria-hidden="true">
					{c.title.replaceAll(/[^A-Z]/g, "").slice(0, 2) || c.title.charAt(0)}
				</span>
				<div className="min-w-0 flex-1">
					<h2 className="text-h3 font-bold">{c.title}</h2>
					<p className="cut text-small text-ink-3">{who}</p>
				</div>
				<ConnectionState connection={c} />
			</header>
			<p className="text-small text-ink-2">{c.reason ? sentence(c.reason) : abouts[c.provider]}</p>
			<footer>
				{(c.state === "not_connected" || (c.state === "connected" && c.origin !== "member" && c.origin !== "account")) && (
					<Button small onClick={onConnect}>
						Connect{c.origin === "simulated" ? " the real one" : ""}
					</Button>
				)}
				{c.state === "reauthorize" && mine && (
					<Button small look="primary" onClick={onConnect}>
						Connect {c.title} again
					</Button>
				)}
				{c.origin === "member" && mine && (
					<Button small look="danger" onClick={onLeave}>
						Disconnect<span className="sr"> {c.title}</span>
					</Button>
				)}
				{c.origin === "account" && workspace.role === "owner" && (
					<Link className="text-small" to="/w/$slug/accounts" params={{ slug: slugOf(workspace) }}>
						See its account
					</Link>
				)}
				{c.connected_at && <span className="n text-small text-ink-3">{since(c.connected_at)}</span>}
			</footer>
		</section>
	);
}

function ConnectionState({ connection: c }: { connection: Connection }) {
	switch (c.state) {
		case "connected":
			return c.origin === "simulated" ? (
				<Tag tone="note">Simulated</Tag>
			) : (
				<Tag tone="live" signal="done">
					Connected
				</Tag>
			);
		case "reauthorize":
			return (
				<Tag tone="stop" signal="failed">
					Connect again
				</Tag>
			);
		case "disabled":
			return <Tag>Off</Tag>;
		case "not_configured":
			return <Tag>Not set up</Tag>;
		default:
			return <Tag>Not connected</Tag>;
	}
}

/** Starts a sign-in at a provider, which goes on in another tab, and notices when it is done. */
function Connect({ connection, onClose }: { connection: Connection; onClose: () => void }) {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const connections = useConnections();
	const { refetch } = connections;
	const start = useMutation({
		mutationFn: () => unwrap(client.api.POST("/api/connections", { body: { provider: connection.provider } })),
	});
	const waiting = start.data !== undefined;
	useEffect(() => {
		if (!waiting) return;
		const t = setInterval(() => void refetch(), 2000);
		return () => clearInterval(t);
	}, [waiting, refetch]);
	const now = connections.data?.find((c) => c.provider === connection.provider);
	const done = now?.state === "connected" && now.origin === "member" && now.connected_at !== connection.connected_at;
	useEffect(() => {
		if (!done) return;
		void queries.invalidateQueries({ queryKey: [workspace.id, "tools"] });
		onClose();
	}, [done, onClose, queries, workspace.id]);
	return (
		<Dialog title={`Connect ${connection.title}`} onClose={onClose}>
			<p className="text-ink-2">{abouts[connection.provider] ?? "Its tools act in the name of the person who connects it."}</p>
			{start.data ? (
				<>
					<p>
						<Outside href={start.data.url}>{`Go on at ${connection.title}`}</Outside>
					</p>
					<p className="text-ink-2">It opens in a new tab. This page notices when you are done there.</p>
					<Waiting until={start.data.expires_at} text="Waiting for you there." />
				</>
			) : (
				<>
					<Refused error={start.error} />
					<div className="flex justify-end gap-2">
						<Button onClick={onClose}>Cancel</Button>
						<Button look="primary" busy={start.isPending} onClick={() => start.mutate()}>
							Connect
						</Button>
					</div>
				</>
			)}
		</Dialog>
	);
}

const changed = (s: Server) => s.tools.filter((t) => t.changed);

function ServerState({ server: s }: { server: Server }) {
	if (s.needs_sign_in)
		return (
			<Tag tone="wait" signal="waiting">
				Sign in
			</Tag>
		);
	if (s.failure)
		return (
			<Tag tone="stop" signal="failed">
				Down{s.down_since && ` ${since(s.down_since)}`}
			</Tag>
		);
	if (changed(s).length > 0)
		return (
			<Tag tone="wait" signal="waiting">
				{changed(s).length} changed
			</Tag>
		);
	return (
		<Tag tone="live" signal="done">
			Up
		</Tag>
	);
}

function ServerRow({ server: s, onOpen }: { server: Server; onOpen: () => void }) {
	return (
		<tr>
			<td>
				<span className={pageCss.pair}>
					<span className="font-mid">{s.name}</span>
					<span className="cut max-w-80">{s.url || "offered by the operator"}</span>
				</span>
			</td>
			<td>
				<ServerState server={s} />
			</td>
			<td className="n" data-right>
				{s.tools.length}
			</td>
			<td className={`${pageCss.wide} n text-small text-ink-3`}>{s.checked_at ? ago(s.checked_at) : "not yet"}</td>
			<td data-right>
				<Button look="quiet" small onClick={onOpen}>
					<span className="sr">{s.name}: </span>Open
					<Icon of={ChevronRight} />
				</Button>
			</td>
		</tr>
	);
}

function AddServer({ onClose, onAdded }: { onClose: () => void; onAdded: (s: Server) => void }) {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const [url, setUrl] = useState("");
	const [name, setName] = useState("");
	const [credential, setCredential] = useState(false);
	const [problems, setProblems] = useState<{ url?: string; name?: string }>({});
	// One server for the dialog, also if an answer is lost and the person presses again.
	const idempotency = useRef(newKey());
	const add = useMutation({
		mutationFn: () =>
			unwrap(
				client.api.POST("/api/mcp-servers", {
					params: { header: { "Idempotency-Key": idempotency.current } },
					body: { name: name.trim(), url: url.trim(), ...(credential ? { credential } : {}) },
				}),
			),
		onSuccess: async (b) => {
			await queries.invalidateQueries({ queryKey: [workspace.id, "mcp"] });
			void queries.invalidateQueries({ queryKey: [workspace.id, "tools"] });
			onAdded(b.mcp_server as Server);
		},
		onError: () => (idempotency.current = newKey()),
	});
	const submit = (e: FormEvent) => {
		e.preventDefault();
		const wrong = {
			...(/^https?:\/\/[^\s/]+/.test(url.trim()) ? {} : { url: "An address begins with https://" }),
			...(/^[a-z][a-z0-9-]{0,27}$/.test(name.trim())
				? {}
				: { name: "At most 28 lower-case letters, digits and dashes, with a letter first, such as tracker." }),
		};
		setProblems(wrong);
		if (Object.keys(wrong).length === 0) add.mutate();
	};
	return (
		<Dialog
			title="Add an MCP server"
			width={520}
			onClose={onClose}
			footer={
				<>
					<Button onClick={onClose}>Cancel</Button>
					<Button type="submit" form="add-server" look="primary" busy={add.isPending}>
						Add server
					</Button>
				</>
			}
		>
			<form id="add-server" className="grid gap-4" onSubmit={submit} noValidate>
				<Field
					label="Address"
					problem={problems.url}
					hint="It is asked for its tools at once. One that is down is added, and asked again later."
				>
					{(c) => (
						<input
							{...c}
							type="url"
							value={url}
							onChange={(e) => setUrl(e.target.value)}
							placeholder="https://"
							maxLength={2048}
							spellCheck={false}
						/>
					)}
				</Field>
				<Field label="Name" problem={problems.name} hint={`Tools are called mcp__${name.trim() || "name"}__…`}>
					{(c) => (
						<input {...c} value={name} onChange={(e) => setName(e.target.value)} maxLength={28} autoComplete="off" spellCheck={false} />
					)}
				</Field>
				<label className="flex items-start gap-2">
					<input type="checkbox" className={css.tick} checked={credential} onChange={(e) => setCredential(e.target.checked)} />
					<span>
						It needs a token, which is the account of the provider <code>mcp-{name.trim() || "name"}</code>
					</span>
				</label>
				<Refused error={add.error} />
			</form>
		</Dialog>
	);
}

/** A server's tools, and what can be done about it. */
function ServerDialog({ server: s, onClose }: { server: Server; onClose: () => void }) {
	const { client, workspace } = useWorkspace();
	const queries = useQueryClient();
	const [removing, setRemoving] = useState(false);
	const owner = workspace.role === "owner";
	const params = { params: { path: { id: s.id } } };
	const refresh = async () => {
		void queries.invalidateQueries({ queryKey: [workspace.id, "tools"] });
		await queries.invalidateQueries({ queryKey: [workspace.id, "mcp"] });
	};
	const test = useMutation({ mutationFn: () => unwrap(client.api.POST("/api/mcp-servers/{id}/test", params)), onSettled: refresh });
	const approve = useMutation({
		mutationFn: (hashes: string[]) => unwrap(client.api.POST("/api/mcp-servers/{id}/approve", { ...params, body: { hashes } })),
		onSettled: refresh,
	});
	const signIn = useMutation({
		mutationFn: () => unwrap(client.api.POST("/api/mcp-servers/{id}/sign-in", { ...params, body: {} })).then((b) => b.login),
	});
	const asked = signIn.data !== undefined && s.needs_sign_in;
	useEffect(() => {
		if (!asked) return;
		const t = setInterval(() => void queries.invalidateQueries({ queryKey: [workspace.id, "mcp"] }), 2000);
		return () => clearInterval(t);
	}, [asked, queries, workspace.id]);
	if (removing)
		return (
			<Confirm
				title={`Remove ${s.name}?`}
				action="Remove"
				onClose={() => setRemoving(false)}
				onConfirm={async () => {
					await unwrap(client.api.DELETE("/api/mcp-servers/{id}", params));
					onClose();
					await refresh();
				}}
			>
				Its {s.tools.length} tools are gone for all sessions, also in runs that are going on.
				{s.credential && " Its account stays, and is removed under Accounts."}
			</Confirm>
		);
	const anew = changed(s);
	return (
		<Dialog
			title={s.name}
			width={640}
			onClose={onClose}
			footer={
				<>
					<Button small busy={test.isPending} onClick={() => test.mutate()}>
						Ask it now
					</Button>
					{owner && !s.operator && (
						<Button small look="danger" onClick={() => setRemoving(true)}>
							Remove
						</Button>
					)}
				</>
			}
		>
			<p className="flex flex-wrap items-center gap-2 text-small text-ink-2">
				<ServerState server={s} />
				<span>{s.url || "Offered by the operator"}</span>
				<span className="n text-ink-3">{s.checked_at ? `asked ${ago(s.checked_at)}` : "not asked yet"}</span>
			</p>
			{s.failure && <p className="text-stop">{sentence(s.failure)}</p>}
			<Refused error={test.error ?? approve.error ?? signIn.error} />
			{s.needs_sign_in &&
				(asked && signIn.data ? (
					<>
						<p>
							<Outside href={signIn.data.url}>{`Go on at ${new URL(signIn.data.url).host}`}</Outside>
						</p>
						<Waiting until={signIn.data.expires_at} text="Waiting for you there." />
					</>
				) : owner ? (
					<div>
						<Button look="primary" busy={signIn.isPending} onClick={() => signIn.mutate()}>
							Sign in to {s.name}
						</Button>
					</div>
				) : (
					<p className="text-ink-2">An owner has to sign in to it.</p>
				))}
			{anew.length > 0 && (
				<div className={css.changed}>
					<p className="flex-1">
						<b className="font-mid">{anew.length === 1 ? "One definition" : `${anew.length} definitions`} changed since approval.</b> Read
						what they say now; agents cannot use them until you approve.
					</p>
					<Button small look="primary" busy={approve.isPending} onClick={() => approve.mutate(anew.map((t) => t.hash))}>
						Approve {anew.length === 1 ? "it" : `all ${anew.length}`}
					</Button>
				</div>
			)}
			{s.tools.length === 0 ? (
				<p className="text-ink-2">No tool is known of it yet.</p>
			) : (
				<ul className={css.tools} tabIndex={0} aria-label={`Tools of ${s.name}`}>
					{[...anew, ...s.tools.filter((t) => !t.changed)].map((t) => (
						<li key={t.name}>
							<p className="flex flex-wrap items-center gap-2">
								<span className="font-mid" title={t.name}>
									{t.original_name}
								</span>
								{t.changed ? (
									<>
										<Tag tone="wait" signal="waiting">
											Changed
										</Tag>
										<span className="flex-1" />
										<Button small disabled={approve.isPending} onClick={() => approve.mutate([t.hash])}>
											Approve<span className="sr"> {t.original_name}</span>
										</Button>
									</>
								) : (
									t.unavailable_reason && <Tag>Unavailable</Tag>
								)}
							</p>
							<p className="text-small text-ink-2">{t.description || "It says nothing about itself."}</p>
							{t.unavailable_reason && !t.changed && <p className="text-small text-ink-3">{sentence(t.unavailable_reason)}</p>}
						</li>
					))}
				</ul>
			)}
		</Dialog>
	);
}

/** All tools that sessions can have, and why some cannot be used now. */
function Tools() {
	const tools = useTools();
	return (
		<section className="mt-8">
			<h2 className="mb-3 text-h3 font-bold">Tools</h2>
			<Loaded query={tools}>
				{(all) => (
					<>
						<p className="mb-3 text-small text-ink-2">
							<span className="n">{all.filter((t) => t.available).length}</span> of <span className="n">{all.length}</span> can be used now.
						</p>
						<Table label="Tools" head={["Tool", "Now", ["Asks before", "wide"], ["From", "wide"]]}>
							{[...all]
								.sort(
									(a, b) => Number(a.available) - Number(b.available) || a.source.localeCompare(b.source) || a.name.localeCompare(b.name),
								)
								.map((t) => (
									<tr key={t.name}>
										<td className="font-mid" title={t.name}>
											{toolWords(t.name)}
										</td>
										<td className="text-small">
											{t.available ? (
												<span className="text-ink-2">Ready</span>
											) : (
												<span className="flex items-start gap-2">
													<Tag>Unavailable</Tag>
													<span className="text-ink-2">{sentence(t.unavailable_reason ?? "")}</span>
												</span>
											)}
										</td>
										<td className={`${pageCss.wide} text-small text-ink-2`}>{t.needs_approval ? "each call" : "never"}</td>
										<td className={`${pageCss.wide} text-small text-ink-2`}>
											{t.source === "built-in"
												? "Signalbox"
												: t.source === "provider"
													? "the model’s provider"
													: providerName(`mcp-${t.source}`)}
										</td>
									</tr>
								))}
						</Table>
					</>
				)}
			</Loaded>
		</section>
	);
}
