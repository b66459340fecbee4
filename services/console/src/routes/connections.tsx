import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { ChevronRight, Plus } from "lucide-react";
import { type FormEvent, useRef, useState } from "react";
import { slugOf, unwrap, useWorkspace } from "../client.ts";
import { newKey } from "../insecure.ts";
import { abouts, Connect, type Connection, useConnections } from "../parts/Connect.tsx";
import { Button, Icon, Tag } from "../parts/controls.tsx";
import { Confirm, Dialog } from "../parts/Dialog.tsx";
import { Field, Loaded, Page, pageCss, Refused, Table } from "../parts/page.tsx";
import { type Server, ServerDialog, ServerState, useServers } from "../parts/Server.tsx";
import { usePeople } from "../people.ts";
import { useTools } from "../tools.ts";
import { ago, providerName, sentence, since, toolWords } from "../words.ts";
import css from "./connections.module.css";

/** What tools may reach on the workspace's behalf. */
export function ConnectionsPage() {
	const { client, workspace } = useWorkspace();
	const connections = useConnections(15_000);
	const servers = useServers(15_000);
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
