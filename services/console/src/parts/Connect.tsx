import type { Schemas } from "@signalbox/client";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { unwrap, useWorkspace } from "../client.ts";
import { Button } from "./controls.tsx";
import { Dialog } from "./Dialog.tsx";
import { Outside, Waiting } from "./Elsewhere.tsx";
import { Refused } from "./page.tsx";

export type Connection = Schemas["Connection"];

/** The services that tools may reach. `every` is how often they are asked for again, in ms. */
export function useConnections(every?: number) {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "connections"],
		queryFn: () => unwrap(client.api.GET("/api/connections")).then((b) => b.connections as Connection[]),
		...(every === undefined ? {} : { refetchInterval: every }),
	});
}

/** What agents do with a service, by its provider. */
export const abouts: Record<string, string> = {
	google: "Calendar and tasks: agents read them, and change them after approval.",
	notion: "Pages: agents search and read them, and append to them after approval.",
	github: "One research repository, which agents look things up in. They only read.",
};

/** Starts a sign-in at a provider, which goes on in another tab, and notices when it is done. */
export function Connect({ connection, onClose }: { connection: Connection; onClose: () => void }) {
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
