import type { Schemas } from "@signalbox/client";
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { allPages, unwrap, useWorkspace } from "./client.ts";
import { useMe } from "./document/Pane.tsx";

/** The members of the workspace, and what to call each of them. */
export function usePeople() {
	const { client, workspace } = useWorkspace();
	const me = useMe().data?.member_id;
	const members = useQuery({
		queryKey: [workspace.id, "members"],
		queryFn: ({ signal }) =>
			allPages(signal, (query, signal) =>
				unwrap(client.api.GET("/api/workspaces/{id}/members", { params: { path: { id: workspace.id }, query }, signal })),
			).then((pages) => pages.flatMap((p) => p.members as Schemas["Member"][])),
		staleTime: 300_000,
	});
	const nameOf = useMemo(() => {
		const known = new Map(members.data?.map((m) => [m.member_id, m.name || m.email]));
		return (id: string | null | undefined): string => (!id ? "Signalbox" : id === me ? "You" : known.get(id) || `Member ${id.slice(-4)}`);
	}, [members.data, me]);
	return { members, me, nameOf };
}
