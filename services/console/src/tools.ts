import type { Schemas } from "@signalbox/client";
import { useQuery } from "@tanstack/react-query";
import { unwrap, useWorkspace } from "./client.ts";

/** The tools that sessions can have, with those that cannot be used now and why. */
export function useTools() {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "tools"],
		queryFn: () => unwrap(client.api.GET("/api/tools")).then((b) => b.tools as Schemas["Tool"][]),
	});
}
