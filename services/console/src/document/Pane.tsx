import { useQuery } from "@tanstack/react-query";
import { CatchBoundary } from "@tanstack/react-router";
import { lazy, Suspense } from "react";
import { meQuery, useWorkspace } from "../client.ts";
import { Failed } from "../routes/failed.tsx";

const Document = lazy(() => import("./Document.tsx"));

/** Who is signed in. */
export const useMe = () => useQuery(meQuery);

/** A document's editor, whose code is fetched when there is one to show. */
export function DocumentPane({ id }: { id: string }) {
	const { workspace } = useWorkspace();
	const me = useMe().data;
	if (!me) return null;
	return (
		<CatchBoundary getResetKey={() => id} errorComponent={({ error }) => <Failed error={error as Error} heading="h2" />}>
			<Suspense
				fallback={
					<p className="sr" role="status">
						Loading the document
					</p>
				}
			>
				<Document
					id={id}
					me={{ id: me.member_id, name: me.name || me.email || `Member ${me.member_id.slice(-4)}` }}
					readOnly={workspace.role === "viewer"}
				/>
			</Suspense>
		</CatchBoundary>
	);
}
