import type { Schemas } from "@signalbox/client";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { unwrap, useWorkspace } from "../client.ts";
import { ago, sentence, since } from "../words.ts";
import { Button, Tag } from "./controls.tsx";
import { Confirm, Dialog } from "./Dialog.tsx";
import { Outside, Waiting } from "./Elsewhere.tsx";
import { Refused } from "./page.tsx";
import css from "./Server.module.css";

export type Server = Schemas["McpServer"];

/** The workspace's MCP servers. `every` is how often they are asked for again, in ms. */
export function useServers(every?: number) {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "mcp"],
		queryFn: () => unwrap(client.api.GET("/api/mcp-servers")).then((b) => b.mcp_servers as Server[]),
		...(every === undefined ? {} : { refetchInterval: every }),
	});
}

/** The tools whose definition is not the approved one. */
export const changed = (s: Server) => s.tools.filter((t) => t.changed);

export function ServerState({ server: s }: { server: Server }) {
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

/** A server's tools, and what can be done about it. */
export function ServerDialog({ server: s, onClose }: { server: Server; onClose: () => void }) {
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
