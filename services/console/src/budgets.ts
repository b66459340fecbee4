import type { Schemas } from "@signalbox/client";
import { useQuery } from "@tanstack/react-query";
import { unwrap, useWorkspace } from "./client.ts";

/** The workspace's budgets, with what is spent of them. */
export function useBudgets() {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "budgets"],
		queryFn: () => unwrap(client.api.GET("/api/budgets")).then((b) => b.budgets as Schemas["Budget"][]),
		refetchInterval: 60_000,
	});
}
